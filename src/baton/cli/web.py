"""web: show the jobs of all homes in a browser."""

import ipaddress
import os
import signal
import ssl
import sys

from baton.board.web_access import DEFAULT_PORT, RIGHTS, Access, Logins, parse_rights
from baton.cli import options as opt
from baton.cli.homes import refuse_one_home
from baton.cli.output import counted, say
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.core.errors import BatonError, InvalidValue, UsageError
from baton.jobs.caller import refuse_agents
from baton.storage.files import remove_file

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_UNIX = "unix:"


def web(options: Options, settings: Settings) -> int:
    """Serve the board until a signal ends the process; or print a new address, or end all logins."""
    refuse_agents("baton web")  # guard: web-inside-session
    refuse_one_home(options, "baton web")
    if not 1 <= options.port <= 65535:
        raise InvalidValue("--port", "must be from 1 to 65535")
    address = _address(options)
    wanted = ",".join(RIGHTS) if options.rights is None else options.rights
    rights = parse_rights("view" if options.read_only else wanted)
    logins = Logins(settings.state_dir, options.port)
    if options.what == "token":
        print(logins.login_address())
    elif options.what == "sign-out":
        say(f"signed out {counted(logins.sign_out_all(), 'browser')}")
    else:
        _serve(options, settings, logins, address, rights)
    return 0


def _serve(
    options: Options,
    settings: Settings,
    logins: Logins,
    address: tuple[str, int] | str,
    rights: frozenset[str],
) -> None:
    from baton.board.web_routes import SharedBoard
    from baton.board.web_server import open_server

    tls = _tls(options)
    if not _is_local(address) and tls is None:  # guard: web-listen
        raise UsageError("--listen beyond loopback needs --cert and --key: without TLS, others read and change all")
    names = tuple(dict.fromkeys([*_LOOPBACK_NAMES, *_own_name(address), *map(str.lower, options.name)]))
    access = Access(logins, options.port, rights, tls=tls is not None, names=names)
    board = SharedBoard(settings)
    board.refresh()
    server = open_server(access, board, address, tls)
    signal.signal(signal.SIGTERM, _stop)
    try:
        logins.note_address(f"{'http' if tls is None else 'https'}://{_first_name(options)}:{options.port}/")
        print(logins.login_address(), flush=True)
        where = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
        say(f"baton: the board is at {where}; open the address above, once; Ctrl-C ends it")
        server.serve_forever(poll_interval=0.2)
    finally:
        server.stopping.set()
        server.server_close()
        if isinstance(address, str):
            remove_file(address)
        board.close()


def _first_name(options: Options) -> str:
    return options.name[0] if options.name else "127.0.0.1"


def _address(options: Options) -> tuple[str, int] | str:
    listen: str = options.listen
    if listen.startswith(_UNIX):
        path = os.path.abspath(listen.removeprefix(_UNIX))
        if not os.path.isdir(os.path.dirname(path)):
            raise InvalidValue("--listen", f"the folder of {path} does not exist")
        return path
    plain = "127.0.0.1" if listen == "localhost" else listen
    try:
        ipaddress.IPv4Address(plain)
    except ValueError:
        raise InvalidValue("--listen", f"must be an IPv4 address or unix:PATH, not {listen[:60]!r}") from None
    return plain, options.port


def _is_local(address: tuple[str, int] | str) -> bool:
    return isinstance(address, str) or ipaddress.ip_address(address[0]).is_loopback


def _own_name(address: tuple[str, int] | str) -> list[str]:
    """Return the address as a name by which browsers call it, if it is one."""
    return [] if isinstance(address, str) or ipaddress.ip_address(address[0]).is_unspecified else [address[0]]


def _tls(options: Options) -> ssl.SSLContext | None:
    if options.cert is None:
        if options.key is not None:
            raise UsageError("--key needs --cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.cert, options.key)
    except (OSError, ssl.SSLError) as error:
        raise BatonError(f"--cert {options.cert}: {error.strerror or error}; give a PEM file, and its --key") from None
    return context


def _stop(_signal: int, _frame: object) -> None:
    sys.exit(143)


VERBS = (
    Verb("web", (
        opt.WEB_WHAT, opt.PORT.but(help=f"use this port (default: {DEFAULT_PORT})", default=DEFAULT_PORT),
        opt.LISTEN, opt.WEB_NAME, opt.CERT, opt.CERT_KEY, opt.RIGHTS,
    ), web),
)  # fmt: skip
