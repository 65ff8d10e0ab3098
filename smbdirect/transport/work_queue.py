"""The send queue of one endpoint: chains, signalling, and notification when a work request is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.message_transport import PooledBuffer
from smbdirect.providers.base import Completion, Endpoint, Read, Status, WorkRequest

OnDone = Callable[[BaseException | None], None]


class Ending(Protocol):
    """An object that is notified, once, when a message or transfer is done."""

    def finish(self, error: BaseException | None) -> None:
        """Note the end. ``error`` says why the work is not known to be done; None means that it is done."""
        ...


class Sending(Protocol):
    """A transport that counts the bytes that have not been sent yet."""

    pending_send_bytes: int


class Sent:
    """The end of one upper-layer message: ``finish`` releases its bounce buffer and notifies its owner."""

    __slots__ = ("_owner", "_transport", "bounce", "length")

    def __init__(self, transport: Sending, on_sent: Callable[[], None] | None) -> None:
        self._transport = transport
        self._owner = on_sent
        self.length = 0
        """Bytes of the message, which count as pending until it is done."""
        self.bounce: PooledBuffer | None = None

    def finish(self, error: BaseException | None) -> None:
        """See ``Ending``. A lost message is handled like a sent one."""
        self._transport.pending_send_bytes -= self.length
        if self.bounce is not None:
            self.bounce.release()
        if self._owner is not None:
            self._owner()


class Transfer:
    """One RDMA Read or Write of the upper layer under way. Only the first ``finish`` notifies its owner."""

    __slots__ = ("_bounces", "_owner")

    def __init__(self, on_done: OnDone) -> None:
        self._owner: OnDone | None = on_done
        self._bounces: list[PooledBuffer] | None = None
        """Invariant: pooled copies to be released at the end; None for most transfers, which have no copies."""

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
    """The work requests posted since the last signalled one; done when the next signalled one completes."""

    size: int
    """Number of work requests."""
    endings: list[Ending]


class WorkQueue:
    """The work requests of one endpoint that wait for room in the provider's send queue.

    Completions come in posting order, so the completion of a signalled request covers all requests before it.
    Invariant: every ``Ending`` is finished exactly once, by a completion or by ``fail``, whether its work was done or
    lost.
    """

    def __init__(self, endpoint: Endpoint, wake: Callable[[], None]) -> None:
        """``wake`` is called when work was added outside a batch. It must schedule a call of ``post``."""
        self.waiting: deque[tuple[WorkRequest, Ending | None]] = deque()
        """Invariant: none of these was posted, and each of them was queued after all posted ones."""
        self.corked = False
        """Whether a batch is being handled. Its end calls ``post``, so ``wake`` is not needed."""
        self._endpoint = endpoint
        self._size = endpoint.capabilities.max_send_queue
        self._signal_every = max(self._size // 2, 1)
        """At least twice per queue length, so that room is reported before the queue is full."""
        self._wake = wake
        self._posted = 0
        """Invariant: the number of our work requests at the endpoint, at most ``_size``."""
        self._stranded: list[_Group] = []
        """Groups that the endpoint refused: no completion will cover them."""
        self._stopped: object = None
        """Why no new work is accepted; None means that it is accepted."""

    @property
    def stopped(self) -> bool:
        """Whether new work is refused."""
        return self._stopped is not None

    def lost(self) -> ConnectionLost:
        """Return the error for work that is not known to be done."""
        return ConnectionLost(self._stopped or "the connection ended")

    def stop(self, reason: object) -> None:
        """Accept no new work. Its owners get ``reason`` in their errors; a later call replaces the reason."""
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
        """Post as many waiting requests as fit, in one chain. Raise ``ProviderError`` if the connection is to be
        aborted."""
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
        """Finish everything that ``completion`` covers."""
        group = completion.context
        if isinstance(group, _Group):
            self._posted -= group.size
            error = None if completion.status is Status.OK else self.lost()
            for ending in group.endings:
                ending.finish(error)

    def fail(self, error: ConnectionLost) -> None:
        """Finish everything that no completion will cover: the connection was lost. To be called after the last
        completion."""
        stranded, self._stranded = self._stranded, []
        for group in stranded:
            for ending in group.endings:
                ending.finish(error)
        while self.waiting:
            _, last = self.waiting.popleft()
            if last is not None:
                last.finish(error)
        # The object behind ``wake`` refers to this one. Breaking the circle frees both without the garbage collector.
        self._wake = _ignore


def _ignore() -> None:
    """Do nothing: the connection was lost."""
