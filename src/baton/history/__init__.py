"""Keep the audit log of each job: append, read, verify.

It records what the registry has decided. It never changes a job.

    <logs>/<job_id>/
      meta.json       the record at registration, secrets hidden
      events.ndjson   append-only, one object a line, with its number `n` and `prev`, the SHA-256 of the line before
      status.json     the current status, and number and hash of the last line, so that a cut log is noticed

The chain reveals every line that was changed by accident or by hand. It does not stop a user who can write these files
from rebuilding the whole chain."""
