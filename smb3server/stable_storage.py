"""What a client is told is written is on stable storage first, where it asked for that or its open is persistent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from smb3server.errors import as_status_error
from smb3server.request import Interim, Pending, Request, Response
from smb3server.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.open import Open


def start_flush(opened: Open, landed: Callable[[StatusError | None], None]) -> asyncio.Future[None]:
    """Flush what was written on a worker thread, then call with the error, if there is one. The open may be closed
    meanwhile. It has a handle."""
    handle = opened.handle
    if handle is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    opened.begin_io()
    future = asyncio.get_running_loop().run_in_executor(None, handle.flush)

    def done(future: asyncio.Future[None]) -> None:
        opened.end_io()
        error = future.exception()
        if error is None:
            landed(None)
        elif isinstance(error, OSError):
            landed(as_status_error(error))
        else:
            landed(StatusError(NtStatus.INTERNAL_ERROR))

    future.add_done_callback(done)
    return future


def after_flush(request: Request, opened: Open, response: Response) -> Response | Pending:
    """The response to a request that changed data: at once, or, through a persistent open, once it is on stable
    storage."""
    if not opened.write_through or opened.handle is None:
        return response
    pending = request.pend(Interim.DELAYED)
    start_flush(opened, lambda error: pending.complete(response) if error is None else pending.fail(error))
    return pending


async def flushed(opened: Open) -> None:
    """The same for a request that runs as a coroutine. Raises ``StatusError``."""
    if not opened.write_through or opened.handle is None:
        return
    errors: list[StatusError | None] = []
    future = start_flush(opened, errors.append)
    with contextlib.suppress(OSError):
        # The thread goes on if the request is cancelled; the descriptor stays open for it.
        await asyncio.shield(future)
    error = errors[0] if errors else None
    if error is not None:
        raise error
