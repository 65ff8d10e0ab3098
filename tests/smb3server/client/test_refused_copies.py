"""Uploads that cannot succeed: onto a READONLY file, and onto a full disk."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from smb3server.cli.main import main
from smb3server.client import RemoteError, connect, errors, small_files, transfers
from smb3server.client.handle import Handle
from smb3server.client.protocol.tree import RemoteFile, Tree
from smb3server.client.share import Share
from smb3server.wire import attributes as attr
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer
from tests.lab.remote import PASSWORD, Home, run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["upload", "copy"])
def test_a_readonly_file_is_refused_before_any_data_is_sent(
    served: Home, folder: Path, tmp_path: Path, kind: str
) -> None:
    async def copying() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            await share.write_bytes("test/target", b"old")
            await share.write_bytes("test/source", bytes(3 << 20))
            await share.set_attributes("test/target", attr.READONLY)
            before = share.moved
            sent: list[int] = []
            with pytest.raises(PermissionError) as caught:
                if kind == "upload":
                    local = tmp_path / "source"
                    local.write_bytes(bytes(3 << 20))
                    await share.upload(local, "test/target", progress=lambda done, size: sent.append(done))
                else:
                    await share.copy("test/source", "test/target", progress=lambda done, size: sent.append(done))
            assert caught.value.filename == "test/target"
            assert "READONLY" in str(caught.value)
            assert (sent, share.moved) == ([], before)
            assert await share.read_bytes("test/target") == b"old"
            await share.set_attributes("test/target", attr.NORMAL)

    run(copying)
    assert names(folder) == ["source", "target"]


def test_a_small_upload_onto_a_readonly_file_leaves_nothing(served: Home, folder: Path, tmp_path: Path) -> None:
    """Nobody asks for the attribute before: giving the part its name fails."""
    (tmp_path / "source").write_bytes(b"new")

    async def copying() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            await share.write_bytes("test/target", b"old")
            await share.set_attributes("test/target", attr.READONLY)
            with pytest.raises(PermissionError) as caught:
                await share.upload(tmp_path / "source", "test/target")
            assert caught.value.filename == "test/target"
            assert await share.read_bytes("test/target") == b"old"
            await share.set_attributes("test/target", attr.NORMAL)

    run(copying)
    assert names(folder) == ["target"]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(("status", "number"), [("DISK_FULL", errno.ENOSPC), ("QUOTA_EXCEEDED", errno.EDQUOT)])
def test_a_full_disk_is_not_kept_full_by_the_part(
    served: Home,
    folder: Path,
    tmp_path: Path,
    status: str,
    number: int,
    resume: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = Handle.write_piece
    full = StatusError(NtStatus[status])

    async def until_full(self: Handle, offset: int, data: Buffer) -> None:
        if offset:

            async def refuse(tree: object, file: object) -> None:
                raise full

            await self.do(refuse)
        await write(self, offset, data)

    monkeypatch.setattr(Handle, "write_piece", until_full)
    local = tmp_path / "source"
    local.write_bytes(bytes(3 << 20))

    async def copying() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            with pytest.raises(OSError) as caught:
                await share.upload(local, "test/target", resume=resume)
            assert caught.value.errno == number
            assert caught.value.filename == "test/target"
            for name in names(folder):
                assert f"{name} stays, and is continued when there is room" in str(caught.value)

    run(copying)
    assert len(names(folder)) == resume


@pytest.mark.parametrize("size", [4, small_files.SMALL + 1])
def test_nothing_is_copied_after_the_disk_is_full(
    served: Home,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    size: int,
) -> None:
    tried: set[str] = set()

    async def refuse(self: Handle, offset: int, data: Buffer) -> None:
        tried.add(self.path)
        raise errors.of(StatusError(NtStatus.DISK_FULL), self.path)

    async def refuse_small(tree: Tree, file: small_files.Written) -> RemoteFile:
        tried.add(file.part)
        raise StatusError(NtStatus.DISK_FULL)

    monkeypatch.setattr(Handle, "write_piece", refuse)
    monkeypatch.setattr(small_files, "_write_part", refuse_small)
    monkeypatch.setenv("SMB3SERVER_PASSWORD", PASSWORD)
    (tmp_path / "tree").mkdir()
    for number in range(120):
        (tmp_path / "tree" / str(number)).write_bytes(bytes([1]) * size)
    assert main(["client", "put", "-r", "--rdma=off", str(tmp_path / "tree"), f"{served.url}/test"]) != 0
    assert "No space left on device" in capsys.readouterr().err
    assert 0 < len(tried) < 60
    assert [path for path in folder.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("resume", [False, True])
def test_a_full_local_disk_is_not_kept_full_by_the_part(
    served: Home, folder: Path, tmp_path: Path, resume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "source").write_bytes(b"\1" * (3 << 20))
    read = Handle.read_piece

    async def until_full(self: Handle, offset: int, length: int) -> bytes:
        if offset:
            raise OSError(errno.ENOSPC, "No space left on device", "target")
        return await read(self, offset, length)

    monkeypatch.setattr(Handle, "read_piece", until_full)
    (tmp_path / "out").mkdir()

    async def copying() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            with pytest.raises(OSError, match="No space") as caught:
                await share.download("test/source", tmp_path / "out" / "target", resume=resume)
            for name in names(tmp_path / "out"):
                assert f"{name} stays, and is continued when there is room" in str(caught.value)
            # A mirror ends at errors of this machine's disk.
            assert not isinstance(caught.value, RemoteError)

    run(copying)
    assert len(names(tmp_path / "out")) == resume


def test_copies_to_a_full_local_disk_leave_no_parts(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor do those that went on at the same time."""
    for number in range(8):
        (folder / str(number)).write_bytes(b"\1" * (3 << 20))
    write = transfers._write_all

    def until_full(descriptor: int, data: bytes, offset: int) -> None:
        if offset:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor, data, offset)

    monkeypatch.setattr(transfers, "_write_all", until_full)
    monkeypatch.setenv("SMB3SERVER_PASSWORD", PASSWORD)
    assert main(["client", "get", "-r", "--rdma=off", f"{served.url}/test", str(tmp_path / "out")]) != 0
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_a_part_that_is_being_opened_when_the_disk_is_full_is_removed(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server makes the part, but its answer comes after the copy was ended."""
    (tmp_path / "source").write_bytes(bytes(2 << 20))

    async def copying() -> None:
        made, ended = asyncio.Event(), asyncio.Event()
        plain = Share._handle

        async def slow(self: Share, path: str, *args: Any, **kwargs: Any) -> Handle:
            handle = await plain(self, path, *args, **kwargs)
            if path.endswith(".part"):
                made.set()
                await ended.wait()
            return handle

        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            monkeypatch.setattr(Share, "_handle", slow)
            uploading = asyncio.ensure_future(share.upload(tmp_path / "source", "test/target"))
            await made.wait()
            uploading.cancel(transfers.NO_ROOM)
            await asyncio.sleep(0)
            ended.set()
            with pytest.raises(asyncio.CancelledError):
                await uploading

    run(copying)
    assert names(folder) == []
