"""Replies that are held until what their commands have changed of persistent opens is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smb3server.dispatch.request import Interim, Pending, Request, Response
from smb3server.wire.status import StatusError

if TYPE_CHECKING:
    from smb3server.state.ports import NotStored, Persistence


def unless_failed(result: Response | StatusError, error: NotStored | None) -> Response | StatusError:
    """Return the result, or the error for a result that could not be stored."""
    if error is None or isinstance(result, StatusError):
        return result
    if result.on_sent is not None:
        result.on_sent()
    return StatusError(error.status)


def hold(request: Request, result: Response | StatusError, journal: Persistence, touches: int) -> Pending:
    """Store the changes that the command made to persistent opens before its reply is sent. This cannot be
    cancelled."""
    pending = request.pend(Interim.DELAYED, lambda: None)
    pending.handler_returned()

    def stored(error: NotStored | None) -> None:
        outcome = unless_failed(result, error)
        if isinstance(outcome, Response):
            pending.complete(outcome)
        else:
            pending.fail(outcome)

    # In a later turn: a request that completes immediately must not look like one that waits.
    request.connection.loop.call_soon(journal.when_stored, touches, stored)
    journal.flush()
    return pending
