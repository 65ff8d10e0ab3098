"""The SMB2 messages of a real session, to be changed and framed for TCP again."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from smb3server.lab.pcap.direct_tcp import UpperMessage
from smb3server.lab.pcap.judge import judge_capture
from smb3server.lab.pcap.rewrite import TcpStream, rewrite
from smb3server.lab.pcap.tcp import Chunk, Direction
from tests.lab.captures import FOLDER

CLIENT, SERVER = ("10.1.0.2", 40000), ("10.1.0.1", 445)
FLAGS_AT, NEXT_AT, MESSAGE_ID_AT, TREE_ID_AT, SESSION_ID_AT, SIGNATURE_AT, BODY = 16, 20, 24, 36, 40, 48, 64


@cache
def _messages(name: str) -> tuple[UpperMessage, ...]:
    judged = judge_capture(str(FOLDER / f"{name}.pcap"), record=True)
    return tuple(max((connection.upper for connection in judged.connections), key=len))


@dataclass
class Message:
    """One message: ``data`` may be changed. ``frame`` is its first byte over TCP."""

    direction: Direction
    time: float
    data: bytearray
    frame: int = 0

    def get(self, layout: str, at: int) -> int:
        value: int = struct.unpack_from(layout, self.data, at)[0]
        return value

    def put(self, layout: str, at: int, value: int) -> None:
        struct.pack_into(layout, self.data, at, value)

    @property
    def command(self) -> int:
        return self.get("<H", 12) if self.data[:4] == b"\xfeSMB" else -1

    @property
    def message_id(self) -> int:
        return self.get("<Q", MESSAGE_ID_AT)

    def copy(self) -> Message:
        return Message(self.direction, self.time, bytearray(self.data), self.frame)


class TcpSession:
    """A session as messages."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    @classmethod
    def of(cls, name: str) -> TcpSession:
        return cls([Message(m.direction, m.time, bytearray(m.data)) for m in _messages(name)])

    def request(self, command: int, longer_than: int = 0) -> Message:
        """The first request that begins with ``command``, and whose Length is so large if it has one."""
        return next(
            m
            for m in self.messages
            if m.direction is Direction.TO_SERVER
            and m.command == command
            and (not longer_than or m.get("<I", BODY + 4) > longer_than)
        )

    def response_to(self, request: Message) -> Message:
        """The message with the response to ``request``."""
        return next(
            m
            for m in self.messages
            if m.direction is Direction.TO_CLIENT and m.command >= 0 and m.message_id == request.message_id
        )

    def end_after(self, message: Message) -> None:
        """Drop all messages behind ``message``: the fault is the last thing that happens."""
        del self.messages[self.place(message) + 1 :]

    def place(self, message: Message) -> int:
        """Where ``message`` is."""
        return next(at for at, one in enumerate(self.messages) if one is message)

    def chunks(self) -> list[Chunk]:
        """The bytes on the wire, message by message."""
        return [
            Chunk(0, m.time, m.direction, bytes((m.frame,)) + len(m.data).to_bytes(3, "big") + bytes(m.data))
            for m in self.messages
        ]

    def stream(self, port: int = CLIENT[1]) -> TcpStream:
        """The connection, from a port of the client."""
        return TcpStream((CLIENT[0], port), SERVER, self.chunks())

    def write(self, path: Path) -> None:
        rewrite([self.stream()], path)
