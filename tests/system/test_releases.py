"""Which release of an agent's program runs: found out once, recorded for each attempt, said where it was not tested.

The programs are stand-ins, and the command, tmux and the runner are real."""

from __future__ import annotations

import json
import os
import sys

import pytest

from baton.adapters import find_agent
from baton.config import Settings
from support import opencode_program
from support.sessions import SessionDesk
from support.waiting import wait_until

TESTED = find_agent(Settings(env={}), "opencode").tested_version
# Each start is a line of starts.txt.
OPENCODE = f"""#!{sys.executable}
import os, sys
with open(os.path.join({{folder!r}}, "starts.txt"), "a") as file:
    print(*sys.argv[1:2], file=file)
if sys.argv[1:] == ["--version"]:
    {{version}}
    sys.exit(0)
os.execv(sys.executable, [sys.executable, {opencode_program.__file__!r}, *sys.argv[1:]])
"""
# What answers where the routes of release 1 were.
PAGES = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        content = b"<!doctype html><title>OpenCode</title>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    do_POST = do_GET
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
print(f"opencode server listening on http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
"""
SILENT = "import time\ntime.sleep(600)\n"


class Desk(SessionDesk):
    def install(self, version: str, *, serve: str = "") -> None:
        """Install a release of opencode, as a package manager does. `version` is what runs for `--version`."""
        package = self.folder / "node_modules" / "opencode-ai"
        (package / "bin").mkdir(parents=True, exist_ok=True)
        program = package / "bin" / "opencode"
        text = OPENCODE.format(folder=str(self.folder), version=version)
        program.write_text(text.partition("os.execv")[0] + serve if serve else text)
        program.chmod(0o755)
        (package / "package.json").write_text(json.dumps({"bin": {"opencode": "./bin/opencode"}}))
        (self.folder / "bin").mkdir(exist_ok=True)
        link = self.folder / "bin" / "opencode"
        link.unlink(missing_ok=True)
        link.symlink_to(program)
        self.env["PATH"] = f"{link.parent}:{os.environ['PATH']}"

    def starts(self, what: str) -> int:
        path = self.folder / "starts.txt"
        return path.read_text().split().count(what) if path.exists() else 0

    def work(self, *options: str, prompt: str = "say", **more):
        return self("submit", "--agent", "opencode", "--headless", *options, prompt, **more)

    def newest(self) -> dict:
        return self("list", "--json").json[0]


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def prints(release: str) -> str:
    return f"print('opencode {release}')"


def test_each_attempt_names_its_release_and_a_program_is_asked_once(desk):
    desk.install(prints(TESTED))
    first = desk.work("--detach").text
    wait_until(lambda: desk("get", first).json["agent_version"])
    assert desk("wait", first).code == 0
    assert "not tested" not in desk.work().err
    assert desk.starts("--version") == 1
    record = desk.newest()
    assert (record["agent_version"], record["agent_mode"], record["model"]) == (TESTED, None, None)
    assert record["agent_runs"] == [{"attempt": 1, "agent_version": TESTED, "agent_mode": None, "model": None}]
    explained = desk("explain", record["job_id"])
    assert f"agent     opencode {TESTED}\n" in explained.out
    assert desk("explain", record["job_id"], "--json").json["agent_version"] == TESTED


def test_a_release_that_was_not_tested_is_said_once(desk):
    desk.install(prints("1.99.0"))
    note = f"baton: note: opencode 1.99.0 was not tested with this release of baton, which was tested with {TESTED}\n"
    first = desk.work()
    assert first.err.count(note) == 1
    assert "not tested" not in desk.work().err
    desk.install(prints("1.99.1"))
    assert "opencode 1.99.1 was not tested" in desk.work().err, "another release"
    assert desk.starts("--version") == 2


def test_a_program_that_does_not_say_its_release_delays_and_fails_no_job(desk):
    desk.install("import time; time.sleep(600)")
    done = desk.work("--json")
    assert (done.code, "not tested" in done.err) == (0, False)
    record = desk.newest()
    assert (record["status"], record["agent_version"]) == ("completed", None)


@pytest.mark.parametrize(("release", "serve"), [("2.0.3", PAGES), ("10.0.0", SILENT)], ids=["pages", "silent"])
def test_another_major_version_of_opencode_is_refused_in_one_line(desk, release, serve):
    desk.install(prints(release), serve=serve)
    refused = f"opencode {release} is another major version than baton can work with: npm install -g opencode-ai@1"
    first = desk.work(code=1)
    assert "Traceback" not in first.err
    record = desk.newest()
    assert (record["status"], record["ended_by"]) == ("error", "refused")
    assert refused in record["reason"]
    before = desk.starts("serve")
    assert before <= 1, "it may be known before the server has begun"
    desk.work(code=1)
    assert desk.starts("serve") == before, "it is known by now: its server is not started"
    assert (desk.starts("--version"), len(desk.processes())) == (1, 0)


def test_an_opencode_that_answers_with_pages_is_refused_though_it_does_not_say_its_release(desk):
    desk.install("pass", serve=PAGES)
    desk.work(code=1)
    assert "something that is no JSON, as other major versions than 1 answer" in desk.newest()["reason"]
