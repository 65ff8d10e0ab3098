"""Every operation of ``rights_table`` in a snapshot: nothing can be changed there, and a user may read what they could
read then and can read now."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from smb3server.access.descriptor import EVERYONE, Acl, Control, SecurityDescriptor, allow
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.access.posix import user_sid
from smb3server.auth.users import Account, nt_hash
from smb3server.backends.base import Disposition, Handle, OpenRequest, User
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.local.snapshot_folders import SnapshotFolders
from smb3server.backends.snapshot_names import hiding, parse
from smb3server.backends.snapshots import Snapshots
from smb3server.settings.server import Settings
from smb3server.state.share import Share, ShareFlags
from smb3server.wire import query_directory, read_write
from smb3server.wire.create import Access
from smb3server.wire.file_info import FileInfoClass, RenameInformation, encode_rename
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus
from tests.lab.rights import ACTS, CONTENT, ME, PATHS, STRANGER, Actor, Refused, without
from tests.lab.rights_table import RIGHTS, TABLE, Right, Row
from tests.lab.wire_client import Client, running

TOKEN = "@GMT-2024.05.06-07.08.09"
MY_SID = user_sid(ME.uid)
READS = [row for row in TABLE if not row.changes and () not in row.needs]


class World(NamedTuple):
    runner: asyncio.Runner
    present: LocalBackend
    past: LocalBackend
    """The folder of the snapshot, to be written to by the test."""
    root: Path
    client: Client
    operator: Client
    """Of a user with every privilege."""
    share: Share
    numbers: Iterator[int]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("share")
    for folder in (root, *root.parents):
        if folder != Path("/") and folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o755)
    (root / ".snapshots" / TOKEN).mkdir(parents=True)
    for folder in (root, root / ".snapshots" / TOKEN):
        folder.chmod(0o777)
    pattern = parse(".snapshots/@GMT-%Y.%m.%d-%H.%M.%S", str(root))
    present = LocalBackend(root, LocalOptions(vetoes=hiding(pattern, None)))
    past = LocalBackend(root / ".snapshots" / TOKEN)
    options = LocalOptions(read_only=True, is_snapshot=True)
    snapshots = Snapshots(SnapshotFolders(pattern), lambda folder: LocalBackend(folder, options))
    with asyncio.Runner() as runner:
        operators = frozenset({"p"})
        manager = running(Settings(security_operators=operators, backup_operators=operators))
        harness = runner.run(manager.__aenter__())
        try:
            server = harness.server
            server.users.add(Account("u", nt_hash("pw"), ME))
            share = Share("disk", backend=present, snapshots=snapshots)
            server.add_share(share)
            server.users.add(Account("p", nt_hash("pw"), User(54330, 54330)))
            clients = []
            for user in ("u", "p"):
                client = runner.run(harness.connect())
                runner.run(client.negotiate())
                assert runner.run(client.session_setup(user, "pw")).status == 0
                assert runner.run(client.tree_connect("disk")).status == 0
                clients.append(client)
            yield World(runner, present, past, root, *clients, share, itertools.count())
            for entry in list(server.opens.by_id.values()):
                server.opens.close(entry)
        finally:
            runner.run(manager.__aexit__(None, None, None))
            past.close()
            assert len(snapshots) == 0, "a store of a snapshot is left open"


def _make(backend: LocalBackend, path: tuple[str, ...], directory: bool) -> Handle:
    return backend.open(
        OpenRequest(path, disposition=Disposition.CREATE, write=not directory, directory=True if directory else None)
    )


def _describe(handle: Handle, mask: int) -> None:
    dacl = Acl((allow(MY_SID, mask), allow(STRANGER, FILE_ALL_ACCESS)))
    control = int(Control.DACL_PRESENT | Control.SELF_RELATIVE)
    handle.set_security_descriptor(SecurityDescriptor(STRANGER, EVERYONE, dacl, None, control).pack())


def build(world: World, backend: LocalBackend, root: Path, base: str, masks: dict[str, int]) -> None:
    """A folder with the table's objects, on which the user has these rights."""
    _make(backend, (base,), True).close()
    for name, path in PATHS.items():
        directory = name in ("folder", "there", "inner")
        handle = _make(backend, (base, *path), directory)
        if not directory:
            handle.write_from([CONTENT], 0)
            handle.set_ea(b"EA", b"value")
            stream = backend.open(OpenRequest((base, *path), "s", Disposition.CREATE, True, True))
            stream.write_from([b"stream"], 0)
            stream.close()
        _describe(handle, masks.get(name, FILE_ALL_ACCESS))
        handle.close()
    for folder, _, files in os.walk(root / base):
        Path(folder).chmod(0o777)
        for file in files:
            (Path(folder) / file).chmod(0o666)


def state_of(root: Path, base: str) -> list[tuple[object, ...]]:
    """All that the host tells of the files, but for the times of the last access."""
    found: list[tuple[object, ...]] = []
    for folder, names, files in sorted(os.walk(root / base)):
        for name in sorted((*names, *files)):
            path = Path(folder) / name
            stat = path.lstat()
            attributes = [(key, os.getxattr(path, key)) for key in sorted(os.listxattr(path))]
            content = path.read_bytes() if path.is_file() else b""
            found.append((str(path), stat.st_mode, stat.st_nlink, stat.st_mtime_ns, content, attributes))
    return found


def attempt(world: World, row: Row, then: dict[str, int], now: dict[str, int], client: Client | None = None) -> int:
    """The status that the operation ends with in the snapshot."""
    base = f"c{next(world.numbers)}"
    places = ((world.past, world.root / ".snapshots" / TOKEN, then), (world.present, world.root, now))
    for backend, root, masks in places:
        build(world, backend, root, base, masks)
    before = [state_of(root, base) for _, root, _ in places]
    status = 0
    try:
        world.runner.run(ACTS[row.operation](Actor(client or world.client, f"{TOKEN}\\{base}")))
    except Refused as refused:
        status = refused.status
    assert [state_of(root, base) for _, root, _ in places] == before
    return status


OPENED_FOR_READING = {
    "open for WRITE_DATA",
    "open for APPEND_DATA",
    "open a stream for WRITE_DATA",
    "open for writing, for backup",
}
"""Programs that open for writing may read."""
PRIVILEGED = [row for row in TABLE if row.privilege]


@pytest.mark.parametrize("row", [row for row in TABLE if row.changes], ids=lambda row: row.operation)
def test_nothing_changes_in_a_snapshot(world: World, row: Row) -> None:
    status = attempt(world, row, {}, {})
    if row.operation in OPENED_FOR_READING:
        assert status == 0
        return
    # A new name with the time in it is looked for in the share as it is now, where there is no such folder.
    path = NtStatus.OBJECT_PATH_NOT_FOUND if row.operation.startswith("link") else row.refusal
    assert status in (NtStatus.MEDIA_WRITE_PROTECTED, NtStatus.ACCESS_DENIED, row.refusal, path)


@pytest.mark.parametrize("row", PRIVILEGED, ids=lambda row: row.operation)
def test_privileges_read_in_a_snapshot_and_nothing_else(world: World, row: Row) -> None:
    nothing = dict.fromkeys(PATHS, 0)
    status = attempt(world, row, nothing, nothing, world.operator)
    reads = not row.changes or row.operation in OPENED_FOR_READING
    assert status == 0 if reads else status in (NtStatus.MEDIA_WRITE_PROTECTED, NtStatus.ACCESS_DENIED), hex(status)


@pytest.mark.parametrize("level", [FileInfoClass.LINK, FileInfoClass.RENAME])
def test_no_file_of_a_snapshot_gets_a_name_in_the_share(world: World, level: int) -> None:
    base = f"c{next(world.numbers)}"
    build(world, world.past, world.root / ".snapshots" / TOKEN, base, {})
    build(world, world.present, world.root, base, {})
    data = encode_rename(RenameInformation(0, 0, f"{base}\\there\\new"))

    async def test() -> None:
        async with Actor(world.client, TOKEN).opened(f"{base}\\folder\\file") as file:
            await Actor(world.client, "").set_info(file, level, data)

    with pytest.raises(Refused) as refused:
        world.runner.run(test())
    expected = NtStatus.MEDIA_WRITE_PROTECTED if level == FileInfoClass.LINK else NtStatus.ACCESS_DENIED
    assert refused.value.status == expected
    assert not (world.root / base / "there" / "new").exists()


def test_an_open_for_writing_reads_and_does_not_write(world: World) -> None:
    """And it takes the right to write, now."""
    base = f"c{next(world.numbers)}"
    build(world, world.past, world.root / ".snapshots" / TOKEN, base, {})
    build(world, world.present, world.root, base, {"target": FILE_ALL_ACCESS & ~RIGHTS["WRITE_DATA"]})
    actor = Actor(world.client, f"{TOKEN}\\{base}")

    async def write() -> None:
        async with actor.opened("folder\\file", RIGHTS["READ_DATA"] | RIGHTS["WRITE_DATA"]) as file:
            assert struct.unpack("<I", await actor.query_info(file, FileInfoClass.ACCESS))[0] == RIGHTS["READ_DATA"]
            record = read_write.WriteRequest(data_offset=112, length=3, persistent=file[0], volatile=file[1])
            await actor.call(Command.WRITE, read_write.WRITE_REQUEST.pack(record) + b"new")

    with pytest.raises(Refused) as refused:
        world.runner.run(write())
    assert refused.value.status == NtStatus.MEDIA_WRITE_PROTECTED
    with pytest.raises(Refused) as refused:
        world.runner.run(actor.open("there\\target", RIGHTS["READ_DATA"] | RIGHTS["WRITE_DATA"]))
    assert refused.value.status == NtStatus.ACCESS_DENIED


def test_who_reads_an_old_version_hinders_nobody(world: World) -> None:
    """The folder is renamed, and the file written and deleted, while their old versions are open."""
    base = f"c{next(world.numbers)}"
    build(world, world.past, world.root / ".snapshots" / TOKEN, base, {})
    build(world, world.present, world.root, base, {})

    async def test() -> None:
        past, present = Actor(world.client, f"{TOKEN}\\{base}"), Actor(world.client, base)
        async with past.opened("folder\\file", RIGHTS["READ_DATA"]), past.opened("folder"):
            await ACTS["rename a folder"](present)
            await ACTS["overwrite a file"](present)
            await ACTS["delete on close, with DELETE"](present)
            async with present.opened("folder") as folder:
                rename = encode_rename(RenameInformation(0, 0, f"{base}\\renamed"))
                await present.set_info(folder, FileInfoClass.RENAME, rename)
            await ACTS["read"](past)

    world.runner.run(test())
    assert (world.root / base / "renamed").is_dir()


@pytest.mark.parametrize("row", READS, ids=lambda row: row.operation)
def test_whoever_could_read_and_can_reads(world: World, row: Row) -> None:
    assert attempt(world, row, {}, {}) == 0


def _lacking(need: tuple[Right, ...]) -> str:
    return "|".join(f"{right.object}.{right.name}" for right in need)


LACKING = [pytest.param(row, need, id=f"{row.operation}-{_lacking(need)}") for row in READS for need in row.needs]


@pytest.mark.parametrize(("row", "need"), LACKING)
def test_what_was_not_allowed_then_is_not_allowed(world: World, row: Row, need: tuple[Right, ...]) -> None:
    assert attempt(world, row, without(need), {}) == row.refusal


@pytest.mark.parametrize(("row", "need"), LACKING)
def test_what_is_not_allowed_now_is_not_allowed(world: World, row: Row, need: tuple[Right, ...]) -> None:
    assert attempt(world, row, {}, without(need)) == row.refusal


def _read(world: World, base: str) -> int:
    try:
        world.runner.run(ACTS["read"](Actor(world.client, f"{TOKEN}\\{base}")))
    except Refused as refused:
        return refused.status
    return 0


@pytest.mark.parametrize("listed", [True, False])
def test_the_nearest_folder_decides_about_what_is_gone(world: World, listed: bool) -> None:
    """The file and its folder were removed. Whoever may list what is left may read what was there."""
    base = f"c{next(world.numbers)}"
    build(world, world.past, world.root / ".snapshots" / TOKEN, base, {})
    build(world, world.present, world.root, base, {})
    shutil.rmtree(world.root / base / "folder")
    handle = world.present.open(OpenRequest((base,), directory=True))
    _describe(handle, FILE_ALL_ACCESS if listed else FILE_ALL_ACCESS & ~RIGHTS["LIST"])
    handle.close()
    assert _read(world, base) == (0 if listed else NtStatus.ACCESS_DENIED)


def test_a_link_leads_nobody_around_the_rights_of_today(world: World) -> None:
    """The link of then is gone. What it led to must not be read any longer."""
    base = f"c{next(world.numbers)}"
    past = world.root / ".snapshots" / TOKEN
    build(world, world.past, past, base, {})
    build(
        world, world.present, world.root, base, {"file": FILE_ALL_ACCESS & ~RIGHTS["READ_DATA"] & ~int(Access.EXECUTE)}
    )
    (past / base / "way").mkdir()
    (past / base / "way" / "folder").symlink_to("../folder")
    (world.root / base / "way").mkdir()
    for folder in (past, world.root):
        (folder / base / "way").chmod(0o777)
    assert _read(world, base) == NtStatus.ACCESS_DENIED
    assert _read(world, f"{base}\\way") == NtStatus.ACCESS_DENIED
    # With the right, the link is followed.
    handle = world.present.open(OpenRequest((base, "folder", "file")))
    _describe(handle, FILE_ALL_ACCESS)
    handle.close()
    assert _read(world, f"{base}\\way") == 0


def _listed(world: World, base: str) -> list[str]:
    async def names(actor: Actor) -> list[str]:
        async with actor.opened("folder") as file:
            record = query_directory.QueryDirectoryRequest(
                info_class=FileInfoClass.NAMES,
                persistent=file[0],
                volatile=file[1],
                file_name_length=2,
                output_buffer_length=4096,
            )
            body = query_directory.QUERY_DIRECTORY_REQUEST.pack(record) + "*".encode("utf-16-le")
            answer = (await actor.call(Command.QUERY_DIRECTORY, body)).message
        return [name for name in ("file", "inner") if name.encode("utf-16-le") in answer]

    return world.runner.run(names(Actor(world.client, f"{TOKEN}\\{base}")))


@pytest.mark.parametrize("lacking", ["then", "now", "never"])
def test_listings_by_access_show_what_was_and_is_allowed(world: World, lacking: str) -> None:
    base = f"c{next(world.numbers)}"
    less = {"file": FILE_ALL_ACCESS & ~RIGHTS["READ_DATA"]}
    build(world, world.past, world.root / ".snapshots" / TOKEN, base, less if lacking == "then" else {})
    build(world, world.present, world.root, base, less if lacking == "now" else {})
    world.share.flags |= ShareFlags.ACCESS_BASED_DIRECTORY_ENUM
    try:
        assert _listed(world, base) == (["file", "inner"] if lacking == "never" else ["inner"])
    finally:
        world.share.flags &= ~ShareFlags.ACCESS_BASED_DIRECTORY_ENUM


def test_a_snapshot_that_goes_away_while_its_files_are_open(world: World) -> None:
    base, folder = f"c{next(world.numbers)}", world.root / ".snapshots" / "@GMT-2023.01.01-00.00.00"
    for place in (folder / base, world.root / base):
        place.mkdir(parents=True)
        (place / "file").write_bytes(CONTENT)
        (place / "file").chmod(0o666)
        place.chmod(0o777)
    actor = Actor(world.client, f"{folder.name}\\{base}")

    async def test() -> None:
        async with actor.opened("file") as file:
            folder.rename(world.root / "away")
            shutil.rmtree(world.root / "away")
            record = read_write.ReadRequest(length=10, persistent=file[0], volatile=file[1])
            answer = await actor.call(Command.READ, read_write.READ_REQUEST.pack(record) + b"\0")
            assert CONTENT[:10] in answer.message
            with pytest.raises(Refused) as refused:
                await actor.open("file")
            assert refused.value.status == NtStatus.OBJECT_NAME_NOT_FOUND

    world.runner.run(test())


@pytest.mark.parametrize("target", ["../../..", "/etc", "../" * 12 + "etc"])
def test_no_link_leads_out_of_a_snapshot(world: World, target: str) -> None:
    past = world.root / ".snapshots" / TOKEN
    name = f"out{next(world.numbers)}"
    (past / name).symlink_to(target)
    (world.root / "passwd").write_text("not in the snapshot")
    for path in (name, f"{name}\\passwd", f"{name}\\share"):
        with pytest.raises(Refused):
            world.runner.run(Actor(world.client, TOKEN).open(path))


@pytest.mark.parametrize("path", ["..\\passwd", "..", "c\\..\\..\\passwd", ".snapshots", ".smb3server", "../passwd"])
def test_no_name_leads_out_of_a_snapshot(world: World, path: str) -> None:
    (world.root / "passwd").write_text("not in the snapshot")
    with pytest.raises(Refused):
        world.runner.run(Actor(world.client, TOKEN).open(path))


@pytest.mark.parametrize(
    "path",
    [".snapshots", f".snapshots\\{TOKEN}", ".SNAPSHOTS", "SNAPSH~1", "link", f"link\\{TOKEN}", "deep\\.snapshots"],
)
def test_the_folder_of_the_snapshots_exists_for_no_client(world: World, path: str) -> None:
    """By way of the share, its files could be changed, with the rights of then alone."""
    if not (world.root / "link").is_symlink():
        (world.root / "link").symlink_to(".snapshots")
        (world.root / "deep" / ".snapshots").mkdir(parents=True)
    with pytest.raises(Refused):
        world.runner.run(Actor(world.client, "").open(path))
