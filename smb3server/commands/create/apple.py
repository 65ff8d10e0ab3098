"""The create context AAPL, by which Macs ask for Apple's extensions. (Apple's SMBClient, kernel/netsmb/smb_2.h)

Shares that are not for Macs ignore it, as any unknown context.
"""

from __future__ import annotations

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
        backend = tree.share.backend
        lists = backend is not None and backend.supports_streams and tree.share.rules.streams
        tree.apple = int(_SERVER | (query.client & ServerCaps.READ_DIR_ATTR if lists else 0))


def _answer(found: Described, data: bytes) -> bytes | None:
    """Return what the server and the share can do. No file is found by its number: host file systems give the numbers
    of deleted files to new ones."""
    share = found.tree.share
    if not share.rules.for_macs:
        return None
    query = apple.parse_query(data)
    if isinstance(query, ServerQuery):
        sensitive = VolumeCaps.CASE_SENSITIVE if share.rules.case_sensitive else 0
        return apple.pack_server(query.asked, found.tree.apple, VolumeCaps.FULL_SYNC | sensitive, share.model)
    if query is None:
        return None
    return apple.RESOLVED_ID.pack(apple.ResolvedId(status=NtStatus.NOT_SUPPORTED))


register(Kind(apple.AAPL, before=_check, after=_enable, parse=bytes, answer=_answer))
