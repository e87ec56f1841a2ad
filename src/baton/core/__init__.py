"""Hold the rules and values of baton: errors, clocks, fields, jobs, events, the lifecycle.

Everything here is pure: no module opens a file, a socket or a process, and none imports another package of baton."""
