"""Changes that wait until other clients have given up the handles that they keep open only for their caches.

Renames, hard links that replace a file, deletions and new security descriptors break the handle caching of others, and
wait for the acknowledgments. [MS-FSA 2.1.4.12; OPEN_BREAK_H, SET_INFORMATION, SET_SECURITY] Truncations wait for the
file system, if it takes long to free the space. [MS-FSA 2.1.5.15.1, 2.1.5.15.5]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from smb3server.dispatch.long_work import run_steps
from smb3server.dispatch.request import Interim, Pending, Response, TreeRequest
from smb3server.dispatch.waiting import MustWait, retry
from smb3server.files.file import File
from smb3server.process.long_work import Steps
from smb3server.state.objects import Open
from smb3server.wire.status import NtStatus, StatusError


def break_handles(opened: Open, files: Iterable[File[Open]]) -> None:
    """Break the handle caching that others than ``opened`` have on ``files``, on all of them at once.

    Raises ``MustWait`` if an acknowledgment is needed. The next attempt asks again, so one file to wait for is
    enough."""
    waiting = None
    for file in files:
        if file.caching.holders and file.caching.break_handles(opened.caching):
            waiting = file.caching
    if waiting is not None:
        raise MustWait(waiting)


def change(request: TreeRequest, opened: Open, attempt: Callable[[], Response | Awaitable[None]]) -> Response | Pending:
    """Answer a SET_INFO by ``attempt``, which is repeated while it raises ``MustWait``.

    There is no interim reply for that wait: Windows sends none (MS-SMB2 3.3.4.2, note 240), and clients do not expect
    one (smb2.compound_async.rename_last)."""

    def checked() -> Response | Awaitable[None]:
        # It may have come about during the wait.
        if opened.handle is None:
            raise StatusError(NtStatus.FILE_CLOSED)
        return attempt()

    return retry(request, checked, Interim.NEVER)


def one_step(work: Callable[[], None]) -> Steps:
    """Call ``work`` in a single step."""
    work()
    yield


def cut(
    request: TreeRequest, opened: Open, size: int, finish: Callable[[], None], response: Response
) -> Pending | None:
    """Call ``finish``, which truncates the file to ``size`` bytes.

    Return None if this is done. If the file system takes long to free the space, a worker frees it first. Then return
    the pending request, which is answered with ``response``."""
    free = opened.handle.shrinking(size) if opened.handle is not None else None
    if free is None:
        finish()
        return None

    def finished() -> Response:
        finish()
        return response

    return run_steps(request, opened, one_step(free), finished)
