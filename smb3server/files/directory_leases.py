"""Breaking directory leases: whoever lists a directory from a cache must hear of changes to its entries.

MS-FSA 2.1.4.12 with PARENT_OBJECT: a change takes read caching from every lease on the parent directory, and as handle
caching alone is no lease, all of it. Spared is the lease whose key the changing open named as its parent's
(SMB2_CREATE_REQUEST_LEASE_V2.ParentLeaseKey): its holder made the change. Nobody waits for the acknowledgment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smb3server.files.caching import NONE, Lease

if TYPE_CHECKING:
    from smb3server.backends.base import Path
    from smb3server.files.file import File
    from smb3server.state.objects import Open


def entry_changed(by: Open, path: Path) -> None:
    """``by`` created, removed, renamed or changed what is at ``path``."""
    file, backend = by.file, by.tree.share.backend
    if file is None or backend is None or not path or not file.table.leases.directory_leases:
        return
    try:
        key = backend.stat(path[:-1]).key
    except OSError:
        # The directory is gone, too, and its leases with it.
        return
    directory = file.table.find(key)
    if directory is not None:
        break_all(directory, by.parent_lease)


def break_all(directory: File, spared: tuple[bytes, bytes] | None = None) -> None:
    """``spared``: (ClientGuid, LeaseKey) of the one that keeps what it has."""
    for holder in tuple(directory.caching.holders):
        if isinstance(holder, Lease) and (holder.client_guid, holder.key) != spared:
            holder.lower(NONE)
