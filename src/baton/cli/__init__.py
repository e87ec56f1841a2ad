"""The command line: what people and agents type."""
