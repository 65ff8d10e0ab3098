"""Share modes: which opens of one stream may exist at the same time. [MS-FSA 2.1.5.1.2.2]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from smb3server.wire.create import Access, ShareAccess

READS = Access.READ_DATA | Access.EXECUTE
WRITES = Access.WRITE_DATA | Access.APPEND_DATA
SHARED = READS | WRITES | Access.DELETE
"""Access rights that share modes are about. An open with none of them conflicts with no other."""

_READS, _WRITES, _DELETE, _SHARED = int(READS), int(WRITES), int(Access.DELETE), int(SHARED)
_SHARE_READ, _SHARE_WRITE, _SHARE_DELETE = int(ShareAccess.READ), int(ShareAccess.WRITE), int(ShareAccess.DELETE)


class Sharer(Protocol):
    """An open, as share modes see it."""

    granted_access: int
    share_access: int


def denied(access: int, share: int) -> bool:
    """Return whether ``access`` has a right that ``share`` denies to others."""
    return bool(
        (access & _READS and not share & _SHARE_READ)
        or (access & _WRITES and not share & _SHARE_WRITE)
        or (access & _DELETE and not share & _SHARE_DELETE)
    )


def conflicts(opens: Iterable[Sharer], access: int, share: int) -> bool:
    """Return whether an open with ``access`` and ``share`` and one of ``opens`` exclude each other."""
    if not access & _SHARED:
        return False
    return any(
        existing.granted_access & _SHARED
        and (denied(access, existing.share_access) or denied(existing.granted_access, share))
        for existing in opens
    )
