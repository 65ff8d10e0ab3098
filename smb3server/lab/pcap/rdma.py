"""The output of every fabric's reader: whole RDMA messages in the order in which they became complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from smb3server.lab.pcap.packets import Address
from smb3server.lab.pcap.tcp import Chunk, Direction
from smb3server.lab.pcap.verdicts import Verdicts


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
    """STag or rkey: the peer's (Write), the source's (Read Request)."""
    address: int = 0
    length: int = 0
    """Bytes placed, requested or sent."""
    invalidated: int | None = None
    """Token that a Send with Invalidate names."""
    known: int = -1
    """Bytes of the payload up to the first that was not captured; -1: all."""

    @property
    def whole(self) -> bool:
        """Whether all of the payload was captured."""
        return self.known < 0


class RdmaRequest(NamedTuple):
    """An RDMA Read that waits for its data."""

    number: int
    sink: int
    """Token of the memory that the data goes to; 0 on InfiniBand, where PSNs tell."""
    length: int


Forward = Callable[[RdmaMessage], None]
Lost = Callable[[Direction, int], None]


@dataclass
class Wire:
    """One connection as seen on the fabric."""

    fabric: str
    client: Address
    server: Address
    verdicts: Verdicts
    forward: Forward = lambda message: None
    """Takes each message. Set by the layer above."""
    lost: Lost = lambda direction, number: None
    """Called when messages of a direction were not captured. Set by the layer above."""
    properties: dict[str, object] = field(default_factory=dict)
    """Connection set-up: private data, CRC, IRD/ORD, queue pair numbers."""
    saw_start: bool = True
    """Whether the capture has the set-up of the connection."""
    record: bool = False
    """Whether to keep ``messages`` and ``frames``, for those who look at them afterwards."""
    messages: list[RdmaMessage] = field(default_factory=list)
    frames: list[Chunk] = field(default_factory=list)
    """iWARP: the MPA request, the reply, and each FPDU, whole."""
    counts: dict[str, int] = field(default_factory=dict)
    """Packets repeated, refused, and lost."""

    def deliver(self, message: RdmaMessage) -> None:
        """Hand up a message."""
        if self.record:
            self.messages.append(message)
        self.forward(message)

    def count(self, name: str) -> None:
        """Count an event that breaks no rule."""
        self.counts[name] = self.counts.get(name, 0) + 1
