"""Faults of compressed messages. [MS-SMB2 2.2.42, 3.1.4.4]"""

from __future__ import annotations

import struct

from smb3server.lab.pcap.smb2 import NEGOTIATE
from smb3server.lab.pcap.tcp import Direction
from tests.lab.hostile_captures.over_tcp import BODY, Message, TcpSession
from tests.lab.hostile_captures.table import COMPRESSED, over_tcp

SIZE_AT, ALGORITHM_AT, FLAGS_AT, OFFSET_AT, HEADER = 4, 8, 10, 12, 16
LZ77_HUFFMAN, LZ4 = 3, 5


def _compressed(session: TcpSession) -> Message:
    """The first compressed message, which is the last of the session."""
    message = next(m for m in session.messages if m.data[:4] == b"\xfcSMB")
    session.end_after(message)
    return message


def _choice(session: TcpSession) -> tuple[Message, int]:
    """The server's NEGOTIATE response, and where the algorithm is that it chooses."""
    response = next(m for m in session.messages if m.direction is Direction.TO_CLIENT and m.command == NEGOTIATE)
    at = response.get("<I", BODY + 60)
    while response.get("<H", at) != 3:
        at += 8 + (response.get("<H", at + 2) + 7 & ~7)
    return response, at + 16


@over_tcp("smb2.compression", "client", COMPRESSED)
def offset_behind_the_end(session: TcpSession) -> None:
    message = _compressed(session)
    message.put("<I", OFFSET_AT, len(message.data) - HEADER + 1)


@over_tcp("smb2.compression-negotiated", "client", COMPRESSED)
def another_algorithm(session: TcpSession) -> None:
    _compressed(session).put("<H", ALGORITHM_AT, LZ77_HUFFMAN)


@over_tcp("smb2.compression-size", "client", COMPRESSED)
def chain_shorter_than_declared(session: TcpSession) -> None:
    """A chain of one payload as it is, of one byte less than the header says."""
    response, at = _choice(session)
    # Chains are agreed upon, as well as LZ77.
    response.put("<I", at - 4, 1)
    message = _compressed(session)
    plain = bytes(message.data[HEADER : HEADER + 112])
    message.data[:] = struct.pack("<4sIHHI", b"\xfcSMB", len(plain) + 1, 0, 1, len(plain)) + plain


@over_tcp("smb2.decompression", "client", COMPRESSED)
def match_before_the_beginning(session: TcpSession) -> None:
    """The first item of the compressed data is a match, with nothing before it."""
    message = _compressed(session)
    message.put("<I", HEADER + 112, 0x80000000)


@over_tcp("smb2.compression-choice", "server", COMPRESSED)
def what_was_not_offered(session: TcpSession) -> None:
    response, at = _choice(session)
    response.put("<H", at, LZ4)
    session.end_after(response)
