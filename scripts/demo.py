"""`make demo`: a tour of the registry, with the real command, in a folder of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time

BIN = os.path.dirname(os.path.abspath(sys.executable))
FOLDER = tempfile.TemporaryDirectory(prefix="baton-demo-")
_tty = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if _tty else f"\n# {text}", flush=True)


def run(command: str, *, code: int = 0) -> str:
    """Shows a command, runs it in the demo's folder, and insists on its exit code."""
    print(f"$ {command}", flush=True)
    done = subprocess.run(shlex.split(command), cwd=FOLDER.name, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode != code:
        sys.exit(f"demo: expected exit code {code}, got {done.returncode}")
    if code:
        print(f"(exit code {code})", flush=True)
    return done.stdout.strip()


def main() -> None:
    os.environ["PATH"] = BIN + os.pathsep + os.environ["PATH"]
    for name in [name for name in os.environ if name.startswith("BATON_")]:
        del os.environ[name]
    with FOLDER as folder:
        say("Hand in three pieces of work; the urgent one goes to the front")
        run("baton register 'Translate the README into Korean' --max-attempts 2")
        run("baton register 'Write ten sorting exercises' --expect exercises.md")
        urgent = run("baton register 'Fix the failing build' --priority 10")
        run("baton list")

        say("An agent takes the next one; nobody else can get it")
        run("baton pick --lease 60")
        run(f"baton status {urgent}")

        say("It finishes; that can never change again")
        run(f"baton status {urgent} --set completed")
        run(f"baton status {urgent} --set error", code=1)

        say("Another agent takes a job and dies; when its lease is over, the job is back")
        lost = run("baton pick --lease 0.2")
        time.sleep(0.3)
        run("baton registry rescue")
        run(f"baton status {lost}")

        say("What happened to a job, and proof that nobody edited the record")
        run(f"baton logs {urgent}")
        run(f"baton logs {urgent} --verify")
        say("Somebody edits the log ...")
        path = f"{folder}/.hermes/delegate_job_logs/{urgent}/events.ndjson"
        with open(path, "rb") as log:
            content = log.read()
        with open(path, "wb") as log:
            log.write(content.replace(b"completed", b"cancelled"))
        run(f"baton logs {urgent} --verify", code=1)

        say("The same jobs as plain files, and back; nothing is lost on the way")
        run("baton registry migrate --to file:.hermes/jobs")
        run("baton registry migrate --to sqlite:.hermes/jobs/registry.db")
        run("baton registry stats")

    say("Now in your own folder (the demo's is gone)")
    activate = os.path.join(os.path.relpath(BIN), "activate")
    print(f"  . {activate}\n  baton register 'Write the tests for the parser'\n  baton list\n  baton doctor")


main()
