from __future__ import annotations

import gc
import os
import signal

import pytest

from support import as_root
from support.backends import BACKENDS, clocked_registry, registry_url
from support.brokers import Broker
from support.clock import FakeClock
from support.postgres import PostgresServer
from support.processes import processes_with
from support.sessions import SessionDesk
from support.tmux import TmuxServer
from support.waiting import poll


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="the full size of each guarantee: minutes, not seconds")
    parser.addoption("--seed", type=int, default=None, help="run the random tests again with this seed")


@pytest.fixture
def figure(request):
    """Notes what a guarantee held at, for the table at the end, and fails the test when it did not hold."""

    def note(name: str, text: str, *, held: bool, seed: int = 0) -> None:
        again = f"  [--seed {seed}]" if seed else ""
        line = f"{name}: {text} ({'held' if held else 'broken'}){again}"
        request.node.user_properties.append(("figure", line))
        assert held, line

    return note


def pytest_configure(config):
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        _let_children_have_default_signals()
    config.addinivalue_line(
        "markers", f"{as_root.MARK}: needs what only root may do; an ordinary user gets a namespace"
    )
    if not hasattr(config, "workerinput"):  # of several processes, the one that prints
        config.pluginmanager.register(_Figures(config))
        config.pluginmanager.register(_NotProved())


def pytest_collection_modifyitems(config, items):
    as_root.replace_tests(items)
    # At full size, `--timeout` holds for every test: what a test takes then depends on what else the machine does.
    if config.getoption("--full"):
        for item in items:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "timeout"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Root, and CI, can run every test: a skipped one is a failure there."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and (os.geteuid() == 0 or os.environ.get("CI")):
        report.outcome, report.longrepr = "failed", f"skipped, but nothing is left out here: {report.longrepr[2]}"
    return report


def pytest_collection_finish():
    gc.freeze()  # thousands of tests are there to stay: a collection need not look at them again


def _let_children_have_default_signals() -> None:
    """Under nohup, or in the background of a script, the tests are started with these signals ignored, and every
    program that they start would ignore them, too. exec resets a handler, so a handler that does nothing is put in
    place: the tests go on ignoring the signal, and programs that they start get the default."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


class _Figures:
    """At full size, which takes long, each figure and each failure is printed when it is there; always, at the end. A
    test that failed held nothing, whatever its figure says."""

    def __init__(self, config) -> None:
        self._config = config
        self._failed: set[str] = set()
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report):
        full = self._config.getoption("--full")
        lines = []
        if report.failed:
            self._failed.add(report.nodeid)
        if report.when == "teardown":
            lines = [line for name, line in report.user_properties if name == "figure"]
            if report.nodeid in self._failed:
                lines = [line.replace("(held)", "(broken)") for line in lines]
                lines = lines or [f"{report.nodeid}: failed without a figure (broken)"] * full
        self._lines += lines
        if full:
            printer = self._config.pluginmanager.getplugin("terminalreporter")
            why = report.longreprtext.strip().splitlines()[-1:] if report.failed else []
            for line in lines + [f"FAILED {report.nodeid} {text}" for text in why]:
                printer.write(f"\n{line}")

    def pytest_terminal_summary(self, terminalreporter):
        if self._lines:
            terminalreporter.section("guarantees")
            for line in sorted(self._lines):
                terminalreporter.line(line)


class _NotProved:
    """Names each test that this machine does not let its user run, and why."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            self._lines.append(f"not proved here: {report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}")

    def pytest_terminal_summary(self, terminalreporter):
        if self._lines:
            terminalreporter.section("not proved here")
            for line in sorted(self._lines):
                terminalreporter.line(line)


@pytest.fixture
def usual_umask():
    """Let others read what the test and its commands write, whatever the umask of this run."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def full(request):
    return request.config.getoption("--full")


@pytest.fixture
def seed(request):
    """Every random test draws from this; it is printed with its figure."""
    given = request.config.getoption("--seed")
    return given if given is not None else int.from_bytes(os.urandom(4), "big") + 1


@pytest.fixture(scope="session")
def postgres():
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_running(tmp_path_factory):
    """Every program that the tests start has a HOME below their folder, so it is found wherever it has put itself."""
    yield
    folder = str(tmp_path_factory.getbasetemp())
    poll(lambda: not processes_with("HOME", folder), 10)
    left = processes_with("HOME", folder)
    for process in left:
        os.kill(process.pid, signal.SIGKILL)
    assert not left, f"left running: {[process.command for process in left]}"


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch, tmp_path_factory):
    """Tests see neither the environment nor the config files of whoever runs them."""
    for name in list(os.environ):
        if name.startswith(("BATON_", "MQTT_", "XDG_")) or name == "DELEGATE_JOB_LOGS_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.getbasetemp()))


@pytest.fixture(params=["nats", "mosquitto"])
def broker(request):
    """A real broker of this test alone."""
    broker = Broker(request.param)
    yield broker
    broker.remove()


@pytest.fixture
def tmux():
    server = TmuxServer()
    yield server
    server.remove()


@pytest.fixture
def desk(tmp_path):
    """`baton session` with a tmux server and a folder of its own; nothing may be left of them."""
    desk = SessionDesk(tmp_path)
    yield desk
    desk.close()


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def url(backend, tmp_path, request):
    server = request.getfixturevalue("postgres") if backend == "postgresql" else None
    return registry_url(backend, str(tmp_path / "jobs"), server)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def registry(url, clock):
    registry = clocked_registry(url, clock)
    yield registry
    registry.close()
