"""What a client is told is written is on stable storage first, where it asked for that or its open is persistent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from smb3server.dispatch.errno_status import as_status_error
from smb3server.dispatch.request import Interim, Pending, Request, Response
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.state.objects import Open

log = logging.getLogger(__name__)


def start_flush(request: Request, opened: Open, landed: Callable[[StatusError | None], None]) -> None:
    """Flush what was written on a worker thread, then call with the error, if there is one. The open may be closed
    meanwhile. It has a handle."""
    handle = opened.handle
    if handle is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    opened.begin_io()

    def done(error: Exception | None) -> None:
        opened.end_io()
        if error is None:
            landed(None)
        elif isinstance(error, OSError):
            landed(as_status_error(error))
        else:
            log.error("flush of what was written failed", exc_info=error)
            landed(StatusError(NtStatus.INTERNAL_ERROR))

    request.server.flushes.add(handle.flush, done)


def after_flush(request: Request, opened: Open, response: Response) -> Response | Pending:
    """The response to a request that changed data: at once, or, through a persistent open, once it is on stable
    storage."""
    if not opened.write_through or opened.handle is None:
        return response
    pending = request.pend(Interim.DELAYED)
    start_flush(request, opened, lambda error: pending.complete(response) if error is None else pending.fail(error))
    return pending


async def flushed(request: Request, opened: Open) -> None:
    """The same for a request that runs as a coroutine. Raises ``StatusError``."""
    if not opened.write_through or opened.handle is None:
        return
    future: asyncio.Future[StatusError | None] = asyncio.get_running_loop().create_future()
    # If the request is cancelled meanwhile, nobody waits for the outcome; the descriptor stays open for the flush.
    start_flush(request, opened, lambda error: None if future.done() else future.set_result(error))
    error = await future
    if error is not None:
        raise error
