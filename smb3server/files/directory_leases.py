"""Breaking directory leases: whoever lists a directory from a cache must hear of changes to its entries.

MS-FSA 2.1.4.12 with PARENT_OBJECT: a change takes read caching from every lease on the parent directory, and as handle
caching alone is no lease, all of it. Spared is the lease whose key the changing open named as its parent's
(SMB2_CREATE_REQUEST_LEASE_V2.ParentLeaseKey): its holder made the change. Nobody waits for the acknowledgment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smb3server.files.caching import NONE, Lease

if TYPE_CHECKING:
    from smb3server.backends.base import Backend, Path
    from smb3server.files.file import File, FileTable, Opened

ParentLease = tuple[bytes, bytes]
"""(ClientGuid, ParentLeaseKey) of an open."""


def entry_changed(table: FileTable[Opened], backend: Backend, path: Path, spared: ParentLease | None) -> None:
    """Break the leases on the directory in which something was created, removed, renamed or changed at ``path``.
    ``spared``: as the open named it that made the change."""
    if not path:
        return
    try:
        key = backend.stat(path[:-1]).key
    except OSError:
        # The directory is gone, too, and its leases with it.
        return
    directory = table.find(key)
    if directory is not None:
        break_all(directory, spared)


def break_all(directory: File[Opened], spared: ParentLease | None = None) -> None:
    """Break the leases on ``directory`` except ``spared``."""
    for holder in tuple(directory.caching.holders):
        if isinstance(holder, Lease) and (holder.client_guid, holder.key) != spared:
            holder.lower(NONE)
