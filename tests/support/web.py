"""The web board as a user starts it, jobs for it to show, and a real Chromium that looks at it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from baton.core.clock import SECOND_NS, SystemClock, format_time
from baton.core.request import Answer as Decision
from baton.core.signal import Asked
from baton.jobs import requests
from baton.jobs.output import OutputWriter
from baton.jobs.verbs import open_jobs
from baton.storage.homes import load_settings
from support.command import BATON
from support.ports import free_port
from support.waiting import poll, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars",
)  # fmt: skip


class User:
    """A user with folders, each of which has a home of its own."""

    def __init__(self, root) -> None:
        self.root = str(root)
        self.env = {
            "PATH": os.environ["PATH"], "HOME": self.root, "LANG": "C.UTF-8",
            "BATON_STATE_DIR": os.path.join(self.root, "state"),
        }  # fmt: skip

    def settings(self, name: str):
        folder = os.path.join(self.root, name)
        os.makedirs(folder, exist_ok=True)
        return load_settings(env=self.env, here=folder)

    def jobs(self, name: str):
        return open_jobs(self.settings(name))

    def write_output(self, name: str, job, text: str) -> None:
        """Append to what the agent of a job printed."""
        writer = OutputWriter(self.settings(name).home, job, 10**6, ())
        writer.write(text.encode())
        writer.flush()


def start(jobs, prompt: str, **fields):
    job = jobs.register_job(prompt, **fields)
    return jobs.pick_job(job.job_id, lease_sec=3600)


def ask(jobs, job, call: Any, tool: str = "Bash", **more):
    kind = more.pop("kind", "tool")
    return requests.ask(jobs, job, Asked(key=os.urandom(4).hex(), kind=kind, tool=tool, call=call, **more))


def set_activity(jobs, job, kind: str, cause: str = "", *, ago_sec: float = 0) -> None:
    since = format_time(time.time_ns() - int(ago_sec * SECOND_NS))
    jobs.registry.set_activity(
        job.job_id, {"kind": kind, "since": since, "cause": cause}, attempt=job.attempt, lease_sec=3600
    )


class WebBoard:
    """A running `baton web`."""

    def __init__(self, user: User, *options: str, port: int | None = None) -> None:
        self.user = user
        self.port = port or free_port()
        self.options = options
        self.cookie, self.place = "", "none"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [BATON, "web", "--port", str(self.port), *self.options],
            cwd=self.user.root, env=self.user.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address, self.process.stderr.read() if self.process.stderr else ""

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> str:
        """End the server; return what it wrote to standard error."""
        self.process.terminate()
        return self.process.communicate(timeout=20)[1]

    @property
    def token(self) -> str:
        return self.address.partition("#token=")[2]

    def new_token(self) -> str:
        done = subprocess.run(
            [BATON, "web", "token", "--port", str(self.port)],
            cwd=self.user.root, env=self.user.env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip().partition("#token=")[2]

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def api(self, path: str, place: str | None = None) -> str:
        """Return a path such as `/api/board` as the page asks for it after its login."""
        begin, _, rest = path.partition("/api/")
        where = self.place if place is None else place
        return path if begin or not rest or rest == "login" else f"/api/{where}/{rest}"

    def call(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        raw: bytes | None = None,
        place: str | None = None,
        **headers: str | None,
    ) -> Answer:
        """Send a request as the page sends it. `headers` change it: a name with underscores, None leaves it out."""
        sent: dict[str, str | None] = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie or None}
        content = raw
        if body is not None or raw is not None:
            content = raw if raw is not None else json.dumps(body).encode()
            sent |= {"Origin": self.origin, "Content-Type": "application/json", "X-Baton": "1"}
            sent["Content-Length"] = str(len(content))
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        path = self.api(path, place)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(
                method or ("GET" if content is None else "POST"), path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(content)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def sign_in(self, token: str | None = None) -> None:
        answer = self.call("/api/login", {"token": token or self.token})
        assert answer.status == 200, answer
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        self.place = answer.json["place"]


class Answer:
    def __init__(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.status = status
        self.headers = headers
        self.content = content

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    def __repr__(self) -> str:
        return f"<{self.status} {self.headers} {self.content[:500]!r}>"


@contextmanager
def chromium(*more: str, width: int = 1440, height: int = 900) -> Iterator[Any]:
    """A new browser with a new profile."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program, "chromium is not installed: `make system-packages`"
    assert driver, "chromedriver is not installed: `make system-packages`"
    profile = tempfile.mkdtemp(prefix="baton-chromium-")
    options = ChromeOptions()
    options.binary_location = program
    for flag in (*_FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}", *more):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = Chrome(options=options, service=Service(driver))
    try:
        yield browser
    finally:
        browser.quit()
        shutil.rmtree(profile, ignore_errors=True)


def script(browser, code, *arguments):
    return browser.execute_script(code, *arguments)


def wait_still(browser):
    """Wait until the list has not moved for so long that the page takes an answer."""
    wait_until(lambda: script(browser, "return performance.now() - movedAt > STILL_MS"), "a list that stands still")


def answer(browser, button, selector, is_done):
    """Tap a button of a request. The page sends nothing right after the list moved: then tap again, as a person does."""

    def tapped():
        if is_done():
            return True
        wait_still(browser)
        tap = "const b = [...document.querySelectorAll(arguments[1] + ' button')].find(e => e.innerText === arguments[0]);"
        script(browser, tap + "if (b && !b.disabled) b.click()", button, selector)
        return poll(is_done, 1.0)

    wait_until(tapped, f"{button} of {selector}")


def set_width(browser: Any, width: int, height: int = 900, *, dark: bool = False) -> None:
    """Show the page as on a screen of this size, in light or dark colours."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


class Earlier(SystemClock):
    """A clock that is this many seconds behind: jobs of the past for a picture."""

    ago_sec = 0.0

    def wall_ns(self) -> int:
        return super().wall_ns() - int(self.ago_sec * SECOND_NS)


def fill(user: User) -> dict[str, Any]:
    """Make jobs in each state, with texts as people write them, and return some of them by name."""
    made: dict[str, Any] = {}
    clock = Earlier()
    with user.jobs("shop") as shop, user.jobs("docs") as docs, user.jobs("infra") as infra:
        for jobs in (shop, docs, infra):
            jobs.clock = jobs.registry._clock = clock
        failed = _fill_ended(shop, clock)
        clock.ago_sec = 300
        job = start(shop, "Update the payment library to version 4 and fix what breaks", agent="claude-code",
                    title="Update the payment library")  # fmt: skip
        clock.ago_sec = 140
        made["approve"] = job, ask(shop, job, {"command": "npm install payments@4 && npm test", "timeout": 120000})
        job = start(infra, "Remove the old staging database", agent="codex", title="Clean up staging")
        clock.ago_sec = 75
        made["deny"] = job, ask(infra, job, {"command": "dropdb --if-exists staging_2025\npsql -c 'VACUUM FULL'"})
        job = start(docs, "Rewrite the tutorial", agent="claude-code", title="Rewrite the tutorial for version 2")
        question = {"question": "Which audience is the tutorial for?", "choices": ["Beginners", "Administrators"],
                    "several": False}  # fmt: skip
        clock.ago_sec = 12
        made["question"] = job, ask(docs, job, {}, "AskUserQuestion", kind="question", options=(question,))
        stalled = start(infra, "Renew the certificates", agent="codex", title="Renew the certificates")
        set_activity(infra, stalled, "stalled", "no sign of work for 9 minutes", ago_sec=540)
        limited = start(docs, "Translate the manual into German", agent="claude-code", title="Translate the manual")
        set_activity(docs, limited, "limited", "usage limit, resets at 17:00", ago_sec=1800)
        live = start(shop, "Speed up the search page: it takes 4 s with 100,000 products", agent="claude-code",
                     title="Speed up the search page", labels=["search"])  # fmt: skip
        set_activity(shop, live, "working", "Bash: pytest tests/search", ago_sec=42)
        user.write_output("shop", live, "● Reading src/search/index.py\n● Running pytest tests/search\n"
                          "  12 passed in 3.41s\n● The slow part is the join in rank(): I add an index.\n")  # fmt: skip
        shop.record_event(live.job_id, "progress", detail="reads src/search/index.py", attempt=1)
        made["live"] = live
        working = (("Check the links of all pages", "codex", "shell: make linkcheck"),
                   ("Describe the new API", "opencode", "the model is at work"),
                   ("Sort the changelog", "qwen", "edit: CHANGELOG.md"))  # fmt: skip
        for number, (title, agent, doing) in enumerate(working):
            set_activity(docs, start(docs, title, agent=agent, title=title), "working", doing, ago_sec=60 * number + 15)
        for title in ("Rotate the log files", "Raise the limit of open files", "Document the backup"):
            infra.register_job(title, agent="claude-code", title=title)
        cancelled = infra.register_job("Move to another region", agent="codex", title="Move to another region")
        infra.update_status(cancelled.job_id, "cancelled")
        made["pending"] = infra.register_job("Compare three cloud prices", agent="codex", title="Compare cloud prices")
        spent = ((0.42, shop, failed), (1.87, shop, live), (0.95, infra, stalled), (2.6, docs, limited))
        for day, (cost, jobs, job) in enumerate(spent):
            at = format_time(time.time_ns() - (3 - day) * 86400 * SECOND_NS)
            jobs.registry.note_usage(job.job_id, {
                "attempt": 1, "input_tokens": 52_000, "cached_tokens": 40_000, "cache_write_tokens": 900,
                "output_tokens": 4_100, "cost_usd": cost, "at": at})  # fmt: skip
    return made


def _fill_ended(shop: Any, clock: Earlier) -> Any:
    """Make jobs that have ended a while ago; return one that asked, worked for long and failed."""
    clock.ago_sec = 2480
    queued = shop.register_job("Find the memory leak in the worker", agent="gemini", title="Find the memory leak")
    clock.ago_sec = 2300
    failed = shop.pick_job(queued.job_id, lease_sec=3600)
    for ago_sec, detail in ((2290, "read_file: worker/pool.py"), (2180, "run_shell_command: pytest tests/worker"),
                            (1950, "grep: cache"), (1700, "read_file: worker/cache.py")):  # fmt: skip
        clock.ago_sec = ago_sec
        shop.record_event(failed.job_id, "progress", detail=detail, attempt=1)
    clock.ago_sec = 1650
    asked = ask(shop, failed, {"command": "pip install memray"}, "run_shell_command")
    clock.ago_sec = 1310
    requests.answer(shop, asked.request_id, Decision(answer="allow", by="you", via="web"))
    for ago_sec, detail in ((1290, "run_shell_command: memray run worker"), (980, "write_file: worker/cache.py"),
                            (760, "run_shell_command: pytest tests/worker")):  # fmt: skip
        clock.ago_sec = ago_sec
        shop.record_event(failed.job_id, "progress", detail=detail, attempt=1)
    clock.ago_sec = 700
    shop.update_status(failed.job_id, "error", reason="the model service answered 529, try 10 of 10")
    for ago_sec, title in ((1500, "Write tests for the tax rules"), (400, "Add a dark theme to the checkout page")):
        clock.ago_sec = ago_sec
        shop.update_status(start(shop, title, agent="claude-code", title=title).job_id, "completed")
    return failed
