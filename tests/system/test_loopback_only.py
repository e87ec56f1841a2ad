"""The real agent programs run in a network that has nothing but loopback, or the first line says that they do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "loopback-only"
INTERFACES = (sys.executable, "-c", "import socket; print(*sorted(name for _, name in socket.if_nameindex()))")


def lines_of(**env):
    done = subprocess.run([SCRIPT, *INTERFACES], env=os.environ | env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_there_is_no_other_network_or_the_first_line_says_so():
    *before, interfaces = lines_of()
    assert before or interfaces == "lo"
    assert all(line.startswith("NOT ALONE: ") for line in before)


def test_a_system_that_allows_no_network_of_its_own_is_named_first(tmp_path):
    refused = tmp_path / "unshare"
    refused.write_text("#!/bin/sh\necho 'Operation not permitted' >&2\nexit 1\n")
    refused.chmod(0o755)
    said, interfaces = lines_of(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert said.startswith("NOT ALONE: this system allows no network of its own (Operation not permitted)")
    assert "lo" in interfaces.split()
