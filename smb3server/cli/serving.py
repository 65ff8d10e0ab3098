"""Run the server, from its parsed command line to its end."""

from __future__ import annotations

import asyncio
import signal

from smb3server.cli.exits import EXIT_USAGE, CommandError
from smb3server.config.arguments import make_config
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.options import ServerOptions
from smb3server.config.passwords import hide_arguments, read_text
from smb3server.process import garbage as collector
from smb3server.process import log_levels, log_output
from smb3server.service.privileges import Privileges
from smb3server.service.service import Service
from smb3server.status import mount_commands
from smbdirect.errors import ProviderError


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


def start_log(config: Config) -> log_output.LogOutput:
    """Begin to log as configured. Raises ``ConfigError``."""
    log = config.log
    try:
        levels = log_levels.parse(config.log_level, log_levels.Levels("info", dict(log.levels)))
        return log_output.start(levels, log.file, log.format)
    except OSError as error:
        raise ConfigError(f"log_file {log.file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"log_level: {error}") from error


def run(options: ServerOptions) -> int:
    """Run the server until a signal, and return the exit status. Raises ``CommandError``."""
    try:
        config = make_config(options)
        hide_arguments(config.command_line_passwords)
        for path in config.secret_files:
            read_text(path)
        privileges = Privileges(config)
        privileges.restrict()
        start_log(config)
    except ConfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    try:
        # uvloop is optional, and exists on Linux with CPython only.
        import uvloop
    except ImportError:
        return asyncio.run(serve(config, privileges))
    return int(uvloop.run(serve(config, privileges)))
