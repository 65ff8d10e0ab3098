"""Truncation of files that does not hold up other requests. [MS-FSA 2.1.5.15.1, 2.1.5.15.5]"""

from __future__ import annotations

from collections.abc import Callable

from smb3server.dispatch.long_work import run_steps
from smb3server.dispatch.request import Pending, Response, TreeRequest
from smb3server.process.long_work import Steps
from smb3server.state.objects import Open


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
