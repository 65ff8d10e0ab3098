"""Run the server, from its parsed command line to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from smb3server.cli.exits import EXIT_INTERRUPTED, EXIT_USAGE, CommandError
from smb3server.config.command_line.arguments import read_options
from smb3server.config.command_line.options import ServerOptions
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.processes import addresses
from smb3server.config.sources.passwords import hide_arguments, read_text
from smb3server.doctor import mount_commands
from smb3server.process import garbage as collector
from smb3server.process import log_levels, log_output, state_lock
from smb3server.process.service_manager import SOCKETS_VARIABLE, ServiceManager, passed_sockets
from smb3server.service.privileges import Privileges, guard_memory, raise_descriptor_limit
from smb3server.service.service import Service
from smb3server.service.tcp_ports import check_free
from smbdirect.errors import ProviderError

if TYPE_CHECKING:
    from smb3server.cluster.fencer import Fencer
    from smb3server.service.processes.member import Member

log = logging.getLogger(__name__)

STOP_PATIENCE = 10.0
"""Seconds after which a stop says what it waits for, again and again."""
TWICE = 1.0
"""Seconds within which a further signal counts as the same one."""


def commands(service: Service) -> list[str]:
    """Return commands that reach the first share, ready to copy."""
    config = service.config
    share = next((entry for entry in config.shares if service.shares.find(entry.name)), None)
    if share is None:
        return []
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


def _describe(service: Service) -> str:
    """Return what the service manager shows of a running server."""
    server = service.server
    counts = (("share", server.share_list), ("session", server.sessions.by_id), ("connection", server.connection_list))
    text = ", ".join(f"{len(table)} {name}{'' if len(table) == 1 else 's'}" for name, table in counts)
    return "; ".join([text, *(f"share {name} is down: {why}" for name, why in service.shares.down.items())])


def terminal_is_gone(had: bool) -> bool:
    """Return whether the terminal that the server was started at was closed. ``had``: whether there was one.

    A terminal that hangs up sends SIGHUP as well, but it answers no longer.
    """
    return had and not any(os.isatty(descriptor) for descriptor in (0, 1, 2))


async def serve(
    config: Config,
    privileges: Privileges,
    manager: ServiceManager,
    read: Callable[[], Config] | None = None,
    fencer: Fencer | None = None,
    member: Member | None = None,
    parent: socket.socket | None = None,
) -> int:
    """Run until SIGTERM, SIGINT or the end of the terminal, and return the exit status. A second signal ends it.

    SIGHUP reads the configuration again by ``read``. ``fencer`` is that of a cluster's node, if it has one. ``member``:
    which of several processes this is, with the socket to its ``parent``. Raises ``CommandError`` if it cannot start.
    """
    try:
        sockets = passed_sockets()
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    service = Service(config, privileges, read, sockets, manager, fencer, member)
    if config.command_line_passwords:
        service.notes.append(
            "a password was on the command line, where other users of this host may have seen it; --user NAME asks for "
            "it, --password-file reads it"
        )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    _heed_signals(service, stop, parent is None)
    had_terminal = not terminal_is_gone(True)
    reloads: set[asyncio.Task[None]] = set()

    def hung_up() -> None:
        if terminal_is_gone(had_terminal):
            stop.set()
            return
        task = loop.create_task(_reload(service))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, hung_up)
    if parent is not None:
        channel = parent

        def orphaned() -> None:
            # The parent never sends anything: it has died.
            loop.remove_reader(channel)
            manager.close()
            log.error("the parent process has died, so this process ends")
            stop.set()

        loop.add_reader(channel, orphaned)
    service.on_stop = stop.set
    try:
        await service.start()
    except (ConfigError, OSError, ProviderError) as error:
        manager.failed(str(error))
        await _stop(service, parent is None)
        raise CommandError(str(error)) from error
    down = service.shares.down
    for share in service.config.shares:
        why = f"down: {down[share.name]}" if share.name in down else share.path
        print(f"share {share.name}: {why}{' (read-only)' if share.read_only else ''}")
    for namespace in service.config.namespaces:
        print(f"namespace {namespace.name}: {len(namespace.namespace.links)} links")
    for choice in service.fabrics.choices:
        print(f"rdma: {choice}")
    for note in service.notes:
        print(f"note: {note}")
    for line in commands(service):
        print(line)
    collector.freeze()
    ready = "ready" if member is None else f"process {member.number} serves"
    print(ready, ", ".join(service.addresses()), flush=True)
    lacking = "".join(f"; share {name} is down: {why}" for name, why in down.items())
    manager.ready(f"serves {', '.join(service.addresses())}{lacking}")
    manager.keep_informed(lambda: _describe(service))
    await stop.wait()
    if parent is not None and parent.fileno() >= 0:
        loop.remove_reader(parent)
    manager.stopping()
    await _stop(service, parent is None)
    manager.close()
    return 0


def _heed_signals(service: Service, stop: asyncio.Event, alone: bool) -> None:
    """Let SIGTERM and SIGINT set ``stop``, and a second one end what takes too long, a start as well as a stop.
    ``alone``: no supervisor does that."""
    loop = asyncio.get_running_loop()
    first = 0.0

    def end() -> None:
        nonlocal first
        if not first:
            first = loop.time()
            stop.set()
        # One signal may come twice, from the terminal and from a program.
        elif alone and loop.time() - first > TWICE:
            log.error("a second signal ended the server, which waited for %s", service.stopping or "its start")
            logging.shutdown()
            os._exit(EXIT_INTERRUPTED)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)


async def _stop(service: Service, alone: bool) -> None:
    """Stop the service, and say in the log what a long stop waits for. ``alone``: as for ``_heed_signals``."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    timer: asyncio.TimerHandle

    def tell() -> None:
        nonlocal timer
        hint = "; Ctrl-C or SIGTERM once more ends it: nothing that was acknowledged is lost" if alone else ""
        log.warning("the stop waits for %s, %.0f s by now%s", service.stopping, loop.time() - began, hint)
        timer = loop.call_later(STOP_PATIENCE, tell)

    timer = loop.call_later(STOP_PATIENCE, tell)
    await service.stop()
    timer.cancel()


async def _reload(service: Service) -> None:
    """Reload as SIGHUP asks. What is wrong is in the log, and the server goes on as it was."""
    try:
        await service.reload()
    except ConfigError:
        log.error("the configuration was not reloaded; remedy: mend it, then `smb3server reload`")


def start_log(config: Config) -> None:
    """Begin to log as configured. Raises ``ConfigError``."""
    try:
        log_output.start(log_levels.parse(config.log_level), config.log.file, config.log.format)
    except OSError as error:
        raise ConfigError(f"log_file {config.log.file}: {error.strerror}") from error


def _fencer(config: Config) -> Fencer | None:
    """Start the helper that fences silent nodes, if this is a node of a cluster with a ``fence_command``."""
    cluster = config.cluster
    if not cluster.url or not cluster.fence_command:
        return None
    from smb3server.cluster.fencer import Fencer

    return Fencer(cluster.fence_command, cluster.fence_timeout)


def _check_ports(config: Config) -> None:
    """Check that nobody else has the ports. Raises ``CommandError``: another start may find them free."""
    if config.state is not None and state_lock.user_of(config.state):
        return  # Another server has the state as well, and that says more.
    try:
        check_free(config.listen, config.port)
    except ConfigError as error:
        raise CommandError(str(error)) from error


def run(options: ServerOptions) -> int:
    """Run the server until a signal, and return the exit status. Raises ``CommandError``."""
    try:
        # Passwords are asked for once. The file is read anew with each reload.
        command_line = read_options(options)
        config = command_line.read()
        hide_arguments(config.command_line_passwords)
        for path in config.secret_files:
            read_text(path)
        if config.processes > 1:
            return _run_several(config, command_line.read)
        if not os.environ.get(SOCKETS_VARIABLE):
            _check_ports(config)
        # Before the privileges are gone that its command may need.
        fencer = _fencer(config)
    except ConfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    return _run_one(config, command_line.read, fencer=fencer)


def _run_several(config: Config, read: Callable[[], Config]) -> int:
    """Run the processes of a server as their parent, and in each of them one. Raises as ``run``."""
    from smb3server.service.processes.member import Member, check_gone
    from smb3server.service.processes.supervisor import Supervisor

    if os.environ.get(SOCKETS_VARIABLE):
        raise ConfigError("several processes take no sockets of the service manager; remedy: no .socket unit")
    assert config.state is not None
    state, hosts = config.state, addresses(config)
    _check_ports(replace(config, listen=hosts))
    check_gone(state)
    manager = ServiceManager.of_process()

    def run_child(number: int, fresh: bool, parent: socket.socket) -> int:
        member = Member(number, hosts, state, fresh)

        def read_part() -> Config:
            return member.config(read())

        try:
            part = read_part()
        except ConfigError as error:
            raise CommandError(str(error), EXIT_USAGE) from error
        channel = ServiceManager(watchdog=manager.watchdog, channel=parent)
        return _run_one(part, read_part, channel, member=member, parent=parent)

    guard_memory()
    return Supervisor(config.processes, run_child, manager).run()


def _run_one(
    config: Config,
    read: Callable[[], Config],
    manager: ServiceManager | None = None,
    *,
    fencer: Fencer | None = None,
    member: Member | None = None,
    parent: socket.socket | None = None,
) -> int:
    """Run the server of this process. Raises as ``run``."""
    try:
        privileges = Privileges(config)
        privileges.restrict()
        raise_descriptor_limit()
        start_log(config)
    except ConfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    manager = manager or ServiceManager.of_process()
    served = serve(config, privileges, manager, read, fencer, member, parent)
    try:
        # uvloop is optional, and exists on Linux with CPython only.
        import uvloop
    except ImportError:
        return asyncio.run(served)
    return int(uvloop.run(served))
