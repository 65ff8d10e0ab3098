"""Clients that die, vanish, talk nonsense or say nothing: the server stays up, frees everything, and the others notice
nothing. What a stranger can make it hold is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import secrets
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from smb3server.net import tcp
from smb3server.settings.server import Settings
from smbdirect.core.settings import Settings as SmbDirectSettings
from tests.lab.footprint import PATIENCE, Serving, serve
from tests.lab.hostile_client import MPA_REQUEST, OVER_SMB_DIRECT, SAID

MANY = 500
needs_smbclient = pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")


@contextlib.asynccontextmanager
async def process(*command: str, says: bytes = b"") -> AsyncIterator[asyncio.subprocess.Process]:
    """A client process, once it says ``says``; killed at the end of the block."""
    pipe = subprocess.PIPE
    running = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        assert running.stdout is not None
        if says:
            async with asyncio.timeout(60):
                assert await running.stdout.readline() == says + b"\n"
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


def client(*arguments: str | int) -> list[str]:
    return [sys.executable, "-m", "tests.lab.hostile_client", *map(str, arguments)]


def no_errors(caplog: pytest.LogCaptureFixture) -> None:
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# Killed


@pytest.mark.parametrize("kind", ["tcp", "rdma"])
def test_client_killed_in_mid_transfer(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    async def scenario(serving: Serving) -> None:
        before = serving.footprint()
        port = serving.port if kind == "tcp" else serving.rdma_port
        async with process(*client("transfer", kind, "127.0.0.1", port, 4096), says=b"moving"):
            assert serving.footprint().opens == before.opens + 1
        await serving.settles(before)

    serve(tmp_path, scenario)
    no_errors(caplog)


@needs_smbclient
@pytest.mark.interop
@pytest.mark.parametrize("command", ["get big /dev/null", "put BIG copy"])
def test_smbclient_killed_in_mid_transfer(tmp_path: Path, caplog: pytest.LogCaptureFixture, command: str) -> None:
    async def scenario(serving: Serving) -> None:
        source = tmp_path / "source"
        for path in (source, tmp_path / "share" / "big"):
            with path.open("wb") as file:
                file.truncate(8 << 30)
        before = serving.footprint()
        words = ["smbclient", "//127.0.0.1/share", "-p", str(serving.port), "-U", "u%pw"]
        async with process(*words, "-c", command.replace("BIG", str(source))):
            server = serving.service.server

            def moved() -> int:
                counters: list[dict[str, int]] = [getattr(c.transport, "counters", {}) for c in server.connection_list]
                return max(c.get("bytes_sent", 0) + c.get("bytes_received", 0) for c in counters)

            # The bystander's connection moves a few kilobytes a second.
            await serving.until(lambda: moved() > 16 << 20)
        await serving.settles(before)

    serve(tmp_path, scenario)
    no_errors(caplog)


# Cut off


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def other_machine() -> Any:
    """(its namespace, its interface, our address): a network namespace behind a veth pair, on addresses kept for tests
    of networks (RFC 2544)."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2 for a network namespace")
    net = f"198.18.{secrets.randbelow(256)}."
    ours = 4 * secrets.randbelow(64) + 1
    name = f"cut{os.getpid() % 10000}{secrets.token_hex(2)}"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    try:
        _ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        _ip("addr", "add", f"{net}{ours}/30", "dev", f"{name}a")
        _ip("link", "set", f"{name}a", "up")
        _ip("-n", name, "addr", "add", f"{net}{ours + 1}/30", "dev", f"{name}b")
        _ip("-n", name, "link", "set", f"{name}b", "up")
        yield name, f"{name}b", f"{net}{ours}"
    finally:
        # Sockets that still try to say good-bye would keep the namespace, and the address with it.
        subprocess.run(["ip", "link", "del", f"{name}a"], check=False, capture_output=True)
        _ip("netns", "del", name)


@pytest.mark.root
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["tcp", "rdma"])
def test_network_cut_and_back(tmp_path: Path, other_machine: tuple[str, str, str], kind: str, seconds: int) -> None:
    """With the limits as they are the transfer goes on, and its data is right."""
    namespace, interface, address = other_machine

    async def scenario(serving: Serving) -> None:
        before = serving.footprint()
        service = serving.service
        port = service.listeners[1].address[1] if kind == "tcp" else service.fabrics.listeners[1][1].address[1]
        words = ["ip", "netns", "exec", namespace, *client("transfer", kind, address, port, 256)]
        async with process(*words, says=b"moving") as running:
            _ip("-n", namespace, "link", "set", interface, "down")
            held = serving.footprint()
            await asyncio.sleep(seconds)
            assert serving.footprint().connections == held.connections == before.connections + 1
            _ip("-n", namespace, "link", "set", interface, "up")
            async with asyncio.timeout(180):
                assert await running.wait() == 0
        await serving.settles(before)

    serve(tmp_path, scenario, hosts=("127.0.0.1", address))


@pytest.mark.root
@pytest.mark.parametrize("kind", ["tcp", "rdma"])
def test_network_cut_for_good(
    tmp_path: Path, other_machine: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A client that never comes back is noticed and cleared away; the limits are shortened to two seconds."""
    namespace, interface, address = other_machine
    monkeypatch.setattr(tcp, "PEER_TIMEOUT", 2.0)
    monkeypatch.setattr(
        "smb3server.service.listeners.TransportSettings",
        lambda **given: SmbDirectSettings(**given, keepalive_interval=1.0, keepalive_response_timeout=1.0),
    )

    async def scenario(serving: Serving) -> None:
        before = serving.footprint()
        service = serving.service
        port = service.listeners[1].address[1] if kind == "tcp" else service.fabrics.listeners[1][1].address[1]
        words = ["ip", "netns", "exec", namespace, *client("transfer", kind, address, port, 4096)]
        async with process(*words, says=b"moving"):
            _ip("-n", namespace, "link", "set", interface, "down")
            await serving.until(lambda: serving.footprint().connections == before.connections)
        await serving.settles(before)

    serve(tmp_path, scenario, hosts=("127.0.0.1", address))


# Nonsense


def _nonsense() -> list[bytes]:
    rng = random.Random(4791)
    noise = [rng.randbytes(size) for size in (1, 3, 4, 5, 64, 1000, 70000)]
    mpa = MPA_REQUEST + b"\x10\x02\x00\x04\x80\x10\x80\x10"
    header = b"\xfeSMB" + (64).to_bytes(2, "little")
    return [
        *noise,
        *(b"\0" + part for part in noise),
        *(b"M" + part for part in noise),
        *(mpa + part for part in noise),
        MPA_REQUEST + b"\xff\xff\xff\xff" + noise[4],
        MPA_REQUEST + b"\x10\x02\xff\xff" + noise[5],
        mpa + b"\xff\xff\x40\x43" + bytes(16),
        mpa + b"\x00\x14\x41\x43" + bytes(40),
        b"\0\xff\xff\xff" + noise[5],
        b"\0\0\0\0" * 100,
        b"\0\0\0\x20\xffSMB" + bytes(28),
        b"\0\0\0\x40" + header + bytes(58),
        b"\0\0\0\x40" + header + rng.randbytes(58),
        b"\0\0\0\x50\xfdSMB" + rng.randbytes(76),
        b"\0\0\0\x50\xfcSMB" + rng.randbytes(76),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise[5],
    ]


def test_nonsense_on_every_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Direct TCP, iWARP, and iWARP on the port of direct TCP; every connection is ended by the server."""

    async def say(port: int, text: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(text)
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(PATIENCE):
                    while await reader.read(65536):
                        pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def scenario(serving: Serving) -> None:
        before = serving.footprint()
        said = [(port, text) for port in (serving.port, serving.rdma_port) for text in _nonsense()]
        await asyncio.gather(*(say(port, text) for port, text in said))
        await serving.settles(before)

    serve(tmp_path, scenario, Settings(negotiate_timeout=1.0, authentication_timeout=1.5))
    no_errors(caplog)


# Silence

LIMITS = {
    "nothing": 2048,
    "half a length": 12_288,
    "half a message": 16_384,
    "NEGOTIATE": 16_384,
    "half an MPA request": 2048,
    "an MPA request without its data": 3072,
    "SMB Direct": 33_280,
    "SMB Direct and NEGOTIATE": 33_792,
}
"""Bytes that one silent connection of the kind may cost the server."""


IN_EVERY_RUN = (("nothing", False), ("NEGOTIATE", False), ("SMB Direct and NEGOTIATE", True))
"""One kind for each layer that drops them. All others are in the long one."""


def _cases() -> Iterator[object]:
    for kind, iwarp_port in (
        *((kind, False) for kind in (*SAID, "NEGOTIATE")),
        ("nothing", True),
        *((kind, True) for kind in SAID if "MPA" in kind),
        *((kind, True) for kind in OVER_SMB_DIRECT),
        ("SMB Direct", False),
    ):
        marks = () if (kind, iwarp_port) in IN_EVERY_RUN else (pytest.mark.long,)
        yield pytest.param(kind, iwarp_port, marks=marks)


@pytest.mark.parametrize(("kind", "iwarp_port"), list(_cases()))
def test_many_connect_and_say_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, iwarp_port: bool
) -> None:
    """They cost little while they last, are dropped in time, and nothing of them stays. iWARP is spoken on the port of
    direct TCP, too."""
    # The lines that say who was dropped would stay: pytest keeps them.
    for package in ("smb3server", "smbdirect"):
        caplog.set_level(logging.ERROR, package)

    async def scenario(serving: Serving) -> None:
        port = serving.rdma_port if iwarp_port else serving.port
        tracemalloc.start()
        try:
            async with process(*client("hold", kind, "127.0.0.1", port, MANY), says=b"ready") as strangers:
                assert strangers.stdin is not None
                assert strangers.stdout is not None
                before = serving.footprint()
                empty = tracemalloc.get_traced_memory()[0]
                strangers.stdin.write(b"go\n")
                async with asyncio.timeout(60):
                    assert await strangers.stdout.readline() == b"up\n"
                gc.collect()
                each = (tracemalloc.get_traced_memory()[0] - empty) / MANY
                await serving.settles(before, 30)
                # Garbage is not what the process keeps.
                gc.collect()
                left = (tracemalloc.get_traced_memory()[0] - empty) / MANY
        finally:
            tracemalloc.stop()
        # Long messages come out of an allowance that all share.
        assert each < LIMITS.get(kind, (4 << 20) / MANY + 32_768)
        assert left < 1024

    serve(tmp_path, scenario, Settings(negotiate_timeout=3.0, authentication_timeout=3.0))
