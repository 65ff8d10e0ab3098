"""What is done for each FPDU of a batch, in Python and in C; and chains that are cut in one pass."""

from __future__ import annotations

import random
import socket
from collections import deque
from collections.abc import Sequence
from types import ModuleType

import pytest
from crc32c import crc32c

from smbdirect import native
from smbdirect.codec import Buffer
from smbdirect.providers.base import (
    Atomic,
    Completion,
    Operation,
    Read,
    RemoteSegment,
    Send,
    Status,
    WorkRequest,
    Write,
)
from smbdirect.providers.iwarp import frame_calls
from smbdirect.providers.iwarp.ddp import TAGGED_WORDS, UNTAGGED_HEADER
from smbdirect.providers.iwarp.mpa import is_intact, trailer
from smbdirect.providers.iwarp.operations import PendingRead
from smbdirect.providers.iwarp.rdmap import Opcode
from smbdirect.providers.iwarp.sender import Response, Sender, Work

NAME = "smbdirect.providers.iwarp._native"
KIND = Completion, Operation.RECEIVE, Status.OK
KINDS = Send, Write, Read, Response


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


def memories(*sizes: int) -> list[tuple[memoryview, object]]:
    return [(memoryview(bytearray(b"." * size)), index) for index, size in enumerate(sizes)]


def response(stag: int, base: int, payload: bytes, last: bool = True) -> bytes:
    """An FPDU of a Read Response, which is all of it unless ``last`` or ``base`` says something else."""
    length = 14 + len(payload)
    kind = (0xC142 if last else 0x8142) << 32
    return TAGGED_WORDS.pack_fields(length << 48 | kind | stag, base) + payload + bytes((-length - 2 & 3) + 4)


def reading(stag: int, size: int, base: int = 0) -> PendingRead:
    return PendingRead(stag, [memoryview(bytearray(b"." * size))], size, base)


def placed(
    calls: ModuleType,
    data: bytearray,
    receives: Sequence[tuple[memoryview, object]],
    reads: Sequence[PendingRead] = (),
    msn: int = 7,
) -> tuple[int, list[int], int]:
    """Where the rest begins, the lengths of the Sends before, and the number of Read Responses."""
    before = sum(read.received for read in reads)
    start, made, size, responses, parts, bytes_read = calls.arrived(
        memoryview(data), 0, len(data), msn, receives, reads, KIND, False
    )
    assert responses <= parts
    assert bytes_read == sum(read.received for read in reads) - before
    assert all(type(completion) is Completion for completion in made)
    assert made == [(*KIND[1:], index, each.length, None) for index, each in enumerate(made)]
    assert size == sum(each.length for each in made)
    return start, [each.length for each in made], responses


# -- what arrives ------------------------------------------------------------------------------------------------------


def test_sends_are_placed(calls: ModuleType) -> None:
    receives = memories(8, 8, 8, 8)
    data = stream(b"hello", b"", b"12345678")
    assert placed(calls, data, receives) == (len(data), [5, 0, 8], 0)
    assert [bytes(memory) for memory, _ in receives] == [b"hello...", b"." * 8, b"12345678", b"." * 8]


def test_numbers_wrap(calls: ModuleType) -> None:
    data = stream(b"a", b"b", msn=0xFFFFFFFF)
    assert placed(calls, data, memories(1, 1), msn=0xFFFFFFFF) == (len(data), [1, 1], 0)


def test_no_more_than_was_posted(calls: ModuleType) -> None:
    data = stream(b"a", b"b", b"c")
    assert placed(calls, data, memories(9, 9)) == (56, [1, 1], 0)
    assert placed(calls, data, memories()) == (0, [], 0)


def test_a_send_that_is_too_long(calls: ModuleType) -> None:
    receives = memories(9, 4)
    data = stream(b"a", b"12345")
    assert placed(calls, data, receives) == (28, [1], 0)
    assert bytes(receives[1][0]) == b"...."


@pytest.mark.parametrize("missing", range(1, 29))
def test_a_send_of_which_some_is_missing(calls: ModuleType, missing: int) -> None:
    data = stream(b"a", b"b")
    assert placed(calls, data[: len(data) - missing], memories(9, 9)) == (28, [1], 0)


@pytest.mark.parametrize("place", [*range(20)])
def test_every_other_header_is_left_alone(calls: ModuleType, place: int) -> None:
    """The STag of a Send counts for nothing."""
    data = stream(b"a" * 40)
    data[place] ^= 0x80
    receives = memories(64)
    expected = (len(data), [40], 0) if 4 <= place < 8 else (0, [], 0)
    assert placed(calls, data, receives) == expected


@pytest.mark.parametrize("bounds", [(-1, 4), (5, 4), (0, 29), (29, 29)])
def test_bounds_outside_of_the_stream(calls: ModuleType, bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="stream"):
        calls.arrived(memoryview(stream(b"a")), *bounds, 7, memories(9), (), KIND, False)


def test_read_responses_are_placed_among_sends(calls: ModuleType) -> None:
    reads = [reading(1, 4), reading(2, 3, 9), reading(3, 5)]
    data = stream(b"a") + response(1, 0, b"abcd") + response(2, 9, b"xyz") + stream(b"b", msn=8)
    assert placed(calls, data, memories(9, 9), reads) == (len(data), [1, 1], 2)
    assert [bytes(read.segments[0]) for read in reads] == [b"abcd", b"xyz", b"....."]


@pytest.mark.parametrize("missing", range(1, 25))
def test_a_response_of_which_some_is_missing(calls: ModuleType, missing: int) -> None:
    reads = [reading(1, 4)]
    data = bytearray(response(1, 0, b"abcd"))
    assert placed(calls, data[: len(data) - missing], (), reads) == (0, [], 0)
    assert bytes(reads[0].segments[0]) == b"...."


def test_a_response_of_several_fpdus(calls: ModuleType) -> None:
    """Its parts may come with other calls."""
    reads = [reading(1, 7, 9), reading(2, 4)]
    parts = [response(1, 9, b"abc", False), response(1, 12, b"de", False), response(1, 14, b"fg")]
    first = bytearray(parts[0] + stream(b"a") + parts[1])
    assert placed(calls, first, memories(9), reads) == (len(first), [1], 0)
    assert reads[0].received == 5
    second = bytearray(parts[2] + response(2, 0, b"wx", False) + response(2, 2, b"y"))
    assert placed(calls, second, (), reads) == (len(second) - len(response(2, 2, b"y")), [], 1)
    assert [read.received for read in reads] == [7, 2]
    assert [bytes(read.segments[0]) for read in reads] == [b"abcdefg", b"wx.."]


@pytest.mark.parametrize(
    "part",
    [
        response(1, 2, b"c", False),
        response(1, 4, b"c", False),
        response(2, 3, b"c", False),
        response(1, 3, b"d"),
        response(1, 3, b"defg", False),
        response(1, 3, b"defgh"),
        response(1, 3, b"defgh", False),
        response(1, 3, b"", False) + bytes(8),
    ],
)
def test_a_part_that_is_not_obviously_valid(calls: ModuleType, part: bytes) -> None:
    """Another token or place, too much or nothing, or a flag that does not fit: the general path."""
    read = reading(1, 7)
    first = response(1, 0, b"abc", False)
    assert placed(calls, bytearray(first + part), (), [read]) == (len(first), [], 0)
    assert (read.received, bytes(read.segments[0])) == (3, b"abc....")


def test_a_response_that_is_not_obviously_valid(calls: ModuleType) -> None:
    """Another token, place or length, or several segments: the general path."""
    begun = reading(1, 4)
    begun.received = 1
    split = PendingRead(1, [memoryview(bytearray(2)), memoryview(bytearray(2))], 4)
    wrong = PendingRead(1, [memoryview(bytearray(5))], 4)
    for read in (reading(2, 4), reading(1, 4, 1), reading(1, 5), reading(1, 3), begun, split, wrong):
        before = [bytes(segment) for segment in read.segments]
        assert placed(calls, bytearray(response(1, 0, b"abcd")), (), [read]) == (0, [], 0)
        assert [bytes(segment) for segment in read.segments] == before
    assert placed(calls, bytearray(response(1, 0, b"abcd")), ()) == (0, [], 0)


def test_both_receive_the_same() -> None:
    chance, c = random.Random(7), c_calls()
    responses = 0
    for _ in range(4000):
        data, msn, sinks = bytearray(), 7, []
        for _ in range(chance.randrange(5)):
            payload = chance.randbytes(chance.randrange(30))
            if chance.random() < 0.5:
                data += stream(payload, msn=msn)
                msn += 1
            else:
                token, base = chance.randrange(3), chance.randrange(2)
                sinks.append((token, len(payload), base))
                at = chance.choice([0, 0, chance.randrange(len(payload) + 1)])
                if at:
                    data += response(token, base, payload[:at], False)
                data += response(token, base + at, payload[at:])
        for _ in range(chance.choice([0, 0, 1, 2])):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        sizes = [chance.randrange(20, 30) for _ in range(chance.randrange(4))]
        found = []
        for calls in (frame_calls, c):
            receives, reads = memories(*sizes), [reading(*sink) for sink in sinks]
            result = placed(calls, data, receives, reads)
            responses += result[2]
            found.append(
                (
                    result,
                    [bytes(view) for view, _ in receives],
                    [(read.received, *map(bytes, read.segments)) for read in reads],
                )
            )
        assert found[0] == found[1]
    assert responses > 1000


def tagged(operation: int, offset: int, payload: bytes, last: bool = False, crc: bool = False) -> bytes:
    """An FPDU of a Write or of a Read Response."""
    length = 14 + len(payload)
    kind = length << 48 | (0xC1 if last else 0x81) << 40 | operation << 32 | 77
    data = TAGGED_WORDS.pack_fields(kind, offset) + payload
    return data + trailer(length, crc32c(data) if crc else None)


WRITE, RESPONSE = 0x40, 0x42


def run(calls: ModuleType, data: bytes, memory: bytearray, *, whole: bool = True, crc: bool = False) -> tuple[int, ...]:
    """Place Writes from position 3 of ``memory``, but not in its last 2 bytes."""
    view, room = memoryview(bytearray(b"+++" + data)), memoryview(memory)
    found = calls.run(view, 3, 3 + len(data), room, 3, len(memory) - 2, whole, WRITE, 77, 1000, crc)
    return (found[0] - 3, *found[1:])


def test_a_run_is_placed(calls: ModuleType) -> None:
    memory = bytearray(b"." * 20)
    data = tagged(WRITE, 1000, b"abcde") + tagged(WRITE, 1005, b"fg", last=True)
    assert run(calls, data, memory) == (len(data), 2, 7)
    assert memory == b"...abcdefg.........."


@pytest.mark.parametrize(
    "second",
    [
        tagged(WRITE, 1006, b"fg"),
        tagged(WRITE, 1004, b"fg"),
        tagged(RESPONSE, 1005, b"fg"),
        tagged(WRITE, 1005, b""),
        tagged(WRITE, 1005, b"fghijklmnop"),
        tagged(WRITE, 1005, b"fg", last=True),
        tagged(WRITE, 1005, b"fg")[:-1],
        tagged(WRITE, 1005, b"fg")[:19],
        stream(b"fg"),
        b"\0\x10\x80" + tagged(WRITE, 1005, b"fg")[3:],
    ],
)
def test_a_run_ends_where_it_is_not_obvious(calls: ModuleType, second: bytes) -> None:
    memory = bytearray(b"." * 20)
    first = tagged(WRITE, 1000, b"abcde")
    assert run(calls, first + second, memory, whole=False) == (len(first), 1, 5)
    assert memory == b"...abcde............"


def test_a_run_with_a_wrong_checksum(calls: ModuleType) -> None:
    first, second = (tagged(WRITE, offset, b"abcde", crc=True) for offset in (1000, 1005))
    memory = bytearray(20)
    assert run(calls, first + second, memory, crc=True) == (len(first + second), 2, 10)
    memory = bytearray(20)
    assert run(calls, first + second[:-1] + b"!", memory, crc=True) == (len(first), 1, 5)
    assert memory[8:] == bytes(12)


@pytest.mark.parametrize(
    "place", [(-1, 9, 0, 9), (0, 51, 0, 9), (5, 4, 0, 9), (0, 9, -1, 9), (0, 9, 10, 9), (0, 9, 0, 10)]
)
def test_a_run_outside_of_the_memory(calls: ModuleType, place: tuple[int, int, int, int]) -> None:
    start, tail, position, limit = place
    view, memory = memoryview(bytearray(50)), memoryview(bytearray(9))
    with pytest.raises(ValueError, match="outside"):
        calls.run(view, start, tail, memory, position, limit, True, WRITE, 77, 0, False)


def followed(
    calls: ModuleType, data: bytes, filled: int, most: int, close: bool = False
) -> tuple[object, bytes, bytes]:
    """Follow FPDUs of 100 bytes of payload through a socket, from position 3 of the memory. Return the result, the
    memory and what lies between the payloads."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    memory, between = memoryview(bytearray(b"." * 420)), memoryview(bytearray(20))
    before, behind = MESSAGE[: min(filled, 100)], MESSAGE[100 : max(filled, 100)]
    memory[3 : 3 + len(before)] = before
    between[: len(behind)] = behind
    with ours, theirs:
        theirs.sendall(data)
        if close:
            theirs.shutdown(socket.SHUT_WR)
        kind = 114 << 48 | 0x81 << 40 | WRITE << 32 | 77
        found = calls.follow(ours.fileno(), memory, 3, 100, between, most, kind, 1000, filled)
    return found, bytes(memory), bytes(between)


PAYLOADS = [bytes([65 + number]) * 100 for number in range(4)]
MESSAGE = b"".join(tagged(WRITE, 1000 + 100 * number, payload) for number, payload in enumerate(PAYLOADS))[16:]


def test_fpdus_are_followed(calls: ModuleType) -> None:
    found, memory, between = followed(calls, MESSAGE, 0, 3)
    assert found == (3, 0, False)
    assert memory == b"..." + b"".join(PAYLOADS[:3]) + b"." * 117
    assert between[4:] == tagged(WRITE, 1300, PAYLOADS[3])[:16]


@pytest.mark.parametrize("filled", [0, 1, 99, 100, 101, 119])
@pytest.mark.parametrize("count", [0, 1, 100, 119, 120, 121, 240])
def test_some_has_arrived(calls: ModuleType, filled: int, count: int) -> None:
    """Nothing is received behind what has arrived, and nothing of it is lost."""
    found, memory, _ = followed(calls, MESSAGE[filled : filled + count], filled, 3)
    end = filled + count
    whole = min(end // 120, 3)
    assert found == (whole, end - whole * 120 if whole else count, True)
    assert memory[3 : 3 + 100 * whole] == b"".join(PAYLOADS[:whole])
    assert memory[3 + 100 * whole + 100 :] == b"." * (317 - 100 * whole)


@pytest.mark.parametrize("place", range(16))
def test_another_header_ends_it(calls: ModuleType, place: int) -> None:
    """What lies behind a header that was not expected stays in the socket."""
    data = bytearray(MESSAGE)
    data[120 + 104 + place] ^= 1
    found, memory, _ = followed(calls, bytes(data), 0, 3)
    assert found == (1, 120, False)
    assert memory == b"..." + b"".join(PAYLOADS[:2]) + b"." * 217


def test_the_connection_ends_meanwhile(calls: ModuleType) -> None:
    assert followed(calls, MESSAGE[:130], 0, 3, close=True)[0] == (1, 10, False)
    with pytest.raises(OSError, match="Bad file"):
        calls.follow(-1, memoryview(bytearray(9)), 0, 9, memoryview(bytearray(16)), 1, 0, 0, 0)


@pytest.mark.parametrize(
    "place",
    [(3, 0, 1, 0), (3, -1, 1, 0), (-1, 100, 1, 0), (3, 100, 5, 0), (3, 100, -1, 0), (3, 100, 1, 120), (421, 1, 0, 0)],
)
def test_nothing_to_follow(calls: ModuleType, place: tuple[int, int, int, int]) -> None:
    start, payload, most, filled = place
    with pytest.raises(ValueError):
        calls.follow(0, memoryview(bytearray(420)), start, payload, memoryview(bytearray(20)), most, 0, 0, filled)
    with pytest.raises(ValueError):
        calls.follow(0, memoryview(bytearray(420)), 3, 100, memoryview(bytearray(15)), 1, 0, 0, 0)


# -- what leaves -------------------------------------------------------------------------------------------------------


def write(*segments: Buffer, offset: int = 0, length: int | None = None) -> Write:
    total = sum(memoryview(segment).nbytes for segment in segments)
    return Write(segments, RemoteSegment(0xABCD, offset, total if length is None else length))


def joined(buffers: Sequence[Buffer]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def cut(calls: ModuleType, requests: Sequence[WorkRequest], max_ulpdu: int, most: int) -> list[Buffer]:
    """The buffers of requests that are ordinary."""
    found = calls.cut(KINDS, requests, (), max_ulpdu, 0, 7, 1, most, False)
    assert found is not None
    assert found[1] == len(joined(found[0]))
    buffers: list[Buffer] = found[0]
    return buffers


def test_messages_are_framed(calls: ModuleType) -> None:
    made = cut(calls, [write(b"abcd", offset=0x10), Send([b"he", memoryview(b"llo")])], 128, 100)
    assert made == [
        bytes.fromhex("0012 c140 0000abcd 0000000000000010") + b"abcd" + bytes(4)
        + bytes.fromhex("0017 4143 00000000 00000000 00000007 00000000") + b"hello" + bytes(7)
    ]  # fmt: skip


def test_read_requests_are_framed(calls: ModuleType) -> None:
    read = Read([memoryview(bytearray(4))], RemoteSegment(0xABCD, 0x20, 4))
    found = calls.cut(
        KINDS, [read, Send([b"a"], None, 9), read], [reading(5, 4), reading(6, 4, 7)], 128, 0, 1, 2, 0, False
    )
    assert found == (
        [
            bytes.fromhex("002e 4141 00000000 00000001 00000002 00000000")
            + bytes.fromhex("00000005 0000000000000000 00000004 0000abcd 0000000000000020") + bytes(4)
            + bytes.fromhex("0013 4144 00000009 00000000 00000001 00000000"),
            b"a",
            bytes(7) + bytes.fromhex("002e 4141 00000000 00000001 00000003 00000000")
            + bytes.fromhex("00000006 0000000000000007 00000004 0000abcd 0000000000000020") + bytes(4),
        ],
        52 + 28 + 52, 3, 1, 1, 0,
    )  # fmt: skip


def test_long_writes_are_cut(calls: ModuleType) -> None:
    made = cut(calls, [write(bytes(range(100)), b"", bytes(range(100, 150)), offset=1)], 128, 8192)
    assert made == [
        bytes.fromhex("0080 8140 0000abcd 0000000000000001") + bytes(range(114)) + bytes(6)
        + bytes.fromhex("0032 c140 0000abcd 0000000000000073") + bytes(range(114, 150)) + bytes(4)
    ]  # fmt: skip


def test_responses_are_cut_as_writes_are(calls: ModuleType) -> None:
    data = bytes(range(150))
    made = cut(calls, [write(data, offset=1)], 128, 8192)
    found = calls.cut(KINDS, [Response(0xABCD, 1, None, memoryview(data))], (), 128, 0, 7, 1, 8192, False)
    assert found is not None
    expected = bytearray(made[0])
    expected[3] = expected[136 + 3] = RESPONSE
    assert joined(found[0]) == expected
    assert found[1:] == (len(expected), 2, 0, 0, 150)


def test_checksums_are_made(calls: ModuleType) -> None:
    requests = [write(bytes(range(100)), b"", bytes(range(100, 151)), offset=1), Send([b"he", memoryview(b"llo")])]
    for most in (0, 8192):
        found = calls.cut(KINDS, requests, (), 128, 0, 7, 1, most, True)
        data, start = joined(found[0]), 0
        for _ in range(3):
            end = start + ((data[start] << 8 | data[start + 1]) + 9 & ~3)
            assert is_intact(memoryview(data), start, end)
            start = end
        assert start == len(data)


def test_much_is_not_copied(calls: ModuleType) -> None:
    memory = bytearray(random.Random(1).randbytes(300))
    made = cut(calls, [write(memoryview(memory)[10:290])], 200, 100)
    assert [len(buffer) for buffer in made] == [16, 186, 6 + 16 + 94 + 6]
    assert isinstance(made[1], memoryview)
    assert made[1].obj is memory


def test_offsets_wrap(calls: ModuleType) -> None:
    """The descriptor has been checked before; the arithmetic is that of 64 bits all the same."""
    made = joined(cut(calls, [write(bytes(120), offset=0xFFFFFFFFFFFFFFFF)], 128, 999))
    assert made[8:16] == b"\xff" * 8
    assert made[136 + 8 : 136 + 16] == (113).to_bytes(8, "big")


@pytest.mark.parametrize(
    "request_",
    [
        write(b"abc", length=4),
        write(b"abc", length=2),
        write(*[bytes(1)] * 65),
        Send([bytes(111)]),
        Send([b"a"] * 65),
        write(memoryview(bytes(8)).cast("I")),
        write(memoryview(bytes(8)).cast("I"), length=2),
        write(memoryview(bytes(8)).cast("B", (2, 4))),
        write(memoryview(bytes(8))[::2]),
        write(bytes(1 << 20), bytes(1 << 17)),
        write(bytes(40_000)),
        Atomic([memoryview(bytearray(8))], RemoteSegment(1, 0, 8)),
        Read([memoryview(bytearray(8))], RemoteSegment(1, 0, 9)),
        Read([memoryview(bytearray(9))], RemoteSegment(1, 0, 8)),
        Read([memoryview(bytearray(4))] * 2, RemoteSegment(1, 0, 8)),
        Read([memoryview(bytes(8))], RemoteSegment(1, 0, 8)),
        Read([bytearray(8)], RemoteSegment(1, 0, 8)),  # type: ignore[list-item]
        Read([memoryview(bytearray(8)).cast("b")], RemoteSegment(1, 0, 8)),
        Read([memoryview(bytearray(16))[::2]], RemoteSegment(1, 0, 8)),
    ],
)
def test_what_is_unusual_is_left_alone(calls: ModuleType, request_: WorkRequest) -> None:
    assert calls.cut(KINDS, [write(b"ok"), request_], [reading(1, 8)], 128, 0, 1, 1, 50, False) is None


@pytest.mark.parametrize("limits", [(-1, 0, 0), (65536, 0, 0), (128, -1, 0), (128, 0, -1)])
def test_lengths_that_cannot_be(calls: ModuleType, limits: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError):
        calls.cut(KINDS, [write(b"ok")], (), limits[0], limits[1], 1, 1, limits[2], False)


@pytest.mark.parametrize("max_ulpdu", [0, 14, 18, 45])
def test_no_room_for_a_header(calls: ModuleType, max_ulpdu: int) -> None:
    read = Read([memoryview(bytearray(4))], RemoteSegment(1, 2, 4))
    assert calls.cut(KINDS, [read], [reading(1, 4)], max_ulpdu, 0, 1, 1, 0, False) is None
    assert (calls.cut(KINDS, [write(b"abc")], (), max_ulpdu, 0, 1, 1, 0, False) is None) is (max_ulpdu <= 14)


def test_both_cut_the_same() -> None:
    chance, c = random.Random(9), c_calls()
    ordinary = 0
    for _ in range(2000):
        requests = a_chain(chance) if chance.random() < 0.9 else []
        reads = [read_of(request) for request in requests if isinstance(request, Read)]
        limits = chance.choice([128, 500, 1442, 65520]), chance.choice([0, 460, 1448])
        arguments = (KINDS, requests, reads, *limits, chance.getrandbits(32), chance.getrandbits(32))
        rest = chance.choice([0, 50, 8192]), chance.random() < 0.5
        expected, made = frame_calls.cut(*arguments, *rest), c.cut(*arguments, *rest)
        assert (made is None) is (expected is None)
        if made is not None and expected is not None:
            assert made[1:] == expected[1:]
            assert list(map(bytes, made[0])) == list(map(bytes, expected[0]))
            assert list(map(type, made[0])) == list(map(type, expected[0]))
            ordinary += 1
    assert ordinary > 500


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
            remote, many = remote._replace(length=len(pieces[0])), chance.random() < 0.2
            requests.append(Read([memoryview(piece) for piece in (pieces if many else pieces[:1])], remote))
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


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("limits", [(1442, 1448), (65520, 0), (65520, 65483), (456, 460)])
def test_a_chain_is_what_the_queue_sends(limits: tuple[int, int], crc: bool) -> None:
    """Whatever the lane of chains takes has the bytes of the general way, also if it goes out in pieces."""
    chance = random.Random(limits[0])
    taken = 0
    for turn in range(300):
        senders = [Sender(limits[0], crc, 3, deque()) for _ in range(2)]
        for sender in senders:
            sender.open, sender.segment = True, limits[1]
        lane, general = senders
        expected = found = b""
        for _ in range(2):
            requests = a_chain(chance)
            general.work.extend(map(work, requests))
            expected += sent_by(general, random.Random(turn))
            begun = [read_of(request) for request in requests if isinstance(request, Read)]
            chain = lane.chain(requests, begun)
            if chain is None:
                lane.work.extend(map(work, requests))
                found += sent_by(lane, random.Random(turn))
                continue
            taken += 1
            whole = joined(chain[0])
            count = chance.choice([0, len(whole), chance.randrange(len(whole))])
            found += whole[:count]
            assert chain[1] == len(whole)
            if count < len(whole):
                reads = iter(begun)
                works = [next(reads).owner if type(request) is Read else work(request) for request in requests]
                lane.chain_waits(*chain, [made for made in works if isinstance(made, Work)], count)
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
        reads = [read_of(request) for request in requests if isinstance(request, Read)]
        found = sender.chain(requests, reads) is not None
        assert found or sender.idle is before
        return found

    assert taken(send, Write([b"abcd"], remote), Read([memoryview(bytearray(4))], remote))
    assert not taken()
    assert taken(send, crc=True)
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


def _cut(request: Read) -> Sequence[Buffer]:
    sender = Sender(1442, False, 1, deque())
    sender.open = True
    found = sender.chain([request], [read_of(request)])
    assert found is not None
    return found[0]
