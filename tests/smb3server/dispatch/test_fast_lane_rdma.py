"""READ and WRITE by RDMA: the fast lane against the general path. The same requests go to a server with and one without
the lane. Replies, the client's memory and the server's state are compared."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from smb3server.client.protocol import Client, ClientSession, RemoteFile, ServerError, Tree
from smb3server.client.protocol.messages import Call
from smb3server.client.protocol.tree import READ, READ_WRITE
from smb3server.commands import read as read_command
from smb3server.wire import lock as lock_wire
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.header import HEADER_SIZE, Command, HeaderFlags
from smb3server.wire.read_write import READ_REQUEST, TAIL, WRITE_REQUEST, ReadRequest, WriteRequest, pack_descriptors
from smb3server.wire.status import NtStatus
from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.message_transport import RemoteBuffer
from smbdirect.providers.loopback import CAPABILITIES, LoopbackProvider
from smbdirect.rdma.pool import BufferPool, DomainBuffers, PoolBuffer
from smbdirect.rdma.registrations import Counters
from tests.lab import harness
from tests.lab.harness import WITHOUT_TRANSFORMS, Lab, lab
from tests.lab.lanes import Lanes, Step, fill_disk
from tests.lab.tiers import each_with_one

LONGEST_TURN = 5.0
"""Two servers and a client share the processor with other tests: this is not about how long commands take."""
FILE_SIZE = 300_000
NO_SPACE_FROM = 3_000_000
"""Where the disk of these tests ends."""
MEMORY = 1 << 20
EXAMPLES = 25

USUAL: dict[str, Any] = {
    "length": 8192,
    "offset": 4096,
    "channel": 2,
    "minimum": 0,
    "pieces": 1,
    "shortage": 0,
    "at": TAIL,
    "cut": 0,
    "beyond": False,
    "paid": True,
    "inline": 0,
    "flags": 0,
}
"""A request by RDMA. ``pieces``: descriptors. ``shortage``: bytes that they do not cover. ``at``: where the request
says they are. ``cut``: bytes of them that are missing. ``beyond``: they leave the address space. ``inline``: bytes
of data that a WRITE says it carries, too."""


class Play:
    """One run of the steps against one server."""

    def __init__(self, made: Lab, session: ClientSession, tree: Tree, file: RemoteFile) -> None:
        self.made = made
        self.session = session
        self.tree = tree
        self.file = file
        self.transcript: list[Any] = []
        self.started: list[Call] = []
        rdma = tree.client.transport.rdma
        assert rdma is not None
        self.rdma = rdma

    async def request(self, write: bool, **changes: Any) -> None:
        """Send a READ or WRITE and note its reply, what came of the memory, and whether the token is still valid."""
        memory, started = await self.begin(write, **changes)
        await self.end(memory, started)
        self.transcript.append(self.state())

    async def begin(self, write: bool, **changes: Any) -> tuple[Any, Call]:
        wanted = {**USUAL, **changes}
        length, flags = wanted["length"], wanted["flags"]
        view = memoryview(bytearray((b"w" if write else b".") * MEMORY))
        memory = self.rdma.register(view, readable=write, writable=not write)
        (whole,) = memory.descriptors
        covered = max(length - wanted["shortage"], 0)
        share = covered // wanted["pieces"]
        last = covered - share * (wanted["pieces"] - 1)
        buffers = [
            RemoteBuffer(whole.offset + number * share, whole.token, share if number < wanted["pieces"] - 1 else last)
            for number in range(wanted["pieces"])
        ]
        if wanted["beyond"]:
            buffers[-1] = buffers[-1]._replace(offset=(1 << 64) - 1)
        described = pack_descriptors(buffers)
        described = described[: len(described) - wanted["cut"]]
        if not wanted["channel"]:
            # They are data for the file then, if anything: addresses differ between two runs.
            described = b"d" * len(described)
        where = wanted["at"], len(described)
        persistent, volatile = self.file.file_id
        if write:
            record = WriteRequest(
                data_offset=TAIL if wanted["inline"] else 0,
                length=wanted["inline"],
                offset=wanted["offset"],
                persistent=persistent,
                volatile=volatile,
                channel=wanted["channel"],
                remaining_bytes=length,
                channel_info_offset=where[0],
                channel_info_length=where[1],
                flags=flags,
            )
            body = [WRITE_REQUEST.pack(record), described]
        else:
            asked = ReadRequest(
                49,
                0,
                0,
                length,
                wanted["offset"],
                persistent,
                volatile,
                wanted["minimum"],
                wanted["channel"],
                0,
                *where,
            )
            body = [READ_REQUEST.pack(asked), described]
        payload = length if wanted["paid"] else 1
        command = Command.WRITE if write else Command.READ
        started = await self.tree.client.start(command, body, self.session, self.tree.tree_id, payload=payload)
        return memory, started

    async def end(self, memory: Any, started: Call) -> None:
        try:
            reply = await self.tree.client.finish(started)
        except ConnectionLost:
            self.transcript.append("lost")
            return
        header = reply.header
        body = bytes(reply.message[HEADER_SIZE:])
        self.transcript.append((header.status, header.credits, header.credit_charge, header.flags, body))
        reply.release()
        view = bytes(memory.view)
        self.transcript.append((memory.invalidated, len(view.rstrip(b".")), hash(view)))
        memory.deregister()

    # Steps

    async def read(self, **changes: Any) -> None:
        await self.request(False, **changes)

    async def write(self, **changes: Any) -> None:
        await self.request(True, **changes)

    async def together(self, messages: Sequence[Step]) -> None:
        """Several requests at once. The state is compared when all are answered: until then it is a matter of turns."""
        begun = [await self.begin(kind == "write", **fields) for kind, fields in messages]
        for memory, started in begun:
            await self.end(memory, started)
        self.transcript.append(self.state())

    async def cold(self, **changes: Any) -> None:
        """A READ that has to wait for a disk."""
        cached = read_command._read_cached
        read_command._read_cached = lambda opened, view, offset: -1
        try:
            await self.read(**changes)
        finally:
            read_command._read_cached = cached

    async def lock(self, exclusive: bool) -> None:
        """Another client locks what usual requests use."""
        session = await self.another()
        tree = await session.tree_connect("share")
        file = await tree.create("file", READ_WRITE)
        flags = lock_wire.LockFlags.EXCLUSIVE_LOCK if exclusive else lock_wire.LockFlags.SHARED_LOCK
        flags |= lock_wire.LockFlags.FAIL_IMMEDIATELY
        try:
            await tree.lock(file, [lock_wire.LockElement(5000, 10, int(flags))])
        except ServerError as error:
            self.transcript.append(error.status)

    async def another(self) -> ClientSession:
        client = await Client.connect(await self.made.transport(rdma=True))
        return await client.log_on("u", "pw")

    async def reopen(self, access: int = READ_WRITE, options: int = 0) -> None:
        await self.tree.close(self.file)
        self.file = await self.tree.create("file", access, CreateDisposition.OPEN, options)

    async def close_meanwhile(self) -> None:
        """CLOSE comes behind a WRITE whose data is still to be fetched."""
        memory, started = await self.begin(True)
        closing = asyncio.ensure_future(self.tree.close(self.file))
        await self.end(memory, started)
        await closing
        self.file = await self.tree.create("file", READ_WRITE)

    async def pending(self) -> None:
        """What is counted while the data of a WRITE is fetched."""
        memory, started = await self.begin(True)
        connections = self.made.server.connection_list
        while not started.future.done() and not any(entry.host.pending_requests for entry in connections):
            await asyncio.sleep(0)
        for session in self.made.server.sessions.by_id.values():
            for opened in session.open_table.values():
                self.transcript.append((opened.outstanding_requests, opened.in_flight))
        await self.end(memory, started)
        self.transcript.append(self.state())

    async def cancel(self) -> None:
        """CANCEL comes behind a WRITE whose data is still to be fetched."""
        memory, started = await self.begin(True)
        self.tree.client.cancel(started)
        await self.end(memory, started)

    async def held(self, meanwhile: str) -> None:
        """Something happens while the data of a WRITE is fetched."""
        rdma = next(iter(self.made.server.connection_list)).transport.rdma
        assert rdma is not None
        fetch = rdma.read_from_peer
        asked: list[tuple[Any, ...]] = []
        rdma.read_from_peer = lambda *call: asked.append(call)  # type: ignore[assignment, method-assign]
        memory, started = await self.begin(True)
        while not asked and not started.future.done():  # An encrypted one is refused.
            await asyncio.sleep(0)
        del rdma.read_from_peer
        if meanwhile == "lock":
            await self.lock(True)
        elif meanwhile == "wait":
            await asyncio.sleep(4 * self.made.server.settings.interim_delay)
        elif meanwhile == "cancel":
            self.tree.client.cancel(started)
            await self.tree.client.echo()
        else:
            ending = asyncio.ensure_future(getattr(self, meanwhile)())
            await asyncio.sleep(0.02)
        self.transcript.append(self.state())
        for call in asked:
            fetch(*call)
        await self.end(memory, started)
        if meanwhile in ("disconnect", "log_off"):
            await ending

    async def disconnect(self) -> None:
        await self.tree.disconnect()

    async def log_off(self) -> None:
        await self.session.log_off()

    async def lose(self, after: int) -> None:
        """The connection is lost after a number of work requests of a WRITE and a READ."""
        self.made.fabric.faults.drop_after = after
        await self.together([("write", {}), ("read", {}), ("write", {})])

    async def fence(self, after: int) -> None:
        """The fence expires when it has been asked some times."""
        server = self.made.server
        server.guid_of_address = lambda address: bytes(16)
        server.fence = Fence(after)
        await self.together([("write", {}), ("read", {})])
        server.fence = None

    async def lend(self, limit: int) -> None:
        """The user may have few large buffers."""
        for session in self.made.server.sessions.by_id.values():
            for opened in session.open_table.values():
                if opened.usage is not None:
                    opened.usage.max_lent = limit

    async def sequence(self, number: int) -> None:
        """The open knows another channel sequence."""
        for session in self.made.server.sessions.by_id.values():
            for opened in session.open_table.values():
                opened.channel_sequence = number

    def state(self) -> list[Any]:
        server = self.made.server
        found: list[Any] = [server.buffers.lent]
        for connection in sorted(server.connection_list, key=lambda entry: entry.creation_time):
            window, counters = connection.command_sequence_window, connection.transport.counters
            found += [window.low, window.high, sorted(window.used), connection.largest_inline]
            found += [connection.host.pending_requests, connection.transport.pending_send_bytes]
            found += [counters[name] for name in ("bytes_rdma_read", "bytes_rdma_written", "rdma_reads", "rdma_writes")]
            found += [counters["remote_invalidations_sent"], counters["messages_sent"]]
        for session in server.sessions.by_id.values():
            for opened in session.open_table.values():
                found += [opened.position, opened.wrote, opened.in_flight, opened.channel_sequence]
                found += [opened.outstanding_requests, opened.outstanding_pre_requests]
                found += [opened.usage.lent if opened.usage is not None else None]
                file = opened.file
                times = file.write_time if file is not None else None
                found += [None if times is None else (times.dirty, times.shown is None)]
        return found


class Fence:
    """Expires when it has been asked ``after`` times."""

    def __init__(self, after: int) -> None:
        self.after = after

    def expired(self) -> bool:
        self.after -= 1
        return self.after < 0


async def run(steps: Sequence[Step], protection: str) -> list[Any]:
    """Play the steps against a new server. Return the transcript and the file's content."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        async with lab(root) as made:
            content = bytes(range(251)) * 1200
            (root / "share" / "file").write_bytes(content[:FILE_SIZE])
            sign, encrypt = protection == "signed", protection == "encrypted"
            async with made.session(rdma=True, encrypt=encrypt, offer=WITHOUT_TRANSFORMS) as session:
                # Signed by choice: a session that must sign moves no unsigned data by RDMA.
                session.sign = sign
                tree = await session.tree_connect("share")
                play = Play(made, session, tree, await tree.create("file", READ_WRITE))
                made.fabric.faults.delay_turns = 2
                try:
                    async with asyncio.timeout(20):
                        for kind, fields in steps:
                            await getattr(play, kind)(**fields)
                except (ConnectionLost, ProviderError):
                    # A lost connection may be noticed first by registering or by sending.
                    play.transcript.append("ended")
                made.fabric.faults.delay_turns = 0
            return [*play.transcript, (root / "share" / "file").read_bytes()]


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Lanes:
    fill_disk(monkeypatch, NO_SPACE_FROM)
    return Lanes(monkeypatch, run)


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "length": st.sampled_from([0, 1, 100, 4096, 65535, 65536, 65537, 200_000, 1 << 20]),
        "offset": st.sampled_from([0, 1, FILE_SIZE - 100, FILE_SIZE, NO_SPACE_FROM - 50, (1 << 63) - 50, 1 << 63]),
        "channel": st.sampled_from([0, 1, 1, 1, 2, 2, 3, 4]),
        "minimum": st.sampled_from([0, 0, 1, 101, 1 << 31]),
        "pieces": st.integers(1, 4),
        "shortage": st.sampled_from([0, 0, 0, 1]),
        "at": st.sampled_from([TAIL, TAIL, TAIL, TAIL - 8, TAIL + 1, 0, 60000]),
        "cut": st.sampled_from([0, 0, 0, 1, 16]),
        "beyond": st.sampled_from([False, False, False, True]),
        "paid": st.sampled_from([True, True, True, False]),
        "inline": st.sampled_from([0, 0, 0, 5]),
        "flags": st.sampled_from([0, 0, 0, 1]),
    },
)
REQUESTS = st.tuples(st.sampled_from(["read", "write"]), CHANGES)
STEPS = st.lists(
    st.one_of(
        REQUESTS,
        REQUESTS,
        st.tuples(st.just("cold"), CHANGES),
        st.tuples(st.just("together"), st.fixed_dictionaries({"messages": st.lists(REQUESTS, min_size=1, max_size=4)})),
        st.tuples(st.just("lock"), st.fixed_dictionaries({"exclusive": st.booleans()})),
        st.tuples(st.sampled_from(["close_meanwhile", "cancel"]), st.just({})),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("protection", ["none", "signed", "encrypted"])
def test_random_requests_are_answered_alike(lanes: Lanes, protection: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(STEPS)
    def check(steps: list[Step]) -> None:
        lanes.both([*steps, ("read", {}), ("write", {})], protection)

    check()


def reading(**fields: Any) -> Step:
    return "read", fields


def writing(**fields: Any) -> Step:
    return "write", fields


BOTH = [reading(), writing(), reading()]
CASES: dict[str, list[Step]] = {
    "usual": BOTH,
    "without invalidation": [reading(channel=1), writing(channel=1)],
    "large": [reading(length=1 << 20, offset=0), writing(length=1 << 20, offset=0), reading(length=1 << 20, offset=0)],
    "several at once": [("together", {"messages": [*BOTH, reading(length=100_000), writing(length=100_000)]})],
    "several descriptors": [reading(pieces=3), writing(pieces=3)],
    "too short": [reading(shortage=1), writing(shortage=1), *BOTH],
    "elsewhere": [reading(at=TAIL - 8), writing(at=60000), reading(cut=1), writing(cut=16), *BOTH],
    "beyond the address space": [reading(beyond=True), writing(beyond=True), *BOTH],
    "unknown channel": [reading(channel=3), writing(channel=4), *BOTH],
    "not paid for": [reading(length=70_000, paid=False), writing(length=70_000, paid=False), *BOTH],
    "too long": [reading(length=(8 << 20) + 1, paid=False), writing(length=(8 << 20) + 1, paid=False), *BOTH],
    "nothing": [reading(length=0), writing(length=0), reading(length=0, minimum=1)],
    "end of file": [reading(offset=FILE_SIZE), reading(offset=FILE_SIZE - 5), reading(offset=FILE_SIZE - 5, minimum=6)],
    "end of all files": [reading(offset=(1 << 63) - 5), writing(offset=(1 << 63) - 5), writing(offset=1 << 63)],
    "data in the message, too": [writing(inline=5), *BOTH],
    "to stable storage": [writing(flags=1), *BOTH],
    "cold": [("cold", {}), ("cold", {"length": 200_000, "offset": 0}), *BOTH],
    "full disk": [writing(offset=NO_SPACE_FROM - 50), reading(offset=NO_SPACE_FROM - 80), *BOTH],
    "exclusive lock of another's": [("lock", {"exclusive": True}), *BOTH],
    "shared lock of another's": [("lock", {"exclusive": False}), *BOTH],
    "reading only": [("reopen", {"access": READ}), *BOTH],
    "write through": [("reopen", {"options": int(CreateOptions.WRITE_THROUGH)}), *BOTH],
    "closed in the middle": [("close_meanwhile", {}), *BOTH],
    "under way": [("pending", {}), *BOTH],
    "cancelled in the middle": [("cancel", {}), *BOTH],
    "locked in the middle": [("held", {"meanwhile": "lock"}), *BOTH],
    "slow": [("held", {"meanwhile": "wait"}), *BOTH],
    "cancelled while it waits": [("held", {"meanwhile": "cancel"}), *BOTH],
    "disconnected in the middle": [("held", {"meanwhile": "disconnect"})],
    "logged off in the middle": [("held", {"meanwhile": "log_off"})],
    "few buffers": [
        ("lend", {"limit": 100_000}),
        ("together", {"messages": [reading(length=80_000, offset=0)] * 4}),
        *BOTH,
    ],
    "another sequence": [("sequence", {"number": 0xFFFF}), reading(), ("sequence", {"number": 1}), *BOTH],
    **{f"lost after {count}": [("lose", {"after": count})] for count in range(8)},
    **{f"fenced after {count}": [("fence", {"after": count})] for count in range(8)},
}


@pytest.mark.parametrize(("name", "protection"), each_with_one(CASES, ["none", "signed", "encrypted"]))
def test_special_requests_are_answered_alike(lanes: Lanes, name: str, protection: str) -> None:
    lanes.both(CASES[name], protection)


def test_the_lane_lends_no_more_than_the_user_may_have(lanes: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A READ that has to wait for a buffer is none for the lane."""
    lent: list[int] = []
    acquire = BufferPool.acquire

    def counting(
        pool: BufferPool, size: int, home: DomainBuffers | None = None, counters: Counters | None = None
    ) -> PoolBuffer:
        buffer = acquire(pool, size, home, counters)
        if size == 80_000:
            lent.append(pool.lent)
        return buffer

    monkeypatch.setattr(BufferPool, "acquire", counting)
    lanes.both(CASES["few buffers"])
    assert len(lent) == 8
    assert max(lent) == 1 << 17


@pytest.mark.parametrize("name", ["usual", "large", "cold", "end of file"])
def test_fabrics_that_need_registered_memory(lanes: Lanes, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, data has to be read into a registered buffer."""
    capabilities = replace(CAPABILITIES, requires_registration=True)
    monkeypatch.setattr(harness, "LoopbackProvider", partial(LoopbackProvider, capabilities))
    lanes.both(CASES[name])
    assert lanes.taken


@pytest.mark.parametrize(("protection", "taken"), [("none", 3), ("signed", 3), ("encrypted", 0)])
def test_the_lane_takes_usual_requests(lanes: Lanes, protection: str, taken: int) -> None:
    """Both by one of them, signed or not. Encrypted requests are refused, because the data would be in the clear."""
    transcript = asyncio.run(run(CASES["usual"], protection))
    assert lanes.taken == taken
    statuses = [entry[0] for entry in transcript[:-1:3]]
    assert statuses == [NtStatus.SUCCESS if taken else NtStatus.INVALID_PARAMETER] * 3
    if taken:
        assert transcript[-1][4096:12288] == b"w" * 8192
        assert transcript[1][:2] == (True, 8192)
    assert not HeaderFlags.ASYNC_COMMAND & transcript[0][3]
