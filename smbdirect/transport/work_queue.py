"""The send queue of one endpoint: chains, signalling, and who is told when a work request is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.providers.base import Completion, Endpoint, Read, Send, Status, WorkRequest, Write
from smbdirect.transport.buffers import PoolBuffer
from smbdirect.transport.rdma import Transfer


class Sent:
    """The end of one upper-layer message: its length, who wants to know, and a bounce buffer to give back."""

    __slots__ = ("bounce", "length", "on_sent")

    def __init__(self, length: int, on_sent: Callable[[], None] | None) -> None:
        self.length = length
        self.on_sent = on_sent
        self.bounce: PoolBuffer | None = None


class _Group:
    """Everything posted since the last signalled work request; reported when the next one completes."""

    __slots__ = ("count", "sent", "transfers")

    def __init__(self) -> None:
        self.count = 0
        self.sent: list[Sent] = []
        self.transfers: list[Transfer] = []


def _ignore(sent: Sent) -> None:
    """Tell nobody: the connection is gone."""


class WorkQueue:
    """Work requests waiting for room in the provider's send queue.

    Completions come in posting order, so one signalled request speaks for all before it. ``on_sent`` is called once
    for every ``Sent``, whether it was sent or lost.
    """

    def __init__(self, endpoint: Endpoint, on_sent: Callable[[Sent], None]) -> None:
        self.waiting: deque[tuple[WorkRequest, Sent | Transfer | None]] = deque()
        self._endpoint = endpoint
        self._size = endpoint.capabilities.max_send_queue
        self._on_sent = on_sent
        self._posted = 0
        self._stranded: list[_Group] = []

    def add(self, request: WorkRequest, ending: Sent | Transfer | None) -> None:
        """Queue ``request``; ``ending`` hears of its completion. Nothing is posted yet."""
        self.waiting.append((request, ending))

    def post(self) -> None:
        """Post what fits, in one chain. Raises ``ProviderError``: the connection is to be aborted."""
        waiting = self.waiting
        count = min(self._size - self._posted, len(waiting))
        if count <= 0:
            return
        chain: list[WorkRequest] = []
        group = _Group()
        # Signal at least twice per queue length, so that room is reported before the queue is full.
        every = max(self._size // 2, 1)
        for index in range(count):
            request, ending = waiting.popleft()
            group.count += 1
            if ending is not None:
                if isinstance(ending, Sent):
                    group.sent.append(ending)
                else:
                    group.transfers.append(ending)
            if index == count - 1 or group.count >= every or isinstance(request, Read):
                chain.append(request._replace(context=group))
                group = _Group()
            elif isinstance(request, Send):
                chain.append(Send(request.segments, None, request.invalidate, False))
            else:
                chain.append(Write(request.segments, request.remote, None, False))
        self._posted += count
        try:
            self._endpoint.post(chain)
        except ProviderError:
            self._stranded += [request.context for request in chain if isinstance(request.context, _Group)]
            raise

    def completed(self, completion: Completion, lost: Callable[[], ConnectionLost]) -> None:
        """Report everything that ``completion`` speaks for; ``lost`` makes the error if it failed."""
        group = completion.context
        if isinstance(group, _Group):
            self._posted -= group.count
            self._report(group, None if completion.status is Status.OK else lost())

    def fail(self, error: ConnectionLost) -> None:
        """The connection is gone: report everything that no completion will speak for. That is the last report."""
        for group in self._stranded:
            self._report(group, error)
        self._stranded.clear()
        while self.waiting:
            _, ending = self.waiting.popleft()
            if isinstance(ending, Sent):
                self._on_sent(ending)
            elif ending is not None:
                ending.finish(error)
        # Whoever it tells refers to this object: memory comes back without the garbage collector.
        self._on_sent = _ignore

    def _report(self, group: _Group, error: ConnectionLost | None) -> None:
        for sent in group.sent:
            self._on_sent(sent)
        for transfer in group.transfers:
            transfer.finish(error)
