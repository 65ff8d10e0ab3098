"""Owner, group and mode: what users may make of them, in descriptors and on the host's disk."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smb3server.access import of_handle as security_info
from smb3server.access.caller import Caller
from smb3server.access.check import Token
from smb3server.access.descriptor import EVERYONE, Acl, SecurityDescriptor, Sid, allow, deny, unpack
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.access.posix import group_sid, user_sid
from smb3server.backends.base import Disposition, OpenRequest, User
from smb3server.backends.local import file_io
from smb3server.backends.local.backend import LocalBackend
from smb3server.wire.create import Access
from smb3server.wire.create_contexts import SD_BUFFER, RawContext
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.query_info import InfoType, SecurityInformation
from smb3server.wire.status import NtStatus
from tests.lab.disk import ALICE, BOB, needs_root, run
from tests.lab.rights import AUDIT, CREATE, LABEL, MAXIMUM, STRANGER, Actor, Refused, self_relative

LONGEST_TURN = 0.1

pytestmark = needs_root
ALICE_SID, BOB_SID = user_sid(ALICE.uid), user_sid(BOB.uid)
OWNER, GROUP, DACL = (
    int(part) for part in (SecurityInformation.OWNER, SecurityInformation.GROUP, SecurityInformation.DACL)
)
EVERYBODY = Acl((allow(EVERYONE, FILE_ALL_ACCESS),))


async def set_security(actor: Actor, name: str, parts: int, **descriptor: Any) -> None:
    async with actor.opened(name) as file:
        await actor.set_info(file, 0, self_relative(**descriptor), InfoType.SECURITY, parts)


def stored(backend: LocalBackend, name: str) -> SecurityDescriptor:
    handle = backend.open(OpenRequest((name,)))
    try:
        found = handle.security_descriptor()
        assert found is not None
        return unpack(found)
    finally:
        handle.close()


def store(backend: LocalBackend, name: str, **parts: Any) -> None:
    """As an administrator would, for everybody and everything."""
    handle = backend.open(OpenRequest((name,), disposition=Disposition.OPEN_IF))
    handle.set_security_descriptor(SecurityDescriptor(**parts).pack())
    handle.close()


def seen(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, found.st_mode & 0o7777


FOREIGN = [
    (OWNER, {"owner": BOB_SID}, NtStatus.INVALID_OWNER),
    (OWNER, {"owner": user_sid(0)}, NtStatus.INVALID_OWNER),
    (OWNER, {"owner": Sid(5, (18,))}, NtStatus.INVALID_OWNER),
    (OWNER, {}, NtStatus.INVALID_OWNER),
    (GROUP, {"group": group_sid(0)}, NtStatus.INVALID_PRIMARY_GROUP),
    (GROUP, {"group": group_sid(BOB.gid)}, NtStatus.INVALID_PRIMARY_GROUP),
    (OWNER | GROUP, {"owner": ALICE_SID, "group": group_sid(42)}, NtStatus.INVALID_PRIMARY_GROUP),
]


@pytest.mark.parametrize(("parts", "descriptor", "status"), FOREIGN)
def test_nobody_gives_files_away(tmp_path: Path, parts: int, descriptor: dict[str, Any], status: int) -> None:
    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        await alice.close(await alice.open("f", MAXIMUM, CREATE))
        before = seen(tmp_path / "f")
        with pytest.raises(Refused) as refused:
            await set_security(alice, "f", parts, **descriptor)
        assert refused.value.status == status
        assert seen(tmp_path / "f") == before
        handle = backend.open(OpenRequest(("f",)))
        assert handle.security_descriptor() is None
        handle.close()

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("descriptor", "status"),
    [
        ({"owner": BOB_SID}, NtStatus.INVALID_OWNER),
        ({"owner": user_sid(0)}, NtStatus.INVALID_OWNER),
        ({"group": group_sid(0)}, NtStatus.INVALID_PRIMARY_GROUP),
        ({"sacl": Acl((AUDIT,))}, NtStatus.PRIVILEGE_NOT_HELD),
        ({"owner": ALICE_SID, "group": group_sid(ALICE.groups[0])}, 0),
    ],
)
def test_nor_makes_them_in_other_names(tmp_path: Path, descriptor: dict[str, Any], status: int) -> None:
    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        context = RawContext(SD_BUFFER, self_relative(**descriptor, dacl=EVERYBODY))
        if status:
            with pytest.raises(Refused) as refused:
                await alice.open("f", MAXIMUM, CREATE, contexts=[context])
            assert refused.value.status == status
            assert not (tmp_path / "f").exists()
        else:
            await alice.close(await alice.open("f", MAXIMUM, CREATE, contexts=[context]))
            assert stored(backend, "f").owner == ALICE_SID

    run(tmp_path, test)


@pytest.mark.parametrize("mode", [0o2644, 0o4644, 0o6755])
@pytest.mark.parametrize("group", [ALICE.gid, ALICE.groups[0]])
@pytest.mark.parametrize("named", [False, True])
def test_no_set_id_bit_survives(tmp_path: Path, mode: int, group: int, named: bool) -> None:
    """``named``: the DACL names another user, so it becomes a POSIX ACL."""

    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        path = tmp_path / "f"
        path.write_bytes(b"program")
        os.chown(path, ALICE.uid, ALICE.gid)
        path.chmod(mode)
        dacl = Acl((*EVERYBODY.aces, *((allow(BOB_SID, FILE_ALL_ACCESS),) if named else ())))
        await set_security(alice, "f", GROUP | DACL, group=group_sid(group), dacl=dacl)
        assert seen(path) == (ALICE.uid, group, 0o777)

    run(tmp_path, test)


def test_another_group_alone_takes_the_bits_away(tmp_path: Path) -> None:
    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        path = tmp_path / "f"
        path.write_bytes(b"program")
        os.chown(path, ALICE.uid, ALICE.gid)
        path.chmod(0o2644)
        await set_security(alice, "f", GROUP, group=group_sid(ALICE.groups[0]))
        assert seen(path) == (ALICE.uid, ALICE.groups[0], 0o644)

    run(tmp_path, test)


def test_folder_stays_sticky(tmp_path: Path) -> None:
    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        path = tmp_path / "d"
        path.mkdir()
        os.chown(path, ALICE.uid, ALICE.gid)
        path.chmod(0o3755)
        await set_security(alice, "d", DACL, dacl=EVERYBODY)
        assert seen(path) == (ALICE.uid, ALICE.gid, 0o3777)

    run(tmp_path, test)


def test_host_keeps_what_the_user_could_not_change_there(tmp_path: Path) -> None:
    """Bob was given the right to take the file over and to change its DACL: he may, in the descriptor."""

    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        await alice.close(await alice.open("f", MAXIMUM, CREATE))
        store(backend, "f", owner=ALICE_SID, group=EVERYONE, dacl=EVERYBODY)
        path = tmp_path / "f"
        before = seen(path)
        await set_security(bob, "f", OWNER, owner=BOB_SID)
        only_bob = Acl((allow(BOB_SID, FILE_ALL_ACCESS),))
        await set_security(bob, "f", DACL, dacl=only_bob)
        found = stored(backend, "f")
        assert (found.owner, found.dacl) == (BOB_SID, only_bob)
        assert seen(path) == before
        assert os.listxattr(path) == os.listxattr(path) and "system.posix_acl_access" not in os.listxattr(path)

    run(tmp_path, test)


def test_mode_is_the_owner_on_disk(tmp_path: Path) -> None:
    """The descriptor names another group than the file has: that group's rights are not for the members of this one."""

    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        await alice.close(await alice.open("f", MAXIMUM, CREATE))
        foreign = Sid(5, (21, 1, 2, 3, 513))
        dacl = Acl((allow(ALICE_SID, FILE_ALL_ACCESS), allow(foreign, FILE_ALL_ACCESS)))
        await set_security(alice, "f", GROUP | DACL, group=foreign, dacl=dacl)
        assert stored(backend, "f").group == foreign
        assert seen(tmp_path / "f") == (ALICE.uid, ALICE.gid, 0o700)

    run(tmp_path, test)


def test_parts_of_a_sacl_are_shown_and_set_apart(tmp_path: Path) -> None:
    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        await alice.close(await alice.open("f", MAXIMUM, CREATE))
        store(backend, "f", owner=ALICE_SID, group=EVERYONE, dacl=EVERYBODY, sacl=Acl((AUDIT, LABEL)))
        label = int(SecurityInformation.LABEL)
        async with alice.opened("f", int(Access.READ_CONTROL | Access.WRITE_OWNER)) as file:
            shown = unpack(await alice.query_info(file, 0, InfoType.SECURITY, label)).sacl
            assert shown is not None and shown.aces == (LABEL,)
            high = LABEL._replace(sid=Sid(16, (12288,)))
            await alice.set_info(file, 0, self_relative(sacl=Acl((high,))), InfoType.SECURITY, label)
        kept = stored(backend, "f").sacl
        assert kept is not None and kept.aces == (AUDIT, high)
        assert STRANGER not in (stored(backend, "f").owner, BOB_SID)

    run(tmp_path, test)


def test_accounts_that_share_a_uid_keep_its_bits(tmp_path: Path) -> None:
    """An account that is no user of the host: its SID has no uid, so the kernel must let the uid in, whoever it is."""

    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        await alice.close(await alice.open("f", MAXIMUM, CREATE))
        handle = backend.open(OpenRequest(("f",), user=ALICE))
        account, other = Sid(5, (21, 1, 2, 3, 1000)), Sid(5, (21, 1, 2, 3, 1001))
        dacl = Acl((allow(account, FILE_ALL_ACCESS), allow(other, 0x00120089)))
        user = ALICE._replace(shared=True)
        for owner, mode in ((account, 0o700), (other, 0o600)):
            descriptor = SecurityDescriptor(owner=owner, group=EVERYONE, dacl=dacl)
            caller = Caller(Token(owner, frozenset([owner]), EVERYONE), user, FILE_ALL_ACCESS)
            security_info.to_host(handle, descriptor, DACL, caller, _Accounts({}))
            assert seen(tmp_path / "f") == (ALICE.uid, ALICE.gid, mode)
        handle.close()

    run(tmp_path, test)


class _Accounts:
    def __init__(self, users: dict[Sid, User]) -> None:
        self._users = users

    def on_host(self, sid: Sid) -> list[Sid]:
        user = self._users.get(sid)
        return [] if user is None else [user_sid(user.uid)]


def test_an_account_counts_as_its_user_of_the_host(tmp_path: Path) -> None:
    """Its SID of the domain and S-1-22-1-uid are one and the same to the kernel, for what they are allowed and denied,
    and as the owner."""

    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        await alice.close(await alice.open("f", MAXIMUM, CREATE))
        handle = backend.open(OpenRequest(("f",), user=ALICE))
        own, bobs = Sid(5, (21, 1, 2, 3, 1000)), Sid(5, (21, 1, 2, 3, 1001))
        accounts = _Accounts({own: ALICE, bobs: BOB})
        caller = Caller(Token(ALICE_SID, frozenset([ALICE_SID, own]), EVERYONE), ALICE, FILE_ALL_ACCESS)
        aces = (allow(own, FILE_ALL_ACCESS), deny(bobs, 0x2), allow(bobs, 0x001F01FF))
        security_info.to_host(handle, SecurityDescriptor(own, EVERYONE, Acl(aces)), DACL, caller, accounts)
        handle.close()
        assert (tmp_path / "f").stat().st_mode & 0o700 == 0o700
        entries = set(struct.iter_unpack("<HHI", os.getxattr(tmp_path / "f", "system.posix_acl_access")[4:]))
        assert (0x02, 5, BOB.uid) in entries

    run(tmp_path, test)


def test_space_is_reserved_as_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system asks whose credentials the thread has, not who opened the file."""
    acting: list[str] = []
    real = file_io.allocate

    def allocate(descriptor: int, size: int) -> Iterator[None]:
        status = Path("/proc/thread-self/status").read_text().splitlines()
        acting.extend(line.split()[-1] for line in status if line.startswith("Uid:"))
        yield from real(descriptor, size)

    async def test(alice: Actor, bob: Actor, backend: LocalBackend) -> None:
        file = await alice.open("f", MAXIMUM, CREATE)
        monkeypatch.setattr(file_io, "allocate", allocate)
        await alice.set_info(file, FileInfoClass.ALLOCATION, struct.pack("<Q", 65536))
        await alice.close(file)
        assert acting == [str(ALICE.uid)]
        assert (tmp_path / "f").stat().st_blocks * 512 >= 65536

    run(tmp_path, test)
