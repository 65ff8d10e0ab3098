"""Runs of similar packets: how a UDP socket's batches and a raw socket's packets are taken apart and checked.
[IBTA A17.3.3]

A sender's batch (UDP_SEGMENT) and the packets that the kernel put together (UDP_GRO) arrive in one piece. All packets
in it have the same length, except for the last one, which may be shorter.

Through a raw socket, IPv4 packets arrive with their IP headers. Many are received by one system call, recvmmsg(2), for
which Python has no function.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from smbdirect.providers.roce.batches import intact, place, similar
from smbdirect.providers.roce.headers import HEAD, ICRC_LENGTH, PSN_MASK
from smbdirect.providers.roce.icrc import (
    IPV4_HEADER,
    ONES,
    RESIDUE,
    UDP_HEADER,
    Flow,
    check_ipv4,
    crc32,
    identification,
)

_BEFORE_PSN = HEAD.size
MIN_PACKET = 16
"""BTH and ICRC."""
_PAYLOAD = MIN_PACKET - ICRC_LENGTH
SLOTS = 32
"""Most packets received by one call."""
_HEADERS = IPV4_HEADER + UDP_HEADER
_BEFORE_BTH = len(ONES) + _HEADERS
MAX_PACKET = _HEADERS + 12 + 16 + 4096 + 4
"""Bytes of the longest packet: BTH, RETH, the largest MTU, ICRC."""
STRIDE = 4224
"""Bytes from one packet's slot to the next. A slot begins with the ones that the ICRC begins with."""
_FIELDS = struct.Struct(">BB10x4s4s4xH2x8sI")
"""Of an IPv4, a UDP and a BTH header: version and length, TOS, addresses, UDP length, what is in front of the word with
the PSN, that word."""
_BEGIN = struct.Struct(f">{HEAD.size}sI")
"""What is in front of the word with the PSN, and that word."""
_CE = 3


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

    def payloads(self) -> list[memoryview]:
        """Return the payloads. Conditions: ``payload_length``."""
        packets, length = self.packets, self.size - MIN_PACKET
        return [packets[start : start + length] for start in range(_PAYLOAD, self.number * self.stride, self.stride)]

    def place(self, memory: memoryview, position: int) -> None:
        """Copy the payloads, one behind the other, to ``position`` of ``memory``. Conditions: ``payload_length``."""
        place(self.packets, self.size - MIN_PACKET, self.stride, self.number, memory, position)


def is_intact(packet: memoryview, flow: Flow) -> bool:
    """Return whether the ICRC of a packet is right. The IPv4 identification is not known: it may be any, although Linux
    sends 0."""
    size = len(packet)
    difference = crc32(packet[_BEFORE_PSN:], flow.state(size, bytes(packet[:_BEFORE_PSN]))) ^ RESIDUE
    return not difference or (flow.has_identification and identification(difference, size) is not None)


def runs(batch: memoryview, size: int, flow: Flow, start: int = 0) -> Iterator[Run]:
    """Yield all packets of ``batch`` from the one with number ``start`` on in their order, in runs that are as long as
    possible. ``size`` is the length of all packets but the last, and at least ``MIN_PACKET``."""
    end = len(batch) // size
    while start < end:
        packets = batch[start * size : end * size] if start else batch
        number, words = similar(packets, size)
        head, first = _BEGIN.unpack_from(packets)
        run = Run(head, first & PSN_MASK, words, packets[: number * size], size, number, size)
        yield from _check(run, start, flow)
        start += number
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
    # The usual case: the identifications are the places in the batch.
    if intact(packets, size, number, flow.states(size, head), index):
        yield run
        return
    for packet in run.split():
        word = int.from_bytes(packet[_BEFORE_PSN : _BEFORE_PSN + 4], "big")
        yield Run(head, word & PSN_MASK, word, packet, size, 1, size, is_intact(packet, flow))


class Arrived(NamedTuple):
    """Packets that came from one address to another."""

    run: Run
    source: bytes
    local: bytes
    marked: bool
    """Whether their IP headers have the congestion mark."""


def take_apart(buffer: bytearray, view: memoryview, lengths: Sequence[int]) -> Iterator[Arrived | None]:
    """Yield the packets in the slots of ``buffer`` in their order, in runs that are as long as possible, and None for
    each that is malformed. ``lengths`` are those of the IP packets. The slots are changed: see ``icrc.check_ipv4``."""
    kind = b"", b"", b"", 0, False
    first = words = begin = number = 0

    def found(intact: bool = True) -> Arrived:
        head, source, local, length, marked = kind
        start = begin * STRIDE + _BEFORE_BTH
        size = length - _HEADERS
        packets = view[start : start + (number - 1) * STRIDE + size]
        return Arrived(Run(head, first, words, packets, size, number, STRIDE, intact), source, local, marked)

    for slot, length in enumerate(lengths):
        at = slot * STRIDE
        version, tos, source, local, udp_length, head, word = _FIELDS.unpack_from(buffer, at + len(ONES))
        well_formed = version == 0x45 and _HEADERS + MIN_PACKET <= length <= MAX_PACKET
        well_formed = well_formed and udp_length == length - IPV4_HEADER
        intact = well_formed and check_ipv4(buffer, view, at, at + len(ONES) + length)
        its_kind = head, source, local, length, tos & 3 == _CE
        if number:
            if intact and its_kind == kind and word & PSN_MASK == first + number & PSN_MASK:
                number += 1
                words |= word
                continue
            yield found()
        if well_formed:
            kind, first, words, begin, number = its_kind, word & PSN_MASK, word, slot, 1
            if intact:
                continue
            yield found(False)
        else:
            yield None
        number = 0
    if number:
        yield found()


class _Buffer(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """``struct msghdr``."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("buffers_length", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    """``struct mmsghdr``."""

    _fields_ = (("header", _Header), ("length", ctypes.c_uint))


_recvmmsg = ctypes.CDLL(None, use_errno=True).recvmmsg


class Slots:
    """Room for packets, and the reading of them."""

    def __init__(self) -> None:
        self._packets = bytearray((ONES + bytes(STRIDE - len(ONES))) * SLOTS)
        self._view = memoryview(self._packets)
        memory = ctypes.addressof(ctypes.c_char.from_buffer(self._packets))
        self._buffers = (_Buffer * SLOTS)()
        # The lengths are read from the memory of the messages in one go: an attribute of each costs more.
        memory_of_messages = bytearray(ctypes.sizeof(_Message) * SLOTS)
        self._messages = (_Message * SLOTS).from_buffer(memory_of_messages)
        self._lengths = memoryview(memory_of_messages).cast("I")[
            _Message.length.offset // 4 :: ctypes.sizeof(_Message) // 4
        ]
        for slot, (buffer, message) in enumerate(zip(self._buffers, self._messages, strict=True)):
            # One byte more than a packet may have shows that it is too long.
            buffer.base, buffer.length = memory + slot * STRIDE + len(ONES), MAX_PACKET + 1
            message.header.buffers = ctypes.pointer(buffer)
            message.header.buffers_length = 1

    def receive(self, sock: socket.socket) -> Iterator[Arrived | None] | None:
        """Return the packets that have arrived at ``sock``, a raw IPv4 socket, at most ``SLOTS`` of them: see
        ``take_apart``. Return None if there are none. Raise ``OSError`` if the kernel reports an error of an earlier
        packet; nothing was received then."""
        count = _recvmmsg(sock.fileno(), self._messages, SLOTS, socket.MSG_DONTWAIT, None)
        if count > 0:
            return take_apart(self._packets, self._view, self._lengths[:count].tolist())
        number = ctypes.get_errno()
        if count < 0 and number not in (errno.EAGAIN, errno.EINTR):
            raise OSError(number, os.strerror(number))
        return None
