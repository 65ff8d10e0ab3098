"""Sessions with a channel over TCP and one over SMB Direct (iWARP), by impacket: data moves to RDMA and back, stale
writes are fenced (MS-SMB2 3.3.5.2.10), breaks reach the channel that lives (3.3.4.6)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from smb3server.client.protocol import Client, open_tcp
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.lab.proxy.proxy import Proxy
from smb3server.service.service import Service
from smb3server.state import objects
from smb3server.wire.status import NtStatus
from smbdirect.providers.make import make_provider
from tests.lab.impacket_channels import Channel
from tests.lab.reports import collect
from tools.support import own_user

# impacket leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SIZE = 65536
"""Of a READ or WRITE, more than what is too small for RDMA."""


@contextlib.asynccontextmanager
async def serving(folder: Path, *hosts: str) -> AsyncIterator[Service]:
    """A server of share "share" on ephemeral ports of ``hosts``, with iWARP."""
    (folder / "share").mkdir()
    arguments = [
        "--share",
        own_user.option("share", folder / "share"),
        "--user",
        "u:pw",
        "--port",
        "0",
        "--rdma",
        "iwarp",
    ]
    arguments += ["--rdma-port", "0", "--state", str(folder / "state")]
    for host in hosts:
        arguments += ["--listen", host]
    service = Service(parse_arguments(arguments))
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


@contextlib.asynccontextmanager
async def proxied(service: Service) -> AsyncIterator[int]:
    """A port whose connections go on over TCP and, with the data by RDMA, over iWARP by turns."""
    rdma, tcp = service.fabrics.listeners[0][1].address, service.listeners[0].address
    proxy = Proxy(make_provider("iwarp"), rdma, tcp_server=tcp)
    proxy.listen("127.0.0.1", 0)
    try:
        yield proxy.address[1]
    finally:
        await proxy.close()


def channels(service: Service) -> dict[str, dict[str, Any]]:
    """Of the only session, by fabric."""
    report = collect(service.server)
    (session,) = report["sessions"]
    found = {channel["fabric"]: channel for channel in report["channels"] if channel["channel"] in session["channels"]}
    assert len(found) == len(session["channels"])
    return found


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


class Scene(NamedTuple):
    service: Service
    tcp: Channel
    rdma: Channel
    tree: int
    file_id: bytes

    async def write(self, channel: Channel, data: bytes, offset: int = 0) -> int:
        """The status, once the server has written or refused ``data``."""

        def write() -> None:
            channel.write(self.tree, self.file_id, data, offset, len(data))

        return await _status(write)

    async def read(self, channel: Channel, offset: int = 0) -> bytes:
        return bytes(await asyncio.to_thread(channel.read, self.tree, self.file_id, offset, SIZE))

    def content(self) -> bytes:
        """What the server holds."""
        (share,) = [share for share in self.service.config.shares if share.name == "share"]
        return (share.path / "file").read_bytes()


async def _status(call: Callable[[], object]) -> int:
    try:
        await asyncio.to_thread(call)
    except Exception as error:
        if (code := getattr(error, "get_error_code", None)) is None:
            raise
        return int(code())
    return 0


def play(tmp_path: Path, scene: Callable[[Scene], Awaitable[None]]) -> None:
    """A session that began over TCP, a second channel over iWARP, and an open."""

    async def main() -> None:
        async with serving(tmp_path, "127.0.0.1") as service, proxied(service) as port:
            tcp = await asyncio.to_thread(Channel, "127.0.0.1", port)
            rdma = await asyncio.to_thread(lambda: Channel("127.0.0.1", port, primary=tcp))
            assert set(channels(service)) == {"tcp", "iwarp"}
            tree = await asyncio.to_thread(tcp.connectTree, "share")
            file_id = await asyncio.to_thread(tcp.open, tree, "file")
            try:
                await scene(Scene(service, tcp, rdma, tree, file_id))
            finally:
                for channel in (tcp, rdma):
                    await asyncio.to_thread(channel.close_session)

    asyncio.run(main())


def test_data_moves_to_rdma_and_back(tmp_path: Path) -> None:
    async def scene(at: Scene) -> None:
        data = os.urandom(SIZE)
        assert await at.write(at.tcp, data) == 0
        assert channels(at.service)["iwarp"]["rdma_read_bytes"] == 0
        for number in range(1, 9):
            assert await at.write(at.rdma, data, number * SIZE) == 0
        assert await at.read(at.rdma, 8 * SIZE) == data
        moved = channels(at.service)
        assert (moved["iwarp"]["rdma_read_bytes"], moved["iwarp"]["rdma_write_bytes"]) == (8 * SIZE, SIZE)
        assert moved["iwarp"]["rdma"]["code"] == "used"
        assert moved["tcp"]["rdma"]["code"] == "used-on-another-channel"
        # The RDMA channel dies, and the client goes on where it is: same session, same tree, same open.
        for connection in list(at.service.server.connection_list):
            if connection.transport.rdma is not None:
                connection.transport.abort("the fabric broke")
        await until(lambda: set(channels(at.service)) == {"tcp"})
        at.tcp.sequence, at.tcp.replay = 1, True
        assert await at.write(at.tcp, data, 8 * SIZE) == 0
        at.tcp.replay = False
        assert await at.write(at.tcp, data, 9 * SIZE) == 0
        assert await at.read(at.tcp, 9 * SIZE) == data
        assert at.content() == data * 10
        assert channels(at.service)["tcp"]["inline_bytes_received"] > 3 * SIZE

    play(tmp_path, scene)


@pytest.mark.parametrize("stale", ["tcp", "rdma"])
@pytest.mark.parametrize("base", [0, 0x8000, 0xFFFF])
def test_stale_writes_are_fenced(tmp_path: Path, stale: str, base: int) -> None:
    """What a channel that was given up still sends, with the sequence of that time, changes nothing any more."""

    async def scene(at: Scene) -> None:
        old, new = (at.tcp, at.rdma) if stale == "tcp" else (at.rdma, at.tcp)
        # In steps of at most half of the numbers, as the arithmetic of 16 bits has it.
        for sequence in (base // 3, 2 * (base // 3), base):
            old.sequence = sequence
            assert await at.write(old, b"first" * 1000) == 0
        new.sequence = base + 1 & 0xFFFF
        assert await at.write(new, b"after" * 1000) == 0
        assert await at.write(old, b"stale" * 1000) == NtStatus.FILE_NOT_AVAILABLE
        old.replay = True
        assert await at.write(old, b"stale" * 1000) == NtStatus.FILE_NOT_AVAILABLE
        old.replay = False
        assert at.content() == b"after" * 1000
        # Reading harms nobody, and a channel that knows the new sequence is as good as any.
        assert await at.read(old) == b"after" * 1000
        old.sequence = new.sequence
        assert await at.write(old, b"again" * 1000) == 0
        assert at.content() == b"again" * 1000

    play(tmp_path, scene)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, stdin=subprocess.DEVNULL)


class Links(NamedTuple):
    namespace: str
    ends: tuple[str, str]
    """Interfaces in the namespace."""
    addresses: tuple[str, str]
    """Ours."""


@pytest.fixture
def links() -> Iterator[Links]:
    """Another machine behind two links: a network namespace, on addresses kept for tests of networks (RFC 2544)."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2 for a network namespace")
    name = f"two{os.getpid() % 10000}{secrets.token_hex(2)}"
    net = f"198.19.{secrets.randbelow(256)}."
    first = 8 * secrets.randbelow(32) + 1
    addresses = (f"{net}{first}", f"{net}{first + 4}")
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    try:
        for number, address in enumerate(addresses):
            near, far = f"{name}{number}", f"far{number}"
            theirs = f"{net}{first + 4 * number + 1}"
            _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
            _ip("addr", "add", f"{address}/30", "dev", near)
            _ip("link", "set", near, "up")
            _ip("-n", name, "addr", "add", f"{theirs}/30", "dev", far)
            _ip("-n", name, "link", "set", far, "up")
        yield Links(name, ("far0", "far1"), addresses)
    finally:
        # Sockets that still try to say good-bye would keep the namespace, and the addresses with it.
        for number in (0, 1):
            subprocess.run(["ip", "link", "del", f"{name}{number}"], check=False, capture_output=True)
        _ip("netns", "del", name)


@pytest.mark.root
@pytest.mark.parametrize("dead", ["tcp", "rdma"])
def test_break_reaches_the_channel_that_lives(
    tmp_path: Path, links: Links, monkeypatch: pytest.MonkeyPatch, dead: str
) -> None:
    """The session began over the fabric whose link is cut, so that the break goes there first."""
    monkeypatch.setattr(objects, "CHANNEL_SILENCE", 6.0)

    async def main() -> None:
        async with serving(tmp_path, "127.0.0.1", *links.addresses) as service:
            tcp = next(entry.address for entry in service.listeners if entry.address[0] == links.addresses[0])
            rdma = next(
                entry.address for _, entry in service.fabrics.listeners if entry.address[0] == links.addresses[1]
            )
            words = ["ip", "netns", "exec", links.namespace, sys.executable, "-m", "tests.lab.impacket_channels", dead]
            words += [tcp[0], str(tcp[1]), rdma[0], str(rdma[1])]
            pipe = subprocess.PIPE
            holder = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
            assert holder.stdout is not None and holder.stdin is not None
            try:
                assert await holder.stdout.readline() == b"holding\n"
                assert set(channels(service)) == {"tcp", "iwarp"}
                _ip("-n", links.namespace, "link", "set", links.ends[0 if dead == "tcp" else 1], "down")
                client = await Client.connect(await open_tcp("127.0.0.1", service.listeners[0].address[1]))
                tree = await (await client.log_on("u", "pw")).tree_connect("share")
                opening = asyncio.ensure_future(tree.create("held"))
                alive = b"rdma" if dead == "tcp" else b"tcp"
                assert await holder.stdout.readline() == b"break over " + alive + b"\n"
                assert await holder.stdout.readline() == b"acknowledged\n"
                await opening
                await client.close()
                # Nobody waits for the dead channel for long.
                await until(lambda: len(service.server.connection_list) == 1)
                assert set(channels(service)) == {"iwarp" if dead == "tcp" else "tcp"}
            finally:
                holder.kill()
                await holder.communicate()

    asyncio.run(main())
