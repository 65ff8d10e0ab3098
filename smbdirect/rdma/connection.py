"""One connection of the RDMA API: one-sided transfers that are awaited, batches, fences, and messages."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from types import TracebackType

from smbdirect.codec import Buffer
from smbdirect.errors import ConnectionLost, DecodeError, ProviderError
from smbdirect.providers.base import (
    ATOMIC_SIZE,
    Access,
    CloseCause,
    CloseReason,
    Completion,
    Endpoint,
    Operation,
    Read,
    RemoteSegment,
    Send,
    Status,
)
from smbdirect.rdma.errors import AccessRefused, MessageTooLong, OutOfRange
from smbdirect.rdma.messages import DATA, GRANT, HEADER, Credits, Terms
from smbdirect.rdma.pool import BufferPool
from smbdirect.rdma.receives import ReceiveBuffer, ReceivePool
from smbdirect.rdma.regions import (
    FileLike,
    Handle,
    Region,
    Rights,
    access_of,
    check_atomics,
    registered_file,
    rights_of,
)
from smbdirect.rdma.transfers import Transfers

_log = logging.getLogger(__name__)

RECEIVES = 32
"""Receives of a connection, unless the program asks for another number."""
MESSAGE_SIZE = 4096
"""Bytes of the longest message, unless the program asks for another size."""
CANCEL_PATIENCE = 1.0
"""Seconds that a cancelled operation waits for its transfer to end. Then the connection is ended: the memory must be
quiet when the await is over."""

Memory = Buffer | Sequence[Buffer]
"""One piece of local memory, or several in a row."""
_Future = asyncio.Future[None]


def _pieces(memory: Memory) -> list[memoryview]:
    if isinstance(memory, bytes | bytearray | memoryview):
        return [_flat(memory)]
    return [_flat(piece) for piece in memory]


def _flat(piece: Buffer) -> memoryview:
    view = memoryview(piece)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _number(value: int) -> int:
    """Return the number of 64 bits that ``value`` stands for. Raise ``ValueError`` if there is none."""
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{value} has more than 64 bits")
    return value & 0xFFFFFFFFFFFFFFFF


_NOWHERE = Handle(0, 0, 0, Rights.READ)
"""Stands for a fence in a batch."""


class Batch:
    """Transfers that are posted together, in order, with one completion for all. ``await batch.done()`` posts them; an
    ``async with`` block does so at its end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transfers: list[tuple[bool, Handle, list[memoryview], int]] = []

    def __len__(self) -> int:
        return len(self._transfers)

    def read(self, handle: Handle, into: Memory, offset: int = 0) -> None:
        """Add a read. See ``Connection.read``."""
        self._add(True, handle, _pieces(into), offset)

    def write(self, handle: Handle, data: Memory, offset: int = 0) -> None:
        """Add a write. See ``Connection.write``."""
        self._add(False, handle, _pieces(data), offset)

    def _add(self, reads: bool, handle: Handle, pieces: list[memoryview], offset: int) -> None:
        handle.remote(offset, sum(map(len, pieces)), Rights.READ if reads else Rights.WRITE)
        self._transfers.append((reads, handle, pieces, offset))

    def fence(self) -> None:
        """End the batch only when everything written before is in the peer's memory. See ``Connection.fence``."""
        self._transfers.append((True, _NOWHERE, [], 0))

    async def done(self) -> None:
        """Post everything, and return when all of it is done. Raise as ``Connection.read`` and ``write`` do."""
        transfers, self._transfers = self._transfers, []
        if transfers:
            await self._connection._transfer(transfers)

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.done()


class Connection:
    """A connection to a peer. Made by ``connect`` and ``listen``; ``async with`` closes it.

    Operations are carried out in the order in which they are begun. What each guarantees:

    * ``read``: the data is in place when the await ends.
    * ``write``: the local memory may be reused when the await ends. The data is at the peer after a ``fence``, or when
      a message that was sent later has arrived there.
    * A read sees the writes of this connection that were begun before it.
    """

    def __init__(
        self, endpoint: Endpoint, pool: BufferPool, receives: int, message_size: int, private_data: bytes = b""
    ) -> None:
        loop = asyncio.get_running_loop()
        self.counters: Counter[str] = Counter()
        self.peer_address = endpoint.peer_address
        self.local_address = endpoint.local_address
        self.private_data = private_data
        """What the peer's program said when the connection was set up."""
        self.message_size = message_size
        """Bytes of the longest message that this side receives."""
        self.close_reason: CloseReason | None = None
        self.domain: object = None
        self._endpoint = endpoint
        self._loop = loop
        self._transfers = Transfers(endpoint, pool, self.counters, loop, self._post)
        self._work = self._transfers.work
        # Everything is posted at once by whoever added it: an awaited transfer has no turn of the loop to lose.
        self._work.corked = True
        self._credits = Credits(receives)
        self._max_message = 0
        self._receives = ReceivePool(message_size + HEADER.size, receives, self._transfers.cache, self.counters)
        self._inbox: deque[tuple[ReceiveBuffer, int]] = deque()
        self._news = asyncio.Event()
        """Set when a message, a credit or the end has come."""
        self._awaited: dict[_Future, Status] = {}
        """Awaited operations, each with how it ended so far."""
        self._ended = asyncio.Event()
        endpoint.on_completions = self._completed
        endpoint.on_closed = self._closed
        for buffer in self._receives.take(receives):
            endpoint.post_receive(buffer.view, buffer)

    # -- set-up -------------------------------------------------------------------------------------------------

    def established(self, terms: Terms, initiator: bool) -> None:
        """Begin: the peer's terms are known. The ``initiator`` sends first: an iWARP responder must not send before it
        has heard the initiator. [RFC 5044 7.1.2]"""
        self._credits.available = terms.receives
        self._max_message = terms.message_size
        self._news.set()
        if initiator:
            self._post_message(GRANT, [], None)

    # -- one-sided ----------------------------------------------------------------------------------------------

    @property
    def fabric(self) -> str:
        """The name of the fabric."""
        return self._endpoint.capabilities.name

    @property
    def served(self) -> tuple[int, int]:
        """Bytes of this side's regions that the peer has read and written, as far as the fabric counts them."""
        counters = self._endpoint.counters
        read = counters.get("bytes_sent_read_response", counters.get("bytes_served", 0))
        return read, counters.get("bytes_received_write", counters.get("bytes_placed", 0))

    def register(
        self, memory: Buffer, *, readable: bool = False, writable: bool = False, atomic: bool = False
    ) -> Region:
        """Register ``memory`` for this connection's peer alone. Raise ``ProviderError`` if that is impossible, and
        ``NotSupported`` for ``atomic`` if the fabric has no atomic operations.

        The region ends with the connection. Use a ``Domain`` for memory that outlives it, or serves many."""
        rights = rights_of(self._endpoint.capabilities, readable, writable, atomic)
        view = memoryview(memory)
        access = access_of(rights) | (Access(0) if view.readonly else Access.LOCAL_WRITE)
        self.counters["registrations"] += 1
        return Region(self._endpoint.register(view, access), view, rights)

    def register_file(
        self,
        file: FileLike,
        offset: int = 0,
        length: int | None = None,
        *,
        readable: bool = False,
        writable: bool = False,
    ) -> Region:
        """Register a range of an open file for this connection's peer alone. See ``Domain.register_file``. Raise
        ``NotSupported`` where the fabric is a device, which reaches memory only."""
        self.counters["registrations"] += 1
        return registered_file(self._endpoint, self._endpoint.capabilities, file, offset, length, readable, writable)

    async def read(self, handle: Handle, into: Memory, offset: int = 0) -> None:
        """Read from the peer's region at ``offset`` until ``into`` is full.

        Raise ``OutOfRange`` if the handle does not give that, ``AccessRefused`` if the peer does not (any more), and
        ``ConnectionLost``. The last two leave ``into`` in any state."""
        pieces = _pieces(into)
        handle.remote(offset, sum(map(len, pieces)), Rights.READ)
        await self._transfer([(True, handle, pieces, offset)])

    async def write(self, handle: Handle, data: Memory, offset: int = 0) -> None:
        """Write ``data`` to the peer's region at ``offset``. Raise as ``read`` does."""
        pieces = _pieces(data)
        handle.remote(offset, sum(map(len, pieces)), Rights.WRITE)
        await self._transfer([(False, handle, pieces, offset)])

    async def compare_and_swap(self, handle: Handle, expected: int, new: int, offset: int = 0) -> int:
        """Replace the number at ``offset`` of the peer's region by ``new`` if it is ``expected``. Return what it was:
        it was replaced if and only if that is ``expected``.

        The number has 64 bits, the byte order of the peer's machine, and an address that is a multiple of 8. Atomic
        operations of all connections of the peer's process exclude each other. One whose await raises
        ``ConnectionLost`` was carried out once or not at all. Raise ``NotSupported`` if the fabric has no atomic
        operations, ``ValueError`` for a number of more than 64 bits, and as ``read`` does."""
        return await self._change(handle, offset, _number(expected), _number(new))

    async def fetch_and_add(self, handle: Handle, value: int, offset: int = 0) -> int:
        """Add ``value``, which may be negative, to the number at ``offset`` of the peer's region, modulo 2^64. Return
        what it was. See ``compare_and_swap``."""
        return await self._change(handle, offset, None, _number(value))

    async def _change(self, handle: Handle, offset: int, compare: int | None, operand: int) -> int:
        check_atomics(self._endpoint.capabilities)
        remote = handle.remote(offset, ATOMIC_SIZE, Rights.ATOMIC)
        if remote.offset % ATOMIC_SIZE:
            raise OutOfRange(f"atomic operations are on multiples of {ATOMIC_SIZE}")
        future = self._begin()
        results: list[int] = []

        def done(error: BaseException | None, found: int) -> None:
            results.append(found)
            self._end(future, error)

        try:
            self._transfers.change(remote, compare, operand, done)
        except BaseException:
            self._awaited.pop(future, None)
            raise
        self._post()
        await self._finish(future)
        return results[0]

    def batch(self) -> Batch:
        """Return an empty batch of transfers."""
        return Batch(self)

    async def fence(self) -> None:
        """Return when everything written before is in the peer's memory. Raise ``ConnectionLost``.

        A Read of no bytes follows the Writes: the peer answers it when it has placed them (RFC 5040 5.5, IBTA 9.5)."""
        await self._transfer([(True, _NOWHERE, [], 0)])

    async def _transfer(self, transfers: Sequence[tuple[bool, Handle, list[memoryview], int]]) -> None:
        self._check_open()
        future = self._begin()
        last = len(transfers) - 1
        try:
            for number, (reads, handle, pieces, offset) in enumerate(transfers):
                length = sum(map(len, pieces))
                remote = handle.remote(offset, length, Rights.READ if reads else Rights.WRITE)
                on_done = (lambda error: self._end(future, error)) if number == last else self._ignore
                if handle is _NOWHERE:
                    self._work.add([Read([], RemoteSegment(0, 0, 0))], on_done)
                elif reads:
                    self._transfers.read_from_peer([remote], pieces, on_done)
                else:
                    self._transfers.write_to_peer([remote], pieces, on_done if number == last else None)
        except BaseException:
            self._awaited.pop(future, None)
            raise
        self._post()
        await self._finish(future)

    def _ignore(self, error: BaseException | None) -> None:
        """Leave the result to the last transfer of the batch: they end in order."""

    # -- messages -----------------------------------------------------------------------------------------------

    async def send(self, data: Memory) -> None:
        """Send a message, once the peer has room for it. Return when ``data`` may be reused. Raise ``MessageTooLong``
        and ``ConnectionLost``."""
        pieces = _pieces(data)
        length = sum(map(len, pieces))
        if length > self._max_message:
            raise MessageTooLong(f"{length} bytes: the peer takes messages of {self._max_message}")
        while True:
            self._check_open()
            if self._credits.may_send:
                break
            await self._wait()
        future = self._begin()
        self._post_message(DATA, pieces, future)
        await self._finish(future)

    async def receive(self) -> bytes:
        """Return the peer's next message. Raise ``ConnectionLost`` when there are none left."""
        while not self._inbox:
            self._check_open()
            await self._wait()
        buffer, length = self._inbox.popleft()
        data = bytes(buffer.view[HEADER.size : length])
        self._repost(buffer)
        return data

    def _post_message(self, kind: int, pieces: list[memoryview], future: _Future | None) -> None:
        segments: list[Buffer] = [self._credits.header(kind), *pieces]
        release = None
        if self._transfers.cache.needed:
            copy = self._transfers.cache.gathered(segments, sum(map(len, segments)))
            segments, release = [copy.view], copy.release

        def done(error: BaseException | None) -> None:
            if release is not None:
                release()
            if future is not None:
                self._end(future, error)

        self._work.add([Send(segments, signalled=False)], done)
        self._post()

    def _repost(self, buffer: ReceiveBuffer) -> None:
        """Post a receive again, and tell the peer of it if it has to know."""
        if self._ended.is_set() or self.close_reason is not None:
            return
        try:
            self._endpoint.post_receive(buffer.view, buffer)
            self._credits.owed += 1
            if self._credits.must_grant:
                self._post_message(GRANT, [], None)
        except ProviderError as error:
            self.abort(str(error))

    # -- awaiting -----------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.close_reason is not None:
            raise ConnectionLost(self.close_reason)

    def _begin(self) -> _Future:
        self._check_open()
        future = self._loop.create_future()
        self._awaited[future] = Status.OK
        return future

    def _end(self, future: _Future, error: BaseException | None) -> None:
        """Finish an awaited operation. One that failed is finished at the end of the connection, which has the
        reason."""
        if error is None:
            self._awaited.pop(future, None)
            if not future.done():
                future.set_result(None)
        elif self._ended.is_set():
            self._fail(future)
        else:
            self._awaited[future] = self._failure

    _failure = Status.FLUSHED
    """How the work request ended that is being completed."""

    async def _finish(self, future: _Future) -> None:
        """Wait for an operation. If that is cancelled, wait until its memory is quiet."""
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.done():
                await asyncio.wait([future], timeout=CANCEL_PATIENCE)
            if not future.done():
                self.abort("an operation was cancelled and did not end")
                await asyncio.wait([future])
            if not future.cancelled() and future.exception() is not None:
                _log.debug("cancelled operation: %s", future.exception())
            raise

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()
        # Others may wait for the same news: each looks again.

    def _post(self) -> None:
        try:
            self._work.post()
        except ProviderError as error:
            self.abort(str(error))

    # -- events of the endpoint ---------------------------------------------------------------------------------

    def _completed(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            if completion.operation is Operation.RECEIVE:
                if completion.status is Status.OK:
                    self._arrived(completion)
                continue
            self._failure = completion.status if completion.status is not Status.OK else Status.FLUSHED
            self._work.completed(completion)
        if self._work.waiting:
            self._post()

    def _arrived(self, completion: Completion) -> None:
        buffer = completion.context
        if not isinstance(buffer, ReceiveBuffer):
            return
        try:
            of_program = self._credits.arrived(buffer.view[: completion.length])
        except DecodeError as error:
            self.abort(str(error))
            return
        if of_program:
            self._inbox.append((buffer, completion.length))
        else:
            self._repost(buffer)
        self._news.set()

    def _closed(self, reason: CloseReason) -> None:
        self.close_reason = reason
        self._work.stop(reason)
        self._work.fail(ConnectionLost(reason))
        self._ended.set()
        for future in list(self._awaited):
            self._fail(future)
        self._transfers.cache.leave_domain()
        self._transfers.cache.clear()
        self._news.set()

    def _fail(self, future: _Future) -> None:
        status = self._awaited.pop(future, Status.FLUSHED)
        if future.done():
            return
        reason = self.close_reason
        refused = status is Status.REMOTE_ACCESS
        future.set_exception(AccessRefused(reason) if refused else ConnectionLost(reason))
        # Whoever was cancelled does not look.
        future.exception()

    # -- the end ------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the connection is there."""
        return self.close_reason is None

    async def wait_closed(self) -> CloseReason | None:
        """Return when the connection has ended, with the reason."""
        await self._ended.wait()
        return self.close_reason

    def abort(self, why: str = "") -> None:
        """End the connection at once. Idempotent."""
        self._endpoint.abort(CloseReason(CloseCause.LOCAL, why))

    async def close(self) -> None:
        """Send what was begun, end the connection, and return when its memory is quiet. Idempotent."""
        if not self._ended.is_set():
            self._endpoint.disconnect()
        await self._ended.wait()
        self._receives.close()
        self._inbox.clear()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
