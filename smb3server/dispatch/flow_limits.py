"""Delays of reads and writes whose flow has a limit. [MS-SQOS 3.2.5]

Only the one request waits, by a timer: the event loop goes on with others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from smb3server.dispatch.request import Pending, Request, Response
from smb3server.dispatch.waiting import Done, until
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.state.objects import Open


def wait_for(opened: Open, length: int) -> float:
    """Count a read or write of ``length`` bytes. Return the seconds that it has to wait for its flow."""
    flow = opened.flow
    return flow.admit(asyncio.get_running_loop().time(), length) if flow is not None else 0.0


def later(request: Request, opened: Open, seconds: float, work: Callable[[], Response | Pending]) -> Pending:
    """Answer a request by ``work`` when its time has come. It fails if the open is closed meanwhile."""

    def go_on() -> Response | None:
        if opened.handle is None:
            raise StatusError(NtStatus.FILE_CLOSED)
        result = work()
        return result if isinstance(result, Response) else None

    return until(request, partial(_begin, seconds), go_on)


def _begin(seconds: float, done: Done) -> Callable[[], None]:
    return asyncio.get_running_loop().call_later(seconds, done, None).cancel
