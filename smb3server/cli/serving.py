"""Run the server, from its parsed command line to its end."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from smb3server.cli.exits import EXIT_USAGE, CommandError
from smb3server.config.arguments import make_config
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.options import ServerOptions
from smb3server.config.passwords import hide_arguments, read_text
from smb3server.process import garbage as collector
from smb3server.process import log_lines
from smb3server.service.privileges import Privileges
from smb3server.service.service import Service
from smb3server.status import mount_commands
from smbdirect.errors import ProviderError

_TALKATIVE = ("spnego", "asyncio", "pyroute2")
"""Libraries whose log messages are of no use to operators."""


def commands(service: Service) -> list[str]:
    """Return commands that reach the first share, ready to copy."""
    config = service.config
    if not config.shares:
        return []
    share = config.shares[0]
    interfaces = service.server.interfaces.interfaces
    addresses = [str(entry.address) for entry in interfaces if not entry.loopback]
    # A cluster's share is served at its service's address, by the node that currently has the service.
    virtual = [
        str(entry.address)
        for served in config.cluster.services
        if served.name == share.service
        for entry in served.addresses
    ]
    return mount_commands.commands(
        mount_commands.Reach(
            share.name,
            next((account.name for account in config.accounts if share.admits(account)), ""),
            virtual[0] if virtual else mount_commands.choose_host(config.listen, addresses),
            service.listeners[0].address[1],
            virtual or addresses,
            [(fabric, *listener.address) for fabric, listener in service.fabrics.listeners],
        )
    )


async def serve(config: Config, privileges: Privileges) -> int:
    """Run until SIGTERM, SIGINT or SIGHUP (the terminal was closed), and return the exit status.

    Raises ``CommandError`` if it cannot start.
    """
    service = Service(config, privileges)
    if config.command_line_passwords:
        service.notes.append(
            "a password was on the command line, where other users of this host may have seen it; --user NAME asks for "
            "it, --password-file reads it"
        )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    try:
        await service.start()
    except (ConfigError, OSError, ProviderError) as error:
        await service.stop()
        raise CommandError(str(error)) from error
    for share in config.shares:
        print(f"share {share.name}: {share.path}{' (read-only)' if share.read_only else ''}")
    for choice in service.fabrics.choices:
        print(f"rdma: {choice}")
    for note in service.notes:
        print(f"note: {note}")
    for line in commands(service):
        print(line)
    collector.freeze()
    print("ready", ", ".join(service.addresses()), flush=True)
    await stop.wait()
    await service.stop()
    return 0


def _set_up_logging(level: str) -> None:
    """Log to stderr from ``level`` on, and only warnings of libraries.

    Libraries dump tokens and calls, which do not belong in log files. Some set the levels of their loggers when they
    are imported (pyroute2), so the handler filters.
    """
    log_lines.set_up(level.upper(), sys.stderr, _worth_logging)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("impacket").setLevel(logging.CRITICAL)


def _worth_logging(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] not in _TALKATIVE


def run(options: ServerOptions) -> int:
    """Run the server until a signal, and return the exit status. Raises ``CommandError``."""
    try:
        config = make_config(options)
        hide_arguments(config.command_line_passwords)
        for path in config.secret_files:
            read_text(path)
        privileges = Privileges(config)
        privileges.restrict()
    except ConfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    _set_up_logging(config.log_level)
    try:
        # uvloop is optional, and exists on Linux with CPython only.
        import uvloop
    except ImportError:
        return asyncio.run(serve(config, privileges))
    return int(uvloop.run(serve(config, privileges)))
