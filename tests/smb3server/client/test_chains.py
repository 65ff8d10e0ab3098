"""Chains of related requests of the client, and the small files that are copied by them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from smb3server.client import connect, small_files
from smb3server.client.protocol import connection, steps
from smb3server.client.protocol.steps import Step
from smb3server.client.protocol.tree import RemoteFile, Tree
from smb3server.client.share import Share
from smbdirect.errors import ConnectionLost
from tests.lab.remote import PASSWORD, Home, run


class Messages:
    """Counts what a share's connection sends."""

    def __init__(self, share: Share) -> None:
        assert share.link._control is not None
        transport = share.link._control.tree.client.transport
        self.count = 0
        send = transport.send

        def counted(*arguments: Any) -> None:
            self.count += 1
            send(*arguments)

        transport.send = counted  # type: ignore[method-assign]

    def taken(self) -> int:
        count, self.count = self.count, 0
        return count


@pytest.mark.parametrize("encrypt", [False, True])
def test_small_operations_take_one_message(served: Home, folder: Path, tmp_path: Path, encrypt: bool) -> None:
    (folder / "a").write_bytes(b"content")
    (folder / "new2").touch()
    (folder / "ro").touch(mode=0o444)
    (tmp_path / "new").write_bytes(b"n" * 5001)

    async def work() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off", encrypt=encrypt) as share:
            messages = Messages(share)
            assert (await share.stat("test/a")).size == 7
            assert messages.taken() == 1
            await share.rename("test/a", "test/b")
            assert messages.taken() == 1
            await share.mkdir("test/d")
            assert messages.taken() == 1
            await share.download("test/b", tmp_path / "b", exact=True, expected=7)
            assert messages.taken() == 1
            await share.upload(tmp_path / "new", "test/new", exact=True)
            assert messages.taken() == 2
            await share.remove("test/b")
            assert messages.taken() == 1
            await share.remove("test/new2", force=True)
            assert messages.taken() == 1
            with pytest.raises(PermissionError):
                await share.remove("test/ro")
            messages.taken()
            await share.remove("test/ro", force=True)
            assert messages.taken() > 1
            with pytest.raises(FileNotFoundError):
                await share.stat("test/b")
            with pytest.raises(FileExistsError):
                await share.mkdir("test/d")

    run(work)
    assert (tmp_path / "b").read_bytes() == b"content"
    assert (folder / "new").read_bytes() == b"n" * 5001
    assert (folder / "new").stat().st_mtime_ns // 100 == (tmp_path / "new").stat().st_mtime_ns // 100
    assert sorted(os.listdir(folder)) == ["d", "new"]


def test_a_file_whose_data_was_not_written_gets_no_name(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").write_bytes(b"new")
    (folder / "a").write_bytes(b"old")
    real = steps.write

    def refused(data: bytes) -> Step[int]:
        """Have the server refuse the WRITE; it does what follows in the chain all the same."""
        step = real(data)

        def body(file_id: steps.FileId) -> Sequence[Any]:
            made = bytearray(step.body(file_id)[0])
            made[8:16] = b"\xff" * 8
            return [bytes(made), data]

        return step._replace(body=body)

    monkeypatch.setattr(small_files.steps, "write", refused)

    async def work() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            with pytest.raises(OSError):
                await share.upload(tmp_path / "new", "test/a", exact=True)

    run(work)
    assert (folder / "a").read_bytes() == b"old"
    assert os.listdir(folder) == ["a"]


def test_a_source_that_changes_before_the_name_is_given(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "new"
    source.write_bytes(b"new")
    real = small_files._write_part

    async def changed_meanwhile(tree: Tree, file: small_files.Written) -> RemoteFile:
        part = await real(tree, file)
        source.write_bytes(b"longer")
        return part

    monkeypatch.setattr(small_files, "_write_part", changed_meanwhile)

    async def work() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            with pytest.raises(OSError, match="changed while it was copied"):
                await share.upload(source, "test/a", exact=True)

    run(work)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("was_done", [False, True])
def test_a_lost_answer_to_the_name(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_done: bool
) -> None:
    """Without ``replace`` a second rename would find the file that the first one made."""
    (tmp_path / "new").write_bytes(b"new")
    real, parts = Tree.do_all, 0
    written = small_files._write_part
    cut = False

    async def lost(tree: Tree, file: RemoteFile, wanted: Sequence[Step[Any]]) -> list[Any]:
        nonlocal cut
        if cut:
            return await real(tree, file, wanted)
        cut = True
        if was_done:
            await real(tree, file, wanted)
        tree.client.transport.abort("cut by the test")
        raise ConnectionLost("cut by the test")

    async def counted(tree: Tree, file: small_files.Written) -> RemoteFile:
        nonlocal parts
        parts += 1
        return await written(tree, file)

    monkeypatch.setattr(Tree, "do_all", lost)
    monkeypatch.setattr(small_files, "_write_part", counted)

    async def work() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            await share.upload(tmp_path / "new", "test/a", exact=True, replace=False)

    run(work)
    assert (folder / "a").read_bytes() == b"new" and os.listdir(folder) == ["a"]
    assert parts == (1 if was_done else 2)


def test_a_server_that_does_not_relate_requests(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the FileId that stands for the CREATE before, it answers that there is no such open."""
    monkeypatch.setattr(connection, "_RELATED", 0)
    (folder / "a").write_bytes(b"content")
    (tmp_path / "new").write_bytes(b"new")

    async def work() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            assert (await share.stat("test/a")).size == 7
            assert not share.link._chains.allowed
            await share.rename("test/a", "test/b")
            await share.upload(tmp_path / "new", "test/c", exact=True)
            await share.download("test/c", tmp_path / "c", exact=True, expected=3)

    run(work)
    assert sorted(os.listdir(folder)) == ["b", "c"] and (tmp_path / "c").read_bytes() == b"new"


def test_a_server_that_ends_the_connection_for_a_chain(
    served: Home, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_bytes(b"content")

    async def cut(tree: Tree, parts: Sequence[Any], flags: int) -> list[Any]:
        tree.client.transport.abort("a chain")
        raise ConnectionLost("a chain")

    monkeypatch.setattr(Tree, "_chain", cut)

    async def work() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            assert (await share.stat("test/a")).size == 7

    run(work)


def test_a_file_that_is_larger_than_it_was_listed(served: Home, folder: Path, tmp_path: Path) -> None:
    data = os.urandom(small_files.SMALL + 1)
    (folder / "a").write_bytes(data)
    (folder / "empty").write_bytes(b"")

    async def work() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            await share.download("test/a", tmp_path / "a", exact=True, expected=5)
            await share.download("test/empty", tmp_path / "empty", exact=True, expected=0)
            await share.upload(tmp_path / "empty", "test/empty2", exact=True)

    run(work)
    assert (tmp_path / "a").read_bytes() == data
    assert (tmp_path / "empty").read_bytes() == (folder / "empty2").read_bytes() == b""
