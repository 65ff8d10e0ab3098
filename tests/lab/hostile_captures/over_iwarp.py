"""The RDMA messages of a real session, to be changed and made FPDUs again, with CRCs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from crc32c import crc32c

from smb3server.lab.pcap.judge import judge_capture
from smb3server.lab.pcap.rdma import Kind, RdmaMessage
from smb3server.lab.pcap.rewrite import TcpStream, rewrite
from smb3server.lab.pcap.tcp import Chunk, Direction
from tests.lab.captures import FOLDER

CLIENT, SERVER = ("10.2.0.2", 40000), ("10.2.0.1", 5445)
_LARGEST = 60000
_SMBD_HEADER = 24
UP, DOWN = Direction.TO_SERVER, Direction.TO_CLIENT


@cache
def _recorded(name: str) -> tuple[tuple[Chunk, ...], tuple[RdmaMessage, ...]]:
    (connection,) = judge_capture(str(FOLDER / f"{name}.pcap"), record=True).connections
    assert connection.wire is not None
    return tuple(connection.wire.frames[:2]), tuple(connection.wire.messages)


@dataclass
class Step:
    """One RDMA message: everything of it may be changed.

    ``tweak`` changes the ULPDU with its length in front, before the CRC is computed; ``crc`` is added to that.
    """

    direction: Direction
    time: float
    kind: Kind
    payload: bytearray
    token: int = 0
    address: int = 0
    invalidated: int | None = None
    tweak: Callable[[bytearray], None] | None = None
    crc: int = 0

    def get(self, layout: str, at: int) -> int:
        value: int = struct.unpack_from(layout, self.payload, at)[0]
        return value

    def put(self, layout: str, at: int, value: int) -> None:
        struct.pack_into(layout, self.payload, at, value)

    @property
    def command(self) -> int:
        """Command of the SMB2 message that begins in it; -1 if none does."""
        begins = self.kind is Kind.SEND and self.payload[_SMBD_HEADER : _SMBD_HEADER + 4] == b"\xfeSMB"
        return self.get("<H", _SMBD_HEADER + 12) if begins else -1

    def copy(self) -> Step:
        return Step(
            self.direction, self.time, self.kind, bytearray(self.payload), self.token, self.address, self.invalidated
        )


def empty(direction: Direction, time: float, granted: int = 1, flags: int = 0, remaining: int = 0) -> Step:
    """A data transfer message without data. [MS-SMBD 2.2.3]"""
    header = struct.pack("<HHHHIII", 255, granted, flags, 0, remaining, 0, 0)
    return Step(direction, time, Kind.SEND, bytearray(header))


class IwarpSession:
    """A session as MPA frames and RDMA messages."""

    def __init__(self, set_up: list[Chunk], steps: list[Step]) -> None:
        self.set_up = [bytearray(chunk.data) for chunk in set_up]
        self.set_up[1][16] |= 0x40  # The CRC is on.
        self.steps = steps

    @classmethod
    def of(cls, name: str) -> IwarpSession:
        set_up, messages = _recorded(name)
        return cls(
            list(set_up),
            [
                Step(m.direction, m.time, m.kind, bytearray(m.payload), m.token, m.address, m.invalidated)
                for m in messages
            ],
        )

    def send(self, direction: Direction, nth: int = 0) -> Step:
        """The nth Send of a direction. The first one negotiates."""
        return [s for s in self.steps if s.direction is direction and s.kind is Kind.SEND][nth]

    def request(self, command: int, by_rdma: bool = False) -> Step:
        """The first request of ``command``, and the first with a channel if ``by_rdma``."""
        channel_at = _SMBD_HEADER + 64 + (36 if command == 8 else 32)
        return next(
            s
            for s in self.steps
            if s.direction is UP and s.command == command and (not by_rdma or s.get("<I", channel_at))
        )

    def response_to(self, request: Step) -> Step:
        """The Send with the response to ``request``."""
        message_id = request.get("<Q", _SMBD_HEADER + 24)
        return next(
            s
            for s in self.steps
            if s.direction is DOWN and s.command >= 0 and s.get("<Q", _SMBD_HEADER + 24) == message_id
        )

    def first(self, kind: Kind) -> Step:
        """The first message of a kind."""
        return next(step for step in self.steps if step.kind is kind)

    def place(self, step: Step) -> int:
        """Where ``step`` is."""
        return next(at for at, one in enumerate(self.steps) if one is step)

    def end_after(self, step: Step) -> None:
        """Drop everything behind ``step``: the fault is the last thing that happens."""
        del self.steps[self.place(step) + 1 :]

    def end_with(self, *steps: Step) -> None:
        """Add ``steps`` at the end."""
        self.steps += steps

    def chunks(self) -> list[Chunk]:
        """The bytes on the wire: MPA frames and FPDUs."""
        encoder = _Encoder()
        start = self.steps[0].time
        found = [Chunk(0, start, way, bytes(data)) for way, data in zip((UP, DOWN), self.set_up, strict=True)]
        for step in self.steps:
            found += [Chunk(0, step.time, step.direction, fpdu) for fpdu in encoder.encode(step)]
        return found

    def stream(self, port: int = CLIENT[1]) -> TcpStream:
        """The connection, from a port of the client."""
        return TcpStream((CLIENT[0], port), SERVER, self.chunks())

    def write(self, path: Path) -> None:
        rewrite([self.stream()], path)


class _Encoder:
    """Makes FPDUs, with all sequence numbers right. [RFC 5040, 5041, 5044]"""

    def __init__(self) -> None:
        self._next: dict[tuple[Direction, int], int] = {}
        self._sinks: list[int] = []

    def encode(self, step: Step) -> list[bytes]:
        if step.kind is Kind.WRITE:
            return self._tagged(step, 0, step.token, step.address)
        if step.kind is Kind.READ_RESPONSE:
            return self._tagged(step, 2, self._sinks.pop(0), 0)
        if step.kind is Kind.READ_REQUEST:
            self._sinks.append(int.from_bytes(step.payload[:4], "big"))
            return [self._untagged(step, 1, 1)]
        if step.kind is Kind.TERMINATE:
            return [self._untagged(step, 2, 7)]
        return [self._untagged(step, 0, 3 if step.invalidated is None else 4)]

    def _untagged(self, step: Step, queue: int, opcode: int) -> bytes:
        number = self._next.get((step.direction, queue), 1)
        self._next[step.direction, queue] = number + 1
        header = struct.pack("!BBIIII", 0x41, 0x40 | opcode, step.invalidated or 0, queue, number, 0)
        return self._fpdu(step, header + step.payload)

    def _tagged(self, step: Step, opcode: int, token: int, address: int) -> list[bytes]:
        pieces = range(0, max(len(step.payload), 1), _LARGEST)
        return [
            self._fpdu(
                step,
                struct.pack("!BBIQ", 0xC1 if at == pieces[-1] else 0x81, 0x40 | opcode, token, address + at)
                + step.payload[at : at + _LARGEST],
            )
            for at in pieces
        ]

    @staticmethod
    def _fpdu(step: Step, ulpdu: bytes) -> bytes:
        data = bytearray(struct.pack("!H", len(ulpdu)) + ulpdu)
        if step.tweak is not None:
            step.tweak(data)
        data += bytes(-len(data) % 4)
        return bytes(data) + struct.pack("<I", crc32c(bytes(data)) + step.crc & 0xFFFFFFFF)
