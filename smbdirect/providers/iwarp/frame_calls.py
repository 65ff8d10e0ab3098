"""What is done for each FPDU of a batch: headers compared or written, and payloads copied. No CRC. [RFC 5044 section 4]

``_native`` does the same in C. ``frames`` chooses between the two, and everything else imports from there.
"""

from __future__ import annotations

from collections.abc import Sequence

from smbdirect.codec import Buffer
from smbdirect.providers.iwarp import ddp, rdmap
from smbdirect.providers.iwarp.ddp import MSN_MASK, TAGGED_HEADER, UNTAGGED_HEADER
from smbdirect.providers.iwarp.mpa import ZERO_TRAILERS, is_intact
from smbdirect.providers.iwarp.rdmap import Opcode

_WHOLE = ddp.LAST | ddp.VERSION
_SEND = rdmap.CONTROL | Opcode.SEND
_FIELDS = UNTAGGED_HEADER.fields_from
_LONGEST_HEADER = 64
_MOST_SEGMENTS = 64
_MOST_BYTES = 1 << 24
_LENGTH_FIELD = 2

Message = tuple[bytes, Sequence[Buffer], int]
"""A message to send: the headers of its first FPDU, in which the length and the flag of the last may be anything; its
payload; and how many bytes that has."""


def sends(
    view: memoryview,
    start: int,
    tail: int,
    msn: int,
    receives: Sequence[tuple[memoryview, object]],
    crc: bool = False,
) -> tuple[int, list[int]]:
    """Place the Sends in ``view[start:tail]`` that follow each other as whole FPDUs, the first with number ``msn``, in
    the memory of ``receives``. Return where the first FPDU begins that is different, or not obviously valid, and the
    length of each Send before. ``crc``: check the checksums (not in C). Raise ``ValueError`` for a range outside of
    ``view``."""
    if not 0 <= start <= tail <= len(view):
        raise ValueError("outside of the stream")
    lengths: list[int] = []
    for memory, _ in receives:
        if tail - start < UNTAGGED_HEADER.size + 4:
            break
        length, control, operation, _, queue, number, offset = _FIELDS(view, start)
        payload = length - ddp.UNTAGGED_HEADER_SIZE
        end = start + (length + 9 & ~3)
        if (
            control != _WHOLE
            or operation != _SEND
            or queue != ddp.SEND_QUEUE
            or number != msn
            or offset
            or not 0 <= payload <= len(memory)
            or end > tail
            or (crc and not is_intact(view, start, end))
        ):
            break
        start += UNTAGGED_HEADER.size
        memory[:payload] = view[start : start + payload]
        lengths.append(payload)
        start = end
        msn = msn + 1 & MSN_MASK
    return start, lengths


def frame(messages: Sequence[Message], max_ulpdu: int, joined: int) -> list[Buffer]:
    """Return the FPDUs of ``messages``, one behind the other, as buffers to be sent. CRC fields are zero.

    Tagged messages are cut where they exceed ``max_ulpdu`` bytes. Up to ``joined`` bytes of a segment in one FPDU are
    copied, more are a view of it. Raise ``ValueError`` or ``BufferError`` if a message has other bytes than it says,
    segments that are no plain bytes, or is too long for an ordinary one."""
    if not 0 <= max_ulpdu <= 0xFFFF or joined < 0:
        raise ValueError("no length of a ULPDU")
    found: list[Buffer] = []
    run = bytearray()
    for header, segments, total in messages:
        for size, part in _parts(_checked(header, segments, total, max_ulpdu), header, total, max_ulpdu):
            if len(part) <= joined or not size:
                run += part
                continue
            if run:
                found.append(bytes(run))
                run = bytearray()
            found.append(part)
    if run:
        found.append(bytes(run))
    return found


def _checked(header: bytes, segments: Sequence[Buffer], total: int, max_ulpdu: int) -> list[memoryview]:
    """Return the views of an ordinary message's segments. Raise ``ValueError`` for any other."""
    size, most = len(header), -1
    if size == TAGGED_HEADER.size:
        most = _MOST_BYTES
    elif UNTAGGED_HEADER.size <= size <= _LONGEST_HEADER:
        most = max_ulpdu + _LENGTH_FIELD - size
    if not 0 <= total <= most or len(segments) > _MOST_SEGMENTS or max_ulpdu + _LENGTH_FIELD <= size:
        raise ValueError("no ordinary message")
    views = [memoryview(segment) for segment in segments]
    plain = all(view.ndim == 1 and view.itemsize == 1 and view.c_contiguous for view in views)
    if not plain or sum(map(len, views)) != total:
        raise ValueError("other segments than the message says")
    return views


def _parts(views: list[memoryview], given: bytes, total: int, max_ulpdu: int) -> list[tuple[int, Buffer]]:
    """Return the parts of one message: headers and trailers, with 0 beside them, and pieces of payload, with their
    lengths."""
    header = bytearray(given)
    parts: list[tuple[int, Buffer]] = []
    room, left = max_ulpdu + _LENGTH_FIELD - len(header), total
    offset = int.from_bytes(header[8:16], "big")
    index = at = 0
    while True:
        payload = min(left, room)
        left -= payload
        length = len(header) - _LENGTH_FIELD + payload
        header[:2] = length.to_bytes(2, "big")
        if len(header) == TAGGED_HEADER.size:
            header[2] = header[2] & ~ddp.LAST if left else header[2] | ddp.LAST
            header[8:16] = (offset & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big")
            offset += payload
        parts.append((0, bytes(header)))
        while payload:
            part = views[index][at : at + payload]
            if len(part):
                parts.append((len(part), part))
            payload -= len(part)
            at += len(part)
            if at == len(views[index]):
                index, at = index + 1, 0
        parts.append((0, ZERO_TRAILERS[-(length + _LENGTH_FIELD) & 3]))
        if not left:
            return parts
