"""broker up | down | status | logs"""

from __future__ import annotations

import json
import sys
import time

from baton.broker.local import known_broker, log_path, running_broker, stop_broker
from baton.cli.main import Parser, add_common
from baton.config import Settings
from baton.errors import BrokerUnavailable, InvalidValue
from baton.fsio import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def run(verb: str, arguments: Sequence[str]) -> int:
    parser = Parser(prog=f"baton {verb}", description="The local broker of your own, and others.")
    add_common(parser)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    for name, text in (
        ("up", "start the local broker; publishing does that by itself"),
        ("down", "stop it; what it holds stays on disk"),
        ("status", "whether it is running, and where"),
        ("logs", "what it wrote"),
    ):
        action = actions.add_parser(name, help=text, description=text.capitalize() + ".")
        add_common(action)
        action.add_argument("--json", action="store_true", help="print data as JSON")
        if name == "logs":
            action.add_argument("--tail", type=int, default=50, metavar="N", help="the last N lines (default: 50)")
    options = parser.parse_args(arguments)
    return _ACTIONS[options.action](options, Settings(vars(options)))


def _up(options: argparse.Namespace, settings: Settings) -> int:
    began = time.monotonic()
    broker = running_broker(settings.state_dir)
    if options.json:
        print(json.dumps({"running": True, "host": "127.0.0.1", "port": broker.port, "pid": broker.pid}))
    else:
        print(f"127.0.0.1:{broker.port}")
        print(f"ready after {time.monotonic() - began:.2f} s (process {broker.pid})", file=sys.stderr)
    return 0


def _down(options: argparse.Namespace, settings: Settings) -> int:
    broker = stop_broker(settings.state_dir)
    if options.json:
        print(json.dumps({"stopped": broker is not None}))
    else:
        print("it was not running" if broker is None else f"stopped (process {broker.pid})", file=sys.stderr)
    return 0


def _status(options: argparse.Namespace, settings: Settings) -> int:
    broker = known_broker(settings.state_dir)
    running = broker is not None and broker.alive()
    if options.json:
        print(json.dumps({"running": running, "port": broker.port if running and broker else None}))
    elif running and broker is not None:
        print(f"running at 127.0.0.1:{broker.port} (process {broker.pid})")
    else:
        print("not running; the next `baton publish` or `baton broker up` starts it")
    return 0 if running else 1


def _logs(options: argparse.Namespace, settings: Settings) -> int:
    if options.tail < 1:
        raise InvalidValue("--tail", "must be at least 1")
    try:
        lines = read_file(log_path(settings.state_dir)).decode(errors="replace").splitlines()
    except FileNotFoundError:
        raise BrokerUnavailable("the local broker has never run here; `baton broker up` starts it") from None
    for line in lines[-options.tail :]:
        print(line)
    return 0


_ACTIONS = {"up": _up, "down": _down, "status": _status, "logs": _logs}
