"""What the operator is told of logons, shares, connections and files, over the wire."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from smb3server.client.protocol import Client
from smb3server.client.protocol.messages import ServerError
from smb3server.net.host_lists import HostLists, parse
from smb3server.process.log_lines import event_of
from smb3server.process.log_output import JsonFormatter
from smb3server.process.words import amount, duration, endpoint, ordinal, quoted
from smb3server.settings.server import Settings
from smb3server.state import audit
from smb3server.state.audit import ShareAudit
from smb3server.state.events import MAX_PAIRS, Events
from smb3server.wire.create import Access, CreateDisposition, CreateOptions
from smb3server.wire.status import NtStatus, Reason
from tests.lab.harness import Lab, lab

EVIL = 'bob from 192.0.2.1: wrong\n"password"'


class Told:
    """The events of a test, newest last."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def all(self, name: str) -> list[tuple[str, Mapping[str, object]]]:
        found = []
        for record in self._caplog.records:
            event = event_of(record)
            if event is not None and event.name == name:
                json.loads(JsonFormatter().format(record))
                found.append((record.getMessage(), event.fields))
        return found

    def one(self, name: str) -> tuple[str, Mapping[str, object]]:
        (found,) = self.all(name)
        return found

    async def until(self, name: str) -> tuple[str, Mapping[str, object]]:
        """The end of a connection is told in a turn of its own."""
        async with asyncio.timeout(10):
            while not self.all(name):
                await asyncio.sleep(0.005)
        return self.one(name)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Told]:
    caplog.set_level(logging.DEBUG, "smb3server")
    yield Told(caplog)


Play = Callable[[Lab], Awaitable[None]]


def play(root: Path, body: Play, settings: Settings | None = None) -> None:
    async def run() -> None:
        async with lab(root, settings) as scene:
            await body(scene)

    asyncio.run(run())


async def try_to_log_on(scene: Lab, user: str, password: str) -> None:
    client = await Client.connect(await scene.transport())
    try:
        with pytest.raises(ServerError):
            await client.log_on(user, password)
    finally:
        await client.close()


def test_failed_logons_say_who_from_where_and_why(tmp_path: Path, told: Told) -> None:
    async def body(scene: Lab) -> None:
        for _ in range(3):
            await try_to_log_on(scene, "U", "wrong")
        await try_to_log_on(scene, "nobody", "pw")
        await try_to_log_on(scene, EVIL, "pw")
        assert scene.server.events.counts.refused_logons == {"wrong_password": 3, "unknown_user": 2}

    play(tmp_path, body, Settings(failed_logon_delay=0.0))
    lines = told.all("logon_refused")
    text, fields = lines[2]
    assert text == (
        f"logon refused: user U from 127.0.0.1:{fields['port']} (tcp, SMB 3.1.1): "
        "wrong password (LOGON_FAILURE), 3rd failure in 60 s, event_id=551"
    )
    assert (fields["user"], fields["client"], fields["dialect"]) == ("U", "127.0.0.1", "3.1.1")
    assert (fields["reason"], fields["status"], fields["failures"]) == ("wrong_password", "LOGON_FAILURE", 3)
    assert "no such user (LOGON_FAILURE)" in lines[3][0]
    assert "failure in" not in lines[3][0]
    assert """user "bob from 192.0.2.1: wrong\\n'password'" from 127""" in lines[4][0]
    assert "pw" not in "".join(text for text, _ in lines)


@pytest.mark.parametrize(
    ("settings", "user", "code", "words"),
    [
        (Settings(allow_guest=True, require_signing=True), "x", "guest", "signing is required, for which guests have"),
        (Settings(max_sessions=0), "u", "too_many", "the connection has too many sessions"),
    ],
)
def test_refusals_have_a_reason(
    tmp_path: Path, told: Told, settings: Settings, user: str, code: str, words: str
) -> None:
    async def body(scene: Lab) -> None:
        await try_to_log_on(scene, user, "pw")

    settings.failed_logon_delay = 0.0
    play(tmp_path, body, settings)
    text, fields = told.one("logon_refused")
    assert (fields["reason"], words in text) == (code, True), text


def test_a_session_is_told_from_logon_to_logoff(tmp_path: Path, told: Told) -> None:
    async def body(scene: Lab) -> None:
        client = await Client.connect(await scene.transport())
        session = await client.log_on("u", "pw", sign=True)
        tree = await session.tree_connect("share")
        await tree.disconnect()
        await session.log_off()
        await client.close()
        await told.until("connection_ended")

    play(tmp_path, body)
    text, fields = told.one("logon")
    assert text.startswith(f"logon: user u from 127.0.0.1:{fields['port']} (tcp, SMB 3.1.1), NTLM, ")
    assert told.one("tree_connect")[0] == (
        f"share share: user u from 127.0.0.1:{fields['port']} (tcp, SMB 3.1.1) connected"
    )
    assert told.one("tree_disconnect")[1]["session"] == fields["session"]
    assert told.one("logoff")[1]["session"] == fields["session"]
    text, ended = told.one("connection_ended")
    assert text.startswith(f"connection ended: user u, 127.0.0.1:{fields['port']} (tcp, SMB 3.1.1), 0.")
    assert text.endswith("closed by the client")
    assert isinstance(ended["bytes_received"], int)
    assert ended["bytes_received"] > 500
    assert (ended["ended_by"], ended["protocol_error"]) == ("client", False)


def test_shares_are_refused_with_a_reason(tmp_path: Path, told: Told) -> None:
    records: list[Mapping[str, object]] = []

    class Sink:
        def put(self, record: Mapping[str, object]) -> None:
            records.append(record)

    async def body(scene: Lab) -> None:
        shares = scene.server.share_list
        shares["share"].users = frozenset(("somebody",))
        shares["share"].audit = ShareAudit(frozenset((audit.DENIED,)), Sink())
        shares["other"].hosts = HostLists(parse(["192.0.2.0/24"]), ())
        async with scene.session(sign=True) as session:
            for name in ("share", "other", "no such\nshare"):
                with pytest.raises(ServerError):
                    await session.tree_connect(name)
        async with scene.session(dialects=(0x0210,), sign=True) as session:
            shares["other"].hosts = HostLists(None, ())
            shares["other"].rules.encrypt = True
            with pytest.raises(ServerError):
                await session.tree_connect("other")
        assert scene.server.events.counts.refused_shares == {"user": 1, "host": 1, "no_share": 1, "encryption": 1}

    play(tmp_path, body)
    lines = told.all("tree_connect_refused")
    assert [fields["reason"] for _, fields in lines] == ["user", "host", "no_share", "encryption"]
    user, host, none, encrypted = (text for text, _ in lines)
    assert user.endswith("not among its users (ACCESS_DENIED), event_id=1006")
    assert "user u from 127.0.0.1:" in user
    assert "hosts_deny" in host
    assert none.endswith("there is no such share (BAD_NETWORK_NAME)")
    assert none.startswith('share "no such')
    assert "cannot encrypt" in encrypted
    assert [(entry["event"], entry["user"], entry["result"]) for entry in records] == [("denied", "u", "ACCESS_DENIED")]


def test_a_violation_of_the_protocol_is_a_warning(tmp_path: Path, told: Told, caplog: pytest.LogCaptureFixture) -> None:
    async def body(scene: Lab) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.tcp_port)
        writer.write(b"\0\0\0\x40" + b"\xfeSMB" + bytes(60))
        await reader.read()
        writer.close()
        await told.until("connection_ended")

    play(tmp_path, body)
    text, fields = told.one("connection_ended")
    assert "nobody logged on" in text
    assert text.endswith("bad SMB2 header")
    assert fields["protocol_error"] is True
    (level,) = [entry.levelno for entry in caplog.records if entry.getMessage() == text]
    assert level == logging.WARNING


def test_scanners_come_and_go_without_a_word(tmp_path: Path, told: Told, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "smb3server")

    async def body(scene: Lab) -> None:
        ended = asyncio.Event()
        scene.server.connection_changed = lambda connection, there: ended.set()
        _, writer = await asyncio.open_connection("127.0.0.1", scene.tcp_port)
        writer.write(b"\0\0\0\x40")
        writer.close()
        async with asyncio.timeout(10):
            await ended.wait()

    play(tmp_path, body)
    assert not told.all("connection")


def test_failures_of_many_names_take_limited_memory() -> None:
    events = Events()
    for number in range(MAX_PAIRS + 10):
        events.rpc_logon_refused("192.0.2.1", f"user{number}", ValueError("x"), Reason("unknown_user", "no such user"))
    assert len(events._failures) == MAX_PAIRS
    assert events.counts.refused_logons["unknown_user"] == MAX_PAIRS + 10


class Recorded:
    def __init__(self) -> None:
        self.records: list[Mapping[str, object]] = []

    def put(self, record: Mapping[str, object]) -> None:
        self.records.append(record)

    def took(self) -> list[tuple[object, object, object]]:
        found = [(entry["event"], entry.get("path"), entry["result"]) for entry in self.records]
        self.records.clear()
        return found


def test_the_audit_names_what_was_done(tmp_path: Path) -> None:
    sink = Recorded()
    everything = int(Access.GENERIC_ALL)

    async def body(scene: Lab) -> None:
        share = scene.server.share_list["share"]
        share.audit = ShareAudit(frozenset(audit.KINDS), sink)
        async with scene.tree() as tree:
            assert [entry[0] for entry in sink.took()] == ["connect"]
            file = await tree.create("b", everything, CreateDisposition.CREATE)
            await tree.write(file, 0, b"x" * 100)
            await tree.write(file, 100, b"x" * 100)
            record = sink.records[0]
            assert (record["user"], record["client"], record["share"]) == ("u", "127.0.0.1", "share")
            assert "write_data" in record["access"]  # type: ignore[operator]
            assert sink.took() == [("create", "b", "success"), ("write", "b", "success")]
            await tree.rename(file, "c")
            assert sink.records[0]["new_path"] == "c"
            assert sink.took() == [("rename", "b", "success")]
            await tree.close(file)
            await tree.close(await tree.create("c", int(Access.READ_DATA), CreateDisposition.OPEN))
            assert sink.took() == [("open", "c", "success")]
            await tree.delete("c")
            assert sink.took()[-1] == ("delete", "c", "success")
            share.read_only = True
        async with scene.tree() as tree:
            sink.took()
            with pytest.raises(ServerError) as caught:
                await tree.create("folder\\new", int(Access.WRITE_DATA), CreateDisposition.CREATE)
            assert caught.value.status == NtStatus.ACCESS_DENIED
            assert sink.records[0]["access"] == ["write_data"]
            assert sink.records[0]["command"] == "create"
            assert sink.took() == [("denied", "folder/new", "ACCESS_DENIED")]

    play(tmp_path, body)


def test_only_the_chosen_kinds_are_recorded(tmp_path: Path) -> None:
    sink = Recorded()

    async def body(scene: Lab) -> None:
        scene.server.share_list["share"].audit = ShareAudit(frozenset((audit.DELETE,)), sink)
        async with scene.tree() as tree:
            options = CreateOptions.DELETE_ON_CLOSE
            access = int(Access.DELETE | Access.WRITE_DATA)
            file = await tree.create("f", access, CreateDisposition.CREATE, options)
            await tree.write(file, 0, b"x")
            await tree.close(file)

    play(tmp_path, body)
    assert sink.took() == [("delete", "f", "success")]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (quoted("WORKGROUP\\bob"), "WORKGROUP\\bob"),
        (quoted("Jürgen"), "Jürgen"),
        (quoted("a b"), '"a b"'),
        (quoted(""), '""'),
        (endpoint(("192.0.2.7", 5)), "192.0.2.7:5"),
        (endpoint(("2001:db8::7", 5)), "[2001:db8::7]:5"),
        (amount(1023), "1023 B"),
        (amount(1536), "1.5 KiB"),
        (amount(3 << 40), "3.0 TiB"),
        (duration(1.25), "1.2 s"),
        (duration(125), "2 min 5 s"),
        (duration(7260), "2 h 1 min"),
        (" ".join(map(ordinal, (1, 2, 3, 4, 11, 12, 13, 21))), "1st 2nd 3rd 4th 11th 12th 13th 21st"),
    ],
)
def test_words(shown: str, expected: str) -> None:
    assert shown == expected
