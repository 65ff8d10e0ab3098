"""The table of opens by itself, without a server: what finds an open, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from smb3server.access.identity import Identity
from smb3server.state.ceilings import Usage
from smb3server.state.durable import Durability
from smb3server.state.objects import Open, Session, TreeConnect
from smb3server.state.opens import OpenTable
from smb3server.state.ports import NotStored
from smb3server.state.share import Share

APPLICATION = b"a" * 16
CLIENT, CREATED = b"c" * 16, b"d" * 16


class Stored:
    """A ``Persistence`` that notes what it is called for."""

    touches, dirty = 0, False

    def __init__(self) -> None:
        self.calls: list[tuple[str, Open]] = []

    def changed(
        self, opened: Open, undo: Callable[[], None] | None = None, sync: Callable[[], None] | None = None
    ) -> None:
        self.calls.append(("changed", opened))

    def closed(self, opened: Open) -> None:
        self.calls.append(("closed", opened))

    def abandon(self, opened: Open) -> None:
        self.calls.append(("abandon", opened))

    def when_stored(self, since: int, callback: Callable[[NotStored | None], None]) -> None:
        callback(None)

    def flush(self) -> None: ...


class Setup:
    """A table, and a session with a tree connect that opens come from."""

    def __init__(self, lost: bool = False) -> None:
        self.table = OpenTable(lambda share: lost)
        self.stored = self.table.persistence = Stored()
        self.session = Session(1, None)
        self.session.identity = Identity("user")
        self.session.usage = Usage("user", 1 << 20)
        self.tree = TreeConnect(1, self.session, Share("data"))

    def open(self) -> Open:
        opened = Open(
            self.table.new_file_id(),
            self.session,
            self.tree,
            ("file",),
            store=None,
            granted_access=0,
            maximal_access=0,
            share_access=0,
        )
        self.table.add(opened)
        return opened

    def durable(self, timeout: float = 60.0, persistent: bool = False) -> Open:
        opened = self.open()
        opened.durable = Durability("user", CLIENT, CREATED, timeout)
        opened.durable.resilient = True
        if persistent:
            self.table.persist(opened)
        return opened


def test_an_open_is_in_the_tables_until_it_is_closed_and_counted_once() -> None:
    setup = Setup()
    first, second = setup.open(), setup.open()
    usage = setup.session.usage
    assert usage is not None and usage.opens == 2
    assert set(setup.table.by_id.values()) == {first, second} == set(setup.session.open_table.values())
    for _ in range(2):
        setup.table.close(first)
        assert usage.opens == 1
        assert list(setup.table.by_id) == [second.file_id[0]]
        assert list(setup.session.open_table) == [second.file_id[1]]


def test_an_application_finds_its_opens() -> None:
    setup = Setup()
    opens = [setup.open(), setup.open()]
    for opened in opens:
        setup.table.join_application(opened, APPLICATION)
    assert list(setup.table.by_application[APPLICATION]) == opens
    other = bytes(16)
    setup.table.join_application(opens[0], other)
    assert list(setup.table.by_application[APPLICATION]) == opens[1:]
    for opened in opens:
        setup.table.close(opened)
    assert not setup.table.by_application


def test_a_session_without_connection_says_so() -> None:
    session = Session(0, None)
    assert list(session.connections) == []
    with pytest.raises(ValueError, match="no connection"):
        session.connection  # noqa: B018


def test_a_durable_open_stays_until_its_time_is_up() -> None:
    async def body() -> None:
        setup = Setup()
        plain, durable = setup.open(), setup.durable(0.02)
        for opened in (plain, durable):
            setup.table.disconnect(opened)
        assert list(setup.table.by_id.values()) == [durable] and not setup.session.open_table
        await asyncio.sleep(0.1)
        assert not setup.table.by_id and setup.table.counts.expired == 1

    asyncio.run(body())


def test_a_client_that_comes_back_stops_the_clock() -> None:
    async def body() -> None:
        setup = Setup()
        opened = setup.durable(0.02)
        before = opened.file_id
        setup.table.disconnect(opened)
        opened.session = session = Session(2, None)
        setup.table.reattach(opened)
        assert opened.file_id[0] == before[0] and opened.file_id[1] != before[1]
        assert session.open_table == {opened.file_id[1]: opened}
        await asyncio.sleep(0.1)
        assert list(setup.table.by_id.values()) == [opened]
        setup.table.close(opened)
        assert not session.open_table and not setup.table.by_id

    asyncio.run(body())


def test_what_is_stored_of_a_persistent_open_goes_with_its_end_only() -> None:
    setup = Setup()
    closed = setup.durable(persistent=True)
    assert setup.table.persistent == {(CLIENT, CREATED): closed} and closed.write_through
    setup.table.close(closed)
    assert setup.stored.calls == [("closed", closed)] and not setup.table.persistent
    setup.stored.calls.clear()
    abandoned = setup.durable(persistent=True)
    setup.table.abandon(abandoned)
    assert setup.stored.calls == [("abandon", abandoned)]
    assert not setup.table.persistent and not setup.table.by_id


def test_what_another_node_serves_is_not_closed_in_the_store() -> None:
    setup = Setup(lost=True)
    opened = setup.durable(persistent=True)
    setup.table.close(opened)
    assert setup.stored.calls == [("abandon", opened)] and not setup.table.by_id


# The store


ROOT = Path(__file__).resolve().parents[3]
ASK_THE_SHARE = {
    "smb3server/commands/create/handler.py": "an open gets its store here",
    "smb3server/commands/create/looking.py": "a look gets its store here",
    "smb3server/commands/create/plain.py": "an open gets its store here",
    "smb3server/commands/create/posix.py": "whether the share has a store for POSIX opens",
    "smb3server/state/deletions.py": "the recycle folder is the share's",
    "smb3server/state/objects.py": "whether a session uses disks",
    "smb3server/state/events.py": "a line about a tree connect",
    "smb3server/commands/query_directory.py": "a listing in a snapshot shows no more than may be read now",
    "smb3server/commands/tree_connect.py": "whether there is a store to connect to",
}
"""Everybody else asks the open for its store: an open may have another one than its share."""


def test_who_asks_about_a_file_asks_the_store_of_the_open() -> None:
    asking = {
        str(path.relative_to(ROOT))
        for room in ("commands", "state", "files", "dispatch")
        for path in (ROOT / "smb3server" / room).rglob("*.py")
        if "share.backend" in path.read_text()
    }
    assert asking == set(ASK_THE_SHARE)
