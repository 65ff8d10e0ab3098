"""FLUSH (MS-SMB2 3.3.5.11)."""

from __future__ import annotations

import asyncio

from smb3server import write_times
from smb3server.open import find_open
from smb3server.request import Pending, Request, Response, handles
from smb3server.status import NtStatus, StatusError
from smb3server.wire.create import Access
from smb3server.wire.flush import FLUSH_RESPONSE, FlushResponse, parse_request
from smb3server.wire.header import Command

_WRITES = int(Access.WRITE_DATA | Access.APPEND_DATA)
"""On a directory the same bits are FILE_ADD_FILE and FILE_ADD_SUBDIRECTORY."""


@handles(Command.FLUSH)
def flush(request: Request) -> Response | Pending:
    """A handle that cannot write has nothing to flush: ACCESS_DENIED. A pipe is flushed at once."""
    record = parse_request(request.message)
    found = find_open(request, (record.persistent, record.volatile))
    done = Response([FLUSH_RESPONSE.pack(FlushResponse())])
    handle = found.handle
    if handle is None:
        return done
    if not found.granted_access & _WRITES:
        raise StatusError(NtStatus.ACCESS_DENIED)

    async def work() -> Response:
        await asyncio.to_thread(handle.flush)
        write_times.settle(found)
        return done

    return request.run(work())
