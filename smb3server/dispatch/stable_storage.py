"""Flushes before replies: written data is on stable storage first if the client requests it, the open was made with
FILE_WRITE_THROUGH, or it is persistent."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from smb3server.dispatch.request import Pending, Request, Response
from smb3server.dispatch.waiting import Done, over, until
from smb3server.wire.create import CreateOptions
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.state.objects import Open


def start_flush(request: Request, opened: Open, landed: Done) -> None:
    """Flush the file on a worker thread, then call ``landed``. Raises ``StatusError`` if the open is closed.

    If the open is closed meanwhile, its file stays open until it is flushed."""
    handle = opened.handle
    if handle is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    opened.begin_io()

    def done(error: Exception | None) -> None:
        opened.end_io()
        landed(error)

    if handle.queue is not None:
        handle.queue.help(handle.flush, lambda _, error: done(error))
    else:
        request.server.flushes.add(handle.flush, done)


def _must_last(opened: Open) -> bool:
    """Return whether changes through an open must be on stable storage before the reply. [MS-FSA 2.1.5.10.39]"""
    return opened.write_through or bool(opened.create_options & CreateOptions.WRITE_THROUGH)


def after_flush(request: Request, opened: Open, response: Response) -> Response | Pending:
    """Return the response to a request that changed data. If the data must last, pend until it is on stable
    storage."""
    if not _must_last(opened) or opened.handle is None:
        return response
    return until(request, partial(start_flush, request, opened), lambda: response)


async def flushed(request: Request, opened: Open) -> None:
    """Wait until the data written through an open is on stable storage, if it must last. Raises the error of the
    flush."""
    if not _must_last(opened) or opened.handle is None:
        return
    await over(partial(start_flush, request, opened))
