"""The send queue of one endpoint: chains, signalling, and what is notified when a work request is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.message_transport import PooledBuffer
from smbdirect.providers.base import Completion, Endpoint, Read, Status, WorkRequest

OnDone = Callable[[BaseException | None], None]


class Ending(Protocol):
    """What is notified, once, when a message or transfer is done."""

    def finish(self, error: BaseException | None) -> None:
        """``error``: why it is not known to be done; None: it is."""
        ...


class Sending(Protocol):
    """Whoever counts the bytes that have not left yet."""

    pending_send_bytes: int


class Sent:
    """The end of one upper-layer message: ``finish`` gives its bounce buffer back and notifies its owner."""

    __slots__ = ("_owner", "_transport", "bounce", "length")

    def __init__(self, transport: Sending, on_sent: Callable[[], None] | None) -> None:
        self._transport = transport
        self._owner = on_sent
        self.length = 0
        """Bytes of the message, which count as pending until it is done."""
        self.bounce: PooledBuffer | None = None

    def finish(self, error: BaseException | None) -> None:
        """See ``Ending``; whether it was sent or lost makes no difference."""
        self._transport.pending_send_bytes -= self.length
        if self.bounce is not None:
            self.bounce.release()
        if self._owner is not None:
            self._owner()


class Transfer:
    """One RDMA Read or Write of the upper layer under way: ``finish`` notifies its owner, the first time."""

    __slots__ = ("_bounces", "_owner")

    def __init__(self, on_done: OnDone) -> None:
        self._owner: OnDone | None = on_done
        self._bounces: list[PooledBuffer] | None = None
        """Most transfers have none."""

    def keep(self, buffer: PooledBuffer) -> None:
        """Release ``buffer`` when the transfer is done."""
        if self._bounces is None:
            self._bounces = []
        self._bounces.append(buffer)

    def finish(self, error: BaseException | None) -> None:
        """See ``Ending``."""
        while self._bounces:
            self._bounces.pop().release()
        owner, self._owner = self._owner, None
        if owner is not None:
            owner(error)


class _Group(NamedTuple):
    """Everything posted since the last signalled work request; done when the next one completes."""

    size: int
    """Work requests."""
    endings: list[Ending]


class WorkQueue:
    """Work requests waiting for room in the provider's send queue.

    Completions come in posting order, so one signalled request speaks for all before it. Every ``Ending`` is finished
    exactly once, whether its work was done or lost: by a completion, or by ``fail``.
    """

    def __init__(self, endpoint: Endpoint, wake: Callable[[], None]) -> None:
        """``wake``: called when work was added outside a batch; it has ``post`` called a little later."""
        self.waiting: deque[tuple[WorkRequest, Ending | None]] = deque()
        """Invariant: none of them was handed to the endpoint, and none behind one that was."""
        self.corked = False
        """A batch is being handled, whose end calls ``post``: nobody needs to be woken."""
        self._endpoint = endpoint
        self._size = endpoint.capabilities.max_send_queue
        self._signal_every = max(self._size // 2, 1)
        """At least twice per queue length, so that room is reported before the queue is full."""
        self._wake = wake
        self._posted = 0
        """Invariant: the endpoint has so many of our work requests, at most ``_size``."""
        self._stranded: list[_Group] = []
        """Posted, but refused: no completion will speak for them."""
        self._stopped: object = None
        """Why no new work is taken; None: it is."""

    @property
    def stopped(self) -> bool:
        """No new work is taken any more."""
        return self._stopped is not None

    def lost(self) -> ConnectionLost:
        """Make the error for work that is not known to be done."""
        return ConnectionLost(self._stopped or "the connection ended")

    def stop(self, reason: object) -> None:
        """Take no new work. ``reason`` is what its owners are told; a later call replaces it."""
        self._stopped = reason

    def add(self, requests: Sequence[WorkRequest], ending: Ending | None) -> None:
        """Queue ``requests``; ``ending`` is notified when the last of them is done. Nothing is posted yet."""
        waiting = self.waiting
        if len(requests) > 1:
            waiting.extend([(request, None) for request in requests[:-1]])
        waiting.append((requests[-1], ending))
        if not self.corked:
            self._wake()

    def post(self) -> None:
        """Post what fits, in one chain. Raises ``ProviderError``: the connection is to be aborted."""
        waiting = self.waiting
        count = min(self._size - self._posted, len(waiting))
        if count <= 0:
            return
        chain: list[WorkRequest] = []
        endings: list[Ending] = []
        first = 0
        for index in range(1, count + 1):
            request, ending = waiting.popleft()
            chain.append(request)
            if ending is not None:
                endings.append(ending)
            if index == count or index - first >= self._signal_every or isinstance(request, Read):
                request.context = _Group(index - first, endings)
                request.signalled = True
                first, endings = index, []
        self._posted += count
        try:
            self._endpoint.post(chain)
        except ProviderError:
            self._stranded += [request.context for request in chain if isinstance(request.context, _Group)]
            raise

    def completed(self, completion: Completion) -> None:
        """Finish everything that ``completion`` speaks for."""
        group = completion.context
        if isinstance(group, _Group):
            self._posted -= group.size
            error = None if completion.status is Status.OK else self.lost()
            for ending in group.endings:
                ending.finish(error)

    def fail(self, error: ConnectionLost) -> None:
        """Finish everything that no completion will speak for: the connection is gone. That is the last report."""
        stranded, self._stranded = self._stranded, []
        for group in stranded:
            for ending in group.endings:
                ending.finish(error)
        while self.waiting:
            _, last = self.waiting.popleft()
            if last is not None:
                last.finish(error)
        # What is woken refers to this object: memory comes back without the garbage collector.
        self._wake = _ignore


def _ignore() -> None:
    """Wake nobody: the connection is gone."""
