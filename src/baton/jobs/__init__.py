"""Carry out the verbs on jobs: each registry change together with its line in the history.

This is the only package that writes to the registry on behalf of a command, a runner or the monitor.
It does not know the wire."""
