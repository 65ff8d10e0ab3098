"""Waiting until a large directory is read, for requests that look up a name in it ignoring case."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from smb3server.backends.base import FolderNotRead, Reading
from smb3server.dispatch.errno_status import as_status_error
from smb3server.process.turns import call_in_own_turn
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.dispatch.request import Request


def when_read(
    request: Request, unread: FolderNotRead, again: Callable[[StatusError | None], None]
) -> Callable[[], None]:
    """Call ``again`` in a turn of its own when the directory is read, with what went wrong. Requests that wait for the
    same one share the reading, which goes on when they are cancelled. Return what forgets ``again``."""
    reading = unread.reading

    def over(error: Exception | None) -> None:
        if error is None:
            again(None)
        else:
            again(as_status_error(error) if isinstance(error, OSError) else StatusError(NtStatus.INTERNAL_ERROR))

    reading.waiting.append(over)
    if not reading.started:
        reading.started = True
        identity = request.session.identity if request.session is not None else None
        owner = identity.owner if identity is not None else ""
        done = functools.partial(_tell, reading)
        request.server.long_work.add(owner, reading.steps, done)

    def forget() -> None:
        if over in reading.waiting:
            reading.waiting.remove(over)

    return forget


def _tell(reading: Reading, error: Exception | None) -> None:
    waiting, reading.waiting = reading.waiting, []
    for over in waiting:
        call_in_own_turn(functools.partial(over, error))


async def folder_read(request: Request, unread: FolderNotRead) -> None:
    """Return when the directory is read. Raises ``StatusError``."""
    future: asyncio.Future[StatusError | None] = asyncio.get_running_loop().create_future()
    forget = when_read(request, unread, lambda error: None if future.done() else future.set_result(error))
    try:
        error = await future
    finally:
        forget()
    if error is not None:
        raise error
