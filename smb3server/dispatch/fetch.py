"""WRITEs by RDMA whose data is on its way, as the fast lane begins and ends them: without a request that pends.

Many of them are under way at once, each for some microseconds. So one has no more objects than this one, until somebody
has to know of it: a CANCEL, the end of its session, the interim reply that is due. Then it becomes a pending request
like any other (``Fetch.settle``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from smb3server.wire.header import Header
from smbdirect.codec import new_record

if TYPE_CHECKING:
    from smb3server.crypto.signing import Signer
    from smb3server.dispatch.data_channel import RemoteMemory
    from smb3server.dispatch.pending import PendingRequests
    from smb3server.dispatch.request import Pending, Request
    from smb3server.files.caching import Caching
    from smb3server.state.objects import Open, Session, TreeConnect
    from smb3server.wire.read_write import WriteRequest
    from smbdirect.codec import Buffer
    from smbdirect.message_transport import InboundMessage, PooledBuffer


class Lane(Protocol):
    """The part of ``FastLane`` that ends what it has begun."""

    @property
    def row(self) -> object: ...

    @property
    def requests(self) -> PendingRequests: ...

    def request(
        self,
        header: Header,
        inbound: InboundMessage,
        view: memoryview,
        cipher_session: Session | None,
        session: Session,
        tree: TreeConnect | None,
        opened: Open | None,
        signer: Signer | None,
    ) -> Request: ...

    def settled(self, fetch: Fetch, pending: Pending) -> None: ...

    def can_answer(self) -> bool: ...

    def begin_row(self, opened: Open) -> None: ...

    def end_row(self) -> None: ...

    def answer_fetched(self, fetch: Fetch, body: tuple[bytes, Buffer | None]) -> None: ...


class Fetching(Protocol):
    """The part of a pending WRITE that goes on when its data has come."""

    def fetched(self, error: BaseException | None) -> None:
        """Store the data and answer. ``error``: the connection has failed."""

    def failed(self, error: Exception) -> None:
        """Fail the request: its data could not be stored."""


class Fetch:
    """A WRITE by RDMA that is ordinary in every respect. The subclass is that of the command.

    Invariant: from ``FastLane._fetch`` to its answer it is in ``PendingRequests.fetches`` or has become a request, the
    open has an operation in progress (``Open.begin_io``), the write is arriving for the file's ``Caching``, and the
    buffer is lent. ``fetched`` is called once."""

    __slots__ = (
        "body", "buffer", "caching", "counted", "fields", "inbound", "lane", "length", "open", "remote", "request",
        "session", "signer", "tree", "view",
    )  # fmt: skip
    lane: Lane
    fields: tuple[Any, ...]
    """Those of the header."""
    inbound: InboundMessage
    view: memoryview
    session: Session
    tree: TreeConnect | None
    signer: Signer | None
    buffer: PooledBuffer
    caching: Caching[Open]
    counted: int
    """As ``Request.counted``."""

    def __init__(self, opened: Open, remote: RemoteMemory, body: WriteRequest) -> None:
        """The lane sets the other attributes when it begins to fetch the data."""
        self.open = opened
        self.remote = remote
        self.body = body
        self.length = body.remaining_bytes
        self.request: Fetching | None = None
        """What the fetch has become."""

    @property
    def header(self) -> Header:
        """The header of the request."""
        return new_record(Header, self.fields)

    def begin(self, request: Request) -> Pending:
        """Begin as the general path does. Nothing was begun here."""
        raise NotImplementedError

    def store(self) -> tuple[bytes, Buffer | None] | None:
        """Store the data and return the response. None: nothing was done, as it is not ordinary any longer."""
        raise NotImplementedError

    def become(self, request: Request) -> tuple[Fetching, Pending]:
        """Hand the fetch over to what a pending request does with it."""
        raise NotImplementedError

    def settle(self) -> Fetching:
        """Become a pending request. Nothing of the fetch is left behind."""
        lane, header = self.lane, self.header
        lane.requests.fetches.pop(header.message_id, None)
        request = lane.request(header, self.inbound, self.view, None, self.session, self.tree, self.open, self.signer)
        request.counted = self.counted
        self.request, pending = self.become(request)
        lane.settled(self, pending)
        lane.requests.add(request, pending)
        early = pending.handler_returned()
        if early is not None:
            request.host.finish(request, early)
        return self.request

    def fetched(self, error: BaseException | None) -> None:
        """Go on: the data has come, or the connection has failed. No row of writes is left for others to go on in."""
        lane = self.lane
        body: tuple[bytes, Buffer | None] | None = None
        if self.request is None and error is None and lane.can_answer():
            try:
                body = self.store()
            except Exception as failure:
                lane.end_row()
                self.settle().failed(failure)
                return
        if body is None:
            lane.end_row()
            (self.request or self.settle()).fetched(error)
            return
        lane.answer_fetched(self, body)
        self.inbound.release()
        self.buffer.release()
        self.caching.arrived(self)
