"""Give each attempt at a job a git worktree, and bring its work back: make, list, compare, merge, save, remove.

Nothing here runs a program that a repository names, and nothing removes work that is found nowhere else. This package
knows git and the folder of worktrees, not the registry, tmux or the wire."""
