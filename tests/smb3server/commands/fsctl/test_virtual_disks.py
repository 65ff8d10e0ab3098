"""Shared virtual disks and storage QoS over the wire: opens, tunnel operations, reads and writes."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.client.protocol import Client, open_tcp
from smb3server.client.protocol.tree import READ_WRITE, RemoteFile, Tree
from smb3server.service import Service, Share, User
from smb3server.settings.storage_policies import StoragePolicy
from smb3server.virtual_disks import making, vhd_set
from smb3server.wire import create_contexts, sqos
from smb3server.wire import svhdx as wire
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.lock import LockElement, LockFlags
from smb3server.wire.status import NtStatus, StatusError
from smb3server.wire.svhdx import Operation, Originator, Status
from tests.lab.disks import SIZE, Folder
from tools.support import own_user

SUFFIX = ":SharedVirtualDisk"
UNBUFFERED = int(CreateOptions.NO_INTERMEDIATE_BUFFERING)


def disk_image() -> bytes:
    folder = Folder()
    handle = folder.create("disk")
    making.make(handle, making.Shape(SIZE))
    return folder.get("disk")


def context(version: int = 1, originator: int = Originator.PVHDPARSER, initiator: bytes | None = None) -> bytes:
    own = initiator if initiator is not None else uuid.uuid4().bytes
    data = wire.OPEN_DEVICE.pack(wire.OpenDevice(version, 1, initiator_id=own, originator_flags=originator))
    return data + (wire.PROPERTIES.pack(wire.Properties()) if version == 2 else b"")


async def opened(tree: Tree, data: bytes | None = None, name: str = "disk.vhdx" + SUFFIX, **options: Any) -> RemoteFile:
    asked = [create_contexts.RawContext(wire.OPEN_DEVICE_CONTEXT, context() if data is None else data)]
    options = {"access": READ_WRITE, "options": UNBUFFERED, "contexts": asked} | options
    return await tree.create(name, **options)


async def refused(act: Awaitable[Any]) -> int:
    with pytest.raises(StatusError) as raised:
        await act
    return raised.value.status


async def ask(tree: Tree, file: RemoteFile, code: int, body: bytes = b"") -> bytes:
    header = wire.TUNNEL_HEADER.pack(wire.TunnelHeader(code, request_id=9))
    answer = await tree.ioctl(Fsctl.SVHDX_SYNC_TUNNEL_REQUEST, header + body, file)
    found = wire.TUNNEL_HEADER.unpack(answer)
    assert (found.operation_code, found.status, found.request_id) == (code, 0, 9)
    return answer[wire.TUNNEL_HEADER.size :]


def run(tmp_path: Path, act: Callable[[Service, Tree], Awaitable[None]], **keys: Any) -> None:
    async def main() -> None:
        folder = tmp_path / "share"
        folder.mkdir()
        (folder / "disk.vhdx").write_bytes(disk_image())
        (folder / "text").write_bytes(b"no disk")
        share = Share("data", str(folder), force_user=own_user.NAME, **({"shared_virtual_disks": True} | keys))
        async with (
            asyncio.timeout(30),
            Service(shares=[share], users=[User("u", password="pw")], listen=["127.0.0.1"], port=0) as service,
        ):
            client = await Client.connect(await open_tcp(*service.address))
            await act(service, await (await client.log_on("u", "pw")).tree_connect("data"))
            await client.close()

    asyncio.run(main())


def test_sectors_of_the_disk_are_read_and_written(tmp_path: Path) -> None:
    async def act(service: Service, tree: Tree) -> None:
        one, other = await opened(tree), await opened(tree)
        assert await tree.write(one, SIZE - 4096, b"d" * 4096) == 4096
        assert await tree.read(other, SIZE - 4096, 4096) == b"d" * 4096
        assert await refused(tree.read(one, SIZE, 512)) == Status.ERROR_STORED | 1
        assert await refused(tree.write(one, 100, b"x")) == Status.ERROR_STORED | 2
        assert len(await ask(tree, one, Operation.GET_DISK_INFO, bytes(56))) == wire.DISK_INFO.size
        buffered = await opened(tree, options=0)
        assert await refused(tree.read(buffered, 0, 512)) == NtStatus.NOT_SUPPORTED
        nobody = await opened(tree, wire.OPEN_DEVICE.pack(wire.OpenDevice(originator_flags=1)))
        assert await refused(tree.read(nobody, 0, 512)) == Status.ERROR_STORED | 1
        for file in (one, other, buffered, nobody):
            await tree.close(file)
        assert not service.server.virtual_disks.by_key

    run(tmp_path, act)


def test_an_image_has_one_writer(tmp_path: Path) -> None:
    """Two servers of one folder, two disks of one server that are written to one image, and QEMU: each would put blocks
    where the other has put its own."""

    async def act(service: Service, tree: Tree) -> None:
        folder = tmp_path / "share"
        made = Folder()
        vhd_set.make(made.create("set.vhds"), "disk.vhdx")
        (folder / "set.vhds").write_bytes(made.get("set.vhds"))
        # On another file system it would be the same: the locks are those of the file.
        share = Share("data", str(folder), force_user=own_user.NAME, shared_virtual_disks=True)
        other = Service(shares=[share], users=[User("u", password="pw")], listen=["127.0.0.1"], port=0)
        async with other:
            client = await Client.connect(await open_tcp(*other.address))
            theirs = await (await client.log_on("u", "pw")).tree_connect("data")
            one = await opened(tree)
            assert await refused(opened(theirs)) == NtStatus.SHARING_VIOLATION
            assert await refused(opened(tree, name="set.vhds" + SUFFIX)) == NtStatus.SHARING_VIOLATION
            second = await opened(tree)
            qemu = ["qemu-io", "-f", "vhdx", "-c", "write 0 4096", str(folder / "disk.vhdx")]
            if shutil.which(qemu[0]) is not None:
                done = await asyncio.to_thread(subprocess.run, qemu, check=False, capture_output=True, text=True)
                assert "lock" in done.stdout + done.stderr
            await tree.close(one)
            await tree.write(second, 0, b"d" * 4096)
            await tree.close(second)
            # Whoever closes it leaves it to others.
            file = await opened(theirs)
            assert await theirs.read(file, 0, 4096) == b"d" * 4096
            assert await refused(opened(tree)) == NtStatus.SHARING_VIOLATION
            await theirs.close(file)
            await tree.close(await opened(tree, name="set.vhds" + SUFFIX))
            await client.close()

    run(tmp_path, act)


def test_what_create_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(service: Service, tree: Tree) -> None:
        assert await refused(opened(tree, context()[:-1])) == NtStatus.BUFFER_TOO_SMALL
        assert await refused(opened(tree, context(2)[:-1])) == NtStatus.BUFFER_TOO_SMALL
        assert await refused(opened(tree, context(3))) == NtStatus.INVALID_PARAMETER
        bad = wire.OPEN_DEVICE.pack(wire.OpenDevice(has_initiator_id=2))
        assert await refused(opened(tree, bad)) == NtStatus.INVALID_PARAMETER
        assert await refused(opened(tree, name="text" + SUFFIX)) == Status.WRONG_FILE_TYPE
        assert "text cannot be used as a disk: " in caplog.text
        overwriting = CreateDisposition.OVERWRITE
        assert await refused(opened(tree, disposition=overwriting)) == NtStatus.INVALID_PARAMETER
        assert await refused(opened(tree, contexts=[])) == NtStatus.OBJECT_NAME_NOT_FOUND
        assert not service.server.opens.by_id
        shared = await opened(tree)
        raw = context(originator=Originator.VHDMP)
        assert await refused(opened(tree, raw)) == Status.VHD_SHARED
        support = await tree.ioctl(Fsctl.QUERY_SHARED_VIRTUAL_DISK_SUPPORT, file=shared)
        assert wire.SUPPORT.unpack(support) == (7, 3)
        await tree.close(shared)
        file = await opened(tree, raw)
        assert wire.SUPPORT.unpack(await tree.ioctl(Fsctl.QUERY_SHARED_VIRTUAL_DISK_SUPPORT, file=file)) == (7, 0)
        assert await tree.read(file, 0, 8) == b"vhdxfile"

    run(tmp_path, act)


def test_a_share_without_it_has_streams(tmp_path: Path) -> None:
    async def act(service: Service, tree: Tree) -> None:
        assert await refused(opened(tree)) == NtStatus.OBJECT_NAME_NOT_FOUND
        file = await tree.create("disk.vhdx")
        asked = tree.ioctl(Fsctl.QUERY_SHARED_VIRTUAL_DISK_SUPPORT, file=file)
        assert await refused(asked) == NtStatus.INVALID_DEVICE_REQUEST

    run(tmp_path, act, shared_virtual_disks=False)


def test_what_a_disk_has_not(tmp_path: Path) -> None:
    async def act(service: Service, tree: Tree) -> None:
        file = await opened(tree)
        lock = LockElement(0, 10, int(LockFlags.EXCLUSIVE_LOCK | LockFlags.FAIL_IMMEDIATELY))
        assert await refused(tree.lock(file, [lock])) == NtStatus.LOCK_NOT_GRANTED
        header = wire.TUNNEL_HEADER.pack(wire.TunnelHeader(Operation.VHDSET_QUERY_INFORMATION))
        query = header + wire.SET_QUERY.pack(wire.SetQuery(2, 1))
        asked = tree.ioctl(Fsctl.SVHDX_SYNC_TUNNEL_REQUEST, query, file)
        assert await refused(asked) == NtStatus.INVALID_DEVICE_REQUEST
        plain = await tree.create("text")
        asked = tree.ioctl(Fsctl.SVHDX_SYNC_TUNNEL_REQUEST, header, plain)
        assert await refused(asked) == NtStatus.INVALID_PARAMETER

    run(tmp_path, act)


def qos(options: int, flow: bytes, policy: bytes = bytes(16)) -> bytes:
    return sqos.QOS_REQUEST.pack(sqos.QosRequest(options=options, logical_flow_id=flow, policy_id=policy))


def test_a_policy_limits_a_flow(tmp_path: Path) -> None:
    """Two opens of one flow share its limit, and other requests of the client go on meanwhile."""

    async def act(service: Service, tree: Tree) -> None:
        policy = StoragePolicy(b"p" * 16, "slow", maximum_iops=20)
        service.server.settings.storage_policies = (policy,)
        files = [await tree.create("text", access=READ_WRITE) for _ in range(2)]
        options = sqos.Options.PROBE_POLICY | sqos.Options.GET_STATUS
        for file in files:
            answer = await tree.ioctl(Fsctl.STORAGE_QOS_CONTROL, qos(options, b"f" * 16, policy.policy_id), file)
            assert sqos.QOS_RESPONSE.unpack(answer).maximum_io_rate == 20
        begin = time.monotonic()
        reads = [asyncio.ensure_future(tree.read(files[number % 2], 0, 7)) for number in range(16)]
        writes = [asyncio.ensure_future(tree.write(files[0], 0, b"no disk")) for _ in range(4)]
        free = await tree.create("text")
        assert await tree.read(free, 0, 7) == b"no disk"
        assert not all(task.done() for task in (*reads, *writes))
        assert await asyncio.gather(*reads) == [b"no disk"] * 16
        assert await asyncio.gather(*writes) == [7] * 4
        assert time.monotonic() - begin > 0.7
        (flow,) = service.server.flows.by_id.values()
        assert (flow.operations, flow.opens) == (20, 2)
        assert flow.delayed > 10
        for file in files:
            await tree.close(file)
        assert not service.server.flows.by_id

    run(tmp_path, act)


def test_an_open_leaves_its_flow(tmp_path: Path) -> None:
    async def act(service: Service, tree: Tree) -> None:
        file = await tree.create("text", access=READ_WRITE)
        control = Fsctl.STORAGE_QOS_CONTROL
        status = qos(sqos.Options.GET_STATUS, bytes(16))
        assert await refused(tree.ioctl(control, status, file)) == NtStatus.NOT_FOUND
        await tree.ioctl(control, qos(sqos.Options.SET_LOGICAL_FLOW_ID, b"f" * 16), file)
        assert await refused(tree.ioctl(control, status, file, max_output=79)) == NtStatus.INVALID_PARAMETER
        await tree.ioctl(control, qos(sqos.Options.SET_LOGICAL_FLOW_ID, b"g" * 16), file)
        assert set(service.server.flows.by_id) == {b"g" * 16}
        await tree.ioctl(control, qos(sqos.Options.SET_LOGICAL_FLOW_ID, bytes(16)), file)
        assert not service.server.flows.by_id
        assert await tree.read(file, 0, 7) == b"no disk"
        assert await refused(tree.ioctl(control, status[:50], file)) == NtStatus.INVALID_PARAMETER

    run(tmp_path, act)
