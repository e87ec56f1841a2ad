"""Make bytes survive: private files, locks and durable replacement, SQLite files, connections to PostgreSQL.

It knows nothing of jobs, events or sessions."""
