"""What answered commands change: tree connects, names of open files, and what READ and WRITE have moved."""

from __future__ import annotations

from dataclasses import dataclass

from smb3server.lab.pcap import rules
from smb3server.lab.pcap.entries import Layout
from smb3server.lab.pcap.memory import Offer
from smb3server.lab.pcap.records import CommandRecord
from smb3server.lab.pcap.sessions import Session, TreeConnect
from smb3server.lab.pcap.smb2 import (
    CHANGE_NOTIFY,
    CLOSE,
    CREATE,
    FLAG_RELATED,
    FLUSH,
    HEADER_SIZE,
    IOCTL,
    LOCK,
    LOGOFF,
    NO_FILE,
    OPLOCK_BREAK,
    QUERY_DIRECTORY,
    QUERY_INFO,
    READ,
    SET_INFO,
    STATUS_BUFFER_OVERFLOW,
    STATUS_SUCCESS,
    TREE_CONNECT,
    TREE_DISCONNECT,
    WRITE,
    Smb2Message,
)
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Verdicts
from smb3server.wire.rdma_transform import CryptoTransform

FILE_ID_AT = {
    CLOSE: 8,
    FLUSH: 8,
    READ: 16,
    WRITE: 16,
    LOCK: 8,
    IOCTL: 8,
    QUERY_DIRECTORY: 8,
    CHANGE_NOTIFY: 8,
    QUERY_INFO: 24,
    SET_INFO: 16,
    OPLOCK_BREAK: 8,
}
"""Place of the FileId in the body of requests. [MS-SMB2 2.2.15 to 2.2.39]"""
_WITHOUT_FILE = (0x00060194, 0x000601B0, 0x00110018, 0x001401FC, 0x00140204)
"""CtlCodes of IOCTLs that are about no file. [MS-SMB2 3.3.5.15]"""
_OPLOCK_SIZE = 24
"""StructureSize of the acknowledgment that names a file; that of a lease names a LeaseKey. [MS-SMB2 2.2.24]"""
_FILE_ID_IN_CREATE = 64
_SHARE_ENCRYPTED = 0x8000


@dataclass
class Pending:
    """A request that has no final response yet."""

    record: CommandRecord
    part: Smb2Message
    session: Session
    tree_id: int
    signed: bool
    encrypted: bool
    length: int = 0
    """Bytes that a READ or WRITE asks for."""
    name: str = ""
    """File of a CREATE, share of a TREE_CONNECT."""
    file_id: bytes = NO_FILE
    offer: Offer | None = None
    crypto: CryptoTransform | None = None
    """What protects the data of a WRITE that moves by RDMA."""
    async_id: int = 0
    listed: Layout | None = None
    """What the response is a list of."""


def name_in(part: Smb2Message) -> str:
    """Return the name in the buffer of a CREATE or TREE_CONNECT request."""
    return part.buffer().decode("utf-16-le", "replace")


def file_id_of(part: Smb2Message) -> bytes:
    """Return the FileId of a request; ``NO_FILE`` if it has none."""
    at = FILE_ID_AT.get(part.command)
    if part.command == OPLOCK_BREAK and part.body_size != _OPLOCK_SIZE:
        at = None
    found = b"" if at is None else part.bytes_at(at, 16)
    return found if len(found) == 16 else NO_FILE


def judge_file(part: Smb2Message, session: Session, number: int, verdicts: Verdicts) -> None:
    """Judge that a request by itself names an open of its session: one that a response to CREATE gave.

    It may be closed by now. Sessions are judged that have one channel and of which nothing is missing: a loss shows
    itself late, and on its own connection only. [MS-SMB2 3.3.5.10 to 3.3.5.21]
    """
    if not session.known or not session.complete or part.flags & FLAG_RELATED:
        return
    at = FILE_ID_AT.get(part.command)
    if at is None or part.known < HEADER_SIZE + at + 16:
        return
    if part.command == IOCTL and (part.fields("<I", 4) or (0,))[0] in _WITHOUT_FILE:
        return
    if part.command == OPLOCK_BREAK and part.body_size != _OPLOCK_SIZE:
        return
    file_id = part.bytes_at(at, 16)
    kept, text = file_id in session.given, "{} names FileId {}"
    verdicts.check(rules.SMB2_FILE, kept, number, Direction.TO_SERVER, text, part.name, file_id.hex())


def judge_answer(pending: Pending, part: Smb2Message, number: int, verdicts: Verdicts, blind: bool) -> None:
    """Judge and note the bytes that a final response says were moved. ``blind``: RDMA may not have been captured."""
    record, offer = pending.record, pending.offer
    if part.status not in (STATUS_SUCCESS, STATUS_BUFFER_OVERFLOW) or part.command not in (READ, WRITE):
        return
    check, way = verdicts.check, Direction.TO_CLIENT
    fields = part.fields("<BxII", 2) if part.command == READ else part.fields("<xxII", 2)
    if fields is None:
        return
    inline, remaining = (fields[1], fields[2]) if part.command == READ else (fields[0], 0)
    size = remaining if offer is not None and part.command == READ else inline
    if part.command == READ and pending.length:
        text = "{} bytes for a READ of {}"
        check(rules.SMB2_READ_LENGTH, size <= pending.length, number, way, text, size, pending.length)
    if part.command == WRITE:
        text = "{} bytes written of a WRITE of {}"
        check(rules.SMB2_WRITE_COUNT, size <= pending.length, number, way, text, size, pending.length)
    if offer is None:
        record.bytes, record.way = size, "inline" if size else ""
        return
    record.moved_by_rdma(size, offer.operations, offer.operation_count)
    text = "the response says {} bytes, {} went by RDMA"
    if not blind:
        check(rules.RDMA_BYTES, offer.moved >= size, number, way, text, size, offer.moved)


def apply(pending: Pending, part: Smb2Message, established: set[int]) -> None:
    """Note what a final response has changed."""
    session, record = pending.session, pending.record
    if part.status != STATUS_SUCCESS:
        return
    if part.command == TREE_CONNECT:
        (flags,) = part.fields("<I", 4) or (0,)
        session.trees[part.tree_id] = TreeConnect(pending.name, bool(flags & _SHARE_ENCRYPTED))
        record.tree_id = part.tree_id
    elif part.command == TREE_DISCONNECT:
        session.trees.pop(pending.tree_id, None)
    elif part.command == LOGOFF:
        established.discard(session.session_id)
    elif part.command == CREATE:
        file_id = part.bytes_at(_FILE_ID_IN_CREATE, 16)
        if len(file_id) == 16:
            session.opened(file_id, pending.name)
        else:
            session.complete = False
    elif part.command == CLOSE:
        session.files.pop(pending.file_id, None)
