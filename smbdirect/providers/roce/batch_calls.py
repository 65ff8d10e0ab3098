"""What is done for each packet of a batch: ICRCs, headers, and the copying of payloads. [IBTA A17.3.3]

``_native`` does the same in C. ``batches`` chooses between the two, and everything else imports from there.
"""

from __future__ import annotations

import errno
import socket
import struct
from functools import lru_cache
from typing import Any, NamedTuple

from smbdirect.codec import Buffer
from smbdirect.providers.roce.headers import ACK_REQUEST, HEAD, ICRC_LENGTH, PSN_MASK
from smbdirect.providers.roce.icrc import IDENTIFICATIONS, RESIDUE, crc32

_BEFORE_PSN = HEAD.size
_BTH_LENGTH = _BEFORE_PSN + 4
_MIN_PACKET = _BTH_LENGTH + ICRC_LENGTH
_MOST_BYTES = 0xFFFF
UDP_SEGMENT = 103
UDP_GRO = 104
IP_PKTINFO = 8
_CE = 3
_INT = struct.Struct("=i")
_U16 = struct.Struct("=H")

Control = tuple[int, int, bytes]
"""Ancillary data of ``sendmsg``: level, kind, data."""


class Awaited(NamedTuple):
    """The packets in the middle of a message that are due next."""

    head: bytes
    """What their BTHs have in front of the word with the PSN."""
    psn: int
    """That of the first one. It may be more than 24 bits."""
    memory: memoryview
    """Where their payloads go, from ``position`` on."""
    position: int
    size: int
    """Bytes of each payload."""
    number: int
    """Most of them."""
    states: tuple[int, ...]
    """The CRC states in front of the word with the PSN, by the place of a packet in its batch."""


Taken = tuple[int, int, int, int, int, bool, bytes | None, Any]
"""How many packets were placed; their words with the PSN, combined by "or"; of the batch that is left, how many packets
at its begin are among them, its length, the bytes of each packet but the last, whether its IP header has the congestion
mark, the address that it was sent to if the socket says so, and the address of the sender's socket. If none is left,
the length is ``-errno``."""


@lru_cache(64)
def _layout(size: int) -> struct.Struct:
    """Return the layout of a packet of ``size`` bytes: head, word with the PSN, all else."""
    return struct.Struct(f">{_BEFORE_PSN}sI{size - _BEFORE_PSN - 4}x")


def similar(batch: Buffer, size: int) -> tuple[int, int]:
    """Return how many whole packets of ``size`` bytes at the begin of ``batch`` differ only in payload, AckReq and PSN,
    which counts up, and their words with the PSN, combined by "or". Raise ``ValueError`` if no packet is that short."""
    if size < _MIN_PACKET:
        raise ValueError("no packet is that short")
    head, words, due, number = b"", 0, 0, 0
    view = memoryview(batch)
    for its_head, word in _layout(size).iter_unpack(view[: len(view) // size * size]):
        if not number:
            head, due = its_head, word & PSN_MASK
        elif its_head != head or word & PSN_MASK != due:
            break
        words |= word
        due = due + 1 & PSN_MASK
        number += 1
    return number, words


def intact(packets: Buffer, size: int, number: int, states: tuple[int, ...], index: int) -> bool:
    """Return whether the ICRCs of ``number`` packets of ``size`` bytes each are right. ``states[index]`` is the CRC
    state in front of the first one's word with the PSN, and so on; if there are fewer, none counts as right. Raise
    ``ValueError`` if there are not so many packets."""
    if size < _MIN_PACKET or number < 0 or index < 0 or number > len(packets) // size:
        raise ValueError("not so many packets")
    view = memoryview(packets)
    bodies = [view[start + _BEFORE_PSN : start + size] for start in range(0, size * number, size)]
    return list(map(crc32, bodies, states[index : index + number])).count(RESIDUE) == number


def place(packets: Buffer, length: int, stride: int, number: int, memory: memoryview, position: int) -> None:
    """Copy the payloads of ``number`` packets, one behind the other, to ``position`` of ``memory``. They have no
    extension headers. Each has ``length`` bytes, and a packet begins every ``stride`` bytes. Raise ``ValueError``, and
    do nothing, if they do not fit."""
    room = len(packets) - _BTH_LENGTH - length
    fits = length >= 0 and room >= 0 and stride >= 1 and number >= 0 and 0 <= position <= len(memory)
    if not fits or (number - 1) * stride > room or number * length > len(memory) - position:
        raise ValueError("outside of the memory")
    view = memoryview(packets)
    for start in range(_BTH_LENGTH, _BTH_LENGTH + number * stride, stride):
        memory[position : position + length] = view[start : start + length]
        position += length


def seal(
    head: bytes,
    psn: int,
    memory: Buffer,
    mtu: int,
    number: int,
    states: tuple[int, ...],
    index: int,
    ask_at: int,
    ask_every: int,
) -> bytes:
    """Return the packets that carry ``memory`` in pieces of ``mtu`` bytes, joined. ``head`` is what their BTHs have in
    front of the word with the PSN, which counts up from ``psn``. Packet ``ask_at`` and after it every ``ask_every``-th
    request an acknowledgement (with 0 none does). ``states`` and ``index``: see ``intact``. Raise ``ValueError`` if
    there is not so much memory or not so many states, or for more packets than a batch can have."""
    enough = 1 <= mtu <= _MOST_BYTES and 0 <= number <= len(memory) // mtu and 0 <= index <= len(states) - number
    enough = enough and number <= IDENTIFICATIONS
    if not enough or len(head) != _BEFORE_PSN or ask_at < 0 or ask_every < 0:
        raise ValueError("not so many packets")
    words = [word & PSN_MASK for word in range(psn, psn + number)]
    if ask_every:
        for at in range(ask_at, number, ask_every):
            words[at] |= ACK_REQUEST
    rests = [word.to_bytes(4, "big") for word in words]
    view = memoryview(memory)
    pieces = [view[start : start + mtu] for start in range(0, number * mtu, mtu)]
    icrcs = map(crc32, pieces, map(crc32, rests, states[index : index + number]))
    buffers: list[Buffer] = [b""] * (3 * number)
    buffers[::3] = [head + rest for rest in rests]
    buffers[1::3] = pieces
    buffers[2::3] = [its_icrc.to_bytes(4, "little") for its_icrc in icrcs]
    # Joined, since the kernel copies one long piece in half of the time of many short ones.
    return b"".join(buffers)


def follow(batch: Buffer, size: int, awaited: Awaited) -> tuple[int, int]:
    """Place the packets of ``size`` bytes at the begin of ``batch`` that are ``awaited`` and whose ICRCs are right, one
    after the other. Return how many there were, and their words with the PSN, combined by "or". Raise ``ValueError`` if
    what is awaited does not fit its memory."""
    head, psn, memory, position, payload, number, states = awaited
    fits = 1 <= payload <= _MOST_BYTES and number >= 0 and 0 <= position <= len(memory)
    if not fits or number * payload > len(memory) - position or len(head) != _BEFORE_PSN:
        raise ValueError("outside of the memory")
    if size != payload + _MIN_PACKET:
        return 0, 0
    view = memoryview(batch)
    words = count = 0
    for state in states[: min(number, len(view) // size, IDENTIFICATIONS)]:
        start = count * size
        its_head, word = _layout(size).unpack_from(view, start)
        due = psn + count & PSN_MASK
        if (
            its_head != head
            or word & PSN_MASK != due
            or crc32(view[start + _BEFORE_PSN : start + size], state) != RESIDUE
        ):
            break
        begin = start + _BTH_LENGTH
        memory[position : position + payload] = view[begin : begin + payload]
        position += payload
        words |= word
        count += 1
    return count, words


def take(
    sock: socket.socket, body: memoryview, budget: int, sender: Any, local: bytes, awaited: Awaited | None
) -> Taken:
    """Receive batches in ``body``, as long as all of their packets are ``awaited``, which are placed: see ``follow``.
    Those come from ``sender``, which is the address of a socket, to ``local``. Nothing more is received when
    ``budget`` bytes were."""
    placed = words = 0
    while budget > 0:
        try:
            length, ancillary, flags, address = sock.recvmsg_into([body], 128)
        except OSError as error:
            return placed, words, 0, -(error.errno or errno.EIO), 0, False, None, None
        budget -= length
        size, own, marked, count = length, None, False, 0
        for level, kind, data in ancillary:
            if kind == UDP_GRO and level == socket.IPPROTO_UDP:
                size = _INT.unpack(data)[0]
            elif level == socket.IPPROTO_IP:
                if kind == socket.IP_TOS:
                    marked = data[0] & 3 == _CE
                elif kind == IP_PKTINFO:
                    own = data[8:12]
            elif level == socket.IPPROTO_IPV6:
                if kind == socket.IPV6_TCLASS:
                    marked = data[0] & 3 == _CE
                elif kind == socket.IPV6_PKTINFO:
                    own = data[:16]
        whole = not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        if awaited is not None and whole and not marked and address == sender and own in (None, local):
            count, more = follow(body[:length], size, awaited)
            placed += count
            words |= more
            awaited = awaited._replace(
                psn=awaited.psn + count,
                position=awaited.position + count * awaited.size,
                number=awaited.number - count,
            )
        if not count or count * size < length:
            return placed, words, count, length, size, marked, own, address
    return placed, words, 0, -errno.EAGAIN, 0, False, None, None


def launch(
    sock: socket.socket,
    control: list[Control],
    address: tuple[Any, ...],
    head: bytes,
    psn: int,
    memory: Buffer,
    mtu: int,
    number: int,
    most: int,
    states: tuple[int, ...],
    ask_at: int,
    ask_every: int,
) -> int:
    """Send packets to ``address`` that carry the first ``number`` pieces of ``memory``, in batches of ``most`` packets,
    until the socket refuses one, or less than a batch is left. Return how many were sent. ``control`` is ancillary
    data; for the rest see ``seal``."""
    size = mtu + _MIN_PACKET
    enough = 1 <= mtu <= _MOST_BYTES and 0 <= number <= len(memory) // mtu and ask_at >= 0 and ask_every >= 0
    if (
        not enough
        or len(head) != _BEFORE_PSN
        or not 1 <= most <= min(len(states), IDENTIFICATIONS, _MOST_BYTES // size)
    ):
        raise ValueError("not so many packets")
    if most > 1:
        control = [*control, (socket.IPPROTO_UDP, UDP_SEGMENT, _U16.pack(size))]
    sent = 0
    view = memoryview(memory)
    while number - sent >= most:
        first_ask = ask_at - sent if sent < ask_at or not ask_every else (ask_at - sent) % ask_every
        packets = seal(head, psn + sent, view[sent * mtu :], mtu, most, states, 0, max(0, first_ask), ask_every)
        try:
            sock.sendmsg([packets], control, 0, address)
        except OSError:
            break
        sent += most
    return sent
