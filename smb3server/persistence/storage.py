"""The mark that shows whether the file system of a share with stored opens is there (``backends.base.Storage``).

Without it, a file that is not found says nothing: an empty mount point has no files either.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from smb3server.backends.base import Storage
    from smb3server.state.share import Share


class StorageMissing(OSError):
    """The file system of a share is not there, is another one, or does not work. The text says why, and what to do."""


class StorageHangs(StorageMissing):
    """The file system of a share does not answer. Whatever was written to it may still be on its way."""


def key_of(share: Share) -> str:
    """Return the last part of the key under which the store has the mark of a share."""
    return quote(share.name.casefold(), safe="")


def check_mark(share: Share, storage: Storage, mark: str) -> None:
    """Check that the file system of a share has this mark. Blocks. Raises ``StorageMissing``."""
    try:
        found = storage.read()
    except OSError as error:
        raise StorageMissing(f"share {share.name}: {storage.root}: {error.strerror or error}") from error
    if found == mark:
        return
    what = "has no storage mark" if found is None else "has the storage mark of another file system"
    raise StorageMissing(
        f"share {share.name}: {storage.root} {what}; remedy: mount the share's file system there; or, if this is the "
        f"right one, for example after a restore: mkdir -p -m 700 {shlex.quote(storage.path.rpartition('/')[0])} && "
        f"echo {mark} > {shlex.quote(storage.path)}"
    )


def check(share: Share, mark: str | None, writer: str) -> None:
    """Check that the file system of a share is there and can be written to. Blocks. Raises ``StorageMissing``.

    ``mark``: what it must have; None if the share was never served. ``writer``: tells apart those who write."""
    storage = share.backend.storage() if share.backend is not None else None
    if share.backend is None or storage is None:
        return
    if mark is not None:
        check_mark(share, storage, mark)
    try:
        if not share.backend.read_only:
            storage.try_writing(writer)
    except OSError as error:
        raise StorageMissing(f"share {share.name}: {storage.root}: {error.strerror or error}") from error
