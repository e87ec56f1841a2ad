"""Parse the command line, call a service and print the result: one module for each noun.

No module here writes to a store."""
