"""What a user may do with files of a snapshot: what was allowed then, and no more than is allowed now.

A snapshot has the descriptors of its time. Rights that were taken away since then would come back with it. So the file
that the share has at the same path now limits the access, too.
"""

from __future__ import annotations

import errno

from smb3server.access.caller import Caller
from smb3server.backends.base import Backend, FolderNotRead, OpenRequest, Path
from smb3server.wire.create import Access

_LIST = int(Access.READ_DATA)


def rights_now(caller: Caller, present: Backend, path: Path) -> int:
    """Return the maximal access that a user has now to what is at ``path`` in the share's store ``present``.

    If there is nothing any longer, the nearest folder above decides, since the descriptor is gone: whoever may list
    that may do all that the share allows, and nobody else may do anything. Raises ``FolderNotRead``."""
    for depth in range(len(path), -1, -1):
        try:
            handle = present.open(OpenRequest(path[:depth], user=caller.user))
        except FolderNotRead:
            raise
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                continue
            return 0
        try:
            rights = caller.rights_on(present, path[:depth], handle.describe())
        except OSError:
            return 0
        finally:
            handle.close()
        if depth == len(path):
            return rights
        return caller.share if rights & _LIST else 0
    return 0
