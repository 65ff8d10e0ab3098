"""Takes apart what a UDP socket receives at once, and checks each packet. No I/O. [IBTA A17.3.3]

A sender's batch (UDP_SEGMENT) and the packets that the kernel put together (UDP_GRO) arrive in one piece. All packets
in it have the same length, except for the last one, which may be shorter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from smbdirect.providers.roce.headers import HEAD, ICRC_LENGTH, PSN_MASK
from smbdirect.providers.roce.icrc import RESIDUE, Flow, crc32, identification

_BEFORE_PSN = HEAD.size
MIN_PACKET = 16
"""BTH and ICRC."""
_PAYLOAD = MIN_PACKET - ICRC_LENGTH


class Run(NamedTuple):
    """Packets that follow each other in ``packets`` and differ only in payload, AckReq and PSN, which counts up."""

    head: bytes
    """What their BTHs have in front of the word with the PSN."""
    psn: int
    """That of the first packet."""
    words: int
    """The words with the PSN, combined by "or": has ``ACK_REQUEST`` if one of the packets requests one."""
    packets: memoryview
    """Whole packets, from BTH to ICRC."""
    size: int
    """Bytes of each packet."""
    number: int
    intact: bool = True
    """Whether the ICRCs are right. If not, ``number`` is 1."""

    def split(self) -> Iterator[memoryview]:
        """Yield each packet."""
        return (self.packets[start : start + self.size] for start in range(0, self.size * self.number, self.size))

    def payload_length(self) -> int:
        """Return the bytes of payload in each packet, which must have no extension headers and no padding."""
        return self.size - MIN_PACKET

    def place(self, memory: memoryview, position: int) -> None:
        """Copy the payloads, one behind the other, to ``position`` of ``memory``. Conditions: ``payload_length``."""
        packets, size = self.packets, self.size
        length = size - MIN_PACKET
        for start in range(_PAYLOAD, self.number * size, size):
            memory[position : position + length] = packets[start : start + length]
            position += length


@lru_cache(64)
def _layout(size: int) -> struct.Struct:
    """Return the layout of a packet of ``size`` bytes: head, word with the PSN, all else."""
    return struct.Struct(f">{_BEFORE_PSN}sI{size - _BEFORE_PSN - 4}x")


def is_intact(packet: memoryview, flow: Flow, index: int = 0) -> bool:
    """Return whether the ICRC of packet ``index`` of a batch is right. The IPv4 identification is not known: the
    packet may have any, although Linux counts them from 0."""
    size = len(packet)
    state = flow.state(size, bytes(packet[:_BEFORE_PSN]))
    if crc32(packet[_BEFORE_PSN:], state ^ flow.effects[index]) == RESIDUE:
        return True
    return flow.has_identification and identification(crc32(packet[_BEFORE_PSN:], state) ^ RESIDUE, size) is not None


def runs(batch: memoryview, size: int, flow: Flow) -> Iterator[Run]:
    """Yield all packets of ``batch`` in their order, in runs that are as long as possible. ``size`` is the length of
    all packets but the last, and at least ``MIN_PACKET``."""
    effects, limit = flow.effects, len(flow.effects)
    head, first, words, start, count, state = b"", 0, 0, 0, 0, 0
    position = index = 0
    for its_head, word in _layout(size).iter_unpack(batch[: len(batch) // size * size]):
        stop = position + size
        if its_head != head:
            if count:
                yield Run(head, first, words, batch[start:position], size, count)
                count = 0
            head, state = its_head, flow.state(size, its_head)
        # The usual case in one comparison: the identification is the number of the packet.
        right = crc32(batch[position + _BEFORE_PSN : stop], state ^ effects[index]) == RESIDUE
        if not right:
            right = is_intact(batch[position:stop], flow)
        if count and (not right or word & PSN_MASK != first + count & PSN_MASK):
            yield Run(head, first, words, batch[start:position], size, count)
            count = 0
        if not right:
            yield Run(head, word & PSN_MASK, word, batch[position:stop], size, 1, False)
        elif count:
            count += 1
            words |= word
        else:
            first, words, start, count = word & PSN_MASK, word, position, 1
        position = stop
        index = (index + 1) % limit
    if count:
        yield Run(head, first, words, batch[start:position], size, count)
    rest = batch[position:]
    if len(rest) >= MIN_PACKET:
        word = int.from_bytes(rest[_BEFORE_PSN : _BEFORE_PSN + 4], "big")
        intact = is_intact(rest, flow, index)
        yield Run(bytes(rest[:_BEFORE_PSN]), word & PSN_MASK, word, rest, len(rest), 1, intact)
    elif rest:
        yield Run(b"", 0, 0, rest, len(rest), 1, False)
