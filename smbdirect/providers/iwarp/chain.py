"""Chains of ordinary work requests, whose FPDUs are cut in one pass: a request of each is one message that nothing else
delays. No I/O. [RFC 5040, RFC 5041]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from smbdirect.codec import Buffer
from smbdirect.providers.base import Read, Send, WorkRequest, Write
from smbdirect.providers.iwarp import ddp, rdmap
from smbdirect.providers.iwarp.ddp import MSN_MASK, TAGGED_HEADER, TAGGED_WORDS, UNTAGGED_HEADER
from smbdirect.providers.iwarp.frame_calls import Message
from smbdirect.providers.iwarp.frames import frame
from smbdirect.providers.iwarp.operations import PendingRead
from smbdirect.providers.iwarp.rdmap import WHOLE_READ_REQUEST, Opcode

LONGEST = (1 << 20) + (1 << 16)
_MOST_FPDUS = 256
"""Bytes and FPDUs of a chain. What is longer is cut batch by batch."""
_JOINED = 8192
"""Up to this many bytes of payload are copied beside their headers: for the system call, that costs less than a buffer
of its own."""
READ_REQUEST_SIZE = WHOLE_READ_REQUEST.size - 2
"""The ULPDU_Length of a Read Request."""
_READ_REQUEST_FPDU = READ_REQUEST_SIZE + 9 & ~3
_READ_REQUEST = rdmap.CONTROL | Opcode.READ_REQUEST
_LAST = ddp.LAST | ddp.VERSION
SEND = rdmap.CONTROL | Opcode.SEND
SEND_INVALIDATE = rdmap.CONTROL | Opcode.SEND_INVALIDATE
LAST_WRITE = ddp.LAST_TAGGED | (ddp.TAGGED | ddp.VERSION) << 40 | (rdmap.CONTROL | Opcode.RDMA_WRITE) << 32
"""``TaggedWords.kind`` of a Write that is one FPDU, without length and token."""

_tagged_header, _untagged_header = TAGGED_WORDS.pack_fields, UNTAGGED_HEADER.pack_fields

Runs = tuple[int, int, int]
"""The FPDUs of one message: the size in bytes of each but the last, how many these are, and the size of the last."""


class Chain(NamedTuple):
    """What was cut."""

    buffers: list[Buffer]
    size: int
    """Bytes in ``buffers``."""
    runs: list[Runs]
    """Of each request."""
    reads: list[PendingRead]
    """Of the Reads among them."""
    fpdus: int
    sends: int
    """How many Sends there are."""
    bytes_send: int
    bytes_write: int


def read_request(read: PendingRead, token: int, offset: int, msn: int) -> bytes:
    """Return the headers of a Read Request, which is number ``msn``. [RFC 5040 section 4.4]"""
    return WHOLE_READ_REQUEST.pack_fields(
        READ_REQUEST_SIZE, _LAST, _READ_REQUEST, 0, ddp.READ_QUEUE, msn & MSN_MASK, 0,
        read.stag, read.base, read.total, token, offset,
    )  # fmt: skip


def cut(
    requests: Sequence[WorkRequest],
    max_ulpdu: int,
    segment: int,
    msns: tuple[int, int],
    reads_left: int,
    read_of: Callable[[Read], PendingRead],
) -> Chain | None:
    """Cut ``requests``, the only ones that are to be sent. Return None if any of them is not ordinary, or if an FPDU
    had to wait for another TCP segment (``Sender._needs_segment``).

    ``msns``: the numbers of the next Send and of the next Read Request. ``reads_left``: how many Reads may be begun."""
    messages: list[Message] = []
    runs: list[Runs] = []
    reads: list[PendingRead] = []
    msn, read_msn = msns
    room, full = max_ulpdu - ddp.TAGGED_HEADER_SIZE, max_ulpdu + 9 & ~3
    position = fpdus = sends = bytes_send = bytes_write = more = 0
    for request in requests:
        segments = request.segments
        if type(request) is Read:
            if len(reads) >= reads_left or (segment and position and position + _READ_REQUEST_FPDU > segment):
                return None
            read = read_of(request)
            header = read_request(read, request.remote[0], request.remote[1], read_msn + len(reads))
            reads.append(read)
            messages.append((header, (), 0))
            runs.append((0, 0, _READ_REQUEST_FPDU))
            position += _READ_REQUEST_FPDU
            fpdus += 1
            continue
        total = len(segments[0]) if len(segments) == 1 else sum(map(len, segments))
        if type(request) is Write:
            token, address, length = request.remote
            if total != length or total > LONGEST:
                return None
            header = _tagged_header(LAST_WRITE | token, address)
            more = (total - 1) // room if total else 0
            last = total - more * room + ddp.TAGGED_HEADER_SIZE + 9 & ~3
            bytes_write += total
        elif type(request) is Send:
            if segment and TAGGED_HEADER.size < segment - position % segment < UNTAGGED_HEADER.size:
                return None
            named = request.invalidate
            control = SEND if named is None else SEND_INVALIDATE
            header = _untagged_header(0, _LAST, control, named or 0, ddp.SEND_QUEUE, msn + sends & MSN_MASK, 0)
            more, last = 0, total + ddp.UNTAGGED_HEADER_SIZE + 9 & ~3
            sends += 1
            bytes_send += total
        else:
            return None
        messages.append((header, segments, total))
        runs.append((full, more, last))
        position += full * more + last
        fpdus += more + 1
    if not 0 < position <= LONGEST or fpdus > _MOST_FPDUS:
        return None
    try:
        buffers = frame(messages, max_ulpdu, _JOINED)
    except (ValueError, BufferError):
        return None
    return Chain(buffers, position, runs, reads, fpdus, sends, bytes_send, bytes_write)
