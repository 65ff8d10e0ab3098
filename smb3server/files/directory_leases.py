"""Breaks of directory leases: a client that caches a directory must be notified of changes to its entries.

A change takes read caching from every lease on the parent directory. As handle caching alone is not a valid lease, this
takes all of it. Leases whose key the changing open named as its parent's are spared, because their holder made the
change (SMB2_CREATE_REQUEST_LEASE_V2.ParentLeaseKey). The key alone decides, whichever client holds the lease. The
change does not wait for acknowledgments. [MS-FSA 2.1.4.12 (PARENT_OBJECT), 2.1.4.12.2]
"""

from __future__ import annotations

from smb3server.backends.base import Backend, Path
from smb3server.files.caching import NONE, Lease
from smb3server.files.file import File, FileTable, Opened


def entry_changed(table: FileTable[Opened], backend: Backend, path: Path, spared: bytes | None) -> None:
    """Break the leases on the parent directory of ``path``, which was created, removed, renamed or changed.

    ``spared`` is the ParentLeaseKey of the open that made the change."""
    if not path:
        return
    try:
        key = backend.stat(path[:-1]).key
    except OSError:
        # The directory has been removed, too, and its leases with it.
        return
    directory = table.find(key)
    if directory is not None:
        break_all(directory, spared)


def break_all(directory: File[Opened], spared: bytes | None = None) -> None:
    """Break the leases on ``directory`` except those with the key ``spared``."""
    for holder in tuple(directory.caching.holders):
        if isinstance(holder, Lease) and holder.key != spared:
            holder.lower(NONE)
