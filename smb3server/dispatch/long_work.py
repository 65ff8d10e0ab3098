"""Requests whose work may take seconds. It is done in steps, on separate threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from smb3server.dispatch import waiting
from smb3server.dispatch.request import Pending, Request, Response
from smb3server.dispatch.stable_storage import flushed
from smb3server.process.long_work import Steps
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.state.objects import Open


async def on_worker(request: Request, opened: Open, steps: Steps, source: Open | None = None) -> None:
    """Take the steps on a worker thread, for ``request`` on ``opened``.

    They end early if the request is cancelled or the open is closed. The open's descriptor, and that of ``source``,
    stays open until they have ended. Raises the exception of a step, and ``StatusError``: FILE_CLOSED or
    NETWORK_NAME_DELETED if the open was closed or the share was lost."""
    server = request.server
    identity = opened.session.identity
    used = (opened,) if source is None else (opened, source)

    def begin(done: waiting.Done) -> Callable[[], None]:
        def ended(error: Exception | None) -> None:
            for each in used:
                each.end_io()
            done(error)

        def stop() -> None:
            job.stop()
            if job.stop in opened.on_close:
                opened.on_close.remove(job.stop)

        for each in used:
            each.begin_io()
        owner = identity.owner if identity is not None else ""
        job = server.long_work.add(owner, steps, ended, server.loss_of(opened.tree.share))
        opened.on_close.append(job.stop)
        return stop

    await waiting.over(begin)
    if opened.handle is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    request.check_fence()


def run_steps(request: Request, opened: Open, steps: Steps, finish: Callable[[], Response]) -> Pending:
    """Answer a request when its steps are taken and, for a persistent open, flushed.

    ``finish`` returns the response. It is called on the event loop, while the open is still open."""

    async def work() -> Response:
        await on_worker(request, opened, steps)
        response = finish()
        await flushed(request, opened)
        return response

    return waiting.run(request, work())
