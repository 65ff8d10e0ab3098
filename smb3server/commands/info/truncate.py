"""Making files shorter (MS-FSA 2.1.5.15.1, 2.1.5.15.5) without holding up everybody else."""

from __future__ import annotations

from collections.abc import Callable

from smb3server.dispatch.long_work import run_steps
from smb3server.dispatch.request import Pending, Response, TreeRequest
from smb3server.process.long_work import Steps
from smb3server.state.objects import Open


def one_step(work: Callable[[], None]) -> Steps:
    """As steps of which there is only one."""
    work()
    yield


def cut(
    request: TreeRequest, opened: Open, size: int, finish: Callable[[], None], response: Response
) -> Pending | None:
    """Call ``finish``, which cuts the file to ``size`` bytes: at once (None), or after a worker has given back what the
    file system takes its time to free."""
    free = opened.handle.shrinking(size) if opened.handle is not None else None
    if free is None:
        finish()
        return None

    def finished() -> Response:
        finish()
        return response

    return run_steps(request, opened, one_step(free), finished)
