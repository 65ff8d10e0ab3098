"""The send queue of one endpoint: chains, signalling, and notification when a work request is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.providers.base import Completion, Endpoint, Send, Status, WorkRequest, Write
from smbdirect.rdma.chain_calls import OnDone, Waiting
from smbdirect.rdma.chains import chain

_OK = Status.OK
_UNSIGNALLED = 16
"""Most work requests in a row that are not signalled."""


class Group(NamedTuple):
    """The work requests posted since the last signalled one; done when the next signalled one completes."""

    size: int
    """Number of work requests."""
    endings: Sequence[OnDone]
    length: int
    """Bytes of messages that end in the group and are pending."""
    fetched: OnDone | None
    """The one more ending, that of the Read that completes the group."""


_KINDS = Send, Write, Group


class WorkQueue:
    """The work requests of one endpoint that wait for room in the provider's send queue.

    Completions come in posting order, so the completion of a signalled request covers all requests before it. A request
    is signalled if somebody wants to know when it is done, or if many before it are not: room must be reported before
    the queue is full, and the memory of Sends that a slow peer does not take must be counted.

    Invariant: every ``OnDone`` is called exactly once, by a completion or by ``fail``, whether its work was done or
    lost.
    """

    def __init__(self, endpoint: Endpoint, wake: Callable[[], None]) -> None:
        """``wake`` is called when work was added outside a batch. It must schedule a call of ``post``."""
        self.waiting: Waiting = []
        """Each with the bytes of the message that it ends. Invariant: none of these was posted, and each of them was
        queued after all posted ones."""
        self.corked = False
        """Whether a batch is being handled. Its end calls ``post``, so ``wake`` is not needed."""
        self._endpoint = endpoint
        self._size = endpoint.capabilities.max_send_queue
        self._signal_every = max(min(_UNSIGNALLED, self._size // 2), 1)
        self.wake = wake
        self._posted = 0
        """Invariant: the number of our work requests at the endpoint, at most ``_size``."""
        self._unsignalled = 0
        """Invariant: how many of them no signalled request has followed. None of those has an ``OnDone``."""
        self._stranded: list[Group] = []
        """Groups that the endpoint refused: no completion will cover them."""
        self.stopped: object = None
        """Why no new work is accepted; None means that it is accepted."""

    def lost(self) -> ConnectionLost:
        """Return the error for work that is not known to be done."""
        return ConnectionLost(self.stopped or "the connection ended")

    def stop(self, reason: object) -> None:
        """Accept no new work. Its owners get ``reason`` in their errors; a later call replaces the reason."""
        self.stopped = reason

    def add(self, requests: Sequence[WorkRequest], on_done: OnDone | None) -> None:
        """Queue ``requests``; ``on_done`` is called when the last of them is done. Nothing is posted yet."""
        if len(requests) > 1:
            self.waiting.extend([(request, None, 0) for request in requests[:-1]])
        self.add_one(requests[-1], on_done)

    def add_one(self, request: WorkRequest, on_done: OnDone | None) -> None:
        """Queue ``request``; ``on_done`` is called when it is done. Nothing is posted yet."""
        self.waiting.append((request, on_done, 0))
        if not self.corked:
            self.wake()

    def post(self) -> int:
        """Post as many waiting requests as fit, in one chain. Return how many bytes of messages need not be counted as
        pending any longer. Raise ``ProviderError`` if the connection is to be aborted."""
        count = min(len(self.waiting), self._size - self._posted)
        if count <= 0:
            return 0
        requests, self._unsignalled, length = chain(self.waiting, count, self._unsignalled, self._signal_every, _KINDS)
        self._posted += count
        try:
            self._endpoint.post(requests)
        except ProviderError:
            self._stranded += [request.context for request in requests if isinstance(request.context, Group)]
            raise
        return length

    def completed(self, completion: Completion) -> int:
        """Finish everything that ``completion`` covers. Return how many bytes of messages are not pending any
        longer."""
        group = completion[2]
        if type(group) is not Group:
            return 0  # an unsignalled request, which the end of the connection flushed
        size, endings, length, fetched = group
        self._posted -= size
        error = None if completion[1] is _OK else self.lost()
        if endings:
            for on_done in endings:
                on_done(error)
        if fetched is not None:
            fetched(error)
        return length

    def fail(self, error: ConnectionLost) -> None:
        """Finish everything that no completion will cover: the connection was lost. To be called after the last
        completion."""
        stranded, self._stranded = self._stranded, []
        for group in stranded:
            for on_done in group.endings:
                on_done(error)
            if group.fetched is not None:
                group.fetched(error)
        waiting = self.waiting.copy()
        self.waiting.clear()
        for _, last, _ in waiting:
            if last is not None:
                last(error)
        # The object behind ``wake`` refers to this one. Breaking the circle frees both without the garbage collector.
        self.wake = _ignore


def _ignore() -> None:
    """Do nothing: the connection was lost."""
