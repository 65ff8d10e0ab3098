"""The command ``smb3server``."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
import sys
from collections.abc import Sequence
from shlex import quote
from urllib.parse import quote as url_quote

from smb3server import collector, output
from smb3server.config import Config, ConfigError, parse_arguments
from smb3server.service import DEFAULT_PORT, Service
from smbdirect.errors import ProviderError

_COMMANDS = {
    "status": "smb3server.status_view",
    "doctor": "smb3server.doctor",
    "witness": "witness.cli",
    "cluster": "smb3server.ha.admin",
}
EXIT_USAGE, EXIT_FAILED = 2, 1
_TALKATIVE = ("spnego", "asyncio", "pyroute2")
"""Libraries whose dumps are no use to operators."""


def _reachable(service: Service) -> str:
    """An address that other machines can use in the printed commands."""
    for entry in service.server.interfaces.interfaces:
        if not entry.loopback and entry.address.version == 4:
            wanted = service.config.listen
            if not wanted or str(entry.address) in wanted or "0.0.0.0" in wanted:
                return str(entry.address)
    return next((host for host in service.config.listen if host not in ("0.0.0.0", "::")), "127.0.0.1")


def commands(service: Service) -> list[str]:
    """Copy-paste commands to reach the first share."""
    config = service.config
    share = config.shares[0].name
    user = config.accounts[0].name if config.accounts else "guest"
    host = _reachable(service)
    port = service.listeners[0].address[1]
    other = port != DEFAULT_PORT
    unc, quoted_user = quote(f"//{host}/{share}"), quote(user)
    # Windows has no colons in names of servers.
    server = f"{host.replace(':', '-')}.ipv6-literal.net" if ":" in host else host
    windows = f"net use Z: {_windows_quote(f'{chr(92) * 2}{server}{chr(92)}{share}')} /user:{_windows_quote(user)}"
    if other:
        windows += f"   (Windows 11 24H2 and later: add /TCPPORT:{port})"
    options = f"{quote(f'username={user},vers=3.1.1')}{f',port={port}' if other else ''}"
    lines = [f"Windows:        {windows}", f"Linux (TCP):    mount -t cifs {unc} /mnt -o {options}"]
    if service.fabrics.listeners:
        lines.append(f"Linux (RDMA):   mount -t cifs {unc} /mnt -o {quote(f'username={user},vers=3.1.1,rdma')}")
    place = f"{f'[{host}]' if ':' in host else host}{f':{port}' if other else ''}"
    lines += [
        f"macOS:          open 'smb://{url_quote(user, safe='')}@{place}/{url_quote(share)}'",
        f"smbclient:      smbclient {unc} -U {quoted_user}{f' -p {port}' if other else ''}",
    ]
    return lines


def _windows_quote(text: str) -> str:
    return f'"{text}"' if " " in text else text


async def serve(config: Config) -> int:
    """Run until SIGTERM, SIGINT or SIGHUP (its terminal went away). Exit status."""
    service = Service(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    try:
        await service.start()
    except (ConfigError, OSError, ProviderError) as error:
        print(f"smb3server: {error}", file=sys.stderr)
        await service.stop()
        return EXIT_FAILED
    for share in config.shares:
        print(f"share {share.name}: {share.path}{' (read-only)' if share.read_only else ''}")
    for choice in service.fabrics.choices:
        print(f"rdma: {choice}")
    for note in service.notes:
        print(f"note: {note}")
    for line in commands(service):
        print(line)
    collector.settle()
    print("ready", ", ".join(service.addresses()), flush=True)
    await stop.wait()
    await service.stop()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit status. ``status``, ``doctor``, ``witness`` and ``cluster`` as the first argument are commands
    of their own."""
    return output.run(lambda: _main(arguments))


def _set_up_logging(level: str) -> None:
    """Log to stderr from ``level`` on. Of libraries, warnings only: dumps of tokens and of calls are no use to
    operators, and no business of log files. Libraries set levels of their loggers when they are imported (pyroute2), so
    the handler decides."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_worth_logging)
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[handler]
    )
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("impacket").setLevel(logging.CRITICAL)


def _worth_logging(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] not in _TALKATIVE


def _main(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _COMMANDS:
        return int(importlib.import_module(_COMMANDS[given[0]]).main(given[1:]))
    try:
        config = parse_arguments(arguments)
    except ConfigError as error:
        print(f"smb3server: {error}", file=sys.stderr)
        return EXIT_USAGE
    _set_up_logging(config.log_level)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve(config))
    return int(uvloop.run(serve(config)))
