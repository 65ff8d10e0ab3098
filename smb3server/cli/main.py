"""The command ``smb3server``: run the server, or one of the other commands."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from collections.abc import Sequence

from smb3server.config.arguments import parse_arguments
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.passwords import hide_arguments, read_text
from smb3server.process import garbage as collector
from smb3server.process import log_levels, log_output, output
from smb3server.service.privileges import Privileges
from smb3server.service.service import Service
from smb3server.status import mount_commands
from smbdirect.errors import ProviderError

COMMANDS = {
    "status": "smb3server.cli.status",
    "doctor": "smb3server.cli.doctor",
    "witness": "smb3server.cli.witness",
    "cluster": "smb3server.cli.cluster",
    "hash": "smb3server.cli.password_hash",
    "pcap": "smb3server.tools.pcap.command",
    "proxy": "smb3server.tools.proxy.proxy",
    "verbs-check": "smb3server.tools.verbs_check",
    "bench": "smb3server.tools.bench.command",
    "conformance": "smb3server.cli.conformance",
}
EXIT_USAGE, EXIT_FAILED = 2, 1


def commands(service: Service) -> list[str]:
    """Return commands that reach the first share, ready to copy."""
    config = service.config
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
            next((account.name for account in config.accounts if share.admits(account.name)), ""),
            virtual[0] if virtual else mount_commands.choose_host(config.listen, addresses),
            service.listeners[0].address[1],
            virtual or addresses,
            [(fabric, *listener.address) for fabric, listener in service.fabrics.listeners],
        )
    )


async def serve(config: Config, privileges: Privileges) -> int:
    """Run until SIGTERM, SIGINT or SIGHUP (the terminal was closed), and return the exit status."""
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
    collector.freeze()
    print("ready", ", ".join(service.addresses()), flush=True)
    await stop.wait()
    await service.stop()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    If the first argument is one of ``COMMANDS``, that command runs.
    """
    return output.run(lambda: _main(arguments))


def start_log(config: Config) -> log_output.LogOutput:
    """Begin to log as configured. Raises ``OSError`` for the log's file, and ``ValueError`` for a level."""
    log = config.log
    levels = log_levels.parse(config.log_level, log_levels.Levels("info", dict(log.levels)))
    return log_output.start(levels, log.file, log.format)


def _main(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in COMMANDS:
        return int(importlib.import_module(COMMANDS[given[0]]).main(given[1:]))
    try:
        config = parse_arguments(arguments)
        hide_arguments(config.command_line_passwords)
        for path in config.secret_files:
            read_text(path)
        privileges = Privileges(config)
        privileges.restrict()
    except ConfigError as error:
        print(f"smb3server: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        start_log(config)
    except (OSError, ValueError) as error:
        print(f"smb3server: log: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        # uvloop is optional, and exists on Linux with CPython only.
        import uvloop
    except ImportError:
        return asyncio.run(serve(config, privileges))
    return int(uvloop.run(serve(config, privileges)))
