"""CLOSE. [MS-SMB2 3.3.5.10]"""

from __future__ import annotations

from smb3server.commands.info import presentation
from smb3server.dispatch.lookup import find_open, fresh_of
from smb3server.dispatch.request import Response, TreeRequest, handles
from smb3server.state.opens import settle_write_time
from smb3server.wire.close import CLOSE_RESPONSE, POSTQUERY_ATTRIB, CloseResponse, parse_request
from smb3server.wire.header import Command

_NO_ATTRIBUTES = CLOSE_RESPONSE.pack(CloseResponse())


@handles(Command.CLOSE, TreeRequest)
def close(request: TreeRequest) -> Response:
    """Close an open and return its attributes if requested. They are read last, to include the final write time."""
    body = parse_request(request.message)
    opened = find_open(request, (body.persistent, body.volatile))
    response = _NO_ATTRIBUTES
    if body.flags & POSTQUERY_ATTRIB and opened.handle is not None:
        fresh = fresh_of(request, opened)
        if fresh is None or (opened.file is not None and opened.file.write_time is not None):
            settle_write_time(opened)
            info = opened.handle.info()
        else:
            info = fresh.info
        info = presentation.shown(opened, info)
        response = CLOSE_RESPONSE.pack(
            CloseResponse(
                flags=POSTQUERY_ATTRIB,
                creation_time=info.creation_time,
                last_access_time=info.last_access_time,
                last_write_time=info.last_write_time,
                change_time=info.change_time,
                allocation_size=info.allocation_size,
                end_of_file=info.end_of_file,
                file_attributes=info.attributes,
            )
        )
    request.host.server.opens.close(opened)
    return Response([response])
