"""The parts of `bench/peers.py` about queues: how fast each claims and finishes jobs, and what a kill storm does to its
jobs."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from peer_setup import QUEUES, LeftOut, Program, Servers, in_session, memory_mb, run
from table import SMALLEST, Folder, size

sys.path.insert(0, QUEUES)
from ledger import Counts, Note, count, parse_notes

if TYPE_CHECKING:
    from collections.abc import Sequence

PROCESSES = size(4, 2)
TAKEN = 10  # jobs that each process claims and finishes in one round
ROUNDS = size(20, 1)
PENDING = (100, 10_000) if not SMALLEST else (30, 60)
KILLS = size(100, 2)
STORM_SEC, RECOVERY_SEC = 120, 150
QUIET_SEC = 5  # no job has begun or ended for so long
LEASE_SEC = size(10, 1)  # of baton
BACKLOG, PUT = size(300, 20), size(100, 5)  # jobs in the storm: at first, and at a time while it goes on
WAIT_SEC = 120


class Store:
    """An empty store of a program, and the environment variables that lead to it."""

    def __init__(self, program: Program, folder: Folder, servers: Servers) -> None:
        self.program = program
        self.folder = folder.new("queue")
        url = servers.new_store(program, self.folder)
        self.env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": self.folder,
            "LANG": "C.UTF-8",
            "PYTHONPATH": QUEUES,
            "PYTHONPYCACHEPREFIX": os.path.join(folder.path, "compiled"),
            "QUEUE_URL": url,
        }
        if program.module == "on_baton":
            self.env["BATON_REGISTRY"] = f"sqlite:{url}" if program.store == "sqlite" else url

    def start(self, command: list[str], **more: str) -> subprocess.Popen[bytes]:
        with open(os.path.join(self.folder, "log"), "ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.env | more, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def last_words(self) -> str:
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as log:
            return (log.read().strip() or "no output").splitlines()[-1][:300]

    def close(self) -> None:
        if self.program.module == "on_baton":
            run([self.program.path("baton"), "broker", "down"], env=self.env, cwd=self.folder)


class Driver:
    """A process in the program's environment that does what it is asked."""

    def __init__(self, store: Store) -> None:
        self._log = open(os.path.join(store.folder, "log"), "ab")  # noqa: SIM115  closed in close()
        self._store = store
        self._process = subprocess.Popen(
            [store.program.path("python"), os.path.join(QUEUES, "driver.py"), store.program.module],
            cwd=store.folder, env=store.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip
        with ExitStack() as undo:
            undo.callback(self.close)
            self.answer()
            undo.pop_all()

    def order(self, *words: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise LeftOut(self._store.last_words()) from None

    def answer(self) -> Any:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], WAIT_SEC)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise LeftOut(self._store.last_words() if ready else f"no answer within {WAIT_SEC} s")
        return json.loads(line)

    def has_answer(self) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def ask(self, *words: object) -> Any:
        self.order(*words)
        return self.answer()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


# -- claim and finish --------------------------------------------------------------------------------------


class Claims:
    """A program's processes with so many jobs pending."""

    def __init__(self, program: Program, pending: int, folder: Folder, servers: Servers) -> None:
        self.rates: list[float] = []
        self._drivers: list[Driver] = []
        self._store = Store(program, folder, servers)
        with ExitStack() as undo:
            undo.callback(self.close)
            self._drivers.append(Driver(self._store))
            for _ in range(0, pending, 1000):
                self._drivers[0].ask("fill", min(1000, pending))
            for _ in range(PROCESSES - 1):
                self._drivers.append(Driver(self._store))
            self._round()  # warms up
            undo.pop_all()

    def measure(self) -> None:
        self.rates.append(self._round())

    def _round(self) -> float:
        """Return the jobs a second of all processes together, then enqueue as many again."""
        at = time.monotonic() + 0.05
        for driver in self._drivers:
            driver.order("take", TAKEN, at)
        times: list[tuple[float, float]] = [driver.answer() for driver in self._drivers]
        self._drivers[0].ask("fill", TAKEN * PROCESSES)
        return TAKEN * PROCESSES / (max(end for _, end in times) - min(begin for begin, _ in times))

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()
        self._store.close()


def measure_claims(
    programs: Sequence[Program], folder: Folder, servers: Servers, left_out: dict[str, str]
) -> dict[int, dict[str, float]]:
    """Return how many jobs a second each program claims and finishes, by the number of pending jobs: the median of
    rounds, in which the programs take turns."""
    found: dict[int, dict[str, float]] = {}
    for pending in PENDING:
        measured: dict[str, Claims] = {}
        try:
            for program in programs:
                try:
                    measured[program.name] = Claims(program, pending, folder, servers)
                except LeftOut as error:
                    left_out[f"{program.name}, claims at {pending:,} pending"] = str(error)
            for _ in range(ROUNDS):
                for name, claims in list(measured.items()):
                    try:
                        claims.measure()
                    except LeftOut as error:
                        left_out[f"{name}, claims at {pending:,} pending"] = str(error)
                        measured.pop(name).close()
            found[pending] = {name: median(claims.rates) for name, claims in measured.items()}
        finally:
            for claims in measured.values():
                claims.close()
    return found


# -- the kill storm ----------------------------------------------------------------------------------------


class Storm:
    """Workers of one program, which are killed at random and started again while there is work."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self._store = store
        self._chance = chance
        self._ledger = os.path.join(store.folder, "ledger")
        self._numbers = iter(range(10_000))
        self._until = time.monotonic() + STORM_SEC + RECOVERY_SEC + 60
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._keeper: subprocess.Popen[bytes] | None = None
        self.killed_ns: dict[str, int] = {}
        self.acknowledged: list[str] = []
        self.memory_mb = 0.0

    def run(self) -> Counts:
        producer = Driver(self._store)
        try:
            producer.ask("fill", 0)
            self.acknowledged += producer.ask("put", BACKLOG)
            self._keeper = self._start_keeper()
            for _ in range(PROCESSES):
                self._start_worker()
            self._rage(producer)
            states = self._recover(producer)
            self.memory_mb = median(memory_mb([worker.pid]) for worker in self._workers.values())
            return count(self.acknowledged, self._notes(), self.killed_ns, states)
        finally:
            for worker in self._workers.values():
                _kill(worker)
            if self._keeper is not None:
                _kill(self._keeper)
            producer.close()

    def _rage(self, producer: Driver) -> None:
        """Kill workers that have begun to work, one after the other, at random moments, while jobs are enqueued."""
        end = time.monotonic() + STORM_SEC
        producer.order("put", PUT)
        while len(self.killed_ns) < KILLS:
            time.sleep(self._chance.uniform(0.02, 0.1))
            if time.monotonic() > end:
                raise LeftOut(f"{len(self.killed_ns)} of {KILLS} kills in {STORM_SEC} s: {self._store.last_words()}")
            notes = self._notes()
            waiting = len(self.acknowledged) - len({note.job for note in notes})
            if waiting < BACKLOG and producer.has_answer():
                self.acknowledged += producer.answer()
                producer.order("put", PUT)
            if at_work := sorted({note.worker for note in notes} & set(self._workers)):
                name = self._chance.choice(at_work)
                _kill(self._workers.pop(name))
                self.killed_ns[name] = time.monotonic_ns()
                self._start_worker()
        self.acknowledged += producer.answer()

    def _recover(self, producer: Driver) -> dict[str, str]:
        """Let the workers work until no job can be done any more, or the time for recovery is over. Return what the
        record says about the jobs that are not done."""
        end = time.monotonic() + RECOVERY_SEC
        seen, seen_at = 0, time.monotonic()
        while True:
            notes = self._notes()
            if len(notes) != seen:
                seen, seen_at = len(notes), time.monotonic()
            ended = {note.job for note in notes if note.what == "end"}
            undone = [job for job in self.acknowledged if job not in ended]
            quiet = time.monotonic() - seen_at > QUIET_SEC
            if not undone or quiet or time.monotonic() > end:
                states: dict[str, str] = producer.ask("state", *undone) if undone else {}
                # Neither a job that failed nor one that the record does not have begins again.
                if "listed" not in states.values() or time.monotonic() > end:
                    return states
                seen_at = time.monotonic()
            time.sleep(0.2)

    def _notes(self) -> list[Note]:
        try:
            with open(self._ledger, encoding="ascii") as file:
                return parse_notes(file.read())
        except FileNotFoundError:
            return []

    def _start_worker(self) -> None:
        name = f"w{next(self._numbers)}"
        command = _worker_command(self._store)
        self._workers[name] = self._store.start(command, **self._variables(name))

    def _start_keeper(self) -> subprocess.Popen[bytes] | None:
        """Start what the program's manual asks for beside workers, so that jobs of dead workers are found."""
        program = self._store.program
        if program.module == "on_baton":
            return self._store.start([program.path("baton"), "monitor", "--interval", "1"])
        if program.module == "on_procrastinate":
            command = [program.path("python"), os.path.join(QUEUES, "on_procrastinate.py")]
            return self._store.start(command, **self._variables("keeper"))
        return None

    def _variables(self, name: str) -> dict[str, str]:
        return {
            "STORM_WORKER": name,
            "STORM_LEDGER": self._ledger,
            "STORM_UNTIL": str(self._until),
            "STORM_LEASE_SEC": str(LEASE_SEC),
        }


def _worker_command(store: Store) -> list[str]:
    """Return the command of the program's own worker, which does one job at a time."""
    program = store.program
    return {
        "on_baton": [program.path("python"), os.path.join(QUEUES, "on_baton.py")],
        "on_huey": [program.path("huey_consumer"), "on_huey.huey", "--workers", "1", "--no-periodic"],
        # By default, idle workers look for abandoned jobs about every seven minutes.
        "on_rq": [
            program.path("rq"), "worker", "bench", "--url", store.env["QUEUE_URL"], "--path", QUEUES,
            "--maintenance-interval", "5", "--job-monitoring-interval", "5", "--worker-ttl", "30",
        ],
        "on_procrastinate": [program.path("procrastinate"), "--app", "on_procrastinate.app", "worker"],
    }[program.module]  # fmt: skip


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started; rq runs each job in a process group of its own."""
    for _ in range(100):
        alive = in_session(process.pid)
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended by itself
        process.poll()
        if not [pid for pid in in_session(process.pid) if pid != process.pid] and process.poll() is not None:
            return
        time.sleep(0.01)
    raise RuntimeError(f"process {process.pid} does not end")


class Survived(NamedTuple):
    """What became of the jobs of one program."""

    acknowledged: int
    kills: int
    counts: Counts
    memory_mb: float  # of one worker


def kill_workers(
    programs: Sequence[Program], folder: Folder, servers: Servers, left_out: dict[str, str], seed: int
) -> dict[str, Survived]:
    found: dict[str, Survived] = {}
    for program in programs:
        store = None
        print(f"...   {program.name}", file=sys.stderr, flush=True)
        try:
            store = Store(program, folder, servers)
            storm = Storm(store, random.Random(seed))
            counts = storm.run()
            found[program.name] = Survived(len(storm.acknowledged), len(storm.killed_ns), counts, storm.memory_mb)
        except LeftOut as error:
            left_out[f"{program.name}, kill storm"] = str(error)
        finally:
            if store is not None:
                store.close()
    return found
