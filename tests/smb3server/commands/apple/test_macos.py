"""What a Mac and the server say to each other on a share for Macs."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.access.descriptor import Acl, SecurityDescriptor, Sid, allow, deny, unpack
from smb3server.backends.base import OpenRequest, User
from smb3server.backends.local import backups
from smb3server.backends.local.syscalls import name_to_handle
from smb3server.wire import apple, create
from smb3server.wire.apple import Asked, ServerCaps, VolumeCaps
from smb3server.wire.create_contexts import QUERY_ON_DISK_ID, RawContext
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import ALL, Ground, Peer, act, rename_to
from tests.lab.wire_client import Reply

FINDER = b"TEXTttxt".ljust(32, b"\0")
INFO = apple.AFP_INFO_LAYOUT.pack(apple.AfpInfo(finder_info=FINDER))
EVERYTHING = int(Asked.SERVER_CAPS | Asked.VOLUME_CAPS | Asked.MODEL_INFO)
DIRECTORY = 1
LISTED = 0x00100081
"""Access to list a folder."""


def query(asked: int = EVERYTHING, client: int = int(ServerCaps.READ_DIR_ATTR)) -> RawContext:
    return RawContext(apple.AAPL, struct.pack("<IIQQ", 1, 0, asked, client))


async def ask(peer: Peer, *contexts: RawContext, name: str = "") -> dict[bytes, bytes]:
    """Open a file or the root with contexts. Return the data of those of the answer."""
    reply = await peer.call(Command.CREATE, peer.request(name, *contexts, desired_access=LISTED, create_disposition=1))
    assert reply.status == 0, hex(reply.status)
    answer, found = create.parse_response(memoryview(reply.message))
    assert await peer.close((answer.persistent, answer.volatile)) == 0
    return {context.name: bytes(context.data) for context in found}


async def mac(place: Ground) -> Peer:
    """A client that was promised everything."""
    peer = await place.peer()
    assert apple.AAPL in await ask(peer, query())
    return peer


async def put(peer: Peer, name: str, data: bytes = b"data") -> None:
    made = await peer.make(name, create_disposition=3)
    assert await peer.write(made.file, data) == 0
    assert await peer.close(made.file) == 0


async def listing(peer: Peer, level: int = FileInfoClass.ID_BOTH_DIRECTORY) -> dict[str, bytes]:
    """Return the entries of the root, without their names, by name."""
    made = await peer.make("", desired_access=LISTED, create_disposition=1, create_options=DIRECTORY)
    pattern = "*".encode("utf-16-le")
    body = struct.pack("<HBBI2QHHI", 33, level, 1, 0, *made.file, 96, len(pattern), 65536) + pattern
    reply = await peer.call(Command.QUERY_DIRECTORY, body)
    assert reply.status == 0
    offset, length = struct.unpack_from("<HI", reply.message, 66)
    data, found, at = reply.message[offset : offset + length], {}, 0
    while True:
        following, size = struct.unpack_from("<I", data, at)[0], struct.unpack_from("<I", data, at + 60)[0]
        found[data[at + 104 : at + 104 + size].decode("utf-16-le")] = data[at : at + 104]
        if not following:
            assert await peer.close(made.file) == 0
            return found
        at += following


# The create context


def test_a_server_query_is_answered(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await place.peer()
        found = await ask(peer, query())
        server = ServerCaps.READ_DIR_ATTR | ServerCaps.OSX_COPYFILE | ServerCaps.UNIX_BASED | ServerCaps.NFS_ACE
        assert found[apple.AAPL] == apple.pack_server(EVERYTHING, int(server), int(VolumeCaps.FULL_SYNC), "RackMac")
        without = await ask(peer, query(client=0))
        assert struct.unpack_from("<Q", without[apple.AAPL], 16)[0] == server & ~ServerCaps.READ_DIR_ATTR

    act(tmp_path, scene, macos=True)


def test_a_share_whose_names_differ_by_case_says_so(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        found = await ask(await place.peer(), query(int(Asked.VOLUME_CAPS)))
        assert found[apple.AAPL][16:] == struct.pack("<Q", VolumeCaps.FULL_SYNC | VolumeCaps.CASE_SENSITIVE)

    act(tmp_path, scene, time_machine=True, case_sensitive=True)


def test_other_shares_do_not_know_the_context(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await place.peer()
        assert await ask(peer, query()) == {}
        assert await ask(peer, RawContext(apple.AAPL, b"short")) == {}
        (number,) = struct.unpack_from("<Q", (await ask(peer, RawContext(QUERY_ON_DISK_ID, b"")))[QUERY_ON_DISK_ID])
        assert number == os.stat(place.folder).st_ino

    act(tmp_path, scene)


def test_a_malformed_context_is_refused(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await place.peer()
        for data in (b"", bytes(12), struct.pack("<IIQ", 1, 0, 7)):
            assert (await peer.create("file", RawContext(apple.AAPL, data))).status == NtStatus.INVALID_PARAMETER
        assert not (place.folder / "file").exists()
        assert await ask(peer, RawContext(apple.AAPL, struct.pack("<IIQ", 9, 0, 0))) == {}

    act(tmp_path, scene, macos=True)


def test_no_file_is_found_by_its_number(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await mac(place)
        number = os.stat(place.folder).st_ino
        found = await ask(peer, RawContext(apple.AAPL, struct.pack("<IIQ", 2, 0, number)))
        assert found[apple.AAPL] == struct.pack("<IIII", 2, 0, NtStatus.NOT_SUPPORTED, 0)

    act(tmp_path, scene, macos=True)


@pytest.mark.root
def test_a_mac_finds_files_by_numbers_that_are_not_given_again(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await place.peer()
        found = await ask(peer, query(int(Asked.SERVER_CAPS | Asked.VOLUME_CAPS)))
        if not struct.unpack_from("<Q", found[apple.AAPL], 24)[0] & VolumeCaps.RESOLVE_ID:
            pytest.skip("this file system makes no numbers that last")
        (place.folder / "a:b").mkdir()
        (place.folder / "a:b/file").write_bytes(b"data")
        asked = RawContext(QUERY_ON_DISK_ID, b"")
        (number,) = struct.unpack_from("<Q", (await ask(peer, asked, name="a\uf022b\\file"))[QUERY_ON_DISK_ID])
        assert number
        (place.folder / "a:b").rename(place.folder / "moved")

        async def resolved(number: int) -> bytes:
            return (await ask(peer, RawContext(apple.AAPL, struct.pack("<IIQ", 2, 0, number))))[apple.AAPL]

        path = "moved\\file".encode("utf-16-le")
        assert await resolved(number) == struct.pack("<IIII", 2, 0, 0, len(path)) + path
        none = struct.pack("<IIII", 2, 0, NtStatus.OBJECT_NAME_NOT_FOUND, 0)
        outside = tmp_path / "outside"
        outside.touch()
        ids = place.service.server.share_list["share"].backend.file_ids  # type: ignore[union-attr]
        descriptor = os.open(outside, os.O_PATH)
        assert await resolved(ids.number(name_to_handle(descriptor))) == none, "nobody leaves the share"
        os.close(descriptor)
        (place.folder / "moved/file").unlink()
        for nothing in (number, 0, 1, 1 << 40, (1 << 64) - 1):
            assert await resolved(nothing) == none, nothing
        # The next file may get the inode number, but not this one.
        await put(peer, "next")
        (other,) = struct.unpack_from("<Q", (await ask(peer, asked, name="next"))[QUERY_ON_DISK_ID])
        assert other not in (0, number)
        assert (await listing(peer))["next"][96:104] == struct.pack("<Q", other)

    act(tmp_path, scene, macos=True, macos_file_ids=True)


@pytest.mark.root
def test_a_number_leads_nobody_to_a_file_that_the_user_may_not_see(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await mac(place)
        place.folder.chmod(0o755)
        backend = place.service.server.share_list["share"].backend
        assert backend is not None
        for name, mode, status in (("open", 0o755, 0), ("secret", 0o700, NtStatus.OBJECT_NAME_NOT_FOUND)):
            (place.folder / name).mkdir(mode)
            (place.folder / name / "file").touch()
            handle = backend.open(OpenRequest((name, "file")))
            number = handle.lasting_number()
            handle.close()
            if not number:
                pytest.skip("this file system makes no numbers that last")
            found = await ask(peer, RawContext(apple.AAPL, struct.pack("<IIQ", 2, 0, number)))
            assert struct.unpack_from("<II4x", found[apple.AAPL], 4)[1] == status, name

    act(tmp_path, scene, user=User(60, 60), macos=True, macos_file_ids=True)


def test_files_have_no_numbers_from_the_query_on(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await place.peer()
        asked = RawContext(QUERY_ON_DISK_ID, b"")
        assert struct.unpack_from("<Q", (await ask(peer, asked))[QUERY_ON_DISK_ID])[0]
        found = await ask(peer, query(), asked)
        assert found[QUERY_ON_DISK_ID][:8] == bytes(8)
        made = await peer.make("file")
        for level, at in ((FileInfoClass.INTERNAL, 0), (FileInfoClass.ALL, 64), (FileInfoClass.ID, 8)):
            reply = await peer.query_info(made.file, level)
            assert reply.message[72 + at : 80 + at] == bytes(8), level
        assert (await listing(peer))["file"][96:104] == bytes(8)

    act(tmp_path, scene, macos=True)


# Folders


def test_entries_hold_what_finder_shows(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await place.peer()
        await put(peer, "file")
        await put(peer, "file:AFP_AfpInfo", INFO)
        await put(peer, "file:AFP_Resource", b"fork")
        (place.folder / "file").chmod(0o640)
        before = (await listing(peer))["file"]
        assert struct.unpack_from("<I", before, 64)[0] == 0, "EaSize"
        assert apple.AAPL in await ask(peer, query())
        entry = (await listing(peer))["file"]
        made = struct.unpack_from("<Q", entry, 8)[0]
        access, length, reserved = struct.unpack_from("<IBB", entry, 64)
        assert access == ALL and (length, reserved) == (24, 0)
        seconds = (made - 116444736000000000) // 10_000_000
        assert entry[70:94] == apple.pack_entry(4, FINDER, True, seconds)
        assert struct.unpack_from("<H", entry, 94)[0] == 0o100640
        # The rest is as before.
        assert entry[4:64] == before[4:64]

    act(tmp_path, scene, macos=True)


def test_listing_moves_apple_double_into_streams(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await mac(place)
        head = struct.pack(">II16sH", 0x00051607, 0x00020000, bytes(16), 1) + struct.pack(">III", 9, 38, 32)
        (place.folder / "file").touch()
        (place.folder / "._file").write_bytes(head + FINDER)
        assert (await listing(peer))["file"][78:86] == b"TEXTttxt"
        assert "._file" not in await listing(peer)

    act(tmp_path, scene, macos=True)


# Modes


async def security(peer: Peer, file: tuple[int, int], which: int = 7) -> SecurityDescriptor:
    body = struct.pack("<HBBIHHIIIQQ", 41, 3, 0, 4096, 0, 0, 0, which, 0, *file) + b"\0"
    reply = await peer.call(Command.QUERY_INFO, body)
    assert reply.status == 0
    return unpack(memoryview(reply.message)[72:])


def nfs(kind: int, number: int) -> Sid:
    return Sid(5, (88, kind, number))


def test_a_mac_sees_and_sets_modes(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await mac(place)
        made = await peer.make("file", desired_access=ALL)
        stat = os.stat(place.folder / "file")
        found = await security(peer, made.file)
        assert found.dacl is not None
        mine = [deny(nfs(3, stat.st_mode), 0), deny(nfs(1, stat.st_uid), 0), deny(nfs(2, stat.st_gid), 0)]
        assert list(found.dacl.aces[-3:]) == mine
        wanted = Acl((*found.dacl.aces[:-3], deny(nfs(3, 0o100600), 0)))
        data = SecurityDescriptor(dacl=wanted, control=4).pack()
        assert await peer.set_info(made.file, 0, data, kind=3, additional=4) == 0
        assert os.stat(place.folder / "file").st_mode == 0o100600
        again = await security(peer, made.file)
        assert again.dacl is not None and sum(str(ace.sid).startswith("S-1-5-88-") for ace in again.dacl.aces) == 3

    act(tmp_path, scene, macos=True)


def test_only_a_mode_leaves_the_dacl_alone(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await mac(place)
        made = await peer.make("file", desired_access=ALL)
        before = await security(peer, made.file, 3)
        for aces in ((deny(nfs(3, 0o604), 0),), ()):
            data = SecurityDescriptor(dacl=Acl(aces), control=4).pack()
            assert await peer.set_info(made.file, 0, data, kind=3, additional=4) == 0
        assert os.stat(place.folder / "file").st_mode & 0o777 == 0o604
        assert await security(peer, made.file, 3) == before

    act(tmp_path, scene, macos=True)


def test_a_client_that_did_not_ask_sees_no_modes(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await place.peer()
        made = await peer.make("file", desired_access=ALL)
        found = await security(peer, made.file)
        assert found.dacl is not None and not any(str(ace.sid).startswith("S-1-5-88-") for ace in found.dacl.aces)

    act(tmp_path, scene, macos=True)


# Copies


async def copied(peer: Peer, source: str, target: str) -> Reply:
    """Ask for a copy of a file without chunks."""
    one = await peer.make(source)
    two = await peer.make(target)
    key = (await peer.fsctl(one.file, Fsctl.SRV_REQUEST_RESUME_KEY)).message[112:136]
    reply = await peer.fsctl(two.file, Fsctl.SRV_COPYCHUNK, key + struct.pack("<II", 0, 0))
    assert await peer.close(one.file) == await peer.close(two.file) == 0
    return reply


def test_a_copy_without_chunks_is_one_of_the_whole_file(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer = await place.peer()
        large = os.urandom(3 << 20)
        (place.folder / "file").write_bytes(large)
        await put(peer, "file:AFP_AfpInfo", INFO)
        await put(peer, "file:note", b"note")
        (place.folder / "copy").write_bytes(bytes(4 << 20))
        assert (await copied(peer, "file", "copy")).message[112:124] == bytes(12), "not promised yet"
        assert apple.AAPL in await ask(peer, query())
        reply = await copied(peer, "file", "copy")
        assert reply.status == 0 and struct.unpack_from("<III", reply.message, 112) == (0, 0, 3 << 20)
        assert (place.folder / "copy").read_bytes() == large
        made = await peer.make("copy:note", create_disposition=1)
        read = struct.pack("<HBBIQQQIIIHH", 49, 0, 0, 60, 0, *made.file, 0, 0, 0, 0, 0) + b"\0"
        assert (await peer.call(Command.READ, read)).message[80:] == b"note"
        assert (await listing(peer))["copy"][78:86] == b"TEXTttxt"

    act(tmp_path, scene, macos=True)


def test_a_stream_that_is_open_is_not_overwritten_by_a_copy(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        peer, other = await mac(place), await place.peer()
        await put(peer, "file:note", b"note")
        held = await other.make("copy:note")
        assert await other.write(held.file, b"mine") == 0
        assert (await copied(peer, "file", "copy")).status == NtStatus.SHARING_VIOLATION

    act(tmp_path, scene, macos=True)


# Names and renames


def test_apples_private_characters_are_themselves_on_the_host(tmp_path: Path) -> None:
    """What Finder shows as a slash is a colon for the Mac's programs, and arrives as U+F022."""

    async def scene(place: Ground) -> None:
        peer = await mac(place)
        wire = "a\uf022b\uf020\uf021\uf023\uf024\uf025\uf026\uf027\uf001\uf01f end\uf029"
        await put(peer, wire)
        assert os.listdir(place.folder) == ['a:b"*<>?\\|\x01\x1f end.']
        assert wire in await listing(peer)
        await put(peer, "caf\u00e9 \uf8ff.DS_Store")
        assert "caf\u00e9 \uf8ff.DS_Store" in os.listdir(place.folder)

    act(tmp_path, scene, macos=True)


@pytest.mark.parametrize("macs", [True, False])
def test_a_mac_renames_a_folder_in_which_it_has_files_open(tmp_path: Path, macs: bool) -> None:
    async def scene(place: Ground) -> None:
        peer = await mac(place) if macs else await place.peer()
        folder = await peer.make("folder", desired_access=0x110080, create_disposition=2, create_options=DIRECTORY)
        held = await peer.make("folder\\file")
        renamed = await peer.set_info(folder.file, FileInfoClass.RENAME, rename_to("new"))
        assert renamed == (0 if macs else NtStatus.ACCESS_DENIED)
        if macs:
            assert await peer.write(held.file, b"still there") == 0
            assert (place.folder / "new/file").read_bytes() == b"still there"
            other = await place.peer()
            await other.make("new\\file")
            assert await peer.set_info(folder.file, FileInfoClass.RENAME, rename_to("newer")) == NtStatus.ACCESS_DENIED

    act(tmp_path, scene, macos=True)


# The disk


def test_a_full_flush_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F_FULLFSYNC is a FLUSH whose Reserved1 is 0xFFFF."""
    synced: list[str] = []
    plain = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        plain(descriptor)

    async def scene(place: Ground) -> None:
        peer = await mac(place)
        made = await peer.make("file")
        assert await peer.write(made.file, b"data") == 0
        monkeypatch.setattr(os, "fsync", fsync)
        body = struct.pack("<HHIQQ", 24, 0xFFFF, 0, *made.file)
        assert (await peer.call(Command.FLUSH, body)).status == 0
        assert "file" in synced and "share" in synced, "the file, and the folder that has its name"

    act(tmp_path, scene, macos=True)


async def sizes(peer: Peer) -> tuple[int, int]:
    """Total and free bytes of the volume."""
    made = await peer.make("", desired_access=LISTED, create_disposition=1, create_options=DIRECTORY)
    body = struct.pack("<HBBIHHIIIQQ", 41, 2, 3, 64, 0, 0, 0, 0, 0, *made.file) + b"\0"
    reply = await peer.call(Command.QUERY_INFO, body)
    total, free, sectors, sector = struct.unpack_from("<QQII", reply.message, 72)
    return total * sectors * sector, free * sectors * sector


@pytest.mark.parametrize("many", [False, True])
def test_backups_take_room_of_the_limit(tmp_path: Path, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``many``: the bands are so many that another thread counts them."""
    counted: list[str] = []
    if many:
        for limit in ("_MANY", "_MANY_BYTES", "_PATIENCE"):
            monkeypatch.setattr(backups, limit, 0)
    plain = backups.Backups._count_bands

    def count(self: backups.Backups, root: int, name: str) -> Iterator[None]:
        counted.append(threading.current_thread().name)
        yield from plain(self, root, name)

    monkeypatch.setattr(backups.Backups, "_count_bands", count)

    async def scene(place: Ground) -> None:
        peer = await place.peer()
        assert await sizes(peer) == (1 << 20, 1 << 20)
        bands = place.folder / "mac.sparsebundle/bands"
        bands.mkdir(parents=True)
        (bands.parent / "Info.plist").write_text("<key>band-size</key><integer>262144</integer>")
        for number in range(3):
            (bands / str(number)).touch()
        assert await sizes(peer) == (1 << 20, 1 << 18)
        for number in range(3, 6):
            (bands / str(number)).touch()
        os.utime(bands)
        assert await sizes(peer) == (1 << 20, 0)
        assert len(counted) == 2 * many
        assert all(name.startswith("long-work") for name in counted)

    act(tmp_path, scene, time_machine=True, time_machine_max_size=1 << 20)


def test_other_shares_have_no_limit(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        found = os.statvfs(place.folder)
        assert (await sizes(await place.peer()))[0] == found.f_blocks * found.f_frsize

    act(tmp_path, scene, macos=True, time_machine_max_size=1 << 20)


def test_spotlight_is_refused(tmp_path: Path) -> None:
    """Macs open the pipe of Spotlight's service when a window is searched, and search by listing if there is none."""

    async def scene(place: Ground) -> None:
        peer = await mac(place)
        assert (await peer.client.tree_connect("IPC$")).status == 0
        assert (await peer.create("mdssvc")).status == NtStatus.OBJECT_NAME_NOT_FOUND

    act(tmp_path, scene, macos=True)


def test_what_a_lost_mac_held_is_free_again(tmp_path: Path) -> None:
    """A Mac locks bands of its backup. When it comes back, or another one continues, nothing of that is in the way."""

    async def scene(place: Ground) -> None:
        first = await mac(place)
        held = await first.make("band", share_access=0)
        assert await first.lock(held.file, 0, 100) == 0
        doomed = await first.make("lock", desired_access=ALL, create_options=0x1000)
        assert doomed.status == 0
        await place.lose(first)
        second = await mac(place)
        again = await second.make("band", share_access=0)
        assert await second.lock(again.file, 0, 100) == 0
        assert not (place.folder / "lock").exists()

    act(tmp_path, scene, time_machine=True)


# Rights

_MAXIMUM_ALLOWED = 0x02000000
_EVERYONE = Sid(1, (0,))


async def give(peer: Peer, file: tuple[int, int], mask: int) -> None:
    data = SecurityDescriptor(dacl=Acl((allow(_EVERYONE, mask),)), control=4).pack()
    assert await peer.set_info(file, 0, data, kind=3, additional=4) == 0


@pytest.mark.parametrize("mask", [0x1F01FF, 0x120089, 0x120080, 0x10000, 0x40000, 0])
def test_an_entry_shows_the_rights_that_an_open_would_get(tmp_path: Path, mask: int) -> None:
    async def scene(place: Ground) -> None:
        owner = await place.peer()
        await give(owner, (await owner.make("file", desired_access=ALL)).file, mask)
        other = await place.peer(user="other")
        assert apple.AAPL in await ask(other, query())
        (shown,) = struct.unpack_from("<I", (await listing(other))["file"], 64)
        made = await other.create("file", desired_access=_MAXIMUM_ALLOWED, create_disposition=1)
        granted = 0
        if not made.status:
            reply = await other.query_info(made.file, FileInfoClass.ACCESS)
            (granted,) = struct.unpack_from("<I", reply.message, 72)
        assert shown == granted

    act(tmp_path, scene, macos=True)


def test_only_who_may_change_the_dacl_sets_the_mode(tmp_path: Path) -> None:
    async def scene(place: Ground) -> None:
        owner = await place.peer()
        await give(owner, (await owner.make("file", desired_access=ALL)).file, 0x12019F)
        other = await place.peer(user="other")
        assert apple.AAPL in await ask(other, query())
        made = await other.make("file", create_disposition=1)
        before = os.stat(place.folder / "file").st_mode
        data = SecurityDescriptor(dacl=Acl((deny(nfs(3, 0o777), 0),)), control=4).pack()
        assert await other.set_info(made.file, 0, data, kind=3, additional=4) == NtStatus.ACCESS_DENIED
        assert os.stat(place.folder / "file").st_mode == before

    act(tmp_path, scene, macos=True)


@pytest.mark.parametrize(("source", "target"), [(0x100080, 0x12019F), (0x12019F, 0x120089), (0x12019F, 0x120196)])
def test_a_copy_of_a_file_needs_the_rights_of_one_by_chunks(tmp_path: Path, source: int, target: int) -> None:
    async def scene(place: Ground) -> None:
        peer = await mac(place)
        await put(peer, "file")
        await put(peer, "copy", b"before")
        one = await peer.make("file", desired_access=source)
        two = await peer.make("copy", desired_access=target)
        key = (await peer.fsctl(one.file, Fsctl.SRV_REQUEST_RESUME_KEY)).message[112:136]
        for count in (0, 1):
            data = key + struct.pack("<II", count, 0) + struct.pack("<QQII", 0, 0, 4, 0) * count
            assert (await peer.fsctl(two.file, Fsctl.SRV_COPYCHUNK, data)).status == NtStatus.ACCESS_DENIED
        assert (place.folder / "copy").read_bytes() == b"before"

    act(tmp_path, scene, macos=True)
