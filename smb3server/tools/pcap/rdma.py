"""The output of every fabric's reader: whole RDMA messages in the order in which they became complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from smb3server.tools.pcap.packets import Address
from smb3server.tools.pcap.tcp import Chunk, Direction


class Kind(Enum):
    """The kinds of RDMA messages."""

    SEND = "Send"
    WRITE = "RDMA Write"
    READ_REQUEST = "RDMA Read Request"
    READ_RESPONSE = "RDMA Read Response"
    TERMINATE = "Terminate"


class RdmaMessage(NamedTuple):
    """One whole RDMA message."""

    number: int
    """Frame in which the message became complete."""
    time: float
    direction: Direction
    kind: Kind
    payload: bytes
    token: int = 0
    """STag or rkey: the peer's (Write), the source's (Read Request), the sink's (Read Response)."""
    address: int = 0
    length: int = 0
    """Bytes placed, requested or sent."""
    invalidated: int | None = None
    """Token that a Send with Invalidate names."""


class Problem(NamedTuple):
    """A violation of the specification on the wire, or a loss in the capture."""

    number: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"frame {self.number}: {self.text} [{self.rule}]"


@dataclass
class Wire:
    """One connection as seen on the fabric."""

    fabric: str
    client: Address
    server: Address
    messages: list[RdmaMessage] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    properties: dict[str, object] = field(default_factory=dict)
    """Connection set-up: private data, CRC, IRD/ORD, queue pair numbers."""
    frames: list[Chunk] = field(default_factory=list)
    """iWARP: the MPA request, the reply, and each FPDU, whole."""

    def problem(self, number: int, rule: str, text: str) -> None:
        """Add a problem in frame ``number``; ``rule`` is the section that it breaks."""
        self.problems.append(Problem(number, rule, text))
