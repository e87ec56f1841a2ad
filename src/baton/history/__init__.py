"""Keep the audit log of each job: append, read, verify.

It records what the registry has decided. It never changes a job."""
