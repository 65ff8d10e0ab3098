"""Runs of similar packets, and how a UDP socket's batches are taken apart and checked. No I/O. [IBTA A17.3.3]

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
    """Packets from BTH to ICRC, with something else between them if ``stride`` is more than ``size``."""
    size: int
    """Bytes of each packet."""
    number: int
    stride: int
    """Bytes from the begin of one packet to that of the next."""
    intact: bool = True
    """Whether the ICRCs are right. If not, ``number`` is 1."""

    def split(self) -> Iterator[memoryview]:
        """Yield each packet."""
        return (self.packets[start : start + self.size] for start in range(0, self.stride * self.number, self.stride))

    def payload_length(self) -> int:
        """Return the bytes of payload in each packet, which must have no extension headers and no padding."""
        return self.size - MIN_PACKET

    def place(self, memory: memoryview, position: int) -> None:
        """Copy the payloads, one behind the other, to ``position`` of ``memory``. Conditions: ``payload_length``."""
        packets, length, stride = self.packets, self.size - MIN_PACKET, self.stride
        for start in range(_PAYLOAD, self.number * stride, stride):
            memory[position : position + length] = packets[start : start + length]
            position += length


@lru_cache(64)
def _layout(size: int) -> struct.Struct:
    """Return the layout of a packet of ``size`` bytes: head, word with the PSN, all else."""
    return struct.Struct(f">{_BEFORE_PSN}sI{size - _BEFORE_PSN - 4}x")


def is_intact(packet: memoryview, flow: Flow) -> bool:
    """Return whether the ICRC of a packet is right. The IPv4 identification is not known: it may be any, although Linux
    sends 0."""
    size = len(packet)
    difference = crc32(packet[_BEFORE_PSN:], flow.state(size, bytes(packet[:_BEFORE_PSN]))) ^ RESIDUE
    return not difference or (flow.has_identification and identification(difference, size) is not None)


def runs(batch: memoryview, size: int, flow: Flow) -> Iterator[Run]:
    """Yield all packets of ``batch`` in their order, in runs that are as long as possible. ``size`` is the length of
    all packets but the last, and at least ``MIN_PACKET``."""
    head, words, first, due, start, end = b"", 0, 0, 0, 0, len(batch) // size
    for index, (its_head, word) in enumerate(_layout(size).iter_unpack(batch[: end * size])):
        if its_head != head or word & PSN_MASK != due:
            if index:
                whole = batch[start * size : index * size]
                yield from _check(Run(head, first, words, whole, size, index - start, size), start, flow)
            head, words, start = its_head, 0, index
            first = due = word & PSN_MASK
        words |= word
        due = due + 1 & PSN_MASK
    yield from _check(Run(head, first, words, batch[start * size : end * size], size, end - start, size), start, flow)
    rest = batch[end * size :]
    left = len(rest)
    if left >= MIN_PACKET:
        word = int.from_bytes(rest[_BEFORE_PSN : _BEFORE_PSN + 4], "big")
        yield from _check(Run(bytes(rest[:_BEFORE_PSN]), word & PSN_MASK, word, rest, left, 1, left), end, flow)
    elif rest:
        yield Run(b"", 0, 0, rest, left, 1, left, False)


def _check(run: Run, index: int, flow: Flow) -> Iterator[Run]:
    """Yield ``run``, which begins with packet ``index`` of a batch, if all of it is intact, else packet by packet."""
    head, _, _, packets, size, number, _, _ = run
    bodies = [packets[start + _BEFORE_PSN : start + size] for start in range(0, size * number, size)]
    # The usual case, as fast as Python allows: the identifications are the places in the batch.
    states = flow.states(size, head)[index : index + number]
    if list(map(crc32, bodies, states)).count(RESIDUE) == number:
        yield run
        return
    for packet in run.split():
        word = int.from_bytes(packet[_BEFORE_PSN : _BEFORE_PSN + 4], "big")
        yield Run(head, word & PSN_MASK, word, packet, size, 1, size, is_intact(packet, flow))
