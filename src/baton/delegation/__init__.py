"""See jobs through to their end: submit, worker, monitor.

It uses sessions and jobs, and prints nothing."""
