"""Agents in tmux: created, watched, stopped, brought back."""
