"""broker up | down | status | logs | init | check: manage the local broker and production brokers."""

import os
import shlex
import time

from baton.broker.address import Address
from baton.broker.local import HOST, known_broker, log_path, running_broker, stop_broker
from baton.broker.login import read_variables
from baton.cli import options as opt
from baton.cli.output import json_text, say
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.core.errors import BrokerUnavailable, InvalidValue
from baton.core.fields import printable
from baton.storage.files import read_file


def up(options: Options, settings: Settings) -> None:
    began = time.monotonic()
    broker = running_broker(settings.state_dir)
    if options.json:
        print(json_text({"running": True, "host": HOST, "port": broker.port, "pid": broker.pid}))
    else:
        print(f"{HOST}:{broker.port}")
        say(f"ready after {time.monotonic() - began:.2f} s (process {broker.pid})")


def down(options: Options, settings: Settings) -> None:
    broker = stop_broker(settings.state_dir)
    if options.json:
        print(json_text({"stopped": broker is not None}))
    else:
        say("the local broker is not running" if broker is None else f"stopped (process {broker.pid})")


def status(options: Options, settings: Settings) -> int:
    broker = known_broker(settings.state_dir)
    if broker is None or not broker.alive():
        nowhere = {"running": False, "host": None, "port": None, "pid": None}
        text = "not running; the next `baton publish` or `baton broker up` starts it"
        print(json_text(nowhere) if options.json else text)
        return 1
    place = {"running": True, "host": HOST, "port": broker.port, "pid": broker.pid}
    print(json_text(place) if options.json else f"running at {HOST}:{broker.port} (process {broker.pid})")
    return 0


def logs(options: Options, settings: Settings) -> None:
    if options.tail < 1:
        raise InvalidValue("--tail", "must be at least 1")
    try:
        lines = read_file(log_path(settings.state_dir)).decode(errors="replace").splitlines()
    except FileNotFoundError:
        raise BrokerUnavailable("the local broker was never started; `baton broker up` starts it") from None
    last = lines[-options.tail :]
    for line in [json_text(last)] if options.json else map(printable, last):
        print(line)


def init(options: Options, _settings: Settings) -> None:
    from baton.broker.production import write_set

    kind, folder = ("mosquitto", options.mosquitto) if options.mosquitto else ("nats", options.nats)
    if not 1 <= options.port <= 65535:
        raise InvalidValue("--port", "must be from 1 to 65535")
    files = write_set(kind, folder, hosts=options.host, port=options.port, mtls=options.mtls, renew=options.renew)
    if options.json:
        print(json_text({"folder": os.path.abspath(folder), "files": files}))
    else:
        print("\n".join(os.path.join(folder, name) for name in files))
        if options.renew:
            # The CA that clients trust is the same.
            mtls = "MQTT_CERTFILE" in _environment_of(folder, "worker")
            changes = (("their new certificates", mtls), ("the new .env files", bool(options.host)))
            changed = " and ".join(what for what, needed in changes if needed)
            say(f"now restart the broker{changed and f'; give the clients {changed}'}")
        else:
            names = (f"{kind}.conf", "orchestrator.env", "worker.env")
            config, orchestrator, worker = (shlex.quote(os.path.join(folder, name)) for name in names)
            say(f"start the broker: {'mosquitto' if kind == 'mosquitto' else 'nats-server'} -c {config}")
            say(f"before you listen: . {orchestrator}")
            say(f"before you work: . {worker}")
    if kind == "mosquitto" and os.stat(folder).st_uid == 0:
        command = f"chown -R mosquitto {shlex.quote(folder)}"
        say(f"mosquitto does not run as root and cannot read files of root; run: {command}")


def check(options: Options, settings: Settings) -> int:
    from baton.broker.address import broker_address
    from baton.transport.check import check_broker

    def address(role: str) -> Address:
        own = Settings(vars(options), _environment_of(options.set, role)) if options.set else settings
        return broker_address(own, None, reading=role == "orchestrator")

    writer, reader = (address(role) if options.role in (None, role) else None for role in ("worker", "orchestrator"))
    steps = []
    for step in check_broker(writer, reader):
        steps.append(step)
        if not options.json:
            print(f"{'ok    ' if step.ok else 'FAILED'}  {step.what}: {printable(step.detail)}", flush=True)
    if options.json:
        print(json_text([{"what": step.what, "ok": step.ok, "detail": step.detail} for step in steps]))
    if all(step.ok for step in steps):
        return 0
    if len(steps) > 1 and not options.role and not options.set:
        say("baton: to check one login, use --role worker or --role orchestrator; for a configuration set, --set DIR")
    return 1


def _environment_of(folder: str, role: str) -> dict[str, str]:
    """Return the variables in `<role>.env` of a configuration set."""
    return read_variables("--set", os.path.join(folder, f"{role}.env"))


_ACTIONS = (
    Verb("up", (), up, "start the local broker, as publishing does when it is needed"),
    Verb("down", (), down, "stop the local broker; its data stays on disk"),
    Verb("status", (), status, "print whether the local broker runs, and where"),
    Verb("logs", (
        opt.TAIL.but(default=50, help="print the last N lines (default: 50)"),
    ), logs, "print the log of the local broker"),
    Verb("init", (opt.BROKER_SET, opt.BROKER_HOST, opt.PORT, opt.MTLS, opt.RENEW), init,
         "write a configuration set for production: CA, certificates, logins, rights, configuration"),
    Verb("check", (opt.CHECK_SET, opt.ROLE, opt.ALLOW_PLAINTEXT), check,
         "send a message through the broker and back, and print what fails"),
)  # fmt: skip
VERBS = (Verb("broker", (opt.JSON,), actions=_ACTIONS),)
