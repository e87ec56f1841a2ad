"""Bytes and events, no I/O: the canonical form of a payload and its signature."""
