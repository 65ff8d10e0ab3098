"""Captures that are not whole: nobody is accused of what the capture does not have."""

from __future__ import annotations

import random

import pytest

from smb3server.lab.pcap.capture import Frame
from smb3server.lab.pcap.direct_tcp import DirectTcpReader
from smb3server.lab.pcap.judge import Judge
from smb3server.lab.pcap.packets import TcpSegment
from smb3server.lab.pcap.tcp import Chunk, Conversation, Reassembler
from smb3server.lab.pcap.verdicts import Verdicts
from tests.lab.captures import CAPTURES
from tests.lab.made_captures import frames_of
from tools.kernel_lab.judge import lab_secrets

CLIENT, SERVER = ("10.0.0.2", 40000), ("10.0.0.1", 5445)
FIN, SYN, RST, ACK = 1, 2, 4, 0x10


def judged(frames: list[Frame]) -> Judge:
    """Frames, judged with the lab's password."""
    judge = Judge(lab_secrets())
    for frame in frames:
        judge.add(frame)
    judge.finish()
    return judge


@pytest.mark.parametrize("name", CAPTURES)
def test_captures_that_begin_late(name: str) -> None:
    frames = frames_of(name)
    for start in range(7, len(frames), max(len(frames) // 8, 1)):
        assert judged(frames[start:]).breaches == []


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("size", [60, 96, 128, 200, 262])
def test_truncated_frames(name: str, size: int) -> None:
    found = judged([frame._replace(data=frame.data[:size]) for frame in frames_of(name)])
    assert found.breaches == []
    assert found.gaps


def test_rdma_of_truncated_frames_is_still_counted() -> None:
    """256 bytes are enough for the headers of all layers."""
    found = judged([frame._replace(data=frame.data[:256]) for frame in frames_of("linux612-siw-ksmbd-mtu1500")])
    sums = found.connections[0].counters
    assert (sums.rdma_read_bytes, sums.rdma_write_bytes, sums.invalidations) == (300_000, 300_000, 3)


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("seed", range(3))
def test_lost_frames(name: str, seed: int) -> None:
    chance = random.Random(seed)
    assert judged([frame for frame in frames_of(name) if chance.random() > 0.01]).breaches == []


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("seed", range(3))
def test_swapped_and_repeated_frames(name: str, seed: int) -> None:
    chance = random.Random(seed)
    frames: list[Frame] = []
    for frame in frames_of(name):
        frames.insert(len(frames) - (chance.random() < 0.05), frame)
        if chance.random() < 0.05:
            frames.append(frame)
    whole, found = judged(frames_of(name)), judged(frames)
    assert found.breaches == []
    assert [one.messages for one in found.connections] == [one.messages for one in whole.connections]


# -- TCP ------------------------------------------------------------------------------------------------------------


def reassembled(segments: list[TcpSegment]) -> tuple[Conversation, list[Chunk]]:
    """The conversation of ``segments``, and its chunks."""
    conversations: list[Conversation] = []
    chunks: list[Chunk] = []

    def begun(conversation: Conversation) -> None:
        conversations.append(conversation)
        conversation.receive = chunks.append

    reassembler = Reassembler(begun)
    for segment in segments:
        reassembler.add(segment)
    reassembler.finish()
    (conversation,) = conversations
    return conversation, chunks


@pytest.mark.parametrize("seed", range(20))
def test_reordered_and_repeated_segments(seed: int) -> None:
    chance = random.Random(seed)
    text = bytes(chance.randrange(256) for _ in range(3000))
    start = 0xFFFFFFF0  # wraps
    pieces = []
    at = 0
    while at < len(text):
        size = chance.randrange(1, 200)
        pieces.append((at, text[at : at + size]))
        if chance.random() < 0.2:  # a retransmission with other boundaries
            back = max(0, at - chance.randrange(100))
            pieces.append((back, text[back : at + size // 2]))
        at += size
    for index in range(len(pieces) - 3):
        if chance.random() < 0.3:
            other = index + chance.randrange(1, 4)
            pieces[index], pieces[other] = pieces[other], pieces[index]
    segments = [TcpSegment(0, 0.0, CLIENT, SERVER, start - 1, SYN, b"")]
    segments += [
        TcpSegment(number, 0.0, CLIENT, SERVER, (start + offset) & 0xFFFFFFFF, ACK, data)
        for number, (offset, data) in enumerate(pieces)
    ]
    conversation, chunks = reassembled(segments)
    assert b"".join(chunk.data for chunk in chunks) == text
    assert all(chunk.known for chunk in chunks)
    assert conversation.missing == 0


def test_a_gap_is_a_hole_of_its_size() -> None:
    segments = [
        TcpSegment(1, 0.0, CLIENT, SERVER, 99, SYN, b""),
        TcpSegment(2, 0.0, CLIENT, SERVER, 100, ACK, b"abcd"),
        TcpSegment(3, 0.0, CLIENT, SERVER, 107, ACK, b"hi", lost=2),
        TcpSegment(4, 0.0, CLIENT, SERVER, 111, ACK, b"l"),
    ]
    conversation, chunks = reassembled(segments)
    assert [(chunk.data, chunk.known) for chunk in chunks] == [
        (b"abcd", True),
        (bytes(3), False),
        (b"hi", True),
        (bytes(2), False),
        (b"l", True),
    ]
    assert conversation.missing == 5


def test_an_answer_comes_after_what_it_acknowledges() -> None:
    segments = [
        TcpSegment(1, 0.0, CLIENT, SERVER, 99, SYN, b""),
        TcpSegment(2, 0.0, SERVER, CLIENT, 499, SYN | ACK, b"", acknowledged=100),
        TcpSegment(3, 0.0, SERVER, CLIENT, 500, ACK, b"answer", acknowledged=107),
        TcpSegment(4, 0.0, CLIENT, SERVER, 100, ACK, b"request", acknowledged=500),
    ]
    _, chunks = reassembled(segments)
    assert [chunk.data for chunk in chunks] == [b"request", b"answer"]
    _, chunks = reassembled(segments[:3])
    assert [(chunk.data, chunk.known) for chunk in chunks] == [(bytes(7), False), (b"answer", True)]


@pytest.mark.parametrize(
    ("ending", "missed"),
    [
        (None, True),
        (TcpSegment(3, 0.0, SERVER, CLIENT, 500, FIN | ACK, b"", acknowledged=154), True),
        (TcpSegment(3, 0.0, CLIENT, SERVER, 154, RST, b""), True),
        (TcpSegment(3, 0.0, SERVER, CLIENT, 500, RST, b""), False),
    ],
    ids=["the capture ends", "the server ends", "the client resets", "the server resets"],
)
def test_half_a_message_is_missed_unless_its_receiver_reset_the_connection(
    ending: TcpSegment | None, missed: bool
) -> None:
    """A server that is killed resets the connections whose messages it has not read."""
    segments = [
        TcpSegment(1, 0.0, CLIENT, SERVER, 99, SYN, b""),
        TcpSegment(2, 0.0, CLIENT, SERVER, 100, ACK, b"\0\0\0\x64" + bytes(50)),
    ]
    conversation, chunks = reassembled(segments if ending is None else [*segments, ending])
    found: list[object] = []
    reader = DirectTcpReader(Verdicts(1, found.append), True, found.append, lambda direction, number: None)
    for chunk in chunks:
        reader.receive(chunk)
    reader.finish(2, conversation.refused)
    assert [str(one) for one in found] == ["frame 2: not judged: 54 bytes -> are no whole message"] * missed
