"""Direct TCP framing: a zero byte and a 24-bit length before each message. [MS-SMB2 2.1]"""

from __future__ import annotations

from typing import NamedTuple

from smb3server.tools.pcap.rdma import Problem
from smb3server.tools.pcap.tcp import Conversation, Direction


class UpperMessage(NamedTuple):
    """One message of the upper layer, whichever transport carried it."""

    number: int
    time: float
    direction: Direction
    data: bytes


def read_direct_tcp(conversation: Conversation) -> tuple[list[UpperMessage], list[Problem]]:
    """Return the messages of both directions, in order, and the problems of the framing."""
    messages: list[UpperMessage] = []
    problems: list[Problem] = []
    buffers = {direction: bytearray() for direction in Direction}
    broken: set[Direction] = set()
    for chunk in conversation.chunks:
        if chunk.direction in broken:
            continue
        buffer = buffers[chunk.direction]
        buffer += chunk.data
        while len(buffer) >= 4:
            if buffer[0]:
                problems.append(Problem(chunk.number, "MS-SMB2 2.1", f"frame starts with {buffer[0]:#x}"))
                broken.add(chunk.direction)
                break
            end = 4 + int.from_bytes(buffer[1:4], "big")
            if len(buffer) < end:
                break
            messages.append(UpperMessage(chunk.number, chunk.time, chunk.direction, bytes(buffer[4:end])))
            del buffer[:end]
    return messages, problems
