"""The contract every RDMA provider keeps; ``tests/smbdirect/contract`` runs one suite over all of them.

Verbs-like and asynchronous, on one event loop's thread. Completions are delivered in batches by callback.

Guarantees:

* completions come in posting order per queue (send queue: sends, writes and reads together; receive queue), exactly
  one per signalled work request; after an error every outstanding one completes FLUSHED, exactly once;
* an RDMA Write posted before a Send is placed at the peer before that Send's receive completes there;
* an RDMA Read's data is in place when it completes; Sends posted later may pass it, so the caller waits;
* a receive may complete before ``connect``/``accept`` reports establishment; receives are posted before ``accept``;
* after a region is invalidated, deregistered or its connection is gone, its memory is never changed again;
* a bad token, range or right terminates the connection with the provider's own error, and nothing is placed;
* a completed Send or Write means only that the local buffer is reusable.

Remote addresses are opaque 64-bit numbers, not zero-based: byte ``i`` of a region is ``region.address + i``.
Tokens are unpredictable 32-bit numbers, valid for the protection domain of their endpoint only. Where endpoints share a
domain, nothing registered in it gives its peers a right: what a peer may reach is in a domain of one endpoint.
"""

from __future__ import annotations

import enum
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from smbdirect.codec import Buffer
from smbdirect.errors import ProviderError
from smbdirect.unauthenticated import UnauthenticatedPeers


class Access(enum.IntFlag):
    """What may be done to a registered region. Local reading is always allowed."""

    LOCAL_WRITE = 1
    REMOTE_READ = 2
    REMOTE_WRITE = 4


class Operation(enum.IntEnum):
    SEND = 0
    RECEIVE = 1
    WRITE = 2
    READ = 3


class Status(enum.IntEnum):
    """Completion status. Anything but OK means the endpoint is dead."""

    OK = 0
    FLUSHED = 1
    LOCAL_ERROR = 2
    REMOTE_ACCESS = 3
    REMOTE_ERROR = 4
    RETRY_EXCEEDED = 5
    RECEIVE_NOT_READY = 6
    LENGTH = 7


class Completion(NamedTuple):
    operation: Operation
    status: Status
    context: object
    """What was passed when posting."""
    length: int = 0
    """Bytes received (RECEIVE), else 0."""
    invalidated: int | None = None
    """Local token that the peer's Send-with-Invalidate invalidated (RECEIVE)."""


class CloseCause(enum.Enum):
    PEER = "closed by the peer"
    LOCAL = "closed locally"
    REMOTE_ACCESS = "invalid token, range or right"
    NO_RECEIVE = "message without a posted receive"
    PROTOCOL = "protocol violation"
    CRC = "checksum mismatch"
    TIMEOUT = "peer does not answer"
    DEVICE = "device or network failure"


class CloseReason(NamedTuple):
    cause: CloseCause
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.detail}" if self.detail else self.cause.value


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Limits and features; callers look at fields, never at provider types."""

    name: str
    max_send_sge: int
    """Local segments per Send/Write."""
    max_read_sge: int
    """Local segments per Read."""
    max_transfer: int
    """Bytes in one Read or Write work request."""
    max_message: int
    """Bytes in one Send."""
    max_inline: int
    """Bytes of a Send copied at posting time (buffer reusable at once)."""
    max_send_queue: int
    max_receive_queue: int
    max_outstanding_reads: int
    """Reads the provider keeps in flight; more are queued by it."""
    remote_invalidation: bool
    """Send-with-Invalidate can be posted."""
    receives_before_accept: bool
    """True where a message that finds no receive kills the connection (all known fabrics)."""
    requires_registration: bool
    """False where local buffers of Send/Write/Read need no registration (software providers)."""
    regions_invalidatable: bool = True
    """A peer's Send-with-Invalidate may name regions registered here."""


class RemoteSegment(NamedTuple):
    token: int
    address: int
    length: int


class MemoryRegion(Protocol):
    token: int
    address: int
    length: int
    memory: memoryview
    valid: bool

    def invalidate(self) -> None:
        """Local invalidate: the token is refused from now on, even for transfers under way. Idempotent."""
        ...

    def deregister(self) -> None:
        """Invalidate and forget; the memory may be freed once this returned. Idempotent."""
        ...


class DomainUser(Protocol):
    def domain_closed(self) -> None:
        """The domain is about to go: deregister what you have in it."""
        ...


class ProtectionDomain(Protocol):
    """Where registrations of local memory are good: those made here outlive endpoints, and serve every one of them that
    has this domain."""

    def register(self, memory: memoryview, access: Access) -> MemoryRegion:
        """Raises ``ProviderError``."""
        ...

    def add_user(self, user: DomainUser) -> None:
        """Have ``user`` told before the domain goes. It is held weakly."""
        ...


@dataclass(slots=True, eq=False)
class Send:
    """Work request. ``segments`` are concatenated. Unsignalled ones complete only on error.

    ``context`` and ``signalled`` of a work request may be set until it is posted; then it must not change any more.
    """

    segments: Sequence[Buffer]
    context: object = None
    invalidate: int | None = None
    signalled: bool = True


@dataclass(slots=True, eq=False)
class Write:
    """RDMA Write of the concatenated ``segments`` to ``remote`` (whose length must equal theirs)."""

    segments: Sequence[Buffer]
    remote: RemoteSegment
    context: object = None
    signalled: bool = True


@dataclass(slots=True, eq=False)
class Read:
    """RDMA Read of ``remote`` into the concatenated ``segments`` (same total length). Always signalled."""

    segments: Sequence[memoryview]
    remote: RemoteSegment
    context: object = None
    signalled: bool = True


WorkRequest = Send | Write | Read

OnCompletions = Callable[[Sequence[Completion]], None]


class Endpoint(Protocol):
    """One reliable connection (queue pair + CM id). Also the owner of its regions."""

    capabilities: Capabilities
    local_address: tuple[str, int]
    peer_address: tuple[str, int]
    private_data: bytes
    """Upper-layer private data of the peer (MPA or CM)."""
    domain: ProtectionDomain | None
    """None where local buffers need no registration."""
    on_completions: OnCompletions
    on_closed: Callable[[CloseReason], None]
    """Called exactly once, after every outstanding work request completed."""

    @property
    def counters(self) -> dict[str, int]:
        """Provider's own counters: registrations, allocations, retransmissions, crc_errors, bytes_*, ..."""
        ...

    def register(self, memory: memoryview, access: Access) -> MemoryRegion:
        """Expose writable, contiguous ``memory``. Raises ``ProviderError``."""
        ...

    def post_receive(self, buffer: memoryview, context: object = None) -> None:
        """Queue one receive. Raises ``ProviderError`` when the queue is full."""
        ...

    def post(self, requests: Sequence[WorkRequest]) -> None:
        """Queue a chain of work requests with one call (one sendmsg, one doorbell). Raises ``ProviderError`` (nothing
        queued) when it does not fit the queue or the capabilities; on a dead endpoint they complete FLUSHED."""
        ...

    def is_stalled(self) -> bool:
        """Whether data is on its way to the peer and the peer has acknowledged nothing for a second or longer. False
        where the provider gives such a connection up by itself within seconds."""
        ...

    def disconnect(self) -> None:
        """Orderly: what was posted goes out, then the connection ends. Idempotent."""
        ...

    def abort(self, reason: CloseReason | None = None) -> None:
        """At once. Idempotent."""
        ...


class ConnectionRequest(Protocol):
    """A peer asks for a connection. Answer with ``prepare`` + ``accept``, or ``reject``."""

    peer_address: tuple[str, int]
    local_address: tuple[str, int]
    private_data: bytes

    def prepare(self) -> Endpoint:
        """The endpoint, on which receives are posted and callbacks set before ``accept``."""
        ...

    async def accept(self, private_data: bytes = b"") -> None:
        """Returns when established; raises ``ConnectionLost``. Receives may complete before it returns."""
        ...

    def reject(self, private_data: bytes = b"") -> None: ...


def ignore_change() -> None:
    """``Listener.on_change`` until its owner sets it."""


class Listener(Protocol):
    address: tuple[str, int]
    down: str
    """Why nobody can connect for the time being (a port without a link, a device removed); empty: all is well."""
    on_change: Callable[[], None]
    """Called when ``down`` has changed."""

    async def close(self) -> None:
        """Stop listening; established endpoints live on."""
        ...


OnRequest = Callable[[ConnectionRequest], None]


class Provider(Protocol):
    """A fabric. ``available()`` is None if it can serve here, else why not and what to do.

    Providers inherit from this class for what few of them have: notices, a table of unauthenticated peers, and
    connected sockets that they take over.
    """

    capabilities: Capabilities
    adopts_sockets: bool = False
    """``adopt`` takes connected TCP sockets."""

    @property
    def notices(self) -> Sequence[str]:
        """What does not work fully here, one sentence each, for the user."""
        return ()

    def available(self) -> str | None: ...

    def share_table(self, unauthenticated: UnauthenticatedPeers) -> None:
        """Count peers that are setting up a connection in ``unauthenticated``, which counts those of other listeners,
        too. Does nothing where such a peer costs nothing, or is counted otherwise."""
        return

    def adopt(self, sock: socket.socket, on_request: OnRequest) -> None:
        """Start connection set-up as the responder on a connected TCP socket of which nothing has been read yet. Takes
        over the socket. Raises ``ProviderError`` unless ``adopts_sockets``."""
        raise ProviderError(f"{self.capabilities.name} takes over no sockets")

    async def listen(self, host: str, port: int, on_request: OnRequest) -> Listener: ...

    async def connect(
        self,
        host: str,
        port: int,
        prepare: Callable[[Endpoint], None],
        private_data: bytes = b"",
        timeout: float = 5.0,
    ) -> Endpoint:
        """Connect; ``prepare`` sets callbacks and posts receives before the first byte goes out."""
        ...
