"""The open that a request names."""

from __future__ import annotations

from smb3server.dispatch.request import RELATED_FILE_ID, FileId, Request
from smb3server.state.objects import Open
from smb3server.state.replay import check_sequence
from smb3server.wire.header import HeaderFlags
from smb3server.wire.status import NtStatus, StatusError

_REPLAY = int(HeaderFlags.REPLAY_OPERATION)


def client_guid_of(entry: Open) -> bytes:
    """Open.ClientGuid: of the connection it was made on."""
    return entry.durable.client_guid if entry.durable is not None else entry.session.connection.client_guid


def find_open(request: Request, file_id: FileId) -> Open:
    """The open a command names, or its compound's (MS-SMB2 3.3.5.2.7.2); FILE_CLOSED if there is none."""
    if file_id == RELATED_FILE_ID and request.compound.file_id is not None:
        file_id = request.compound.file_id
    session = request.session
    found = session.open_table.get(file_id[1]) if session is not None else None
    if found is None or found.file_id != file_id or found.tree is not request.tree:
        raise StatusError(NtStatus.FILE_CLOSED)
    request.open = found
    if found.replayable is not None:
        found.session.server.replays.forget(found)
    header = request.header
    if header.status != found.channel_sequence or header.flags & _REPLAY:
        check_sequence(request, found)
    return found
