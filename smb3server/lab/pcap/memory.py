"""The client's memory: what its requests offer to RDMA, what was moved, and which tokens are dead."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from smb3server.lab.pcap import rules
from smb3server.lab.pcap.rdma import Kind, RdmaMessage
from smb3server.lab.pcap.smb2 import CHANNEL_RDMA_V1_INVALIDATE, READ, Descriptor
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Verdicts

_OPERATIONS_KEPT = 64
"""Frames of RDMA operations that an offer names."""
_DEAD_KEPT = 4096
"""Tokens that are remembered after their requests: memory stays bounded."""


@dataclass
class Offer:
    """The buffer descriptors of one request."""

    number: int
    """Frame of the request."""
    command: int
    channel: int
    descriptors: tuple[Descriptor, ...]
    moved: int = 0
    """Bytes written, or read and arrived."""
    operations: list[int] = field(default_factory=list)
    """Frames of the first RDMA Writes and Read Responses."""
    operation_count: int = 0
    data: bytearray | None = None
    """What moved, if it is asked for later."""
    cut: bool = False
    """Whether some of ``data`` was not captured."""

    @property
    def invalidating(self) -> bool:
        """Whether the client asks for the invalidation of its token."""
        return self.channel == CHANNEL_RDMA_V1_INVALIDATE

    def move(self, message: RdmaMessage, token: int, address: int) -> None:
        """Note that a message has moved its payload to or from ``address``."""
        self.moved += message.length
        if len(self.operations) < _OPERATIONS_KEPT:
            self.operations.append(message.number)
        self.operation_count += 1
        if self.data is None:
            return
        self.cut |= not message.whole
        start = 0
        for one in self.descriptors:
            if one.token == token and one.offset <= address <= one.offset + one.length:
                at = start + address - one.offset
                self.data[at : at + message.length] = message.payload
                return
            start += one.length

    def payload(self, size: int) -> bytearray | None:
        """Return the first ``size`` bytes that moved; None if not all of them were captured."""
        whole = self.data is not None and not self.cut and self.moved >= size
        return self.data[:size] if whole and self.data is not None else None


@dataclass
class _Dead:
    """Why a token must not be used any more."""

    number: int
    invalidated: bool


class ClientMemory:
    """Judges RDMA Reads and Writes of one connection by what the client's requests offer."""

    def __init__(self, verdicts: Verdicts) -> None:
        self._verdicts = verdicts
        self._live: dict[int, Offer] = {}
        self._dead: OrderedDict[int, _Dead] = OrderedDict()
        self._reads: deque[tuple[Offer | None, int, int]] = deque()
        """What the outstanding RDMA Reads are for, in order, with token and address."""
        self.blind = False
        """Whether there are requests that could not be read, so that unknown tokens may be theirs."""
        self.written = self.read = 0
        """Bytes by RDMA Write, and by RDMA Read."""
        self.invalidations = 0

    def offer(self, offer: Offer) -> None:
        """Note what a request offers."""
        for descriptor in offer.descriptors:
            self._live[descriptor.token] = offer
            self._dead.pop(descriptor.token, None)

    def operation(self, message: RdmaMessage) -> None:
        """Judge an RDMA Write, Read Request or Read Response."""
        if message.kind is Kind.READ_RESPONSE:
            self.read += message.length
            offer, token, address = self._reads.popleft() if self._reads else (None, 0, 0)
            if offer is not None:
                offer.move(message, token, address)
            return
        way = message.direction
        kept = way is Direction.TO_CLIENT
        self._verdicts.check(rules.RDMA_DIRECTION, kept, message.number, way, "{} by the client", message.kind.value)
        offer = self._find(message) if kept else None
        if message.kind is Kind.READ_REQUEST:
            self._reads.append((offer, message.token, message.address))
            return
        self.written += message.length
        if offer is not None:
            offer.move(message, message.token, message.address)

    def _find(self, message: RdmaMessage) -> Offer | None:
        """Return the offer that an operation goes to, and judge the operation by it."""
        check, number, way, name = self._verdicts.check, message.number, message.direction, message.kind.value
        offer = self._live.get(message.token)
        if offer is None:
            self._judge_unknown(message)
            return None
        for rule in (rules.RDMA_TOKEN, rules.RDMA_INVALIDATED, rules.RDMA_LATE):
            check(rule, True, number, way, "")
        right = (message.kind is Kind.WRITE) == (offer.command == READ)
        text = "{} for the {} of frame {}"
        check(
            rules.RDMA_RIGHT, right, number, way, text, name, "READ" if offer.command == READ else "WRITE", offer.number
        )
        ranges = [(d.offset, d.offset + d.length) for d in offer.descriptors if d.token == message.token]
        end = message.address + message.length
        inside = any(start <= message.address and end <= stop for start, stop in ranges)
        text = "{} of {} bytes at {:#x} leaves the memory of frame {}, {}"
        shown = ", ".join(f"{stop - start} bytes at {start:#x}" for start, stop in ranges)
        check(rules.RDMA_RANGE, inside, number, way, text, name, message.length, message.address, offer.number, shown)
        return offer

    def _judge_unknown(self, message: RdmaMessage) -> None:
        check, number, way, name = self._verdicts.check, message.number, message.direction, message.kind.value
        dead = self._dead.get(message.token)
        if dead is not None:
            rule = rules.RDMA_INVALIDATED if dead.invalidated else rules.RDMA_LATE
            text = "{} to token {:#x}, {} in frame {}"
            ended = "invalidated" if dead.invalidated else "whose request was answered"
            check(rule, False, number, way, text, name, message.token, ended, dead.number)
        elif self.blind:
            self._verdicts.unjudged(number, "RDMA to memory of requests that were not captured or are encrypted")
        else:
            check(
                rules.RDMA_TOKEN, False, number, way, "{} to token {:#x}, which no request offers", name, message.token
            )

    def answered(self, offer: Offer, number: int, invalidated: int | None) -> None:
        """Judge the invalidation in the final response to a request, and end what it offers."""
        tokens = {descriptor.token for descriptor in offer.descriptors}
        check, way = self._verdicts.check, Direction.TO_CLIENT
        if offer.invalidating:
            text = "the response does not invalidate {:#x} of frame {}"
            check(
                rules.INVALIDATE_MISSING,
                invalidated in tokens,
                number,
                way,
                text,
                offer.descriptors[0].token,
                offer.number,
            )
        for token in tokens:
            if self._live.get(token) is offer:
                del self._live[token]
                self._dead[token] = _Dead(number, token == invalidated)
        while len(self._dead) > _DEAD_KEPT:
            self._dead.popitem(last=False)

    def invalidated(self, token: int, offers: list[Offer], number: int) -> None:
        """Judge that a response to ``offers`` invalidates ``token``."""
        self.invalidations += 1
        asked = any(o.invalidating and token in (d.token for d in o.descriptors) for o in offers)
        if asked or not self.blind:
            text = "invalidates {:#x}, which its request does not ask for"
            self._verdicts.check(rules.INVALIDATE_UNASKED, asked, number, Direction.TO_CLIENT, text, token)
