"""Making files shorter (MS-FSA 2.1.5.15.1, 2.1.5.15.5) without holding up everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from smb3server.errors import as_status_error
from smb3server.open import Open
from smb3server.request import Pending, Request, Response
from smb3server.stable_storage import flushed
from smb3server.status import NtStatus, StatusError


def cut(request: Request, opened: Open, size: int, finish: Callable[[], None], response: Response) -> Pending | None:
    """Call ``finish``, which cuts the file to ``size`` bytes: at once (None), or after a worker has given back what the
    file system takes its time to free."""
    free = opened.handle.shrinking(size) if opened.handle is not None else None
    if free is None:
        finish()
        return None
    return request.run(_cut_slowly(opened, free, finish, response))


async def _cut_slowly(
    opened: Open, free: Callable[[], None], finish: Callable[[], None], response: Response
) -> Response:
    await _on_worker(opened, free)
    # The open and the share may have gone meanwhile.
    if opened.handle is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    if opened.session.server.has_lost(opened.tree.share):
        raise StatusError(NtStatus.NETWORK_NAME_DELETED)
    finish()
    await flushed(opened)
    return response


async def _on_worker(opened: Open, work: Callable[[], None]) -> None:
    """The descriptor stays open until the work is done, even if nobody waits for it any more."""
    future: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    opened.begin_io()

    def done(error: Exception | None) -> None:
        opened.end_io()
        if not future.done():
            future.set_result(error)

    opened.session.server.flushes.add(work, done)
    error = await future
    if isinstance(error, OSError):
        raise as_status_error(error)
    if error is not None:
        raise error
