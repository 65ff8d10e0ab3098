"""The fast lane against the general path: the same requests in the same states, to a server with and one without it.

Replies are compared byte for byte, except SessionIds and signatures (which are verified instead), and so is the state
that they leave. Between any two messages the states differ by nothing that a request could see.
"""

from __future__ import annotations

import asyncio
import os
import random
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from smb3server.backends.base import User
from smb3server.backends.local.backend import LocalBackend
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.commands import read as read_command
from smb3server.state.objects import SessionState
from smb3server.state.share import Share
from smb3server.wire import create, lock, read_write
from smb3server.wire.change_notify import CHANGE_NOTIFY_REQUEST, ChangeNotifyRequest
from smb3server.wire.close import CLOSE_REQUEST, CloseRequest
from smb3server.wire.create import CreateRequest
from smb3server.wire.flush import FLUSH_REQUEST, FlushRequest
from smb3server.wire.header import Command, HeaderFlags
from tests.lab.file_requests import lease_context
from tests.lab.harness import lab
from tests.lab.lanes import Lanes, Step, fill_disk
from tests.lab.tiers import each_with_one
from tests.lab.wire_client import ECHO, RELATED, Client, Harness, Reply, compound, running, server_signature

LONGEST_TURN = 5.0
"""Two servers and a client share the processor with other tests: this is not about how long commands take."""
FILE_SIZE = 20000
NAMES = ("a", "b", "a:stream")
SLOTS = 4
EXAMPLES = 20
"""Random scenarios for each protection."""
PENDING = 0x103
NOTIFICATION = (1 << 64) - 1
USER = User(54321, 54321) if os.geteuid() == 0 else None
"""Whose files these are: the server has to become this user to write."""
NO_SPACE_FROM = 100_000
"""Where the disk of these tests ends."""

FULL, READ_ONLY, APPEND_ONLY = 0x0012019F, 0x00120089, 0x00120084
WRITE_THROUGH, NO_BUFFER, DIRECTORY = 0x2, 0x8, 0x1

SIZES = st.sampled_from([0, 1, 7, 100, 4096, 8192, FILE_SIZE, 65535, 65536, 70000])
OFFSETS = st.sampled_from(
    [0, 1, 4096, 12288, FILE_SIZE - 1, FILE_SIZE, 95000, NO_SPACE_FROM, (1 << 63) - 4096, 1 << 63]
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "credits": st.sampled_from([0, 1, 2, 600, 65535]),
        "credit_charge": st.sampled_from([0, 1, 2, 3]),
        "flags": st.sampled_from([0, 0x10, 0x70, 0x20000000, 0x80, 0x10000000]),
        "status": st.sampled_from([0, 0, 1, 0x7FFF, 0xFFFF, 0x10000]),
        "reserved": st.sampled_from([0, 0xFEFF]),
        "tree_id": st.sampled_from([0, 77]),
        "session_id": st.sampled_from([0, 77]),
        "later": st.sampled_from([-1, 1, 2, 3, 70000]),
    },
)
"""What is unusual in a header; usually nothing is. ``later``: MessageIds that it leaves out."""
USUAL = st.just({})
SLOT = st.integers(0, SLOTS - 1)
RUIN = st.sampled_from([None, None, None, None, None, None, "signature", "short", "long", "size", "unsigned"])


def step(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(kind), st.fixed_dictionaries(fields))


def request(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    header = st.one_of(USUAL, USUAL, USUAL, HEADERS)
    return step(kind, header=header, ruin=RUIN, **fields)


CHANNEL = st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3])
READS = request(
    "read", slot=SLOT, length=SIZES, offset=OFFSETS, minimum=st.sampled_from([0, 0, 0, 1, 5000]), channel=CHANNEL
)
WRITES = request(
    "write",
    slot=SLOT,
    length=SIZES,
    offset=OFFSETS,
    flags=st.sampled_from([0, 0, 0, 2]),
    channel=CHANNEL,
    data_offset=st.sampled_from([112, 112, 112, 112, 120, 111, 0, 257]),
)
SYNC = st.one_of(request("echo"), READS, READS, WRITES, WRITES, request("close", slot=SLOT))
OPENS = step(
    "open",
    slot=SLOT,
    other=st.booleans(),
    name=st.sampled_from(NAMES),
    access=st.sampled_from([FULL, FULL, FULL, READ_ONLY, APPEND_ONLY]),
    options=st.sampled_from([0, 0, 0, WRITE_THROUGH, NO_BUFFER]),
    caching=st.sampled_from([0, 0, 1, 8, 9, 0xFF]),
)
LOCKS = step(
    "lock",
    slot=SLOT,
    offset=OFFSETS,
    length=st.sampled_from([1, 100, 5000]),
    flags=st.sampled_from([0x11, 0x12, 4]),
)
STEPS = st.one_of(
    step("batch", messages=st.lists(SYNC, min_size=1, max_size=6)),
    step("batch", messages=st.lists(SYNC, min_size=1, max_size=6)),
    step("batch", messages=st.lists(st.one_of(READS, WRITES, request("echo")), min_size=2, max_size=4)),
    OPENS,
    LOCKS,
    step("through", slot=SLOT, length=SIZES, offset=OFFSETS),
    step("cold", slot=SLOT, length=SIZES, offset=OFFSETS),
    step("flush", slot=SLOT),
    step("close", slot=SLOT),
    step("related", slot=SLOT),
    step("cancel"),
    step("notify"),
    step("expire"),
    step("fence", after=st.integers(0, 5)),
)


class Fence:
    """Expires when it has been asked ``after`` times."""

    def __init__(self, after: int) -> None:
        self.after = after

    def expired(self) -> bool:
        self.after -= 1
        return self.after < 0


class Ended(Exception):
    """The server has closed the connection."""


class Play:
    """One run of a scenario against one server."""

    def __init__(self, harness: Harness, client: Client, other: Client, folder: Path) -> None:
        self.harness = harness
        self.client = client
        self.other = other
        self.folder = folder
        self.transcript: list[Any] = []
        self.opens: dict[int, tuple[Client, tuple[int, int]]] = {}
        self.is_cold = False
        self.leases = 0

    # Requests

    def file_id(self, slot: int) -> tuple[int, int]:
        owner, file_id = self.opens.get(slot, (self.client, (99, 99)))
        return file_id if owner is self.client else (file_id[0], file_id[1] + 5000)

    def message(self, kind: str, fields: dict[str, Any]) -> bytes:
        """Build one message, with its header and its flaw; encrypted or signed as the session is."""
        body = self.body(kind, fields)
        ruin = fields.get("ruin")
        if ruin == "short":
            body = body[:-20] if len(body) > 24 else body[:2]
        elif ruin == "long":
            body += bytes(9)
        elif ruin == "size":
            body = b"\x07" + body[1:]
        header = dict(fields.get("header", {}))
        charge = max(1, -(-fields.get("length", 1) // 65536))
        header.setdefault("credit_charge", charge)
        self.client.message_id += header.pop("later", 0)
        command = {"read": Command.READ, "write": Command.WRITE, "echo": Command.ECHO, "close": Command.CLOSE}[kind]
        built = self.client.build(command, body, **header)
        if self.client.encrypt:
            return self.client.sealed(built)
        if not self.client.sign or ruin == "unsigned":
            return built
        signed = self.client.signed(built)
        return signed[:50] + bytes([signed[50] ^ 1]) + signed[51:] if ruin == "signature" else signed

    def body(self, kind: str, fields: dict[str, Any]) -> bytes:
        if kind == "echo":
            return ECHO
        file_id = self.file_id(fields["slot"])
        if kind == "close":
            return CLOSE_REQUEST.pack(CloseRequest(24, 0, 0, *file_id))
        names = {"persistent": file_id[0], "volatile": file_id[1], "offset": fields["offset"]}
        if kind == "read":
            record = read_write.ReadRequest(
                length=fields["length"], minimum_count=fields["minimum"], channel=fields["channel"], **names
            )
            return read_write.READ_REQUEST.pack(record) + b"\0"
        data = bytes((fields["offset"] + number) & 0xFF for number in range(min(fields["length"], 256)))
        data = (data * 300)[: fields["length"]]
        start = fields["data_offset"]
        written = read_write.WriteRequest(
            data_offset=start, length=len(data), flags=fields["flags"], channel=fields["channel"], **names
        )
        return read_write.WRITE_REQUEST.pack(written) + bytes(max(0, start - 112)) + data

    # Replies

    async def replies(self, count: int) -> None:
        """Note ``count`` messages. Raises ``Ended`` where there is an end instead."""
        while count:
            try:
                async with asyncio.timeout(2):
                    parts = await self.client.receive_compound()
            except (asyncio.IncompleteReadError, ConnectionError):
                self.transcript.append("closed")
                raise Ended from None
            # Breaks of caching rights come whenever they have to.
            count -= parts[0].header.message_id != NOTIFICATION
            for reply in parts:
                message = bytearray(reply.message)
                if reply.header.flags & HeaderFlags.SIGNED and any(reply.header.signature):
                    assert self.client.signer is not None
                    assert reply.header.signature == server_signature(self.client.signer, reply)
                    message[48:64] = bytes(16)
                if reply.header.session_id == self.client.session_id:
                    message[40:48] = bytes(8)
                if reply.header.message_id == NOTIFICATION:
                    # A break names its open.
                    del message[72:]
                self.transcript.append(bytes(message))

    async def post(self, *messages: bytes) -> None:
        """Send messages in one piece."""
        await self.client.raw(b"".join(len(message).to_bytes(4, "big") + message for message in messages))

    async def simple(self, client: Client, command: int, body: bytes) -> int:
        return (await self.call(client, command, body)).status

    async def call(self, client: Client, command: int, body: bytes) -> Reply:
        """Return the reply to one request. Breaks of caching rights, which may come before it, are noted."""
        await client.post(command, body)
        while True:
            reply = await client.receive()
            self.transcript.append((reply.header.command, reply.status))
            if reply.header.message_id != NOTIFICATION and reply.status != PENDING:
                return reply

    # Steps

    async def play(self, steps: Sequence[Step]) -> None:
        try:
            for kind, fields in steps:
                await getattr(self, kind)(**fields)
            await self.batch([("echo", {})])
        except (Ended, asyncio.IncompleteReadError, ConnectionError):
            await asyncio.sleep(0.01)
        self.transcript.append(self.state())

    async def batch(self, messages: Sequence[Step]) -> None:
        """Send messages that are answered at once, in one piece."""
        await self.post(*(self.message(kind, fields) for kind, fields in messages))
        await self.replies(len(messages))

    async def open(self, slot: int, other: bool, name: str, access: int, options: int, caching: int) -> None:
        await self.close(slot)
        client = self.other if other else self.client
        contexts = []
        if caching == 0xFF:
            self.leases += 1
            contexts.append(lease_context(struct.pack("<QQ", self.leases, other), 7))
        wanted = CreateRequest(
            requested_oplock_level=caching,
            desired_access=access,
            share_access=7,
            create_disposition=3,
            create_options=options,
        )
        # A break of the other's caching rights is not acknowledged: this open takes none, where it would have to wait.
        opens = self.harness.server.opens.by_id.values()
        if any(opened.file is not None and opened.file.caching.holders for opened in opens):
            return
        reply = await self.call(client, Command.CREATE, create.pack_request(wanted, name, contexts))
        if not reply.status:
            answer, _ = create.parse_response(memoryview(reply.message))
            self.opens[slot] = client, (answer.persistent, answer.volatile)

    async def close(self, slot: int) -> None:
        if slot in self.opens:
            client, file_id = self.opens.pop(slot)
            await self.simple(client, Command.CLOSE, CLOSE_REQUEST.pack(CloseRequest(24, 0, 0, *file_id)))

    async def lock(self, slot: int, offset: int, length: int, flags: int) -> None:
        if slot in self.opens and offset < 1 << 62:
            client, file_id = self.opens[slot]
            element = lock.LockElement(offset, length, flags)
            body = lock.pack_request(lock.LockRequest(persistent=file_id[0], volatile=file_id[1]), [element])
            await self.simple(client, Command.LOCK, body)

    async def through(self, slot: int, length: int, offset: int) -> None:
        """A WRITE that is answered when its data is on stable storage."""
        wanted = {**USUAL_WRITE, "slot": slot, "length": length, "offset": offset, "flags": 1}
        await self.batch([("write", wanted)])

    async def cold(self, slot: int, length: int, offset: int) -> None:
        """A READ of what is not in the page cache."""
        self.is_cold = True
        await self.batch([("read", {"slot": slot, "length": length, "offset": offset, "minimum": 0, "channel": 0})])
        self.is_cold = False

    async def flush(self, slot: int) -> None:
        if slot in self.opens:
            client, file_id = self.opens[slot]
            await self.simple(client, Command.FLUSH, FLUSH_REQUEST.pack(FlushRequest(24, 0, 0, *file_id)))

    async def related(self, slot: int) -> None:
        """A compound of three, the last one related."""
        usual = {**USUAL_READ, "slot": slot}
        client = self.client
        parts = [
            client.build(Command.ECHO, ECHO),
            client.build(Command.READ, self.body("read", usual)),
            client.build(Command.READ, self.body("read", usual), flags=RELATED),
        ]
        message = compound(client, *parts)
        await self.post(client.sealed(message) if client.encrypt else message)
        await self.replies(1)

    async def cancel(self) -> None:
        """A CANCEL of nothing; then the next request is answered as if there had been none."""
        message = self.client.build(Command.CANCEL, ECHO, message_id=3)
        if self.client.encrypt:
            message = self.client.sealed(message)
        elif self.client.sign:
            message = self.client.signed(message)
        await self.post(message, self.message("echo", {}))
        await self.replies(1)

    async def notify(self) -> None:
        """A CHANGE_NOTIFY that waits while others are answered, until it is cancelled."""
        client = self.client
        wanted = CreateRequest(desired_access=READ_ONLY, share_access=7, create_disposition=1, create_options=DIRECTORY)
        reply = await self.call(client, Command.CREATE, create.pack_request(wanted, "", []))
        answer, _ = create.parse_response(memoryview(reply.message))
        file_id = answer.persistent, answer.volatile
        body = CHANGE_NOTIFY_REQUEST.pack(ChangeNotifyRequest(32, 0, 1000, *file_id, completion_filter=2))
        number = client.message_id
        await client.post(Command.CHANGE_NOTIFY, body)
        await self.replies(1)
        await self.batch([("echo", {}), ("echo", {})])
        await client.post(Command.CANCEL, ECHO, message_id=number)
        await self.replies(1)
        await self.simple(client, Command.CLOSE, CLOSE_REQUEST.pack(CloseRequest(24, 0, 0, *file_id)))

    async def fence(self, after: int) -> None:
        """From now on the fence expires after some questions."""
        server = self.harness.server
        server.guid_of_address = lambda address: bytes(16)
        server.fence = Fence(after)
        await self.batch([("echo", {})] * 3)
        server.fence = None

    async def expire(self) -> None:
        """The session's credentials have expired; some commands are still served."""
        for session in self.harness.server.sessions.by_id.values():
            session.expiration_time = 0.0
        await self.batch([("echo", {}), ("read", USUAL_READ)])
        for session in self.harness.server.sessions.by_id.values():
            session.expiration_time, session.state = asyncio.get_running_loop().time() + 3600, SessionState.VALID

    async def encrypting(self, session: bool) -> None:
        """Sessions, or their tree connects, ask for encryption from now on."""
        for entry in self.harness.server.sessions.by_id.values():
            entry.encrypt_data = session
            for tree in entry.tree_connect_table.values():
                tree.encrypt_data = True

    async def persistent(self, slot: int) -> None:
        """What is written through the open has to outlive the machine from now on."""
        self.harness.server.opens.by_id[self.opens[slot][1][0]].write_through = True

    async def required(self) -> None:
        """The session asks for signatures from now on."""
        for session in self.harness.server.sessions.by_id.values():
            session.signing_required = True

    def state(self) -> list[Any]:
        """Return what requests leave behind."""
        server = self.harness.server
        found: list[Any] = [server.buffers.lent]
        for connection in sorted(server.connection_list, key=lambda entry: entry.creation_time):
            window = connection.command_sequence_window
            found += [window.low, window.high, sorted(window.used), connection.largest_inline]
            found += [connection.host.pending_requests, connection.transport.pending_send_bytes]
        for _, file_id in (self.opens[slot] for slot in sorted(self.opens)):
            opened = server.opens.by_id.get(file_id[0]) or server.opens.by_id.get(file_id[1])
            if opened is None:
                continue
            found += [opened.position, opened.wrote, opened.may_block, opened.channel_sequence, opened.in_flight]
            found += [opened.outstanding_requests, opened.outstanding_pre_requests]
            file = opened.file
            assert file is not None
            times = file.write_time
            found += [
                None if times is None else (getattr(times, "dirty", None), times.shown.last_write is None),
                len(file.locks.locks),
            ]
            found += [(holder.state, holder.breaking) for holder in file.caching.holders]
        found += [(self.folder / name).read_bytes() for name in ("a", "b") if (self.folder / name).exists()]
        return found


async def run(steps: Sequence[Step], protection: str) -> list[Any]:
    """Play a scenario against a new server and return its transcript."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, file in enumerate(("a", "b")):
            (folder / file).write_bytes(bytes(range(number, 250)) * 100)
            os.truncate(folder / file, FILE_SIZE)
        if USER is not None:
            for path in (folder, *folder.iterdir()):
                os.chown(path, USER.uid, USER.gid)
        async with running() as harness:
            harness.server.settings.interim_delay = 60.0
            harness.server.add_share(Share("local", backend=LocalBackend(folder), user=USER))
            clients = [await harness.connect() for _ in range(2)]
            signing = {"hmac": 0, "cmac": 1, "gmac": 2}.get(protection, 2)
            for client in clients:
                await client.login(0x0202 if protection == "old" else 0x0311, "local", signing=signing)
            client, other = clients
            client.sign = protection not in ("none", "encrypted", "old")
            client.encrypt = protection == "encrypted"
            play = Play(harness, client, other, folder)
            PLAYS.append(play)
            await asyncio.wait_for(play.play(steps), 20)
            return play.transcript


PLAYS: list[Play] = []
"""The last one is under way."""


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full from ``NO_SPACE_FROM`` on, and a page cache that can be cold."""
    cached = read_command._read_cached
    fill_disk(monkeypatch, NO_SPACE_FROM)
    monkeypatch.setattr(
        read_command,
        "_read_cached",
        lambda opened, view, offset: -1 if PLAYS and PLAYS[-1].is_cold else cached(opened, view, offset),
    )


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Lanes:
    return Lanes(monkeypatch, run)


USUAL_READ = {"slot": 0, "length": 100, "offset": 0, "minimum": 0, "channel": 0}
USUAL_WRITE = {"slot": 0, "length": 7, "offset": 1, "flags": 0, "channel": 0, "data_offset": 112}
START: list[Step] = [
    ("open", {"slot": 0, "other": False, "name": "a", "access": FULL, "options": 0, "caching": 0}),
    ("batch", {"messages": [("write", USUAL_WRITE)]}),
]
"""An open to which something was written."""

PROTECTIONS = ("none", "hmac", "cmac", "gmac", "encrypted", "old")


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_random_requests_are_answered_alike(lanes: Lanes, protection: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        # Not made smaller when they fail: that takes minutes. What is printed makes the same one again.
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(STEPS, min_size=1, max_size=12))
    def check(steps: list[Step]) -> None:
        lanes.both([*START, *steps], protection)

    check()
    assert lanes.taken


def reading(**fields: Any) -> Step:
    return "read", {**USUAL_READ, **fields}


def writing(**fields: Any) -> Step:
    return "write", {**USUAL_WRITE, **fields}


def opening(slot: int, **fields: Any) -> Step:
    usual = {"other": False, "name": "a", "access": FULL, "options": 0, "caching": 0}
    return "open", {"slot": slot, **usual, **fields}


def batch(*messages: Step) -> Step:
    return "batch", {"messages": list(messages)}


def locking(slot: int, flags: int) -> Step:
    return "lock", {"slot": slot, "offset": 50, "length": 100, "flags": flags}


TWO = {"credit_charge": 2}
LATER_USE = batch(reading(), writing(), reading(length=4096), ("echo", {}))
CASES: dict[str, list[Step]] = {
    "usual": [LATER_USE],
    "lock of another's": [opening(1, other=True), locking(1, 0x12), batch(reading(), writing(length=100), writing())],
    "shared lock of one's own": [locking(0, 0x11), batch(reading(), writing(length=100), writing())],
    "another's level II oplock": [opening(1, other=True, caching=1, access=READ_ONLY), LATER_USE],
    "another's lease": [opening(1, other=True, caching=0xFF), LATER_USE],
    "one's own level II oplock": [("close", {"slot": 0}), opening(0, caching=1), LATER_USE, LATER_USE],
    "one's own batch oplock": [("close", {"slot": 0}), opening(0, caching=9), LATER_USE, LATER_USE],
    "one's own lease": [("close", {"slot": 0}), opening(0, caching=0xFF), LATER_USE, LATER_USE],
    "write through": [
        opening(1, options=WRITE_THROUGH),
        batch(writing(slot=1)),
        batch(writing(slot=1)),
        batch(reading(slot=1)),
    ],
    "reading only": [opening(1, access=READ_ONLY), batch(reading(slot=1), writing(slot=1))],
    "appending only": [opening(1, access=APPEND_ONLY), batch(reading(slot=1), writing(slot=1, offset=FILE_SIZE))],
    "stream": [opening(1, name="a:stream"), batch(writing(slot=1)), batch(writing(slot=1), reading(slot=1))],
    "full disk": [batch(writing(offset=95000, length=8192), writing(), reading(offset=95000), ("echo", {}))],
    "more than a turn": [batch(*[reading(), writing(), ("echo", {})] * 35)],
    "row of writes": [batch(*[writing(offset=number) for number in range(0, 4000, 100)])],
    "row beside another's lock": [
        opening(1, other=True),
        locking(1, 0x12),
        batch(writing(), writing(length=100), writing(offset=500), reading(), writing(offset=9)),
    ],
    "row that is interrupted": [
        batch(writing(), writing(length=70000), writing(), writing(header={"tree_id": 77}), writing(), reading()),
        ("through", {"slot": 0, "length": 100, "offset": 3}),
        batch(writing(), writing(ruin="short"), writing(slot=3), writing(offset=95000, length=8192), writing()),
    ],
    "end of file": [batch(reading(offset=FILE_SIZE), reading(offset=FILE_SIZE - 1), reading(minimum=101))],
    "short": [batch(reading(offset=FILE_SIZE - 50, minimum=50), reading(offset=FILE_SIZE - 50, minimum=51))],
    "cold": [("cold", {"slot": 0, "length": 100, "offset": 0}), LATER_USE],
    "end of all files": [batch(reading(offset=(1 << 63) - 50), writing(offset=(1 << 63) - 5), writing(offset=1 << 63))],
    "row before a close": [
        batch(*[writing(offset=number) for number in range(0, 400, 100)], ("close", {"slot": 0}), writing(), reading())
    ],
    "closed twice": [batch(*[("close", {"slot": 0})] * 2), LATER_USE],
    "close of another's file": [opening(1, other=True), batch(("close", {"slot": 1}))],
    "unusual close": [
        batch(*[("close", {"slot": 0, "ruin": ruin}) for ruin in ("signature", "short", "size")]),
        batch(("close", {"slot": 0, "header": {"flags": 0x20000000}})),
    ],
    "close with locks": [locking(0, 0x12), opening(1, other=True), batch(("close", {"slot": 0})), locking(1, 0x12)],
    "unknown file": [batch(reading(slot=3), writing(slot=3), ("echo", {}))],
    "another's file": [opening(1, other=True), batch(reading(slot=1), writing(slot=1))],
    "out of order": [batch(reading(header={"later": 2}), ("echo", {"header": {"later": -3}}), reading())],
    "used twice": [batch(("echo", {}), ("echo", {"header": {"later": -1}}))],
    "out of the window": [batch(("echo", {"header": {"later": 70000}}))],
    "without credits": [batch(*[("echo", {"header": {"credits": 0}})] * 6, reading(header={"credits": 9}), reading())],
    "charged": [batch(reading(header={"credit_charge": 3}), writing(header={"credit_charge": 2}), reading())],
    "long": [
        batch(writing(length=70000, header=TWO), reading(length=70000, header=TWO), writing(length=10, offset=65000)),
        batch(reading(length=70000, offset=65000, header=TWO), reading(length=70000, minimum=69999, header=TWO)),
        batch(reading(length=70000, minimum=70000, offset=1, header=TWO), reading(length=70000, offset=NO_SPACE_FROM)),
    ],
    "long, not paid": [batch(writing(length=70000), reading(length=70000)), LATER_USE],
    "long, unusual": [
        batch(writing(length=70000, header=TWO, ruin="signature"), reading(length=70000, header=TWO, ruin="signature")),
        batch(writing(length=70000, header=TWO, ruin="short"), reading(length=70000, header=TWO, ruin="unsigned")),
        LATER_USE,
    ],
    "long, without space": [batch(writing(length=70000, offset=95000, header=TWO)), batch(reading(offset=95000))],
    "long, of a lock": [opening(1, other=True), locking(1, 0x12), batch(writing(length=70000, header=TWO), reading())],
    "priority": [batch(reading(header={"flags": 0x70}), ("echo", {"header": {"flags": 0x10}}))],
    "replay": [batch(writing(header={"flags": 0x20000000}), reading(header={"flags": 0x20000000}))],
    "sequence": [batch(writing(header={"status": 1}), writing(), reading(), writing(header={"status": 1}))],
    "wrong tree": [batch(reading(header={"tree_id": 77}), writing(header={"tree_id": 77}))],
    "echo of another tree": [batch(("echo", {"header": {"tree_id": 77, "reserved": 5}}))],
    "wrong session": [batch(("echo", {"header": {"session_id": 77}, "ruin": "unsigned"}), reading())],
    "no session": [batch(("echo", {"header": {"session_id": 0}, "ruin": "unsigned"}), reading())],
    "bad signature": [batch(reading(ruin="signature"), writing(ruin="signature"), ("echo", {"ruin": "signature"}))],
    "too short": [batch(reading(ruin="short"), writing(ruin="short"), ("echo", {"ruin": "short"}), reading())],
    "too long": [batch(reading(ruin="long"), writing(ruin="long"), ("echo", {"ruin": "long"}), reading())],
    "wrong size": [batch(reading(ruin="size"), writing(ruin="size"), ("echo", {"ruin": "size"}), reading())],
    "channel": [batch(reading(channel=1), writing(channel=2), reading())],
    "signatures required": [
        ("required", {}),
        batch(reading(ruin="unsigned"), ("echo", {"ruin": "unsigned"}), reading()),
    ],
    "encryption by the share": [("encrypting", {"session": False}), batch(("echo", {})), batch(reading(), writing())],
    "encryption by the session": [("encrypting", {"session": True}), batch(("echo", {})), batch(reading(), writing())],
    "persistent": [("persistent", {"slot": 0}), batch(writing()), batch(reading())],
    "expired": [("expire", {}), LATER_USE],
    "compound": [("related", {"slot": 0}), LATER_USE],
    "notify": [("notify", {}), LATER_USE],
    "cancel": [("cancel", {}), LATER_USE],
    **{f"fenced after {count}": [("fence", {"after": count})] for count in range(7)},
}


@pytest.mark.parametrize(("name", "protection"), each_with_one(CASES, ["none", "gmac", "encrypted"]))
def test_special_requests_are_answered_alike(lanes: Lanes, name: str, protection: str) -> None:
    lanes.both([*START, *CASES[name]], protection)


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_the_lane_takes_usual_requests(lanes: Lanes, protection: str) -> None:
    """All of them: the open's first WRITE, four in the case, and an ECHO at its end."""
    asyncio.run(run([*START, *CASES["usual"]], protection))
    assert lanes.taken == 6


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_the_lane_takes_a_close(lanes: Lanes, protection: str) -> None:
    """And the ECHO at the end of the scenario."""
    asyncio.run(run([START[0], ("close", {"slot": 0})], protection))
    assert lanes.taken == 2


@pytest.mark.parametrize("protection", ["none", "sign", "encrypt"])
def test_the_lane_takes_long_requests(tmp_path: Path, lanes: Lanes, protection: str) -> None:
    """READs and WRITEs of more than one credit, which the file may cut off."""
    content = random.Random(7).randbytes(90_000)

    async def test() -> None:
        sign, encrypt = protection == "sign", protection == "encrypt"
        async with lab(tmp_path) as made, made.session(sign=sign, encrypt=encrypt) as session:
            tree = await session.tree_connect("share")
            file = await tree.create("file", READ_WRITE, create.CreateDisposition.CREATE)
            assert await tree.write(file, 0, content) == len(content)
            assert await tree.read(file, 0, len(content)) == content
            assert await tree.write(file, 5, content[:80_001]) == 80_001
            assert await tree.read(file, 80_006, len(content)) == content[80_006:]
            assert await tree.read(file, 0, 80_006) == content[:5] + content[:80_001]
            assert lanes.taken == 5
            await tree.close(file)

    PLAYS[:] = []
    asyncio.run(test())


@pytest.mark.parametrize("sign", [False, True])
@pytest.mark.parametrize("encrypt", [False, True])
def test_smb_direct_has_the_lane(tmp_path: Path, lanes: Lanes, sign: bool, encrypt: bool) -> None:
    """Where data is short enough to go in the message."""

    async def test() -> None:
        async with lab(tmp_path) as made, made.session(rdma=True, sign=sign, encrypt=encrypt) as session:
            tree = await session.tree_connect("share")
            file = await tree.create("file", READ_WRITE, create.CreateDisposition.CREATE)
            assert await tree.write(file, 0, bytes(50)) == 50
            assert lanes.taken == 1
            assert await tree.write(file, 25, b"x" * 50) == 50
            assert await tree.read(file, 0, 75) == bytes(25) + b"x" * 50
            assert await tree.read(file, 70, 75) == b"x" * 5
            assert await tree.read(file, 75, 1) == b""
            assert lanes.taken == 5
            await tree.close(file)

    PLAYS[:] = []
    asyncio.run(test())
