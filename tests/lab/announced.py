"""A server that is announced in a namespace, and programs that look for it from another one."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from smb3server.discovery.announcer import Announcer
from smb3server.net.interfaces import InterfaceList
from smb3server.settings.discovery import DiscoveryConfig
from smbdirect.unauthenticated import UnauthenticatedPeers
from tools.cluster.network import Network, why_not

NAME = "FILES"
SERVER, CLIENT = "server", "client"


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip without these programs (Debian packages), or without namespaces."""
    missing = [name for name in programs if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    reason = f"not installed: {', '.join(missing)}" if missing else why_not() or ""
    return pytest.mark.skipif(bool(reason), reason=reason)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    found = Network([SERVER, CLIENT])
    try:
        found.up()
        yield found
    finally:
        found.down()


@contextlib.asynccontextmanager
async def announced(
    config: DiscoveryConfig, served: Sequence[str] = ("0.0.0.0", "::"), backups: Sequence[str] = ()
) -> AsyncIterator[Announcer]:
    """In the namespace of the calling thread. ``backups``: shares for Time Machine, which may change."""
    interfaces = InterfaceList()
    strangers = UnauthenticatedPeers(64)
    announcer = Announcer(
        config, NAME, lambda: interfaces.interfaces, lambda: served, 445, lambda host: True, strangers, lambda: backups
    )
    interfaces.on_refresh = announcer.refresh_soon
    await interfaces.start()
    announcer.start()
    try:
        yield announcer
    finally:
        await announcer.stop()
        await interfaces.stop()


async def output(network: Network, *command: str, seconds: float = 20.0) -> str:
    """Run a program on the client to its end."""
    process = await asyncio.create_subprocess_exec(
        *network.prefix(CLIENT), *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(seconds):
            found, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return found.decode()


@contextlib.asynccontextmanager
async def running(prefix: Sequence[str], *command: str) -> AsyncIterator[asyncio.StreamReader]:
    """A program that is ended with the test; its output and errors."""
    process = await asyncio.create_subprocess_exec(
        *prefix, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        if process.returncode is None:
            # wsdd does not always end when it is asked to.
            process.kill()
        await process.communicate()


async def wait_for(lines: asyncio.StreamReader, text: str, seconds: float = 20.0) -> str:
    """Return what was read up to the line with ``text``."""
    seen = ""
    async with asyncio.timeout(seconds):
        while text not in seen:
            line = await lines.readline()
            assert line, f"ended without {text!r}: {seen}"
            seen += line.decode()
    return seen


@contextlib.asynccontextmanager
async def avahi(prefix: Sequence[str], folder: Path, host: str) -> AsyncIterator[Path]:
    """avahi-daemon with a bus of its own, both in the namespace of ``prefix``; the bus's socket."""
    folder.mkdir()
    bus = folder / "bus"
    (folder / "bus.conf").write_text(
        '<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"'
        ' "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">'
        f"<busconfig><type>system</type><listen>unix:path={bus}</listen><auth>EXTERNAL</auth>"
        '<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/>'
        '<allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>'
    )
    (folder / "avahi.conf").write_text(
        f"[server]\nhost-name={host}\nuse-ipv4=yes\nuse-ipv6=yes\nenable-dbus=yes\nratelimit-interval-usec=1\n"
        "[rlimits]\n"
    )
    env = ["env", f"DBUS_SYSTEM_BUS_ADDRESS=unix:path={bus}"]
    # Its pid file has a fixed place, so it gets a /run of its own.
    daemon = (
        f"mount -t tmpfs none /run; exec avahi-daemon --no-drop-root --no-chroot --no-rlimits -f {folder}/avahi.conf"
    )
    async with running(
        prefix, "dbus-daemon", "--nofork", f"--config-file={folder}/bus.conf", "--print-address"
    ) as said:
        await wait_for(said, "unix:path")
        async with running(prefix, *env, "unshare", "-m", "sh", "-c", daemon) as lines:
            await wait_for(lines, "Server startup complete")
            reading = asyncio.ensure_future(lines.read())
            try:
                yield bus
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
