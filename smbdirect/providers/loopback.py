"""An RDMA fabric within one process: the provider contract without a network, and faults that tests can switch on.

Two endpoints of one ``LoopbackProvider`` are connected by function calls deferred with ``call_soon``. Nothing is
delivered, placed or completed inside ``post`` itself, so callers see the same asynchrony as on a network.

``Faults`` makes the fabric do unusual things that the contract allows (delay, placement order, Sends that overtake
Reads) and things that break connections (loss, bad tokens).
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from smbdirect.codec import Buffer, new_record
from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.life import Life, change
from smbdirect.providers import memory
from smbdirect.providers.base import (
    ATOMIC_SIZE,
    Access,
    Atomic,
    BaseEndpoint,
    Capabilities,
    CloseCause,
    CloseReason,
    Completion,
    OnRequest,
    Operation,
    Prepare,
    Provider,
    Read,
    Send,
    SharedRegions,
    Status,
    WorkRequest,
    Write,
    ignore,
)
from smbdirect.providers.memory import AccessRefused, Fault, LocalDomain, Region, RegionTable, share

CAPABILITIES = Capabilities(
    name="loopback",
    max_send_sge=16,
    max_read_sge=16,
    max_transfer=1 << 20,
    max_message=1 << 20,
    max_send_queue=512,
    max_receive_queue=1024,
    max_outstanding_reads=16,
    atomics=True,
)

_FIRST_EPHEMERAL_PORT = 49152
_RECEIVE, _READ, _OK = Operation.RECEIVE, Operation.READ, Status.OK
_CLOSING, _DEAD = Life.CLOSING, Life.DEAD
_REMOTE_READ, _REMOTE_WRITE = Access.REMOTE_READ, Access.REMOTE_WRITE


@dataclass(slots=True)
class Faults:
    """Faults and delays of a fabric. A changed field takes effect on the next work request."""

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    delay_turns: int = 0
    """Carry out each work request up to this many event-loop turns later."""
    reorder_placement: bool = False
    """Place RDMA Writes in pieces, in random order, as late as the next Send allows."""
    hold_reads: bool = False
    """Let the next Sends overtake an RDMA Read, which is carried out when no further work request is queued."""
    drop_after: int | None = None
    """Lose the connection after this many further work requests."""
    corrupt_tokens: int = 0
    """Damage the remote token of this many further Reads and Writes."""


class LoopbackEndpoint(BaseEndpoint):
    """One end of a connection. Implements ``base.Endpoint``."""

    def __init__(
        self,
        provider: LoopbackProvider,
        local_address: tuple[str, int],
        peer_address: tuple[str, int],
        shared: LocalDomain | None = None,
    ) -> None:
        """``shared`` is the listener's domain. Without it the endpoint makes its own if local buffers need one."""
        super().__init__(provider.capabilities, local_address, peer_address)
        self._domain = None
        if self.capabilities.requires_registration:
            self._domain = LocalDomain() if shared is None else shared
        self.domain = self._domain
        self._owns_domain = shared is None
        names = ("registrations", "sends", "writes", "reads", "atomics", "bytes_written", "bytes_read")
        self.counters = dict.fromkeys(names, 0)
        self.regions = RegionTable()
        self.peer: LoopbackEndpoint | None = None
        self._provider = provider
        self._loop = asyncio.get_running_loop()
        self._receives: deque[tuple[memoryview, object]] = deque()
        self._requests: deque[WorkRequest] = deque()
        self._unplaced: list[tuple[memoryview, memoryview]] = []
        """(target, data) of Writes that are not placed yet."""
        self._held: deque[tuple[Read, list[Completion]]] = deque()
        """Held Reads, each with the completions that must follow its own."""
        self._completions: list[Completion] = []
        self._queued = 0
        self._scheduled = False
        self._delivering = False

    # -- work requests -------------------------------------------------------------------------------------------

    def register(self, memory: memoryview, access: Access) -> Region:
        if memory.readonly:
            raise ProviderError("a region must be writable")
        if self.life >= Life.DEAD:
            raise ProviderError("endpoint is closed")
        self.counters["registrations"] += 1
        return self.regions.register(memory, access)

    def register_file(self, descriptor: int, offset: int, length: int, access: Access) -> Region:
        if self.life >= Life.DEAD:
            raise ProviderError("endpoint is closed")
        self.counters["registrations"] += 1
        return self.regions.register_file(descriptor, offset, length, access)

    def share(self, regions: SharedRegions) -> None:
        share(self.regions, regions)

    def post_receive(self, buffer: memoryview, context: object = None) -> None:
        if self.life >= _DEAD:
            self._complete(Completion(Operation.RECEIVE, Status.FLUSHED, context))
            return
        if len(self._receives) >= self.capabilities.max_receive_queue:
            raise ProviderError("receive queue is full")
        if self._domain is not None:
            self._want_registered(self._domain, [buffer])
        self._receives.append((buffer, context))

    def post_receives(self, receives: Sequence[tuple[memoryview, object]]) -> None:
        queue = self._receives
        if (
            self._domain is None
            and self.life < _DEAD
            and len(queue) + len(receives) <= self.capabilities.max_receive_queue
        ):
            queue.extend(receives)
        else:
            super().post_receives(receives)

    def post(self, requests: Sequence[WorkRequest]) -> None:
        if self.life >= _CLOSING:
            for request in requests:
                self._complete(Completion(request.operation, Status.FLUSHED, request.context))
            return
        if self._queued + len(requests) > self.capabilities.max_send_queue:
            raise ProviderError("send queue is full")
        capabilities = self.capabilities
        for request in requests:
            length = sum(map(len, request.segments))
            capabilities.check(request, length)
            if self._domain is not None and (type(request) is not Send or length > capabilities.max_inline):
                self._want_registered(self._domain, request.segments)
        self._queued += len(requests)
        self._requests.extend(requests)
        self._schedule()

    def _want_registered(self, domain: LocalDomain, segments: Sequence[Buffer]) -> None:
        """Raise ``ProviderError`` for an unregistered segment, as a device does whose local buffers need a
        registration."""
        for segment in segments:
            if domain.covers(segment):
                continue
            owner = memoryview(segment).obj
            if not any(region.memory.obj is owner for region in self.regions):
                raise ProviderError("a local buffer is not registered")

    def disconnect(self) -> None:
        if self.life < _CLOSING:
            self.life = change(self.life, _CLOSING)
            self._schedule()

    def abort(self, reason: CloseReason | None = None) -> None:
        self.fail(reason or CloseReason(CloseCause.LOCAL), CloseReason(CloseCause.PEER))

    def fail(self, reason: CloseReason, peer_reason: CloseReason) -> None:
        """End the connection at both ends immediately. Idempotent."""
        peer = self.peer
        self._close(reason)
        if peer is not None:
            peer._close(peer_reason)

    # -- carrying out --------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled and self.peer is not None:
            self._scheduled = True
            faults = self._provider.faults
            turns = faults.rng.randint(0, faults.delay_turns) if faults.delay_turns else 0
            self._loop.call_soon(self._run, turns)

    def connected(self, peer: LoopbackEndpoint) -> None:
        """Begin with the requests posted so far, now that both ends exist."""
        self.peer = peer
        if self.life is Life.OPENING:
            self.life = change(self.life, Life.OPEN)
        if self._requests or self.life is _CLOSING:
            self._schedule()

    def _run(self, turns: int) -> None:
        if turns:
            self._loop.call_soon(self._run, turns - 1)
            return
        self._scheduled = False
        faults = self._provider.faults
        while self._requests and self.life < _DEAD:
            if faults.drop_after is not None:
                if faults.drop_after <= 0:
                    lost = CloseReason(CloseCause.DEVICE, "connection lost")
                    self.fail(lost, lost)
                    return
                faults.drop_after -= 1
            self._carry_out(self._requests.popleft())
            if faults.delay_turns:
                break
        if self.life >= _DEAD:
            return
        if self._requests:
            self._schedule()
            return
        if self._unplaced:
            self._place()
        if self._held:
            self._run_held_reads()
        if self.life is _CLOSING:
            self.fail(CloseReason(CloseCause.LOCAL), CloseReason(CloseCause.PEER))

    def _carry_out(self, request: WorkRequest) -> None:
        if isinstance(request, Write):
            self._write(request)
            return
        if self._unplaced:
            self._place()
        if isinstance(request, Send):
            self._send(request)
        elif self._provider.faults.hold_reads or self._held:
            self._held.append((request, []))
        else:
            self._read(request)

    def _send(self, request: Send) -> None:
        peer = self.peer
        assert peer is not None
        if not peer._receives:
            reason = CloseReason(CloseCause.NO_RECEIVE)
            self._refused(request, Status.RECEIVE_NOT_READY, reason)
            return
        length = sum(map(len, request.segments))
        buffer, context = peer._receives[0]
        if length > len(buffer):
            self._refused(request, Status.LENGTH, CloseReason(CloseCause.PROTOCOL, "message longer than its receive"))
            return
        if request.invalidate is not None:
            region = peer.regions.get(request.invalidate)
            if region is None or not peer.capabilities.regions_invalidatable:
                self._refused(request, Status.REMOTE_ACCESS, CloseReason(CloseCause.REMOTE_ACCESS, "invalidation"))
                return
            region.invalidate()
        peer._receives.popleft()
        position = 0
        for segment in request.segments:
            buffer[position : position + len(segment)] = segment
            position += len(segment)
        self.counters["sends"] += 1
        peer._complete(new_record(Completion, (_RECEIVE, _OK, context, length, request.invalidate)))
        self._finish(request)

    def _target(self, request: Write | Read, right: Access) -> memoryview | None:
        """Return the peer's memory that ``request`` names, or None if the peer did not allow this access. For a file
        it is a copy, and a Write has been carried out."""
        assert self.peer is not None
        remote = request.remote
        if remote.length == 0:
            return memoryview(bytearray())
        try:
            token = self._token(request) if self._provider.faults.corrupt_tokens else remote.token
            region, start = self.peer.regions.find(token, remote.address, remote.length, right)
            if region.file is not None:
                if isinstance(request, Read):
                    return region.file.read(start, remote.length, wait=True)
                region.file.write(start, [memoryview(segment) for segment in request.segments])
                return memoryview(bytearray(remote.length))
        except AccessRefused:
            return None
        return region.memory[start : start + remote.length]

    def _token(self, request: Write | Read) -> int:
        """Return the token of a request, as it arrives at the peer while tokens are corrupted."""
        self._provider.faults.corrupt_tokens -= 1
        return request.remote.token ^ 0xA5A5A5A5

    def _write(self, request: Write) -> None:
        target = self._target(request, _REMOTE_WRITE)
        if target is None:
            self._refused(request, Status.REMOTE_ACCESS, CloseReason(CloseCause.REMOTE_ACCESS, "RDMA Write"))
            return
        late = self._provider.faults.reorder_placement
        position = 0
        for segment in request.segments:
            piece = target[position : position + len(segment)]
            position += len(segment)
            if late:
                self._unplaced.append((piece, memoryview(bytes(segment))))
            else:
                piece[:] = segment
        self.counters["writes"] += 1
        self.counters["bytes_written"] += position
        self._finish(request)

    def _place(self) -> None:
        """Place the data of earlier Writes, except in regions that are no longer valid (these must not change)."""
        pieces, self._unplaced = self._unplaced, []
        assert self.peer is not None
        alive = [region.memory for region in self.peer.regions]
        self._provider.faults.rng.shuffle(pieces)
        for target, data in pieces:
            if any(memory.obj is target.obj for memory in alive):
                target[:] = data

    def _read(self, request: Read) -> bool:
        if isinstance(request, Atomic):
            return self._change(request)
        source = self._target(request, _REMOTE_READ)
        if source is None:
            self._refused(request, Status.REMOTE_ACCESS, CloseReason(CloseCause.REMOTE_ACCESS, "RDMA Read"))
            return False
        position = 0
        for segment in request.segments:
            segment[:] = source[position : position + len(segment)]
            position += len(segment)
        self.counters["reads"] += 1
        self.counters["bytes_read"] += position
        self._queued -= 1
        self._complete(new_record(Completion, (_READ, _OK, request.context, 0, None)))
        return True

    def _change(self, request: Atomic) -> bool:
        assert self.peer is not None
        try:
            token = self._token(request) if self._provider.faults.corrupt_tokens else request.remote.token
            found = self.peer.regions.change(token, request.remote.address, request.compare, request.operand)
        except AccessRefused as error:
            misplaced = error.fault is Fault.ALIGNMENT
            status, cause = (
                (Status.REMOTE_ERROR, CloseCause.PROTOCOL)
                if misplaced
                else (Status.REMOTE_ACCESS, CloseCause.REMOTE_ACCESS)
            )
            self._refused(request, status, CloseReason(cause, f"atomic: {error}"))
            return False
        request.segments[0][:] = found.to_bytes(ATOMIC_SIZE, sys.byteorder)
        self.counters["atomics"] += 1
        self._queued -= 1
        self._complete(new_record(Completion, (_READ, _OK, request.context, 0, None)))
        return True

    def _run_held_reads(self) -> None:
        while self._held and self.life < Life.DEAD:
            request, later = self._held.popleft()
            ended = not self._read(request)
            if ended:
                self._flush(later)
                return
            for completion in later:
                self._complete(completion)

    def _finish(self, request: Send | Write) -> None:
        """Complete with success, after any Read that is still held (completions keep the posting order)."""
        self._queued -= 1
        if request.signalled:
            completion = new_record(Completion, (request.operation, _OK, request.context, 0, None))
            if self._held:
                self._held[-1][1].append(completion)
            else:
                self._complete(completion)

    def _refused(self, request: WorkRequest, status: Status, reason: CloseReason) -> None:
        """Complete ``request`` with ``status`` and end the connection."""
        self._run_held_reads()
        self._complete(Completion(request.operation, status, request.context))
        self.fail(reason, reason)

    # -- completions and the end ---------------------------------------------------------------------------------

    def _complete(self, completion: Completion) -> None:
        self._completions.append(completion)
        if not self._delivering:
            self._delivering = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        completions, self._completions = self._completions, []
        if completions:
            self.on_completions(completions)
        if self.life is Life.DEAD and not self._completions and self.close_reason is not None:
            self.life = change(self.life, Life.ENDED)
            self.on_closed(self.close_reason)

    def _flush(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            self._complete(completion._replace(status=Status.FLUSHED))

    def _close(self, reason: CloseReason) -> None:
        if self.life >= Life.DEAD:
            return
        self.life = change(self.life, Life.DEAD)
        self.close_reason = reason
        for request, later in self._held:
            self._complete(Completion(Operation.READ, Status.FLUSHED, request.context))
            self._flush(later)
        for queued in self._requests:
            self._complete(Completion(queued.operation, Status.FLUSHED, queued.context))
        for _, context in self._receives:
            self._complete(Completion(Operation.RECEIVE, Status.FLUSHED, context))
        self._held.clear()
        self._requests.clear()
        self._receives.clear()
        self._unplaced.clear()
        self.regions.invalidate_all()
        if self._domain is not None and self._owns_domain:
            self._domain.close()
        self._provider.endpoints.discard(self)
        if not self._delivering:
            self._delivering = True
            self._loop.call_soon(self._deliver)


class LoopbackRequest:
    """One connection request. Implements ``base.ConnectionRequest``."""

    def __init__(
        self,
        provider: LoopbackProvider,
        client: LoopbackEndpoint,
        answer: asyncio.Future[tuple[LoopbackEndpoint | None, bytes]],
        private_data: bytes,
    ) -> None:
        self.private_data = private_data
        self.peer_address = client.local_address
        self.local_address = client.peer_address
        self._provider = provider
        self._client = client
        self._answer = answer
        self._endpoint: LoopbackEndpoint | None = None

    def prepare(self) -> LoopbackEndpoint:
        if self._endpoint is None:
            self._endpoint = LoopbackEndpoint(
                self._provider, self.local_address, self.peer_address, self._provider.domain
            )
            self._endpoint.private_data = self.private_data
        return self._endpoint

    async def accept(self, private_data: bytes = b"") -> None:
        endpoint = self.prepare()
        if self._answer.done():
            gone = CloseReason(CloseCause.PEER, "the peer gave up connecting")
            endpoint._close(gone)
            raise ConnectionLost(gone)
        self._answer.set_result((endpoint, private_data))
        self._provider.endpoints.add(endpoint)
        endpoint.connected(self._client)

    def reject(self, private_data: bytes = b"") -> None:
        if not self._answer.done():
            self._answer.set_result((None, private_data))


class LoopbackListener:
    """A listening port of the fabric. Implements ``base.Listener``."""

    def __init__(self, provider: LoopbackProvider, address: tuple[str, int], on_request: OnRequest) -> None:
        self.address = address
        self.down = ""
        self.on_change: Callable[[], None] = ignore
        self.on_request = on_request
        self._provider = provider

    def port_down(self, detail: str) -> None:
        """Simulate the loss of the port's link: no peer can connect, and existing connections are lost."""
        self.down = detail
        reason = CloseReason(CloseCause.DEVICE, detail)
        for endpoint in tuple(self._provider.endpoints):
            if endpoint.local_address == self.address:
                endpoint.fail(reason, CloseReason(CloseCause.TIMEOUT, "no answer"))
        self.on_change()

    def port_up(self) -> None:
        """Simulate the return of the port's link."""
        self.down = ""
        self.on_change()

    async def close(self) -> None:
        self._provider.listeners.pop(self.address[1], None)


class LoopbackProvider(Provider):
    """One fabric: listeners and clients of the same instance can reach each other."""

    def __init__(self, capabilities: Capabilities = CAPABILITIES, faults: Faults | None = None) -> None:
        self.capabilities = capabilities
        self.faults = faults or Faults()
        self.listeners: dict[int, LoopbackListener] = {}
        self.endpoints: set[LoopbackEndpoint] = set()
        """Connected endpoints of this fabric, for tests that look for leaks or cut connections."""
        self.domain = LocalDomain()
        """The domain of all accepted connections."""
        self._next_port = _FIRST_EPHEMERAL_PORT

    def available(self) -> str | None:
        return None

    def _ephemeral_port(self) -> int:
        while self._next_port in self.listeners:
            self._next_port += 1
        self._next_port += 1
        return self._next_port - 1

    def shared_regions(self) -> memory.SharedRegions:
        return memory.SharedRegions()

    async def listen(self, host: str, port: int, on_request: OnRequest) -> LoopbackListener:
        port = port or self._ephemeral_port()
        if port in self.listeners:
            raise ProviderError(f"port {port} is in use")
        listener = LoopbackListener(self, (host, port), on_request)
        self.listeners[port] = listener
        return listener

    async def connect(
        self, host: str, port: int, prepare: Prepare, private_data: bytes = b"", timeout: float = 5.0
    ) -> LoopbackEndpoint:
        """See ``base.Provider``. Raise ``ConnectionLost`` if there is no listener, if it rejects, or if there is no
        answer within ``timeout`` seconds."""
        listener = self.listeners.get(port)
        if listener is None or listener.down:
            raise ConnectionLost(CloseReason(CloseCause.PEER, f"no listener on port {port}"))
        client = LoopbackEndpoint(self, (host, self._ephemeral_port()), (host, port))
        prepare(client)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[LoopbackEndpoint | None, bytes]] = loop.create_future()
        loop.call_soon(listener.on_request, LoopbackRequest(self, client, answer, private_data))
        try:
            async with asyncio.timeout(timeout):
                server, reply_data = await answer
        except TimeoutError:
            reason = CloseReason(CloseCause.TIMEOUT, "no answer to the connection request")
        else:
            if server is not None:
                client.private_data = reply_data
                self.endpoints.add(client)
                client.connected(server)
                return client
            reason = CloseReason(CloseCause.PEER, "rejected")
        client._close(reason)
        raise ConnectionLost(reason)
