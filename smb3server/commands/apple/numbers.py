"""Numbers of files for Macs, which take them for numbers that no later file gets. [MS-FSCC 2.1.9]

The numbers of host file systems are not like that: the next new file may get the one of a file that was deleted. So
Macs get none, unless the share has ``macos_file_ids`` and the file system makes numbers that last.
"""

from __future__ import annotations

from smb3server.access.caller import Caller
from smb3server.backends.base import OpenRequest
from smb3server.dispatch.lookup import handle_of
from smb3server.state.objects import Open
from smb3server.wire.create import Access


def of(opened: Open) -> int:
    """Return the number of an open file. 0: it has none for Macs."""
    return handle_of(opened).lasting_number() if opened.tree.share.rules.macos_file_ids else 0


def path_of(opened: Open, number: int, caller: Caller) -> str | None:
    """Return the path below the share of the file with a number. None: there is none that the user may look at."""
    backend = opened.store
    if backend is None or not opened.tree.share.rules.macos_file_ids:
        return None
    try:
        path = backend.find_number(number)
        # As if the user had known the path: each folder on the way must let the user through.
        handle = backend.open(OpenRequest(path, open_reparse_point=True, user=caller.user))
    except OSError:
        return None
    try:
        same = handle.lasting_number() == number
        allowed = caller.rights_on(backend, path, handle.describe()) & Access.READ_ATTRIBUTES
        return "\\".join(path) if same and allowed else None
    except OSError:
        return None
    finally:
        handle.close()
