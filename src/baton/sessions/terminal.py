"""The terminal of a pane, which a runner shares with its agent: who has it, and what it must not do to either."""

from __future__ import annotations

import os
import signal
import termios


def give_terminal(group: int) -> None:
    """Makes a process group the one that reads what is typed, where there is a terminal."""
    # Whoever gives the terminal away from the background is stopped for it, unless the signal is blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(0, group)
    except OSError:
        pass  # nobody is there to type
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})


def take_terminal() -> None:
    """For a child, before it is the agent: what reads from there in the background may get an error."""
    give_terminal(os.getpgrp())


def has_terminal(group: int) -> bool:
    try:
        return os.tcgetpgrp(0) == group
    except OSError:
        return False


def without_flow_control() -> None:
    """Ctrl-S in the pane would stop whoever prints there, the runner included."""
    try:
        settings = termios.tcgetattr(0)
        settings[0] &= ~termios.IXON
        termios.tcsetattr(0, termios.TCSANOW, settings)
    except (termios.error, OSError):
        pass  # no terminal


def continue_if_suspended(pid: int) -> None:
    """There is no shell here to bring a suspended agent back: Ctrl-Z, or a glance at the terminal before the agent had
    it, must not leave it stopped for ever."""
    try:
        stopped = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
    except ChildProcessError:
        return  # it has ended
    if stopped is not None and stopped.si_status in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        os.killpg(pid, signal.SIGCONT)
