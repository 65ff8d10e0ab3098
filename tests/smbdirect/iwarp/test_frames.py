"""What is done for each FPDU of a batch, in Python and in C; and chains that are cut in one pass."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from types import ModuleType

import pytest

from smbdirect import native
from smbdirect.codec import Buffer
from smbdirect.providers.base import Read, RemoteSegment, Send, WorkRequest, Write
from smbdirect.providers.iwarp import frame_calls
from smbdirect.providers.iwarp.ddp import TAGGED_WORDS, UNTAGGED_HEADER
from smbdirect.providers.iwarp.operations import PendingRead
from smbdirect.providers.iwarp.rdmap import Opcode
from smbdirect.providers.iwarp.sender import Sender, Work

NAME = "smbdirect.providers.iwarp._native"
WRITE = 0xC140 << 32
SEND = UNTAGGED_HEADER.pack_fields(0, 0x41, 0x43, 0, 0, 7, 0)


@pytest.fixture(params=["python", "c"])
def calls(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "python":
        return frame_calls
    why = native.problem(NAME)
    if why is not None:
        pytest.skip(f"{NAME}: {why}")
    from smbdirect.providers.iwarp import _native

    return _native


def c_calls() -> ModuleType:
    why = native.problem(NAME)
    if why is not None:
        pytest.skip(f"{NAME}: {why}")
    from smbdirect.providers.iwarp import _native

    return _native


def stream(*payloads: bytes, msn: int = 7) -> bytearray:
    made = bytearray()
    for payload in payloads:
        length = 18 + len(payload)
        made += UNTAGGED_HEADER.pack_fields(length, 0x41, 0x43, 0, 0, msn, 0) + payload
        made += bytes((-(length + 2) & 3) + 4)
        msn = msn + 1 & 0xFFFFFFFF
    return made


def memories(*sizes: int) -> deque[tuple[memoryview, object]]:
    return deque((memoryview(bytearray(b"." * size)), index) for index, size in enumerate(sizes))


# -- what arrives ------------------------------------------------------------------------------------------------------


def test_sends_are_placed(calls: ModuleType) -> None:
    receives = memories(8, 8, 8, 8)
    data = stream(b"hello", b"", b"12345678")
    assert calls.sends(memoryview(data), 0, len(data), 7, receives) == (len(data), [5, 0, 8])
    assert [bytes(memory) for memory, _ in receives] == [b"hello...", b"." * 8, b"12345678", b"." * 8]


def test_numbers_wrap(calls: ModuleType) -> None:
    data = stream(b"a", b"b", msn=0xFFFFFFFF)
    assert calls.sends(memoryview(data), 0, len(data), 0xFFFFFFFF, memories(1, 1)) == (len(data), [1, 1])


def test_no_more_than_was_posted(calls: ModuleType) -> None:
    data = stream(b"a", b"b", b"c")
    assert calls.sends(memoryview(data), 0, len(data), 7, memories(9, 9)) == (56, [1, 1])
    assert calls.sends(memoryview(data), 0, len(data), 7, memories()) == (0, [])


def test_a_send_that_is_too_long(calls: ModuleType) -> None:
    receives = memories(9, 4)
    data = stream(b"a", b"12345")
    assert calls.sends(memoryview(data), 0, len(data), 7, receives) == (28, [1])
    assert bytes(receives[1][0]) == b"...."


@pytest.mark.parametrize("missing", range(1, 29))
def test_a_send_of_which_some_is_missing(calls: ModuleType, missing: int) -> None:
    data = stream(b"a", b"b")
    assert calls.sends(memoryview(data), 0, len(data) - missing, 7, memories(9, 9)) == (28, [1])


@pytest.mark.parametrize("place", [*range(20)])
def test_every_other_header_is_left_alone(calls: ModuleType, place: int) -> None:
    """The STag of a Send counts for nothing."""
    data = stream(b"a" * 40)
    data[place] ^= 0x80
    receives = memories(64)
    expected = (len(data), [40]) if 4 <= place < 8 else (0, [])
    assert calls.sends(memoryview(data), 0, len(data), 7, receives) == expected


@pytest.mark.parametrize("bounds", [(-1, 4), (5, 4), (0, 29), (29, 29)])
def test_bounds_outside_of_the_stream(calls: ModuleType, bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="stream"):
        calls.sends(memoryview(stream(b"a")), *bounds, 7, memories(9))


def test_both_receive_the_same() -> None:
    chance, c = random.Random(7), c_calls()
    for _ in range(2000):
        data = stream(*(chance.randbytes(chance.randrange(30)) for _ in range(chance.randrange(4))))
        for _ in range(chance.randrange(3)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        sizes = [chance.randrange(30) for _ in range(chance.randrange(4))]
        start = chance.randrange(len(data) + 1) if chance.random() < 0.1 else 0
        found = []
        for calls in (frame_calls, c):
            receives = memories(*sizes)
            result = calls.sends(memoryview(data), start, len(data), 7, receives)
            found.append((result, [bytes(memory) for memory, _ in receives]))
        assert found[0] == found[1]


# -- what leaves -------------------------------------------------------------------------------------------------------


def write(offset: int = 0) -> bytes:
    return TAGGED_WORDS.pack_fields(WRITE | 0xABCD, offset)


def joined(buffers: Sequence[Buffer]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def test_messages_are_framed(calls: ModuleType) -> None:
    made = calls.frame([(write(0x10), [b"abcd"], 4), (SEND, [b"he", memoryview(b"llo")], 5)], 128, 100)
    assert made == [
        bytes.fromhex("0012 c140 0000abcd 0000000000000010") + b"abcd" + bytes(4)
        + bytes.fromhex("0017 4143 00000000 00000000 00000007 00000000") + b"hello" + bytes(7)
    ]  # fmt: skip


def test_long_writes_are_cut(calls: ModuleType) -> None:
    made = calls.frame([(write(1), [bytes(range(100)), b"", bytes(range(100, 150))], 150)], 128, 8192)
    assert made == [
        bytes.fromhex("0080 8140 0000abcd 0000000000000001") + bytes(range(114)) + bytes(6)
        + bytes.fromhex("0032 c140 0000abcd 0000000000000073") + bytes(range(114, 150)) + bytes(4)
    ]  # fmt: skip


def test_much_is_not_copied(calls: ModuleType) -> None:
    memory = bytearray(random.Random(1).randbytes(300))
    made = calls.frame([(write(), [memoryview(memory)[10:290]], 280)], 200, 100)
    assert [len(buffer) for buffer in made] == [16, 186, 6 + 16 + 94 + 6]
    assert isinstance(made[1], memoryview)
    assert made[1].obj is memory


def test_offsets_wrap(calls: ModuleType) -> None:
    """The descriptor has been checked before; the arithmetic is that of 64 bits all the same."""
    made = joined(calls.frame([(write(0xFFFFFFFFFFFFFFFF), [bytes(120)], 120)], 128, 999))
    assert made[8:16] == b"\xff" * 8
    assert made[136 + 8 : 136 + 16] == (113).to_bytes(8, "big")


@pytest.mark.parametrize(
    "message",
    [
        (write(), [b"abc"], 4),
        (write(), [b"abc"], 2),
        (write(), [b"abc"], -1),
        (write(), [bytes(1)] * 65, 65),
        (write()[:15], [b"abc"], 3),
        (bytes(65), [b"abc"], 3),
        (SEND, [bytes(111)], 111),
        (write(), [memoryview(bytes(8)).cast("I")], 8),
        (write(), [memoryview(bytes(8)).cast("I")], 2),
        (write(), [memoryview(bytes(8)).cast("B", (2, 4))], 8),
        (write(), [memoryview(bytes(8))[::2]], 4),
        (write(), [], 1 << 25),
    ],
)
def test_what_is_unusual_is_refused(calls: ModuleType, message: frame_calls.Message) -> None:
    with pytest.raises((ValueError, BufferError)):
        calls.frame([(write(), [b"ok"], 2), message], 128, 50)


@pytest.mark.parametrize("max_ulpdu", [-1, 14, 65536])
def test_no_ulpdu_is_that_long(calls: ModuleType, max_ulpdu: int) -> None:
    with pytest.raises(ValueError):
        calls.frame([(write(), [b"ok"], 2)], max_ulpdu, 50)


def test_both_frame_the_same() -> None:
    chance, c = random.Random(9), c_calls()
    for _ in range(1000):
        messages: list[frame_calls.Message] = []
        for _ in range(chance.randrange(4)):
            segments = [chance.randbytes(chance.randrange(400)) for _ in range(chance.randrange(4))]
            header = write(chance.getrandbits(60)) if chance.random() < 0.7 else SEND
            messages.append((header, segments, sum(map(len, segments))))
        limits = chance.choice([128, 500, 1442, 65520]), chance.choice([0, 50, 8192])
        try:
            expected = frame_calls.frame(messages, *limits)
        except ValueError:
            with pytest.raises(ValueError):
                c.frame(messages, *limits)
            continue
        made = c.frame(messages, *limits)
        assert list(map(bytes, made)) == list(map(bytes, expected))
        assert list(map(type, made)) == list(map(type, expected))


# -- chains ------------------------------------------------------------------------------------------------------------


def work(request: WorkRequest) -> Work:
    """The Work of a request, as the endpoint makes it."""
    segments = list(map(memoryview, request.segments))
    total = sum(map(len, segments))
    if isinstance(request, Send):
        return Work(request.operation, segments, total, None, False, 0, 0, request.invalidate)
    token, address, _ = request.remote
    read = PendingRead(total + 1, segments, total) if isinstance(request, Read) else None
    made = Work(request.operation, segments, total, None, False, token, address, None, read)
    if read is not None:
        read.owner = made
    return made


def read_of(request: Read) -> PendingRead:
    found = work(request).read
    assert found is not None
    return found


def a_chain(chance: random.Random) -> list[WorkRequest]:
    requests: list[WorkRequest] = []
    for _ in range(chance.randrange(1, 7)):
        pieces = [bytearray(chance.randbytes(chance.choice([0, 1, 76, 500, 4096, 70_000]))) for _ in range(2)]
        remote = RemoteSegment(chance.getrandbits(32), chance.getrandbits(40), sum(map(len, pieces)))
        kind = chance.randrange(4)
        if kind == 0:
            requests.append(Read([memoryview(piece) for piece in pieces], remote))
        elif kind == 1:
            requests.append(Write(pieces, remote))
        else:
            requests.append(Send([pieces[0][:600]], None, chance.choice([None, 9])))
    return requests


def sent_by(sender: Sender, chance: random.Random) -> bytes:
    """What a socket takes from ``sender``, which is full now and then."""
    found = bytearray()
    while buffers := sender.buffers():
        taken = joined(buffers)
        taken = taken[: chance.randrange(1, len(taken) + 1)]
        sender.sent(len(taken))
        found += taken
    return bytes(found)


@pytest.mark.parametrize("limits", [(1442, 1448), (65520, 0), (65520, 65483), (456, 460)])
def test_a_chain_is_what_the_queue_sends(limits: tuple[int, int]) -> None:
    """Whatever the lane of chains takes has the bytes of the general way, also if it goes out in pieces."""
    chance = random.Random(limits[0])
    taken = 0
    for turn in range(300):
        senders = [Sender(limits[0], False, 3, deque()) for _ in range(2)]
        for sender in senders:
            sender.open, sender.segment = True, limits[1]
        lane, general = senders
        expected = found = b""
        for _ in range(2):
            requests = a_chain(chance)
            general.work.extend(map(work, requests))
            expected += sent_by(general, random.Random(turn))
            buffers = lane.chain(requests, read_of)
            if buffers is None:
                lane.work.extend(map(work, requests))
                found += sent_by(lane, random.Random(turn))
                continue
            taken += 1
            whole = joined(buffers)
            count = chance.choice([0, len(whole), chance.randrange(len(whole))])
            found += whole[:count]
            if not lane.chain_sent(count):
                reads = iter(lane.chain_reads)
                works = [next(reads).owner if type(request) is Read else work(request) for request in requests]
                lane.chain_waits([made for made in works if isinstance(made, Work)])
                lane.sent(count)
                found += sent_by(lane, random.Random(turn))
                assert all(made.done for made in works if isinstance(made, Work) and made.read is None)
        assert found == expected
        assert lane.idle or not lane.work[0].done
        counts = [(each.fpdus, each.bytes_send, each.bytes_write) for each in senders]
        assert counts[0] == counts[1]
    assert taken > 100


def test_what_makes_a_chain_unusual() -> None:
    remote = RemoteSegment(1, 2, 4)
    send = Send([b"abcd"])

    def taken(*requests: WorkRequest, **changes: object) -> bool:
        sender = Sender(1442, False, 1, deque())
        sender.open = True
        for name, value in changes.items():
            setattr(sender, name, value)
        before = sender.idle
        found = sender.chain(requests, read_of) is not None
        assert found or sender.idle is before
        return found

    assert taken(send, Write([b"abcd"], remote), Read([memoryview(bytearray(4))], remote))
    assert not taken()
    assert not taken(send, crc=True)
    assert not taken(send, open=False)
    assert not taken(send, work=deque([work(send)]))
    assert not taken(Send([bytes(1425)]))
    assert not taken(Write([b"abc"], remote))
    assert not taken(*[Read([memoryview(bytearray(4))], remote)] * 2)
    assert taken(Write([bytes(1 << 18)], RemoteSegment(1, 2, 1 << 18)))
    assert not taken(Write([bytes(1 << 19)], RemoteSegment(1, 2, 1 << 19)))
    assert taken(Write([bytes(1 << 19)], RemoteSegment(1, 2, 1 << 19)), max_ulpdu=65520)
    assert taken(Write([bytes(1 << 20)], RemoteSegment(1, 2, 1 << 20)), send, max_ulpdu=65520)
    assert not taken(Write([bytes(1 << 21)], RemoteSegment(1, 2, 1 << 21)), max_ulpdu=65520)
    header = UNTAGGED_HEADER.fields_from(joined(_cut(Read([memoryview(bytearray(4))], remote))))
    assert header[2] & 0xF == Opcode.READ_REQUEST


def _cut(request: WorkRequest) -> Sequence[Buffer]:
    sender = Sender(1442, False, 1, deque())
    sender.open = True
    found = sender.chain([request], read_of)
    assert found is not None
    return found
