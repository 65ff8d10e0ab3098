"""FLUSH. [MS-SMB2 3.3.5.11]"""

from __future__ import annotations

from functools import partial

from smb3server.dispatch.lookup import find_open
from smb3server.dispatch.request import Pending, Response, TreeRequest, handles
from smb3server.dispatch.stable_storage import start_flush
from smb3server.dispatch.waiting import until
from smb3server.files import write_times
from smb3server.wire.create import Access
from smb3server.wire.flush import FLUSH_RESPONSE, FlushResponse, parse_request
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus, StatusError

_WRITES = int(Access.WRITE_DATA | Access.APPEND_DATA)
"""On a directory these bits mean FILE_ADD_FILE and FILE_ADD_SUBDIRECTORY."""


@handles(Command.FLUSH, TreeRequest)
def flush(request: TreeRequest) -> Response | Pending:
    """Flush a file to stable storage; a pipe has nothing to flush. Raises ACCESS_DENIED if the open cannot write."""
    body = parse_request(request.message)
    opened = find_open(request, (body.persistent, body.volatile))
    done = Response([FLUSH_RESPONSE.pack(FlushResponse())])
    if opened.handle is None:
        return done
    if not opened.granted_access & _WRITES:
        raise StatusError(NtStatus.ACCESS_DENIED)

    def flushed() -> Response:
        write_times.make_visible(opened)
        return done

    return until(request, partial(start_flush, request, opened), flushed)
