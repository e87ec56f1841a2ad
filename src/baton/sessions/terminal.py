"""Share the terminal of a pane between the runner and its agent."""

import os
import signal
import termios

from baton.core.fields import one_line


def give_terminal(group: int | None = None) -> None:
    """Make a process group, or the caller's, the foreground group of the terminal, if there is one."""
    # The kernel stops a background process that does this, unless it blocks the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(0, os.getpgrp() if group is None else group)
    except OSError:
        pass  # there is no terminal
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})


def has_terminal(group: int) -> bool:
    """Return whether this is the foreground group."""
    try:
        return os.tcgetpgrp(0) == group
    except OSError:
        return False


def disable_flow_control() -> None:
    """Turn off Ctrl-S: it would block every process that prints in the pane, the runner too."""
    try:
        settings = termios.tcgetattr(0)
        settings[0] &= ~termios.IXON
        termios.tcsetattr(0, termios.TCSANOW, settings)
    except (termios.error, OSError):
        pass  # there is no terminal


def continue_if_suspended(pid: int) -> None:
    """Continue an agent that Ctrl-Z, or reading the terminal too early, has suspended: no shell does it here."""
    try:
        stopped = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
    except ChildProcessError:
        return  # it has ended
    if stopped is not None and stopped.si_status in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        os.killpg(pid, signal.SIGCONT)


def print_line(text: str) -> None:
    """Print a text as one safe line on the pane."""
    try:
        print(one_line(text), flush=True)
    except OSError:
        pass  # the pane is closed
