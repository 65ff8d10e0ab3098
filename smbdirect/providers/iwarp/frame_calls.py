"""What is done for each FPDU of a batch: headers compared or written, and payloads copied. [RFC 5044 section 4]

``_native`` does the same in C. ``frames`` chooses between the two, and everything else imports from there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from crc32c import crc32c

from smbdirect.codec import Buffer, new_record
from smbdirect.providers.base import Completion, Operation, Status
from smbdirect.providers.iwarp import ddp, rdmap
from smbdirect.providers.iwarp.ddp import MSN_MASK, TAGGED_HEADER, TAGGED_WORDS, UNTAGGED_HEADER
from smbdirect.providers.iwarp.mpa import is_intact, trailer
from smbdirect.providers.iwarp.rdmap import WHOLE_READ_REQUEST, Opcode

MOST_BYTES = (1 << 20) + (1 << 16)
MOST_FPDUS = 256
"""Bytes and FPDUs of a chain. What is longer is cut batch by batch."""
_MOST_SEGMENTS = 64
MOST_SINK = 1 << 30
"""Bytes of an ordinary Read."""
READ_REQUEST_SIZE = WHOLE_READ_REQUEST.size - 2
"""The ULPDU_Length of a Read Request."""
READ_REQUEST_FPDU = READ_REQUEST_SIZE + 9 & ~3
SEND = rdmap.CONTROL | Opcode.SEND
SEND_INVALIDATE = rdmap.CONTROL | Opcode.SEND_INVALIDATE
_RESPONSE = rdmap.CONTROL | Opcode.READ_RESPONSE
_READ_REQUEST = rdmap.CONTROL | Opcode.READ_REQUEST
_LAST = ddp.LAST | ddp.VERSION
_MIDDLE = ddp.TAGGED | ddp.VERSION
_LAST_TAGGED = _MIDDLE | ddp.LAST
LAST_WRITE = _LAST_TAGGED << 40 | (rdmap.CONTROL | Opcode.RDMA_WRITE) << 32
LAST_RESPONSE = _LAST_TAGGED << 40 | _RESPONSE << 32
"""``TaggedWords.kind`` of a Write and of a Read Response that are one FPDU, without length and token."""
_MOST_OFFSET = (1 << 64) - 1
_FIELDS = UNTAGGED_HEADER.fields_from
_TAGGED_FIELDS = TAGGED_HEADER.fields_from

Kind = tuple[type[Completion], Operation, Status]
"""The type of the record of a Send that has arrived, and what its first two fields are."""
Kinds = tuple[type[Any], type[Any], type[Any], type[Any]]
"""The types of Sends, of Writes, of Reads, and of Read Responses, which are cut as Writes are."""
Cut = tuple[list[Buffer], int, int, int, int, int]
"""FPDUs as buffers to be sent; their bytes; how many FPDUs and how many Sends there are; the payload of the Sends, and
that of the Writes, in bytes."""


class Awaited(Protocol):
    """One RDMA Read of ours whose response is outstanding."""

    stag: int
    base: int
    total: int
    received: int
    segments: list[memoryview]


# -- what arrives ------------------------------------------------------------------------------------------------------


def arrived(
    view: memoryview,
    start: int,
    tail: int,
    msn: int,
    receives: Sequence[tuple[memoryview, object]],
    reads: Sequence[Awaited],
    kind: Kind,
    crc: bool,
) -> tuple[int, list[Completion], int, int, int, int]:
    """Place the messages in ``view[start:tail]`` that follow each other in whole FPDUs: Sends of one FPDU, the first
    with number ``msn``, in the memory of ``receives``; what ``reads`` wait for, one after the other, in the one segment
    of each, and their ``received`` is set. Return where the first FPDU begins that is different, or not obviously
    valid; the completions of the Sends before; the bytes of these; how many Reads have ended; and how many FPDUs and
    bytes these and the next have got.

    ``crc``: check the checksums. Raise ``ValueError`` for a range outside of ``view``."""
    if not 0 <= start <= tail <= len(view):
        raise ValueError("outside of the stream")
    made: list[Completion] = []
    size = responses = parts = bytes_read = 0
    while tail - start >= UNTAGGED_HEADER.size + 4:
        end = start + ((view[start] << 8 | view[start + 1]) + 9 & ~3)
        if end > tail:
            break
        if view[start + 2] in (_MIDDLE, _LAST_TAGGED) and view[start + 3] == _RESPONSE:
            if responses >= len(reads) or (crc and not is_intact(view, start, end)):
                break
            read = reads[responses]
            before = read.received
            if not _answered(view, start, read):
                break
            responses += view[start + 2] == _LAST_TAGGED
            bytes_read += read.received - before
            parts += 1
        else:
            length, control, operation, _, queue, number, offset = _FIELDS(view, start)
            payload = length - ddp.UNTAGGED_HEADER_SIZE
            if (
                control != _LAST
                or operation != SEND
                or queue != ddp.SEND_QUEUE
                or number != msn
                or offset
                or len(made) >= len(receives)
            ):
                break
            memory, context = receives[len(made)]
            if not 0 <= payload <= len(memory) or (crc and not is_intact(view, start, end)):
                break
            begin = start + UNTAGGED_HEADER.size
            memory[:payload] = view[begin : begin + payload]
            made.append(new_record(kind[0], (*kind[1:], context, payload, None)))
            size += payload
            msn = msn + 1 & MSN_MASK
        start = end
    return start, made, size, responses, parts, bytes_read


def run(
    view: memoryview,
    start: int,
    tail: int,
    memory: memoryview,
    position: int,
    limit: int,
    whole: bool,
    operation: int,
    token: int,
    expected: int,
    crc: bool,
) -> tuple[int, int, int]:
    """Place the FPDUs of one tagged message in ``view[start:tail]`` that follow each other, the first with the tagged
    offset ``expected``, in ``memory[position:limit]``. ``whole``: its last FPDU may be among them. ``crc``: check the
    checksums. Return where the first FPDU begins that is different, or not obviously valid; how many FPDUs were placed;
    and the bytes of their payloads. Raise ``ValueError`` for a range outside of ``view`` or of ``memory``."""
    if not 0 <= start <= tail <= len(view) or not 0 <= position <= len(memory) or limit > len(memory):
        raise ValueError("outside of the memory")
    count = size = 0
    while tail - start >= ddp.SHORTEST_FPDU:
        length, control, its_operation, its_token, offset = _TAGGED_FIELDS(view, start)
        payload = length - ddp.TAGGED_HEADER_SIZE
        end = start + (length + 9 & ~3)
        if (
            (control != _MIDDLE and not (whole and control == _LAST_TAGGED))
            or its_operation != operation
            or its_token != token
            or offset != expected
            or payload <= 0
            or end > tail
            or payload > limit - position
            or (crc and not is_intact(view, start, end))
        ):
            break
        start += TAGGED_HEADER.size
        memory[position : position + payload] = view[start : start + payload]
        start = end
        position += payload
        expected += payload
        size += payload
        count += 1
    return start, count, size


def follow(
    descriptor: int,
    memory: memoryview,
    start: int,
    payload: int,
    between: memoryview,
    most: int,
    kind: int,
    offset: int,
    filled: int,
) -> tuple[int, int, bool]:
    """Receive FPDUs of a tagged message from a socket, each after the header in front of it was compared.

    They have ``payload`` bytes of payload each, which lie in ``memory`` one after the other, from ``start``. With
    ``between``, its trailer and the header of the next are received. ``kind`` and ``offset`` are the words of the first
    one's header, which was received and compared before; so were ``filled`` bytes behind it.

    Return how many FPDUs, at most ``most``, are complete and followed by a header as expected; how many bytes were
    received behind these, or behind the ``filled`` ones; and whether no more have arrived. Raise ``OSError`` if the
    connection has ended, and ``ValueError`` for a range outside of ``memory``."""
    gap = len(between)
    size = payload + gap
    if payload <= 0 or gap < TAGGED_HEADER.size or start < 0 or most < 0 or not 0 <= filled < size:
        raise ValueError("no FPDU")
    if len(memory) < start or payload * most > len(memory) - start:
        raise ValueError("outside of the memory")
    whole, before = 0, filled
    while whole < most:
        try:
            if filled < payload:
                count = os.readv(descriptor, (memory[start + filled : start + payload], between))
            else:
                count = os.readv(descriptor, (between[filled - payload :],))
        except BlockingIOError:
            return whole, filled - before, True
        filled += count
        if filled == size:
            offset = offset + payload & _MOST_OFFSET
            if TAGGED_WORDS.fields_from(between, gap - TAGGED_HEADER.size) != (kind, offset):
                return whole, filled - before, False
            whole += 1
            start += payload
            filled = before = 0
        elif not count:
            break
    return whole, filled - before, False


def _answered(view: memoryview, start: int, read: Awaited) -> bool:
    """Place the payload of the FPDU at ``start`` if it is the next that ``read`` waits for, in its one segment. Return
    whether it was."""
    length, control, _, token, offset = _TAGGED_FIELDS(view, start)
    payload = length - ddp.TAGGED_HEADER_SIZE
    position, total, segments = read.received, read.total, read.segments
    end = position + payload
    if (
        token != read.stag
        or offset != read.base + position
        or total > MOST_SINK
        or end > total
        or payload < (total > 0)
        or (control == _LAST_TAGGED) is not (end == total)
        or len(segments) != 1
        or len(segments[0]) != total
    ):
        return False
    start += TAGGED_HEADER.size
    segments[0][position:end] = view[start : start + payload]
    read.received = end
    return True


# -- what leaves -------------------------------------------------------------------------------------------------------


def read_request(read: Awaited, token: int, offset: int, msn: int) -> bytes:
    """Return the headers of a Read Request, which is number ``msn``. [RFC 5040 section 4.4]"""
    return WHOLE_READ_REQUEST.pack_fields(
        READ_REQUEST_SIZE, _LAST, _READ_REQUEST, 0, ddp.READ_QUEUE, msn & MSN_MASK, 0,
        read.stag, read.base, read.total, token, offset,
    )  # fmt: skip


def cut(
    kinds: Kinds,
    requests: Sequence[Any],
    reads: Sequence[Awaited],
    max_ulpdu: int,
    segment: int,
    msn: int,
    read_msn: int,
    joined: int,
    crc: bool,
) -> Cut | None:
    """Cut ``requests`` into FPDUs, one behind the other. Without ``crc`` their CRC fields are zero. Return None if any
    request is not ordinary, or if an FPDU had to wait for another TCP segment of ``segment`` bytes
    (``Sender._needs_segment``).

    ``reads``: of the Reads among them, in order. ``msn``, ``read_msn``: the numbers of the next Send and of the next
    Read Request. Writes are cut where they exceed ``max_ulpdu`` bytes. Up to ``joined`` bytes of a segment in one FPDU
    are copied, more are a view of it. Raise ``ValueError`` for lengths that cannot be."""
    if not 0 <= max_ulpdu <= 0xFFFF or joined < 0 or segment < 0:
        raise ValueError("no length of a ULPDU")
    output = _Output(max_ulpdu, joined, crc)
    left = iter(reads)
    sends = begun = bytes_send = bytes_write = 0
    for request in requests:
        kind = type(request)
        views: list[memoryview] = []
        if kind is kinds[2]:
            read, remote = next(left), request.remote
            if not _is_sink(request.segments, read.total) or remote[2] != read.total or max_ulpdu < READ_REQUEST_SIZE:
                return None
            if segment and output.size and output.size + READ_REQUEST_FPDU > segment:
                return None
            header = read_request(read, remote[0], remote[1], read_msn + begun)
            begun += 1
        elif kind in kinds:
            views = [memoryview(part) for part in request.segments]
            total = sum(map(len, views))
            if not _is_plain(views) or total > MOST_BYTES:
                return None
            if kind is not kinds[0]:
                token, address, length = request.remote
                if total != length or max_ulpdu <= ddp.TAGGED_HEADER_SIZE:
                    return None
                words = LAST_WRITE if kind is kinds[1] else LAST_RESPONSE
                header = TAGGED_WORDS.pack_fields(words | token, address)
                bytes_write += total
            else:
                split = segment and TAGGED_HEADER.size < segment - output.size % segment < UNTAGGED_HEADER.size
                if split or total + ddp.UNTAGGED_HEADER_SIZE > max_ulpdu:
                    return None
                control = SEND if request.invalidate is None else SEND_INVALIDATE
                number = msn + sends & MSN_MASK
                header = UNTAGGED_HEADER.pack_fields(
                    0, _LAST, control, request.invalidate or 0, ddp.SEND_QUEUE, number, 0
                )
                sends += 1
                bytes_send += total
        else:
            return None
        if not output.add(header, views):
            return None
    return (output.end(), output.size, output.fpdus, sends, bytes_send, bytes_write) if requests else None


def _is_plain(views: Sequence[memoryview]) -> bool:
    return len(views) <= _MOST_SEGMENTS and all(
        view.ndim == 1 and view.itemsize == 1 and view.c_contiguous for view in views
    )


def _is_sink(segments: Sequence[memoryview], total: int) -> bool:
    """Return whether the memory of a Read is one segment of plain bytes that may be written."""
    if len(segments) != 1 or type(segments[0]) is not memoryview:
        return False
    view = segments[0]
    plain = view.format == "B" and view.ndim == 1 and view.c_contiguous and not view.readonly
    return plain and len(view) == total <= MOST_SINK


class _Output:
    """The FPDUs of a chain."""

    def __init__(self, max_ulpdu: int, joined: int, crc: bool) -> None:
        self.size = self.fpdus = 0
        self._max_ulpdu = max_ulpdu
        self._joined = joined
        self._crc = crc
        self._found: list[Buffer] = []
        self._run = bytearray()
        """What will be the next item of ``_found``."""

    def add(self, given: bytes, views: Sequence[memoryview]) -> bool:
        """Add a message with these headers. Return False if the chain is too long then."""
        header = bytearray(given)
        tagged = len(header) == TAGGED_HEADER.size
        room, left = self._max_ulpdu + 2 - len(header), sum(map(len, views))
        offset = int.from_bytes(header[8:16], "big")
        index = at = 0
        while True:
            payload = min(left, room)
            left -= payload
            length = len(header) - 2 + payload
            header[:2] = length.to_bytes(2, "big")
            if tagged:
                header[2] = _MIDDLE if left else _LAST_TAGGED
                header[8:16] = (offset & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big")
                offset += payload
            self.size += length + 9 & ~3
            self.fpdus += 1
            if self.size > MOST_BYTES or self.fpdus > MOST_FPDUS:
                return False
            self._run += header
            crc = crc32c(header) if self._crc else None
            while payload:
                part = views[index][at : at + payload]
                if crc is not None:
                    crc = crc32c(part, crc)
                if len(part) <= self._joined:
                    self._run += part
                else:
                    self._end_run()
                    self._found.append(part)
                payload -= len(part)
                at += len(part)
                if at == len(views[index]):
                    index, at = index + 1, 0
            self._run += trailer(length, crc)
            if not left:
                return True

    def _end_run(self) -> None:
        if self._run:
            self._found.append(bytes(self._run))
            self._run = bytearray()

    def end(self) -> list[Buffer]:
        """Return the buffers."""
        self._end_run()
        return self._found
