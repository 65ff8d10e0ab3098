"""smbclient, which knows no RDMA, over SMB Direct: through `smb3server proxy`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from smb3server.lab.proxy.proxy import Proxy, server_in_process
from smbdirect.providers.base import Provider
from smbdirect.providers.loopback import LoopbackProvider
from smbdirect.providers.make import make_provider
from smbdirect.transport.listen import listen
from tools.support import own_user

pytestmark = pytest.mark.interop
needs_smbclient = pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")
SIZE = (9 << 20) + 12345
"""Of a file that takes more than one READ and WRITE of the largest size."""


@contextlib.asynccontextmanager
async def proxied(
    folder: Path, fabric: str, *options: str, inline: bool = False, snapshots: str = ""
) -> AsyncIterator[Proxy]:
    """A proxy in front of a server on ``folder``/share. ``snapshots``: the share's key."""
    (folder / "share").mkdir(exist_ok=True)
    shared = ["--share", own_user.option("share", folder / "share")]
    if snapshots:
        config = folder / "server.toml"
        config.write_text(f'[[share]]\nname = "share"\npath = "share"\nsnapshots = "{snapshots}"\n{own_user.LINE}')
        shared = ["--config", str(config)]
    arguments = [
        *shared,
        "--user",
        "u:pw",
        "--listen",
        "127.0.0.1",
        "--port",
        "0",
    ]
    loopback = LoopbackProvider()
    provider: Provider = loopback if fabric == "loopback" else make_provider(fabric)
    arguments += ["--state", str(folder / "state"), *options]
    async with server_in_process(arguments, loopback) as service:
        address = ("loopback", 5445)
        listener = None
        if fabric != "loopback":
            listener = await listen(provider, "127.0.0.1", 0, service.server.accept)
            address = listener.address
        proxy = Proxy(provider, address, inline=inline)
        proxy.listen("127.0.0.1", 0)
        try:
            yield proxy
        finally:
            await proxy.close()
            if listener is not None:
                await listener.close()


async def smbclient(proxy: Proxy, commands: str, *options: str) -> tuple[str, dict[str, int]]:
    """What it says, and the highest counters seen while it ran."""
    counters: dict[str, int] = {}
    process = await asyncio.create_subprocess_exec(
        *("smbclient", "//127.0.0.1/share", "-p", str(proxy.address[1]), "-U", "u%pw", *options, "-c", commands),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(60):
            output = asyncio.create_task(process.communicate())
            while not output.done():
                await asyncio.wait([output], timeout=0.02)
                counters |= {key: max(value, counters.get(key, 0)) for key, value in proxy.counters.items()}
            said, _ = await output
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
    return said.decode(), counters


def put_and_get(
    folder: Path, fabric: str, *, inline: bool, options: tuple[str, ...] = (), size: int = SIZE
) -> dict[str, int]:
    """Counters of SMB Direct after a file went there and back unchanged."""
    source, back = folder / "source", folder / "back"
    source.write_bytes(os.urandom(size))

    async def run() -> dict[str, int]:
        async with proxied(folder, fabric, inline=inline) as proxy:
            commands = f"put {source} there; mkdir d; rename there d\\here; get d\\here {back}; ls d\\*"
            said, counters = await smbclient(proxy, commands, *options)
            assert "here" in said
            return counters

    counters = asyncio.run(run())
    assert back.read_bytes() == (folder / "share" / "d" / "here").read_bytes() == source.read_bytes()
    return counters


@needs_smbclient
def test_a_previous_version_goes_by_rdma(tmp_path: Path) -> None:
    token = "@GMT-2024.01.01-10.00.00"
    then = tmp_path / "share" / ".snapshots" / token
    then.mkdir(parents=True)
    data = os.urandom(SIZE)
    (then / "file").write_bytes(data)
    (tmp_path / "share" / "file").write_bytes(b"now")

    async def run() -> dict[str, int]:
        async with proxied(tmp_path, "iwarp", snapshots=".snapshots/@GMT-%Y.%m.%d-%H.%M.%S") as proxy:
            _, counters = await smbclient(proxy, f"get {token}\\file {tmp_path}/back; scopy {token}\\file copied")
            return counters

    counters = asyncio.run(run())
    assert (tmp_path / "back").read_bytes() == (tmp_path / "share" / "copied").read_bytes() == data
    assert counters["bytes_sent_inline"] < 1 << 16


@needs_smbclient
@pytest.mark.parametrize("fabric", ["loopback", "iwarp", "roce"])
def test_data_goes_by_rdma(tmp_path: Path, fabric: str) -> None:
    counters = put_and_get(tmp_path, fabric, inline=False)
    assert counters["bytes_sent_inline"] < 1 << 16


@needs_smbclient
@pytest.mark.parametrize(
    "options", [(), ("--client-protection=sign",), ("--client-protection=encrypt",)], ids=["plain", "sign", "encrypt"]
)
def test_data_in_messages(tmp_path: Path, options: tuple[str, ...]) -> None:
    counters = put_and_get(tmp_path, "iwarp", inline=not options, options=options, size=900_000)
    assert counters["bytes_sent_inline"] > 900_000


@needs_smbclient
def test_message_that_the_server_cannot_reassemble(tmp_path: Path) -> None:
    """It ends the connection on both sides, and leaves nothing behind."""
    source = tmp_path / "source"
    source.write_bytes(bytes(SIZE))

    async def run() -> None:
        async with proxied(tmp_path, "loopback", inline=True) as proxy:
            # Or by SIGPIPE, if it was still sending.
            with pytest.raises(AssertionError, match=r"CONNECTION_(RESET|DISCONNECTED)|assert -13 == 0"):
                await smbclient(proxy, f"put {source} there")
            async with asyncio.timeout(10):
                while proxy.connections:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_ends_of_connections(tmp_path: Path) -> None:
    """A client that goes takes the server's connection with it; without a server, a client is let go."""

    async def run() -> None:
        async with proxied(tmp_path, "loopback") as proxy:
            reader, writer = await asyncio.open_connection(*proxy.address)
            writer.write(b"\0\0\0")
            async with asyncio.timeout(10):
                while not proxy.connections:
                    await asyncio.sleep(0.01)
                writer.close()
                while proxy.connections:
                    await asyncio.sleep(0.01)
            alone = Proxy(LoopbackProvider(), ("loopback", 5445))
            alone.listen("127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*alone.address)
            writer.write(b"\0")
            async with asyncio.timeout(10):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
            await alone.close()

    asyncio.run(run())


def test_stopping_ends_connections(tmp_path: Path) -> None:
    async def run() -> None:
        async with proxied(tmp_path, "loopback") as proxy:
            reader, writer = await asyncio.open_connection(*proxy.address)
            writer.write(b"\0")
            async with asyncio.timeout(10):
                while not proxy.connections:
                    await asyncio.sleep(0.01)
                await proxy.close()
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(proxy.address)

    asyncio.run(run())
