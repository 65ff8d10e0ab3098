"""Open files as records: who may do what with them, what others are denied, what clients may cache, and locks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from smb3server.files.caching import HANDLE, READ, WRITE, Lease, Oplock
from smb3server.status.model import AwayRecord, Caching, LockRecord, OpenRecord
from smb3server.wire.create import Access
from smb3server.wire.oplock_break import OplockLevel

if TYPE_CHECKING:
    from smb3server.server.server import Server
    from smb3server.state.objects import Open

MAX_OPENS = 1000
"""Largest number of opens listed per session; the count includes all of them."""
MAX_LOCKS = 10_000
"""Largest number of byte-range locks listed; the count includes all of them."""
_RIGHTS = (
    ("read", Access.READ_DATA),
    ("write", Access.WRITE_DATA | Access.APPEND_DATA),
    ("execute", Access.EXECUTE),
    ("delete", Access.DELETE),
)
_SHARING = (("read", 1), ("write", 2), ("delete", 4))
"""FILE_SHARE_READ, FILE_SHARE_WRITE, FILE_SHARE_DELETE. [MS-SMB2 2.2.13]"""
_RIGHTS_TO_CACHE = (("R", READ), ("W", WRITE), ("H", HANDLE))
_LEVELS = {
    int(OplockLevel.NONE): "none",
    int(OplockLevel.II): "level II",
    int(OplockLevel.EXCLUSIVE): "exclusive",
    int(OplockLevel.BATCH): "batch",
}


def describe(opened: Open) -> OpenRecord:
    """Return one open as a record."""
    file = opened.file
    return OpenRecord(
        id=f"0x{opened.file_id[0]:016x}",
        share=opened.tree.share.name,
        path="/".join(opened.path),
        access=f"0x{opened.granted_access:08x}",
        rights=[name for name, bits in _RIGHTS if opened.granted_access & bits],
        denies=_denied(opened),
        caching=_caching(opened),
        locks=file.locks.count_of(opened) if file is not None else 0,
        directory=opened.is_directory,
        pipe=opened.pipe is not None,
        delete_pending=opened.delete_on_close or (file is not None and file.delete_pending),
        durable=opened.durable.kind if opened.durable is not None else "",
        bytes_read=opened.bytes_read,
        bytes_written=opened.bytes_written,
    )


def _denied(opened: Open) -> list[str]:
    """Return what other opens may not ask for: the deny mode. Opens for attributes only deny nothing."""
    if opened.pipe is not None or not any(opened.granted_access & bits for _, bits in _RIGHTS):
        return []
    return [name for name, bit in _SHARING if not opened.share_access & bit]


def _caching(opened: Open) -> Caching | None:
    """Return the oplock or lease of an open; None if it has none."""
    holder = opened.caching
    if isinstance(holder, Lease):
        return Caching(
            kind="directory lease" if holder.directory else "lease",
            state="".join(letter for letter, bit in _RIGHTS_TO_CACHE if holder.state & bit),
            breaking=holder.breaking,
            key=holder.key.hex(),
            opens=len(holder.opens),
        )
    if isinstance(holder, Oplock):
        return Caching(
            kind="oplock", state=_LEVELS.get(int(holder.level), "none"), breaking=holder.breaking, key="", opens=1
        )
    return None


def away(opens: Iterable[Open]) -> Iterator[AwayRecord]:
    """Return the opens whose client is away. No session lists them."""
    for opened in opens:
        durable = opened.durable
        if durable is not None and durable.disconnected:
            identity = opened.session.identity
            yield AwayRecord(
                **msgspec.structs.asdict(describe(opened)),
                user=str(identity) if identity is not None else "",
                timeout=durable.timeout,
            )


def locks(server: Server) -> Iterator[LockRecord]:
    """Return the byte-range locks that are held, and those that are waited for."""
    seen: set[int] = set()
    for opened in server.opens.by_id.values():
        file = opened.file
        if file is None or id(file) in seen:
            continue
        seen.add(id(file))
        for lock in file.locks.locks:
            yield _lock(lock.owner, lock.offset, lock.length, lock.exclusive, waiting=False)
        for wanted in file.locks.waiters:
            yield _lock(wanted.owner, wanted.offset, wanted.length, wanted.exclusive, waiting=True)


def _lock(owner: Open, offset: int, length: int, exclusive: bool, waiting: bool) -> LockRecord:
    session = owner.session
    return LockRecord(
        open=f"0x{owner.file_id[0]:016x}",
        session=f"0x{session.session_id:016x}",
        user=str(session.identity) if session.identity is not None else "",
        share=owner.tree.share.name,
        path="/".join(owner.path),
        offset=offset,
        length=length,
        exclusive=exclusive,
        waiting=waiting,
    )
