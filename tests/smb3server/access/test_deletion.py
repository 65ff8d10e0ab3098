"""Whose rights and which name a deletion has, and what new files pass on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smb3server.access.descriptor import EVERYONE, AceFlag, Acl, SecurityDescriptor, allow
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.access.posix import user_sid
from smb3server.backends.base import Disposition, Handle, OpenRequest
from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.local.reparse import symlink_buffer
from smb3server.wire.create import Access
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus
from tests.lab.disk import ALICE, BOB, needs_root, run
from tests.lab.rights import (
    CREATE,
    FOLDER,
    MAXIMUM,
    ON_CLOSE,
    OPEN,
    OPEN_IF,
    REPARSE,
    Actor,
    Refused,
)

LONGEST_TURN = 0.1

READ = 0x00120089
DELETE = int(Access.DELETE)
ALICE_SID, BOB_SID = user_sid(ALICE.uid), user_sid(BOB.uid)


@needs_root
@pytest.mark.parametrize("on_close", [False, True])
def test_file_goes_with_the_rights_of_who_wanted_it_gone(tmp_path: Path, on_close: bool) -> None:
    """Bob, who has it open to read and closes it last, could not delete it."""

    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        folder = tmp_path / "d"
        folder.mkdir()
        (folder / "f").write_bytes(b"x")
        os.chown(folder, ALICE.uid, ALICE.gid)
        os.chown(folder / "f", ALICE.uid, ALICE.gid)
        reading = await bob.open("d\\f", READ)
        file = await alice.open("d\\f", DELETE, OPEN, ON_CLOSE if on_close else 0)
        if not on_close:
            await alice.set_info(file, FileInfoClass.DISPOSITION, b"\1")
        await alice.close(file)
        assert (folder / "f").exists()
        await bob.close(reading)
        assert not (folder / "f").exists()

    run(tmp_path, test)


def test_name_that_goes_is_that_of_who_wanted_it_gone(tmp_path: Path) -> None:
    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        (tmp_path / "one").write_bytes(b"x")
        os.chown(tmp_path / "one", ALICE.uid, ALICE.gid)
        (tmp_path / "other").hardlink_to(tmp_path / "one")
        reading = await bob.open("other", READ)
        file = await alice.open("one", DELETE)
        await alice.set_info(file, FileInfoClass.DISPOSITION, b"\1")
        await alice.close(file)
        await bob.close(reading)
        assert os.listdir(tmp_path) == ["other"]

    run(tmp_path, test)


def test_nothing_stays_open_for_a_deletion_taken_back(tmp_path: Path) -> None:
    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        await alice.close(await alice.open("f", MAXIMUM, CREATE))
        before = len(os.listdir("/proc/self/fd"))
        first, second = await alice.open("f", DELETE), await alice.open("f", DELETE)
        for file in (first, second, first):
            await alice.set_info(file, FileInfoClass.DISPOSITION, b"\1")
        await alice.close(first)
        await alice.set_info(second, FileInfoClass.DISPOSITION, b"\0")
        await alice.close(second)
        assert (tmp_path / "f").exists()
        assert len(os.listdir("/proc/self/fd")) == before
        await alice.close(await alice.open("f", DELETE, OPEN, ON_CLOSE))
        assert not (tmp_path / "f").exists()
        assert len(os.listdir("/proc/self/fd")) == before

    run(tmp_path, test)


def inheriting(backend: LocalBackend, mask: int) -> None:
    """A folder "d" that lets everybody add files, and passes on ``mask`` for everybody."""
    handle = backend.open(OpenRequest(("d",), disposition=Disposition.CREATE, directory=True))
    own = allow(EVERYONE, FILE_ALL_ACCESS & ~int(Access.DELETE_CHILD | Access.DELETE))
    passed_on = allow(EVERYONE, mask)._replace(flags=AceFlag.OBJECT_INHERIT | AceFlag.INHERIT_ONLY)
    descriptor = SecurityDescriptor(owner=BOB_SID, group=EVERYONE, dacl=Acl((own, passed_on)))
    handle.set_security_descriptor(descriptor.pack())
    handle.close()


def descriptor_of(backend: LocalBackend, *path: str) -> bytes | None:
    handle = backend.open(OpenRequest(path))
    try:
        return handle.security_descriptor()
    finally:
        handle.close()


def test_new_file_that_may_not_be_deleted_is_not_made_to_be(tmp_path: Path) -> None:
    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        inheriting(backend, READ)
        (tmp_path / "d").chmod(0o777)
        with pytest.raises(Refused) as refused:
            await alice.open("d\\f", MAXIMUM, CREATE, ON_CLOSE)
        assert refused.value.status == NtStatus.ACCESS_DENIED
        assert os.listdir(tmp_path / "d") == []
        await alice.close(await alice.open("d\\f", DELETE, CREATE, ON_CLOSE))

    run(tmp_path, test)


def test_file_made_by_its_stream_inherits(tmp_path: Path) -> None:
    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        inheriting(backend, READ)
        (tmp_path / "d").chmod(0o777)
        await alice.close(await alice.open("d\\plain", MAXIMUM, CREATE))
        await alice.close(await alice.open("d\\f:s", MAXIMUM, CREATE))
        inherited = descriptor_of(backend, "d", "plain")
        assert inherited is not None
        assert descriptor_of(backend, "d", "f") == inherited
        with pytest.raises(Refused):
            await bob.open("d\\f:s", int(Access.WRITE_DATA))

    run(tmp_path, test)


def test_file_that_vanishes_under_a_new_stream_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder was not asked, as the file was there."""

    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        await bob.close(await bob.open("d", MAXIMUM, CREATE, FOLDER))
        await bob.close(await bob.open("d\\f", MAXIMUM, CREATE))
        for name in (("d",), ("d", "f")):
            handle = backend.open(OpenRequest(name))
            mask = FILE_ALL_ACCESS if len(name) == 2 else READ
            dacl = Acl((allow(EVERYONE, mask),))
            handle.set_security_descriptor(SecurityDescriptor(owner=BOB_SID, group=EVERYONE, dacl=dacl).pack())
            handle.close()
        (tmp_path / "d").chmod(0o777)
        (tmp_path / "d" / "f").chmod(0o666)
        real = backend.open

        def vanishing(request: OpenRequest) -> Handle:
            if request.stream and request.disposition == Disposition.CREATE:
                (tmp_path / "d" / "f").unlink(missing_ok=True)
            return real(request)

        monkeypatch.setattr(backend, "open", vanishing)
        with pytest.raises(Refused) as refused:
            await alice.open("d\\f:s", MAXIMUM, CREATE)
        assert refused.value.status == NtStatus.ACCESS_DENIED
        assert os.listdir(tmp_path / "d") == []

    run(tmp_path, test)


def test_link_of_the_host_goes_with_the_rights_on_its_folder(tmp_path: Path) -> None:
    """Its own mode lets everybody do everything, and would let whoever may add files replace it."""

    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        inheriting(backend, FILE_ALL_ACCESS)
        (tmp_path / "d").chmod(0o777)
        (tmp_path / "d" / "link").symlink_to("elsewhere")
        await alice.close(await alice.open("mine", MAXIMUM, CREATE))
        with pytest.raises(Refused) as refused:
            await alice.open("d\\link", DELETE, OPEN, REPARSE)
        assert refused.value.status == NtStatus.ACCESS_DENIED
        (tmp_path / "free").mkdir(mode=0o777)
        (tmp_path / "free").chmod(0o777)
        (tmp_path / "free" / "link").symlink_to("elsewhere")
        await alice.close(await alice.open("free\\link", DELETE, OPEN, REPARSE | ON_CLOSE))
        assert os.listdir(tmp_path / "free") == []
        assert os.listdir(tmp_path / "d") == ["link"]

    run(tmp_path, test)


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o1777])
@pytest.mark.parametrize("how", ["on close", "disposition"])
def test_who_asks_is_told_if_the_host_will_refuse(tmp_path: Path, mode: int, how: str) -> None:
    """The file's own mode gives DELETE, its folder's lets only Bob remove names; in a sticky one, only his own."""

    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        folder = tmp_path / "d"
        folder.mkdir()
        (folder / "f").write_bytes(b"x")
        (folder / "f").chmod(0o666)
        for path in (folder, folder / "f"):
            os.chown(path, BOB.uid, BOB.gid)
        folder.chmod(mode)

        async def delete(actor: Actor) -> None:
            file = await actor.open("d\\f", DELETE, OPEN, ON_CLOSE if how == "on close" else 0)
            try:
                if how == "disposition":
                    await actor.set_info(file, FileInfoClass.DISPOSITION, b"\1")
            finally:
                await actor.close(file)

        with pytest.raises(Refused) as refused:
            await delete(alice)
        assert refused.value.status == NtStatus.ACCESS_DENIED
        assert (folder / "f").exists()
        await delete(bob)
        assert not (folder / "f").exists()

    run(tmp_path, test)


def test_stream_that_is_there_collides_whatever_the_rights(tmp_path: Path) -> None:
    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        await bob.close(await bob.open("f:s", MAXIMUM, CREATE))
        handle = backend.open(OpenRequest(("f",)))
        dacl = Acl((allow(EVERYONE, READ),))
        handle.set_security_descriptor(SecurityDescriptor(owner=BOB_SID, group=EVERYONE, dacl=dacl).pack())
        handle.close()
        for name, status in (("f:s", NtStatus.OBJECT_NAME_COLLISION), ("f:new", NtStatus.ACCESS_DENIED)):
            with pytest.raises(Refused) as refused:
                await alice.open(name, READ, CREATE)
            assert refused.value.status == status
        await alice.close(await alice.open("f:s", READ, OPEN_IF))

    run(tmp_path, test)


def test_new_stream_of_a_link_stops_at_the_link(tmp_path: Path) -> None:
    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        file = await alice.open("link", MAXIMUM, CREATE)
        await alice.control(file, Fsctl.SET_REPARSE_POINT, symlink_buffer("elsewhere"))
        await alice.close(file)
        with pytest.raises(Refused) as refused:
            await alice.open("link:new", MAXIMUM, CREATE)
        assert refused.value.status == NtStatus.STOPPED_ON_SYMLINK
        await alice.close(await alice.open("link:new", MAXIMUM, CREATE, REPARSE))

    run(tmp_path, test)
