"""Turn events into bytes and back: canonical form, signature, strict parsing.

It does no I/O and decides nothing about a job."""
