"""Requests to delete a file at its last close: the whole file, or one of its names. [MS-FSA 2.1.5.5, 2.1.5.15.3]

Most files have one name, and ``File.delete_pending`` says it all. If a file has several hard links, an open was made by
one of them (Open.Link). Then this name alone is deleted, when the last open made by it is closed: those made by other
names do not count, and can still be made. (``File.link_deletions``)
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from smb3server.backends.base import FolderNotRead, Kind
from smb3server.state.recycling import problem
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.access.caller import Caller
    from smb3server.backends.base import Backend, Handle, Path
    from smb3server.files.file import Deleter, File
    from smb3server.state.objects import Open, TreeConnect

log = logging.getLogger(__name__)
_NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))


def prepare_to_keep(tree: TreeConnect, handle: Handle, caller: Caller) -> None:
    """Make ready to keep a file whose deletion is asked for. Raises ``StatusError``: CANNOT_DELETE or DISK_FULL if its
    share has a recycle folder and the file could not be moved there."""
    share = tree.share
    if share.recycling is None or share.backend is None:
        return
    try:
        share.recycling.prepare(share.backend, handle, tree.session.identity, caller)
    except FolderNotRead:
        raise
    except OSError as error:
        log.warning("share %s: a deletion is refused, as the file cannot be kept: %s", share.name, problem(error))
        raise StatusError(NtStatus.DISK_FULL if error.errno in _NO_SPACE else NtStatus.CANNOT_DELETE) from error


def mark(opened: Open, posix: bool = False) -> None:
    """Request the deletion of the file, or of the name that ``opened`` was made by. Raises ``OSError``.

    ``posix``: the name goes when this open is closed, though others stay open. [MS-FSCC 2.4.12]"""
    file, handle = opened.file, opened.handle
    if file is None or handle is None:
        return
    if not file.stream and handle.kind is Kind.FILE and handle.info().link_count > 1:
        file.mark_link(opened, posix)
    else:
        file.mark(opened, posix)


def withdraw(opened: Open) -> None:
    """Withdraw the request to delete what ``mark`` would request."""
    file = opened.file
    if file is None:
        return
    file.keep()
    for asked, deletion in list(file.link_deletions.items()):
        if concerns(deletion, opened):
            file.keep_link(asked)


def is_pending(file: File[Open] | None, backend: Backend | None, path: Path) -> bool:
    """Return whether an open of ``file`` by the name ``path`` must fail with DELETE_PENDING."""
    if file is None or file.delete_pending:
        return file is not None
    return any(_has_name(deletion, backend, path) for deletion in file.link_deletions.values())


def of_open(opened: Open) -> bool:
    """Return whether what ``opened`` is an open of will be deleted (Open.Link.IsDeleted or Open.Stream.IsDeleted)."""
    file = opened.file
    if file is None or file.delete_pending:
        return file is not None
    return any(concerns(deletion, opened) for deletion in file.link_deletions.values())


def concerns(deletion: Deleter[Open], opened: Open) -> bool:
    """Return whether ``opened``, an open of the same file, was made by the name that is to be deleted (Open.Link).

    Renames do not change this."""
    if deletion.opened is opened:
        return True
    try:
        return opened.handle is not None and _has_name(deletion, opened.store, opened.handle.path)
    except OSError:
        # The name of this open is gone. That is no reason to keep another one.
        return False


def is_empty(folder: Handle) -> bool:
    """Return whether a directory has no entries. Raises ``OSError``."""
    entries = folder.scan()
    try:
        return all(entry.name in (".", "..") for entry in entries) and not folder.has_vetoed()
    finally:
        close = getattr(entries, "close", None)
        if close is not None:
            close()


def _has_name(deletion: Deleter[Open], backend: Backend | None, path: Path) -> bool:
    try:
        return (
            backend is not None
            and deletion.opened.store is backend
            and backend.name_rules.same(deletion.handle.path, path)
        )
    except OSError:
        return False
