"""Regions of files over every fabric in user space: data, refusals, truncations, and the end of access."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from smbdirect import rdma
from smbdirect.providers.base import Provider
from smbdirect.providers.loopback import CAPABILITIES, LoopbackProvider
from tests.lab.providers import PROVIDERS

FABRICS = ["loopback", "iwarp", "iwarp-crc-ipv6", "iwarp-mss", "roce", "roce-ipv6-mtu256", "roce-single-packets"]
NETWORKS = FABRICS[1:]
"""Those that do not wait for a disk."""
MIB = 1 << 20
BEFORE, AFTER = b"before the region", b"after the region"


@pytest.fixture(params=FABRICS)
def fabric(request: pytest.FixtureRequest) -> tuple[Provider, str]:
    entry = PROVIDERS[request.param]
    return entry.make(), entry.host


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Yield the name of a file, of which no descriptor may be left."""
    path = tmp_path / "file"
    yield path
    with os.scandir("/proc/self/fd") as entries:
        found = [os.readlink(entry.path) for entry in entries if os.path.lexists(entry.path)]
    assert str(path) not in found


@asynccontextmanager
async def lent(
    fabric: tuple[Provider, str], path: Path, size: int = 3 * MIB + 5, writable: bool = True
) -> AsyncIterator[tuple[rdma.Connection, rdma.Region, bytes]]:
    """A client's connection, a file in the middle of which is a region, and what the region has."""
    data = os.urandom(size)
    path.write_bytes(BEFORE + data + AFTER)
    provider, host = fabric
    async with (
        asyncio.timeout(30),
        rdma.listen(provider, host) as listener,
        rdma.connect(provider, *listener.address) as client,
    ):
        server = await listener.accept()
        with open(path, "r+b" if writable else "rb") as file:
            region = server.register_file(file, len(BEFORE), size, readable=True, writable=writable)
        yield client, region, data


def inside(path: Path) -> bytes:
    """Return what the region has now, having looked at what is around it."""
    data = path.read_bytes()
    assert data.startswith(BEFORE) and data.endswith(AFTER)
    return data[len(BEFORE) : -len(AFTER)]


def test_a_file_is_read_and_written(fabric: tuple[Provider, str], path: Path) -> None:
    async def main() -> None:
        async with lent(fabric, path) as (client, region, data):
            assert not region.memory and region.handle.length == len(data)
            handle = rdma.Handle.unpack(region.handle.pack())
            into = bytearray(len(data))
            await client.read(handle, into)
            assert into == data
            parts = [bytearray(1), bytearray(4095), bytearray(70_000)]
            await client.read(handle, parts, 7)
            assert b"".join(parts) == data[7 : 7 + 74_096]
            new = os.urandom(2 * MIB + 1)
            await client.write(handle[100:], [new[:3], new[3:]], 11)
            await client.fence()
            expected = data[:111] + new + data[111 + len(new) :]
            assert inside(path) == expected
            # A read sees the writes before it.
            await client.write(handle, b"end", len(data) - 3)
            await client.read(handle, into)
            assert into == expected[:-3] + b"end"

    asyncio.run(main())


def test_small_transfers_in_a_batch(fabric: tuple[Provider, str], path: Path) -> None:
    async def main() -> None:
        async with lent(fabric, path, 1000) as (client, region, data):
            found = [bytearray(10) for _ in range(100)]
            async with client.batch() as batch:
                for number, into in enumerate(found):
                    batch.read(region.handle, into, number * 10)
            assert b"".join(found) == data
            async with client.batch() as batch:
                for number in range(100):
                    batch.write(region.handle, bytes([number]) * 10, number * 10)
                batch.fence()
            assert inside(path) == b"".join(bytes([number]) * 10 for number in range(100))

    asyncio.run(main())


def test_the_range_and_the_rights_hold(fabric: tuple[Provider, str], path: Path) -> None:
    """A peer that forges its handle gets an error, and nothing outside the region is touched or told."""

    async def attempt(writable: bool, forge: bool, write: bool) -> None:
        async with lent(fabric, path, 5000, writable) as (client, region, data):
            handle = region.handle
            into = bytearray(100)
            rights = rdma.Rights.READ | rdma.Rights.WRITE
            forged = rdma.Handle(handle.address - (8 if forge else 0), handle.token, handle.length + 8, rights)
            with pytest.raises(rdma.ConnectionLost):
                if write:
                    await client.write(forged, bytes(100))
                    await client.fence()
                else:
                    await client.read(forged, into, 0 if forge else len(data) - 92)
            assert into == bytes(100)
            assert inside(path) == data

    asyncio.run(attempt(True, forge=True, write=False))
    asyncio.run(attempt(True, forge=True, write=True))
    asyncio.run(attempt(False, forge=False, write=True))
    asyncio.run(attempt(True, forge=False, write=False))


def test_a_file_that_became_shorter_is_an_error(fabric: tuple[Provider, str], path: Path) -> None:
    async def main(kept: int, size: int) -> None:
        async with lent(fabric, path, size) as (client, region, data):
            into = bytearray(size)
            os.truncate(path, len(BEFORE) + kept)
            await client.read(region.handle[:kept], memoryview(into)[:kept])
            assert into[:kept] == data[:kept]
            with pytest.raises(rdma.ConnectionLost):
                await client.read(region.handle, into)
            assert not client.is_open

    asyncio.run(main(1, 4096))
    asyncio.run(main(2 * MIB, 3 * MIB))


def test_truncation_under_load(fabric: tuple[Provider, str], path: Path) -> None:
    """Each read gives the file's data or fails, whenever the file is cut off."""

    async def main(turns: int) -> None:
        async with lent(fabric, path, MIB) as (client, region, data):

            async def reader(offset: int) -> None:
                into = bytearray(64 << 10)
                with pytest.raises(rdma.ConnectionLost):
                    while True:
                        await client.read(region.handle, into, offset)
                        assert into == data[offset : offset + len(into)]

            readers = [asyncio.create_task(reader(offset)) for offset in range(0, MIB, 256 << 10)]
            for _ in range(turns):
                await asyncio.sleep(0)
            os.truncate(path, len(BEFORE) + 100)
            await asyncio.gather(*readers)

    for turns in (3, 17, 40):
        asyncio.run(main(turns))


def test_nothing_moves_after_the_close(fabric: tuple[Provider, str], path: Path) -> None:
    """Writers are under way when the region is closed: the file stays as it was at the return."""

    async def main(turns: int) -> None:
        async with lent(fabric, path, MIB) as (client, region, _):

            async def writer(offset: int) -> None:
                with pytest.raises(rdma.ConnectionLost):
                    number = 0
                    while True:
                        number = number + 1 & 0xFF
                        await client.write(region.handle, bytes([number]) * (256 << 10), offset)

            writers = [asyncio.create_task(writer(offset)) for offset in range(0, MIB, 256 << 10)]
            for _ in range(turns):
                await asyncio.sleep(0)
            region.close()
            assert not region.valid
            left = path.read_bytes()
            await asyncio.gather(*writers)
            assert path.read_bytes() == left

    for turns in (2, 9, 30):
        asyncio.run(main(turns))


def test_a_handle_that_was_kept_reads_nothing(fabric: tuple[Provider, str], path: Path) -> None:
    async def main() -> None:
        async with lent(fabric, path, 5000) as (client, region, _):
            await client.read(region.handle, bytearray(5000))
            region.close()
            region.close()
            into = bytearray(5000)
            with pytest.raises(rdma.ConnectionLost):
                await client.read(region.handle, into)
            assert into == bytes(5000)

    asyncio.run(main())


def test_an_error_of_the_disk_ends_the_connection(fabric: tuple[Provider, str]) -> None:
    """A file that does not take what is written: here it was sealed against writes."""

    async def main() -> None:
        provider, host = fabric
        descriptor = os.memfd_create("sealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.write(descriptor, b"as it was")
            with rdma.domain(provider) as domain:
                region = domain.register_file(descriptor, readable=True, writable=True)
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
                async with (
                    asyncio.timeout(30),
                    rdma.listen(provider, host, domain=domain) as listener,
                    rdma.connect(provider, *listener.address) as client,
                    rdma.connect(provider, *listener.address) as other,
                ):
                    with pytest.raises(rdma.ConnectionLost):
                        await client.write(region.handle, b"another")
                        await client.fence()
                    # It is the peer's end alone: the region serves others.
                    into = bytearray(9)
                    await other.read(region.handle, into)
                    assert into == b"as it was"
        finally:
            os.close(descriptor)

    asyncio.run(main())


def test_a_domain_lends_a_file_to_all(fabric: tuple[Provider, str], path: Path) -> None:
    async def main() -> None:
        provider, host = fabric
        path.write_bytes(b"for everybody")
        with rdma.domain(provider) as domain:
            with path.open("rb") as file:
                region = domain.register_file(file, 4, readable=True)
            async with asyncio.timeout(30), rdma.listen(provider, host, domain=domain) as listener:
                for _ in range(3):
                    async with rdma.connect(provider, *listener.address) as client:
                        into = bytearray(9)
                        await client.read(region.handle, into)
                        assert into == b"everybody"

    asyncio.run(main())


class Disk:
    """Lets the page cache lack data: reads that must not wait fail, until a worker has read what they wanted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        self.before_read: Callable[[], None] = lambda: None
        self._preadv, self._pread = os.preadv, os.pread
        monkeypatch.setattr(os, "preadv", self.preadv)
        monkeypatch.setattr(os, "pread", self.pread)

    def preadv(self, descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise BlockingIOError
        return self._preadv(descriptor, buffers, offset, flags)

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        self.reads += 1
        self.before_read()
        return self._pread(descriptor, length, offset)


@pytest.mark.parametrize("fabric", NETWORKS, indirect=True)
@pytest.mark.parametrize("size", [1, 4096, MIB, 3 * MIB + 5])
def test_a_file_that_must_come_from_its_disk(
    fabric: tuple[Provider, str], path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker reads it, and the event loop goes on meanwhile."""
    disk = Disk(monkeypatch)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        disk.before_read = lambda: asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
        async with lent(fabric, path, size) as (client, region, data):
            into = bytearray(size)
            async with client.batch() as batch:
                batch.read(region.handle, into)
                batch.write(region.handle, b"z", size - 1)
                batch.fence()
            assert into[:-1] == data[:-1] and inside(path) == data[:-1] + b"z"
            assert disk.reads
            os.truncate(path, len(BEFORE) + size // 2)
            with pytest.raises(rdma.ConnectionLost):
                await client.read(region.handle, into)

    asyncio.run(main())


@pytest.mark.parametrize("fabric", NETWORKS, indirect=True)
def test_a_file_is_closed_while_a_worker_reads_it(
    fabric: tuple[Provider, str], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def main() -> None:
        async with lent(fabric, path, MIB) as (client, region, _):
            reading, closed = threading.Event(), threading.Event()

            def wait() -> None:
                reading.set()
                assert closed.wait(10)

            disk.before_read = wait
            into = bytearray(MIB)
            task = asyncio.create_task(client.read(region.handle, into))
            await asyncio.to_thread(reading.wait, 10)
            region.close()
            closed.set()
            with pytest.raises(rdma.ConnectionLost):
                await task
            assert into.count(0) > MIB // 2

    asyncio.run(main())


def test_what_cannot_be_registered(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    source, sink = os.pipe()
    opened = [os.open(path, flags) for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_APPEND, os.O_PATH)]
    folder = os.open(tmp_path, os.O_RDONLY)
    reads, writes, appends, names = opened

    async def main() -> None:
        with rdma.domain(LoopbackProvider()) as domain:
            for descriptor, offset, length, rights in (
                (folder, 0, 1, {"readable": True}),
                (source, 0, 1, {"readable": True}),
                (reads, 0, 101, {"readable": True}),
                (reads, 100, 1, {"readable": True}),
                (reads, 100, None, {"readable": True}),
                (reads, -1, 10, {"readable": True}),
                (reads, 0, 0, {"readable": True}),
                (reads, 0, None, {"writable": True}),
                (writes, 0, None, {"readable": True}),
                (appends, 0, None, {"writable": True}),
                (names, 0, None, {"readable": True}),
                (99_999, 0, 1, {"readable": True}),
            ):
                with pytest.raises(rdma.ProviderError):
                    domain.register_file(descriptor, offset, length, **rights)
            with pytest.raises(ValueError, match="readable"):
                domain.register_file(reads)
            assert domain.register_file(reads, 40, 60, readable=True).valid
            assert domain.register_file(writes, writable=True).valid

    try:
        asyncio.run(main())
    finally:
        for descriptor in (*opened, folder, source, sink):
            os.close(descriptor)


def test_a_device_reaches_memory_only(tmp_path: Path) -> None:
    async def main() -> None:
        provider = LoopbackProvider(replace(CAPABILITIES, registers_files=False))
        async with rdma.listen(provider) as listener, rdma.connect(provider, *listener.address) as client:
            with open(__file__, "rb") as file, pytest.raises(rdma.NotSupported, match="memory only"):
                client.register_file(file, readable=True)

    asyncio.run(main())
