"""Every operation with a user who has every right but one, and with one who has just enough: ``rights_table``.

On the local backend the host lets everybody do everything, so the descriptors alone decide.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from smb3server.access.descriptor import (
    BUILTIN_USERS,
    EVERYONE,
    Acl,
    Control,
    SecurityDescriptor,
    Sid,
    allow,
)
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.access.posix import user_sid
from smb3server.auth.users import Account, nt_hash
from smb3server.backends.base import Backend, Disposition, Handle, Kind, OpenRequest, User
from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.memory.backend import MemoryBackend
from smb3server.settings.server import Settings
from smb3server.settings.share import ShareRules
from smb3server.state.share import Share
from smb3server.wire.status import NtStatus
from tests.lab import rights_table
from tests.lab.rights import ACTS, CONTENT, ME, PATHS, STRANGER, Actor, Refused, without
from tests.lab.rights_table import TABLE, Right, Row
from tests.lab.wire_client import Client, Harness, running

LONGEST_TURN = 0.1
OPERATOR = User(54330, 54330)


class World(NamedTuple):
    """A server, and clients at its shares of one store."""

    runner: asyncio.Runner
    backend: Backend
    root: Path | None
    user: Client
    guest: Client
    at_read_only: Client
    privileged: Client
    privileged_at_read_only: Client
    numbers: Iterator[int]


async def _client(harness: Harness, user: str, password: str, share: str) -> Client:
    client = await harness.connect()
    await client.negotiate()
    assert (await client.session_setup(user, password)).status == 0
    assert (await client.tree_connect(share)).status == 0
    return client


@pytest.fixture(scope="module", params=["memory", "local"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = None
    backend: Backend = MemoryBackend()
    if request.param == "local":
        root = tmp_path_factory.mktemp("share")
        for folder in (root, *root.parents):
            if folder != Path("/") and folder.stat().st_uid == os.geteuid():
                folder.chmod(folder.stat().st_mode | 0o755)
        root.chmod(0o777)
        backend = LocalBackend(root)
    with asyncio.Runner() as runner:
        operators = frozenset({"p"})
        manager = running(Settings(allow_guest=True, security_operators=operators, backup_operators=operators))
        harness = runner.run(manager.__aenter__())
        try:
            server = harness.server
            server.users.add(Account("u", nt_hash("pw"), ME))
            server.users.add(Account("p", nt_hash("pw"), OPERATOR))
            server.add_share(Share("disk", backend=backend))
            server.add_share(Share("public", backend=backend, rules=ShareRules(guest=True), user=User(54329, 54329)))
            server.add_share(Share("frozen", backend=backend, read_only=True))
            clients = [
                runner.run(_client(harness, name, "pw", share))
                for name, share in (
                    ("u", "disk"),
                    ("somebody", "public"),
                    ("u", "frozen"),
                    ("p", "disk"),
                    ("p", "frozen"),
                )
            ]
            yield World(runner, backend, root, *clients, itertools.count())
            for entry in list(server.opens.by_id.values()):
                server.opens.close(entry)
        finally:
            runner.run(manager.__aexit__(None, None, None))
            backend.close()


def _make(backend: Backend, path: tuple[str, ...], directory: bool) -> Handle:
    return backend.open(
        OpenRequest(path, disposition=Disposition.CREATE, write=not directory, directory=True if directory else None)
    )


def build(world: World, masks: dict[str, int], who: Sid) -> str:
    """A new folder with the table's objects; ``who`` has these rights on them. Its name."""
    backend, base = world.backend, f"c{next(world.numbers)}"
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
        dacl = Acl((allow(who, masks.get(name, FILE_ALL_ACCESS)), allow(STRANGER, FILE_ALL_ACCESS)))
        control = int(Control.DACL_PRESENT | Control.SELF_RELATIVE)
        handle.set_security_descriptor(SecurityDescriptor(STRANGER, EVERYONE, dacl, None, control).pack())
        handle.set_times(last_write=131000000000000000)
        handle.close()
    if world.root is not None:
        for folder, _, files in os.walk(world.root / base):
            Path(folder).chmod(0o777)
            for file in files:
                (Path(folder) / file).chmod(0o666)
                if os.geteuid() == 0:
                    # The user's own, so that the host lets him do what it keeps for owners.
                    os.chown(Path(folder) / file, ME.uid, ME.gid)
    return base


def snapshot(backend: Backend, path: tuple[str, ...]) -> Any:
    """All that can be told of a file and what is below it, but for the time of the last access."""
    handle = backend.open(OpenRequest(path, open_reparse_point=True))
    try:
        info = handle.info()
        told: list[Any] = [info.kind, info.attributes, info.end_of_file, info.last_write_time, info.creation_time]
        told += [info.link_count, info.mode, info.uid, info.gid, info.reparse_tag, handle.reparse_point()]
        told += [sorted(handle.eas()), handle.security_descriptor()]
        names = [stream.name for stream in handle.streams()]
        if info.kind == Kind.DIRECTORY:
            children = sorted(entry.name for entry in handle.scan() if entry.name not in (".", ".."))
            told.append([(name, snapshot(backend, (*path, name))) for name in children])
    finally:
        handle.close()
    for name in sorted(names):
        with_data = backend.open(OpenRequest(path, name, read=True))
        try:
            buffer = bytearray(with_data.info().end_of_file)
            with_data.read_into([memoryview(buffer)], 0)
            told.append((name, bytes(buffer)))
        finally:
            with_data.close()
    return told


def attempt(world: World, client: Client, row: Row, masks: dict[str, int], who: Sid) -> tuple[int, bool]:
    """The status an operation ended with, and whether anything is different now."""
    base = build(world, masks, who)
    before = snapshot(world.backend, (base,))
    status = 0
    try:
        world.runner.run(ACTS[row.operation](Actor(client, base)))
    except Refused as refused:
        status = refused.status
    return status, snapshot(world.backend, (base,)) != before


LEAVES_NO_TRACE = {"create a stream, deleted on close", "flush", "set compression", "list a folder, for backup"} | {
    row.operation for row in TABLE if row.operation.startswith("open")
} - {"open or create a file", "open or create a stream"}
"""What changes nothing that lasts even if it is allowed."""


def _traces(row: Row) -> bool:
    return row.changes and row.operation not in LEAVES_NO_TRACE


def _named(need: tuple[Right, ...]) -> str:
    return "|".join(f"{right.object}.{right.name}" for right in need) or "nobody"


LACKING = [pytest.param(row, need, id=f"{row.operation}-{_named(need)}") for row in TABLE for need in row.needs]
ENOUGH = [
    pytest.param(row, need, right, id=f"{row.operation}-{_named((right,))}")
    for row in TABLE
    if () not in row.needs
    for need in row.needs
    for right in need
]
ROWS = [pytest.param(row, id=row.operation) for row in TABLE]
PRIVILEGED = [pytest.param(row, id=row.operation) for row in TABLE if row.privilege]
MY_SID = user_sid(ME.uid)


@pytest.mark.parametrize(("row", "need"), LACKING)
def test_user_who_lacks_just_that(world: World, row: Row, need: tuple[Right, ...]) -> None:
    assert attempt(world, world.user, row, without(need), MY_SID) == (row.refusal, False)


@pytest.mark.parametrize(("row", "need", "right"), ENOUGH)
def test_user_who_has_that(world: World, row: Row, need: tuple[Right, ...], right: Right) -> None:
    others = tuple(other for other in need if other != right)
    assert attempt(world, world.user, row, without(others), MY_SID) == (0, _traces(row))


@pytest.mark.parametrize("row", ROWS)
def test_read_only_share(world: World, row: Row) -> None:
    status, changed = attempt(world, world.at_read_only, row, {}, MY_SID)
    assert not changed
    if row.changes or () in row.needs:
        assert status in (row.refusal, NtStatus.ACCESS_DENIED)
    else:
        assert status == 0


@pytest.mark.parametrize("row", PRIVILEGED)
def test_user_with_the_privilege_and_no_right(world: World, row: Row) -> None:
    masks = dict.fromkeys(PATHS, 0)
    assert attempt(world, world.privileged, row, masks, MY_SID) == (0, _traces(row))


@pytest.mark.parametrize("row", PRIVILEGED)
def test_user_with_the_privilege_at_a_read_only_share(world: World, row: Row) -> None:
    status, changed = attempt(world, world.privileged_at_read_only, row, dict.fromkeys(PATHS, 0), MY_SID)
    assert not changed
    assert status == (NtStatus.ACCESS_DENIED if row.changes else 0)


@pytest.mark.parametrize("row", [row for row in TABLE if not row.privilege], ids=lambda row: row.operation)
def test_user_with_privileges_that_a_row_does_not_name(world: World, row: Row) -> None:
    masks = dict.fromkeys(PATHS, 0)
    assert attempt(world, world.privileged, row, masks, MY_SID) == (row.refusal, False)


@pytest.mark.parametrize("row", ROWS)
def test_guest_who_is_given_nothing(world: World, row: Row) -> None:
    status, changed = attempt(world, world.guest, row, {}, BUILTIN_USERS)
    assert status in (row.refusal, NtStatus.ACCESS_DENIED)
    assert not changed


@pytest.mark.parametrize("row", [row for row in TABLE if () not in row.needs], ids=lambda row: row.operation)
def test_guest_who_is_given_what_everyone_is(world: World, row: Row) -> None:
    assert attempt(world, world.guest, row, {}, EVERYONE) == (0, _traces(row))


def test_page_shows_the_table() -> None:
    page = rights_table.PAGE.read_text()
    assert page == rights_table.page_with_table(page)


def test_every_operation_of_the_table_is_tried() -> None:
    assert set(ACTS) == {row.operation for row in TABLE}
