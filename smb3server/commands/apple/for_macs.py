"""Entries of folders for Macs: with maximal access, size of the resource fork, Finder information and mode.

A Mac then need not open each file to draw a window. (Apple's SMBClient, kernel/netsmb/smb_2.h, ReadDirAttr)
"""

from __future__ import annotations

from collections.abc import Callable

from smb3server.backends.base import NO_FINDER_DATA, DirectoryEntry, Kind, OpenRequest
from smb3server.dispatch.lookup import handle_of
from smb3server.dispatch.request import TreeRequest
from smb3server.state.caller import caller_of
from smb3server.state.objects import Open
from smb3server.wire import apple, filetime
from smb3server.wire import attributes as attr
from smb3server.wire.create import Access
from smb3server.wire.directory_info import ForMacs

_NOTHING = apple.pack_entry(*NO_FINDER_DATA, False, 0)


def describing(request: TreeRequest, opened: Open) -> Callable[[DirectoryEntry], tuple[str, ForMacs]]:
    """Return the function that makes an entry of an open folder into what a Mac gets."""
    backend, folder = opened.store, handle_of(opened).path
    numbered = opened.tree.share.rules.macos_file_ids
    caller = caller_of(request.session, opened.tree, request.server.accounts)

    def describe(entry: DirectoryEntry) -> tuple[str, ForMacs]:
        name, info = entry
        if backend is None or info.attributes & attr.REPARSE_POINT:
            return name, ForMacs(info, 0, _NOTHING, info.mode, 0)
        path = folder if name == "." else folder[:-1] if name == ".." else (*folder, name)
        try:
            handle = backend.open(OpenRequest(path, open_reparse_point=True, user=caller.user))
        except OSError:
            # The user may not even look at it, or it is gone.
            return name, ForMacs(info, 0, _NOTHING, info.mode, 0)
        try:
            access = caller.rights_on(backend, path, handle.describe())
            # They are in streams, which have the rights of their file.
            resource_size, finder = handle.finder_data() if access & Access.READ_DATA else NO_FINDER_DATA
            number = handle.lasting_number() if numbered else 0
        except OSError:
            return name, ForMacs(info, 0, _NOTHING, info.mode, 0)
        finally:
            handle.close()
        made = filetime.to_ns(info.creation_time) // 1_000_000_000
        packed = apple.pack_entry(resource_size, finder, info.kind == Kind.FILE, made)
        return name, ForMacs(info, access, packed, info.mode, number)

    return describe
