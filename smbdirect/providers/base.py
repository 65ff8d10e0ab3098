"""The contract of every RDMA provider; ``tests/smbdirect/contract`` runs one suite over all of them.

The interface is like verbs and asynchronous, on the thread of one event loop. Completions are delivered in batches by
callback.

Guarantees:

* completions come in posting order per queue (send queue: sends, writes and reads together; receive queue), exactly
  one per signalled work request; after an error every outstanding one completes FLUSHED, exactly once;
* an RDMA Write posted before a Send is placed at the peer before that Send's receive completes there;
* an RDMA Read's data is in place when it completes; Sends posted later may overtake it, so the caller must wait;
* a receive may complete before ``connect``/``accept`` reports establishment; receives are posted before ``accept``;
* after a region was invalidated or deregistered, or its connection was lost, its memory is never changed again;
* a bad token, range or right terminates the connection with the provider's own error, and nothing is placed;
* the completion of a Send or Write means only that the local buffer may be reused.

Remote addresses are opaque 64-bit numbers, not zero-based: byte ``i`` of a region is ``region.address + i``. Tokens are
unpredictable 32-bit numbers, valid only in the protection domain of their endpoint. If endpoints share a domain,
nothing registered in it gives their peers a right: memory that a peer may access is in a domain of one endpoint.
"""

from __future__ import annotations

import enum
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from smbdirect.codec import Buffer
from smbdirect.errors import ProviderError
from smbdirect.life import Life
from smbdirect.unauthenticated import UnauthenticatedPeers


class Access(enum.IntFlag):
    """The accesses that a registered region allows. Local reading is always allowed."""

    LOCAL_WRITE = 1
    REMOTE_READ = 2
    REMOTE_WRITE = 4
    REMOTE_ATOMIC = 8


class Operation(enum.IntEnum):
    """The kinds of work requests and receives."""

    SEND = 0
    RECEIVE = 1
    WRITE = 2
    READ = 3


class Status(enum.IntEnum):
    """The result of a work request. Any status other than OK means that the endpoint is dead."""

    OK = 0
    FLUSHED = 1
    LOCAL_ERROR = 2
    REMOTE_ACCESS = 3
    REMOTE_ERROR = 4
    RETRY_EXCEEDED = 5
    RECEIVE_NOT_READY = 6
    LENGTH = 7


class Completion(NamedTuple):
    """The end of one work request or receive."""

    operation: Operation
    status: Status
    context: object
    """The ``context`` of the work request or receive."""
    length: int = 0
    """Bytes received (RECEIVE), else 0."""
    invalidated: int | None = None
    """Local token that the peer's Send with Invalidate invalidated (RECEIVE)."""


class CloseCause(enum.Enum):
    """The kinds of reasons for the end of a connection."""

    PEER = "closed by the peer"
    LOCAL = "closed locally"
    REMOTE_ACCESS = "invalid token, range or right"
    NO_RECEIVE = "message without a posted receive"
    PROTOCOL = "protocol violation"
    CRC = "checksum mismatch"
    TIMEOUT = "peer does not answer"
    DEVICE = "device or network failure"


class CloseReason(NamedTuple):
    """Why a connection ended."""

    cause: CloseCause
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.detail}" if self.detail else self.cause.value


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The limits and features of an endpoint. Callers look at these fields, not at the types of providers."""

    name: str
    max_send_sge: int
    """Local segments per Send/Write."""
    max_read_sge: int
    """Local segments per Read."""
    max_transfer: int
    """Bytes in one Read or Write work request."""
    max_message: int
    """Bytes in one Send."""
    max_send_queue: int
    max_receive_queue: int
    max_outstanding_reads: int
    """Reads that the provider keeps in flight; it queues further ones."""
    max_inline: int = 0
    """Bytes of a Send that are copied when it is posted (the buffer may be reused immediately)."""
    remote_invalidation: bool = True
    """Whether Send with Invalidate can be posted."""
    requires_registration: bool = False
    """Whether local buffers of Send, Write and Read need a registration (not in software providers)."""
    registers_files: bool = True
    """Whether files can be registered as memory can: the fabric is software, whose NIC makes system calls."""
    regions_invalidatable: bool = True
    """Whether a peer's Send with Invalidate may name regions registered here."""
    atomics: bool = False
    """Whether ``Atomic`` can be posted, and regions may have the right REMOTE_ATOMIC."""

    def check(self, request: WorkRequest, length: int) -> None:
        """Raise ``ProviderError`` if ``request``, with ``length`` bytes of local memory, exceeds a limit."""
        kind = type(request)
        segments, limit = len(request.segments), self.max_read_sge if kind is Read else self.max_send_sge
        if segments > limit:
            raise ProviderError(f"{segments} segments are more than {limit}")
        most = self.max_message if kind is Send else self.max_transfer
        if length > most:
            raise ProviderError(f"{length} bytes are more than {most}")
        if not isinstance(request, Send) and length != request.remote.length:
            raise ProviderError(f"{length} local bytes for {request.remote.length} remote ones")
        if kind is Atomic:
            if not self.atomics:
                raise ProviderError(f"{self.name} has no atomic operations here")
            if length != ATOMIC_SIZE or segments != 1:
                raise ProviderError(f"an atomic operation has one segment of {ATOMIC_SIZE} bytes")


class RemoteSegment(NamedTuple):
    """A range of a region of the peer; ``length`` is in bytes."""

    token: int
    address: int
    length: int


class MemoryRegion(Protocol):
    """One registered range of memory. ``valid`` becomes False when its token is refused."""

    token: int
    address: int
    length: int
    memory: memoryview
    valid: bool

    def invalidate(self) -> None:
        """Refuse the token from now on, even for transfers under way (Local Invalidate). Idempotent."""

    def deregister(self) -> None:
        """Invalidate the token and drop the memory, which may be freed after the return. Idempotent."""


class DomainUser(Protocol):
    """An object that has registrations in a protection domain."""

    def domain_closed(self) -> None:
        """Deregister everything in the domain, which is about to be closed."""


class ProtectionDomain(Protocol):
    """A scope of registrations of local memory. They outlive endpoints and serve every endpoint with this domain."""

    def register(self, memory: memoryview, access: Access) -> MemoryRegion:
        """Register ``memory``. Raise ``ProviderError`` if the device refuses it."""

    def add_user(self, user: DomainUser) -> None:
        """Notify ``user`` before the domain is closed. It is held weakly."""


class SharedRegions(Protocol):
    """Regions that the peers of several endpoints may name. Those peers are one trust domain. They are registered once,
    and live until they are deregistered or this is closed, whatever becomes of the endpoints."""

    def register(self, memory: memoryview, access: Access) -> MemoryRegion:
        """Register ``memory``. Raise ``ProviderError`` if that is impossible."""

    def register_file(self, descriptor: int, offset: int, length: int, access: Access) -> MemoryRegion:
        """Register a range of an open file: see ``Endpoint.register_file``."""

    def close(self) -> None:
        """Deregister every region. Idempotent."""


@dataclass(slots=True, eq=False)
class Send:
    """A work request that sends the concatenated ``segments``.

    ``invalidate`` is the peer's token for Send with Invalidate. An unsignalled work request completes only on error.
    ``context`` and ``signalled`` of any work request may be set until it is posted; after that it must not change.
    """

    operation: ClassVar = Operation.SEND
    segments: Sequence[Buffer]
    context: object = None
    invalidate: int | None = None
    signalled: bool = True


@dataclass(slots=True, eq=False)
class Write:
    """An RDMA Write of the concatenated ``segments`` to ``remote`` (of the same total length)."""

    operation: ClassVar = Operation.WRITE
    segments: Sequence[Buffer]
    remote: RemoteSegment
    context: object = None
    signalled: bool = True


@dataclass(slots=True, eq=False)
class Read:
    """An RDMA Read of ``remote`` into the concatenated ``segments`` (of the same total length). Always signalled."""

    operation: ClassVar = Operation.READ
    atomic: ClassVar = False
    segments: Sequence[memoryview]
    remote: RemoteSegment
    context: object = None
    signalled: bool = True


ATOMIC_SIZE = 8
"""Bytes of the number that an atomic operation works on. In memory it has the byte order of its machine."""


@dataclass(slots=True, eq=False)
class Atomic(Read):
    """A Read of 8 bytes on a multiple of 8, a number that is changed in the same step; it completes as a Read.

    With ``compare``, the number becomes ``operand`` if it was equal (compare and swap). Without, ``operand`` is added,
    modulo 2^64 (fetch and add). No other ``Atomic`` of any connection, and nothing that the owner's program does on the
    event loop, comes in between. Only where ``Capabilities.atomics`` is true."""

    atomic: ClassVar = True
    compare: int | None = None
    operand: int = 0


WorkRequest = Send | Write | Read

OnCompletions = Callable[[Sequence[Completion]], None]


class Endpoint(Protocol):
    """One reliable connection (a queue pair and a CM id). It owns its regions."""

    capabilities: Capabilities
    local_address: tuple[str, int]
    peer_address: tuple[str, int]
    private_data: bytes
    """Private data of the peer's upper layer (from MPA or CM)."""
    domain: ProtectionDomain | None
    """None if local buffers need no registration."""
    on_completions: OnCompletions
    on_closed: Callable[[CloseReason], None]
    """Called exactly once, after every outstanding work request has completed."""

    @property
    def counters(self) -> dict[str, int]:
        """The provider's own counters: registrations, allocations, retransmissions, crc_errors, bytes_*, ..."""

    def register(self, memory: memoryview, access: Access) -> MemoryRegion:
        """Register writable, contiguous ``memory`` for ``access``. Raise ``ProviderError`` if that is impossible."""

    def register_file(self, descriptor: int, offset: int, length: int, access: Access) -> MemoryRegion:
        """Register ``length`` bytes from ``offset`` of an open file. The peer reads and writes the file itself, by
        system calls: ``memory`` of the region is empty. The descriptor is duplicated, so the caller may close its own.

        Raise ``ProviderError`` if the descriptor is not that of a regular file which has this range and is open for
        this access, or if the fabric reaches memory only. A range that is shorter by the time of an access, an error
        of the disk or a full one is a violation of the region's range: it ends the connection."""

    def share(self, regions: SharedRegions) -> None:
        """Let the peer name ``regions``, which come from this endpoint's provider. To be called before the connection
        is established. Its Send with Invalidate may not name them. Raise ``ProviderError`` if the fabric shares none:
        see ``Provider.shared_regions``."""

    def post_receive(self, buffer: memoryview, context: object = None) -> None:
        """Queue one receive. Raise ``ProviderError`` if the queue is full."""

    def post_receives(self, receives: Sequence[tuple[memoryview, object]]) -> None:
        """Queue receives: the buffer and the context of each. Raise ``ProviderError`` if the queue is full; some may be
        in it then."""

    def post(self, requests: Sequence[WorkRequest]) -> None:
        """Queue a chain of work requests with one call (one sendmsg, one doorbell). Raise ``ProviderError`` and queue
        nothing if they exceed the queue or the capabilities. On a dead endpoint they complete FLUSHED."""

    def is_stalled(self) -> bool:
        """Return whether data is in flight and the peer has acknowledged nothing for a second or longer. Always False
        if the provider ends such a connection by itself within seconds."""

    def disconnect(self) -> None:
        """Send everything that was posted, then end the connection. Idempotent."""

    def abort(self, reason: CloseReason | None = None) -> None:
        """End the connection immediately. ``reason`` is reported to ``on_closed``. Idempotent."""


def ignore(*_: object) -> None:
    """Do nothing: the value of a callback until its owner sets it."""


class BaseEndpoint:
    """What the endpoints of all providers have in common. ``Endpoint`` describes the attributes."""

    def __init__(
        self, capabilities: Capabilities, local_address: tuple[str, int], peer_address: tuple[str, int]
    ) -> None:
        self.capabilities = capabilities
        self.local_address = local_address
        self.peer_address = peer_address
        self.domain: ProtectionDomain | None = None
        self.private_data = b""
        self.on_completions: OnCompletions = ignore
        self.on_closed: Callable[[CloseReason], None] = ignore
        self.life = Life.OPENING
        self.close_reason: CloseReason | None = None
        """Why the connection ended. Invariant: set if and only if ``life`` is dead or ended."""

    def is_stalled(self) -> bool:
        """Return False: the provider's retries end within seconds, or it has none."""
        return False

    def post_receive(self, buffer: memoryview, context: object = None) -> None:
        raise NotImplementedError

    def post_receives(self, receives: Sequence[tuple[memoryview, object]]) -> None:
        for buffer, context in receives:
            self.post_receive(buffer, context)

    def register_file(self, descriptor: int, offset: int, length: int, access: Access) -> MemoryRegion:
        """Raise ``ProviderError``: this fabric reaches memory only."""
        raise ProviderError(f"{self.capabilities.name} reaches memory only, not files")

    def share(self, regions: SharedRegions) -> None:
        """Raise ``ProviderError``: this fabric registers memory for each connection."""
        raise ProviderError(f"{self.capabilities.name} registers memory for each connection")


Prepare = Callable[[Endpoint], None]
"""Sets callbacks and posts receives."""


class ConnectionRequest(Protocol):
    """A peer's request for a connection. Answer it with ``prepare`` and ``accept``, or with ``reject``."""

    peer_address: tuple[str, int]
    local_address: tuple[str, int]
    private_data: bytes

    def prepare(self) -> Endpoint:
        """Return the endpoint. Receives are posted and callbacks set on it before ``accept``."""

    async def accept(self, private_data: bytes = b"") -> None:
        """Accept, and return when the connection is established. Receives may complete before that. Raise
        ``ConnectionLost`` if it cannot be established."""

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse the connection."""


class Listener(Protocol):
    """A listening address of a provider."""

    address: tuple[str, int]
    down: str
    """Why no peer can connect at present (a port without a link, a removed device); empty if peers can connect."""
    on_change: Callable[[], None]
    """Called after ``down`` has changed."""

    async def close(self) -> None:
        """Stop listening; established endpoints remain."""


OnRequest = Callable[[ConnectionRequest], None]


class Provider(Protocol):
    """A fabric.

    Providers inherit from this class the defaults of features that few of them have: notices, a table of
    unauthenticated peers, and taking over connected sockets.
    """

    capabilities: Capabilities
    adopts_sockets: bool = False
    """Whether ``adopt`` takes over connected TCP sockets."""

    @property
    def notices(self) -> Sequence[str]:
        """Restrictions of this fabric on this machine for the user, one sentence each."""
        return ()

    def available(self) -> str | None:
        """Return None if the fabric can be used on this machine, else why not and what to do."""

    def share_table(self, unauthenticated: UnauthenticatedPeers, admits: Callable[[str], bool]) -> None:
        """Count peers that are setting up a connection in ``unauthenticated``, together with those of other listeners,
        and close connections from addresses that ``admits`` refuses before anything is read from them. Do nothing if
        such a peer needs no resources or is counted in another way: its request is refused."""
        return

    def adopt(self, sock: socket.socket, on_request: OnRequest) -> None:
        """Take over a connected TCP socket from which nothing has been read yet, and set up a connection on it as the
        responder. Raise ``ProviderError`` unless ``adopts_sockets``."""
        raise ProviderError(f"{self.capabilities.name} takes over no sockets")

    def shared_regions(self) -> SharedRegions:
        """Return an empty set of regions for several endpoints. Raise ``ProviderError`` if this fabric registers memory
        for each connection anew."""
        raise ProviderError(f"{self.capabilities.name} registers memory for each connection")

    async def listen(self, host: str, port: int, on_request: OnRequest) -> Listener:
        """Listen, and call ``on_request`` for each connection request."""

    async def connect(
        self, host: str, port: int, prepare: Prepare, private_data: bytes = b"", timeout: float = 5.0
    ) -> Endpoint:
        """Connect. ``prepare`` is called before the first byte is sent. ``timeout`` is in seconds. Raise
        ``ConnectionLost`` if that fails."""
