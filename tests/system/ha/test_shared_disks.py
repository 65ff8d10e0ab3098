"""Shared virtual disks whose server dies: the guests go on, and nobody gets around a reservation meanwhile."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.transports import open_tcp
from smb3server.virtual_disks import making, vhd_set
from smb3server.wire import create_contexts as contexts
from smb3server.wire import svhdx as wire
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.svhdx import Operation, Status
from tests.lab.disks import SIZE, Folder, needs_qemu, qemu
from tests.lab.nodes import PASSWORD, USER
from tests.lab.persistent import PersistentFile, PersistentShare
from tests.lab.process import ServerProcess, run
from tools.cluster import lab
from tools.cluster.lab import PORT, SHARE, VIRTUAL, ClusterLab

GOOD, CHECK_CONDITION, RESERVATION_CONFLICT = 0x00, 0x02, 0x18
REGISTER, RESERVE, PREEMPT = 0, 1, 4
READ_KEYS, READ_RESERVATION, REPORT_CAPABILITIES = 0, 1, 2
WRITE_EXCLUSIVE = 1
KEYS = {"one": b"key of 1", "other": b"key of 2"}
UNIT_ATTENTION = 0xC05CFF00
SECTION = "shared_virtual_disks = true\n"
STEP = 98304


def put_disk(folder: Path) -> None:
    """Make a VHD set with an empty dynamic disk."""
    memory = Folder()
    handle = memory.create("base.avhdx")
    making.make(handle, making.Shape(SIZE))
    handle.close()
    handle = memory.create("disk.vhds")
    vhd_set.make(handle, "base.avhdx")
    handle.close()
    for name in memory.names():
        (folder / name).write_bytes(memory.get(name))


class Guest:
    """An initiator with a persistent open of the disk."""

    def __init__(self, file: PersistentFile, key: bytes) -> None:
        self.file, self.key = file, key

    @classmethod
    async def of(cls, share: PersistentShare, name: str) -> Guest:
        device = wire.OpenDevice(has_initiator_id=1, initiator_id=name.encode().ljust(16), originator_flags=1)
        more = [contexts.RawContext(wire.OPEN_DEVICE_CONTEXT, wire.OPEN_DEVICE.pack(device))]
        file = await share.open(
            "disk.vhds" + wire.SUFFIX,
            disposition=CreateDisposition.OPEN,
            options=int(CreateOptions.NO_INTERMEDIATE_BUFFERING),
            more=more,
        )
        return cls(file, KEYS[name])

    async def scsi(self, cdb: bytes, data: bytes = b"", room: int = 0) -> tuple[int, bytes]:
        """Execute a command, and return its status and its data."""
        request = wire.ScsiRequest(
            cdb_length=16,
            sense_length=20,
            disposition=2,
            data_transfer_length=max(len(data), room),
            cdb=cdb.ljust(16, b"\0"),
        )
        header = wire.TUNNEL_HEADER.pack(wire.TunnelHeader(Operation.SCSI))
        body = header + wire.SCSI_REQUEST.pack(request) + data
        answer = (await self.file.ioctl(Fsctl.SVHDX_SYNC_TUNNEL_REQUEST, body))[wire.TUNNEL_HEADER.size :]
        return wire.SCSI_RESPONSE.unpack(answer).scsi_status, answer[wire.SCSI_RESPONSE.size :]

    async def reserve_out(self, action: int, key: bytes, new_key: bytes = bytes(8), flags: int = 0) -> int:
        cdb = struct.pack(">BBBxxI", 0x5F, action, WRITE_EXCLUSIVE, 24)
        return (await self.scsi(cdb, key + new_key + struct.pack(">4xB3x", flags)))[0]

    async def reserve_in(self, action: int) -> bytes:
        return (await self.scsi(struct.pack(">BB5xH", 0x5E, action, 1024), room=1024))[1]

    async def keys(self) -> set[bytes]:
        found = await self.reserve_in(READ_KEYS)
        return {found[start : start + 8] for start in range(8, len(found), 8)}

    async def holder(self) -> bytes:
        return (await self.reserve_in(READ_RESERVATION))[8:16]


async def status_of(action: Awaitable[object]) -> int:
    with pytest.raises(ServerError) as caught:
        await action
    return caught.value.status


async def go_through_it(
    shares: tuple[PersistentShare, PersistentShare], die: Callable[[], Awaitable[None]]
) -> dict[int, bytes]:
    """Let two guests use the disk while its server dies twice. Return what was acknowledged, by offset."""
    one, other = await Guest.of(shares[0], "one"), await Guest.of(shares[1], "other")
    written: dict[int, bytes] = {}

    async def write(guest: Guest, count: int) -> None:
        for _ in range(count):
            # Some of the writes need a new block of the image.
            offset = len(written) * STEP
            data = bytes((len(written) + 1,)) * 32768
            await guest.file.write(offset, data)
            written[offset] = data

    assert await one.reserve_out(REGISTER, bytes(8), one.key, flags=1) == GOOD
    assert await other.reserve_out(REGISTER, bytes(8), other.key) == GOOD
    assert await one.reserve_out(RESERVE, one.key) == GOOD
    writer = asyncio.ensure_future(write(one, 60))
    while len(written) < 10:
        await asyncio.sleep(0.005)
    await die()
    # The guest that has no reservation comes first, and is still kept out.
    assert await status_of(other.file.write(0, bytes(512))) == Status.RESERVATION_CONFLICT
    await writer
    assert await one.keys() == set(KEYS.values())
    assert await one.holder() == one.key
    # PTPL_C says that reservations can outlive the server; one asked for it, and other last did not.
    assert (await one.reserve_in(REPORT_CAPABILITIES))[2:4] == bytes((1, 0x80))
    assert await other.reserve_out(PREEMPT, other.key, one.key) == GOOD
    await die()
    assert await other.holder() == other.key
    assert await other.keys() == {other.key}
    assert await status_of(one.file.write(0, bytes(512))) & ~0xFF == UNIT_ATTENTION
    assert await status_of(one.file.write(0, bytes(512))) == Status.RESERVATION_CONFLICT
    await write(other, 10)
    for offset, data in written.items():
        assert await other.file.read(offset, len(data)) == data
    await one.file.close()
    await other.file.close()
    return written


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    process.config.write_text(process.config.read_text().replace("continuous", SECTION + "continuous", 1))
    put_disk(process.share)
    process.start()
    yield process
    process.kill()


def check_image(share: Path, folder: Path, written: dict[int, bytes]) -> None:
    """Let qemu-img check the image, and compare what it has with what was acknowledged."""
    raw = folder / "raw"
    assert "No errors" in qemu("check", "-f", "vhdx", share / "base.avhdx")
    qemu("convert", "-f", "vhdx", "-O", "raw", share / "base.avhdx", raw)
    content = raw.read_bytes()
    assert all(content[offset : offset + len(data)] == data for offset, data in written.items())


@needs_qemu
def test_guests_go_on_when_the_server_was_killed(server: ServerProcess, tmp_path: Path) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        async def die() -> None:
            server.kill()
            await asyncio.to_thread(server.start)

        other = server.client()
        written = await go_through_it((client, other), die)
        await other.close()
        check_image(server.share, tmp_path, written)

    run(server, body)


@pytest.mark.long
@needs_qemu
@pytest.mark.root
def test_guests_go_on_at_the_other_node(tmp_path: Path) -> None:
    if reason := lab.why_not():
        pytest.skip(reason)

    def client() -> PersistentShare:
        return PersistentShare(lambda: open_tcp(VIRTUAL, PORT, 1.0), SHARE, USER, PASSWORD, 40.0)

    share = tmp_path / "share"
    share.mkdir()
    put_disk(share)
    sections = lab.service_section(lab.SERVICE, 100, ["a", "b"]) + lab.share_section(SHARE, share, lab.SERVICE)
    with ClusterLab(tmp_path, sections=sections + SECTION) as cluster:
        cluster.wait_for_address("a")
        shares = client(), client()
        nodes = ["a", "b"]

        async def body() -> None:
            async def die() -> None:
                cluster.nodes[nodes[0]].kill()
                for guest in shares:
                    # Nobody tells these clients that their connection is dead.
                    guest.drop()
                await asyncio.to_thread(cluster.wait_for_address, nodes[1])
                await asyncio.to_thread(cluster.nodes[nodes[0]].start)
                nodes.reverse()

            written = await go_through_it(shares, die)
            for guest in shares:
                await guest.close()
            check_image(share, tmp_path, written)

        cluster.network.inside("cli", body)
