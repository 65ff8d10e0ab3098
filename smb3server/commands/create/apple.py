"""The create context AAPL, by which Macs ask for Apple's extensions. (Apple's SMBClient, kernel/netsmb/smb_2.h)

Shares that are not for Macs ignore it, as any unknown context.
"""

from __future__ import annotations

from smb3server.commands.apple import numbers
from smb3server.commands.create.opening import Opening
from smb3server.commands.create.registry import Described, Kind, register
from smb3server.state.objects import Open
from smb3server.wire import apple
from smb3server.wire.apple import Asked, ServerCaps, ServerQuery, VolumeCaps
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import DecodeError

_SERVER = ServerCaps.UNIX_BASED | ServerCaps.OSX_COPYFILE | ServerCaps.NFS_ACE


def _check(opening: Opening, data: bytes) -> None:
    """Refuse a malformed context. Raises INVALID_PARAMETER."""
    if opening.opener.tree.share.rules.for_macs:
        try:
            apple.parse_query(data)
        except DecodeError:
            raise StatusError(NtStatus.INVALID_PARAMETER) from None


def _enable(opening: Opening, opened: Open, data: bytes) -> None:
    """Serve the extensions on this tree connect from now on, if the client wants to know the server's."""
    tree = opened.tree
    if not tree.share.rules.for_macs:
        return
    query = apple.parse_query(data)
    if isinstance(query, ServerQuery) and query.asked & Asked.SERVER_CAPS:
        backend = opened.store
        lists = backend is not None and backend.supports_streams and tree.share.rules.streams
        tree.apple = int(_SERVER | (query.client & ServerCaps.READ_DIR_ATTR if lists else 0))


def _answer(found: Described, data: bytes) -> bytes | None:
    """Return what the server and the share can do, or the path of a file."""
    opened, share = found.opened, found.opened.tree.share
    if not share.rules.for_macs:
        return None
    query = apple.parse_query(data)
    if isinstance(query, ServerQuery):
        return apple.pack_server(query.asked, opened.tree.apple, _volume(opened), share.model)
    return None if query is None else _resolved(opened, query)


def _volume(opened: Open) -> int:
    """Return the capabilities of the share."""
    rules, found = opened.tree.share.rules, VolumeCaps.FULL_SYNC
    if rules.case_sensitive:
        found |= VolumeCaps.CASE_SENSITIVE
    if rules.macos_file_ids and numbers.of(opened):
        found |= VolumeCaps.RESOLVE_ID
    return int(found)


def _resolved(opened: Open, number: int) -> bytes:
    """Return the path of the file with a number. A user who may not see the file learns that there is none."""
    caller = opened.tree.caller
    if not opened.tree.share.rules.macos_file_ids or caller is None:
        return apple.pack_resolved(NtStatus.NOT_SUPPORTED)
    path = numbers.path_of(opened, number, caller[1])
    if path is None:
        return apple.pack_resolved(NtStatus.OBJECT_NAME_NOT_FOUND)
    return apple.pack_resolved(NtStatus.SUCCESS, path)


register(Kind(apple.AAPL, before=_check, after=_enable, parse=bytes, answer=_answer))
