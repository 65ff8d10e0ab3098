"""What is done for each packet of a batch: ICRCs, headers, and the copying of payloads. [IBTA A17.3.3]

``_native`` does the same in C. ``batches`` chooses between the two, and everything else imports from there.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from smbdirect.codec import Buffer
from smbdirect.providers.roce.headers import ACK_REQUEST, HEAD, ICRC_LENGTH, PSN_MASK
from smbdirect.providers.roce.icrc import RESIDUE, crc32

_BEFORE_PSN = HEAD.size
_BTH_LENGTH = _BEFORE_PSN + 4
_MIN_PACKET = _BTH_LENGTH + ICRC_LENGTH


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
    there is not so much memory or not so many states."""
    enough = 1 <= mtu <= 0xFFFF and 0 <= number <= len(memory) // mtu and 0 <= index <= len(states) - number
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
