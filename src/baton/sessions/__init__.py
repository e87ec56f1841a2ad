"""Run agents in tmux: create, watch, stop and resume sessions.

The runner in the pane owns the agent and reports for it.
Nothing here chooses which job runs: that is the task of delegation."""
