"""Carry what an agent says to its runner, and answers back to it: one module for each way in which agents talk.

A channel turns bytes into signals (`baton.core.signal`) and writes to no store: what a signal means is decided by
`baton.core.activity`, what is done about it by the runner."""
