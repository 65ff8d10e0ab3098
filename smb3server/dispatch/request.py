"""What a command handler gets and gives. Only the dispatcher makes requests and turns results into replies.

A handler is ``def handler(request: Request) -> Response | Pending``, registered for its command with
``@handles(Command.X)``; it raises ``StatusError`` for every other outcome. It runs on the event loop's thread and must
not block for long: what may (flush, RDMA Read, waiting for a lock) goes on through ``request.pend()``; what has to be
tried again after a break, through ``waiting.retry``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from smb3server.wire.header import Header
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer

if TYPE_CHECKING:
    from smb3server.crypto.signing import Signer
    from smb3server.server.server import Server
    from smb3server.state.connection import Connection
    from smb3server.state.objects import Open, Session, TreeConnect

FileId = tuple[int, int]
"""(persistent, volatile)."""

RELATED_FILE_ID: FileId = (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


@dataclass(slots=True)
class Response:
    """A reply's body (what follows the SMB2 header); the dispatcher adds header, credits, signature, encryption."""

    segments: Sequence[Buffer]
    status: int = NtStatus.SUCCESS
    on_sent: Callable[[], None] | None = None
    """Called once the segments are no longer needed (release pooled buffers here)."""
    invalidate: int | None = None
    """Remote token to invalidate with the reply (channel RDMA_V1_INVALIDATE)."""
    file_id: FileId | None = None
    """CREATE: what later related commands of the compound use."""


class Disconnect(Exception):
    """The specification wants the connection gone, without a reply."""


class Interim(enum.Enum):
    """When a pending request tells the client STATUS_PENDING (MS-SMB2 3.3.4.2)."""

    AT_ONCE = "at once"
    DELAYED = "when it takes longer than a moment"
    NEVER = "never"


class Pending:
    """A request that completes later. The first of ``complete`` and ``fail`` counts; a later one is ignored (its
    response's ``on_sent`` is still called, so nothing leaks).

    ``on_cancel`` is called at most once, on SMB2 CANCEL or when session, tree or connection goes away; it frees what
    waits and then calls ``fail``, at once or later. The default only fails with CANCELLED.
    """

    __slots__ = ("_finish", "closing", "interim", "on_cancel", "request")

    def __init__(
        self,
        request: Request,
        finish: Callable[[Request, Response | StatusError], None],
        interim: Interim,
        on_cancel: Callable[[], None] | None,
    ) -> None:
        self.request = request
        self.interim = interim
        self.on_cancel = on_cancel
        self.closing = False
        """Cancelled because session or tree connect goes away, not by the client's CANCEL."""
        self._finish: Callable[[Request, Response | StatusError], None] | None = finish

    @property
    def done(self) -> bool:
        return self._finish is None

    def complete(self, response: Response) -> None:
        finish, self._finish, self.on_cancel = self._finish, None, None
        if finish is not None:
            finish(self.request, response)
        elif response.on_sent is not None:
            response.on_sent()

    def fail(self, error: StatusError) -> None:
        finish, self._finish, self.on_cancel = self._finish, None, None
        if finish is not None:
            finish(self.request, error)

    def drop(self) -> None:
        """The handler raised after it had called ``pend``: nothing it completes later counts."""
        self._finish = self.on_cancel = None

    def cancel(self, closing: bool = False) -> None:
        self.closing = closing
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()
        elif self._finish is not None:
            self.fail(StatusError(NtStatus.CANCELLED))


@dataclass(slots=True)
class CompoundState:
    """What related operations inherit (MS-SMB2 3.3.5.2.7.2)."""

    session_id: int = 0
    tree_id: int = 0
    file_id: FileId | None = None
    status: int = NtStatus.SUCCESS
    """Of the last CREATE-like failure, which later related commands return."""


class Host(Protocol):
    """The dispatcher that a request came through: what requests and their handlers need of it."""

    server: Server
    handlers: Mapping[int, Handler]
    """What serves the connection's commands, by command."""

    def finish(self, request: Request, result: Response | StatusError) -> None:
        """Send the reply of a request that was asynchronous. [MS-SMB2 3.3.4.4]"""
        ...

    def authenticated(self) -> None:
        """Trust the client, as a session on its connection is valid now."""
        ...


@dataclass(slots=True)
class Request:
    host: Host
    connection: Connection
    header: Header
    message: memoryview
    """This command from its SMB2 header to its end (NextCommand or end of message): wire offsets count from here."""
    compound: CompoundState
    session: Session | None = None
    tree: TreeConnect | None = None
    encrypted: bool = False
    signed: bool = False
    signer: Signer | None = None
    """Signs the reply instead of the channel, where the session has none on this connection."""
    async_id: int = 0
    pending: Pending | None = None
    open: Open | None = None
    """The one it works on, once found."""
    counted: int = 0
    """``Open.sequence_epoch`` in which it was counted as outstanding; 0: it was not."""
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def server(self) -> Server:
        return self.host.server

    @property
    def body(self) -> memoryview:
        return self.message[64:]

    def pend(self, interim: Interim = Interim.DELAYED, on_cancel: Callable[[], None] | None = None) -> Pending:
        """Make this request asynchronous; return the result from the handler and complete it later."""
        self.pending = Pending(self, self.host.finish, interim, on_cancel)
        return self.pending


Handler = Callable[[Request], "Response | Pending"]
HANDLERS: dict[int, Handler] = {}


SMB1_NEGOTIATE = 0x10072
"""SMB_COM_NEGOTIATE (MS-CIFS 2.2.4.52) among the commands of SMB2, which have 16 bits: what a client may begin with."""


def handles(command: int) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS[command] = handler
        return handler

    return register
