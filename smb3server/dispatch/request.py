"""What a command handler gets and gives. Only the dispatcher makes requests and turns results into replies.

A handler is ``def handler(request: TreeRequest) -> Response | Pending``, registered for its command with
``@handles(Command.X, TreeRequest)``; it raises ``StatusError`` for every other outcome. It runs on the event loop's
thread and must not block for long: what may take longer goes on through ``dispatch.waiting``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from smb3server.wire.header import Command, Header
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer

if TYPE_CHECKING:
    from smb3server.crypto.signing import Signer
    from smb3server.dispatch.chain import Chain
    from smb3server.state.objects import Connection, Open, Session, TreeConnect
    from smb3server.state.server_state import ServerState
    from smb3server.wire.file_id import FileId


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

    __slots__ = ("_early", "_finish", "_held", "closing", "interim", "on_cancel", "refused_with", "request")

    def __init__(
        self,
        request: Request,
        finish: Callable[[Request, Response | StatusError], None],
        interim: Interim,
        on_cancel: Callable[[], None] | None,
    ) -> None:
        """``finish`` gets the result, once."""
        self.request = request
        self.interim = interim
        self.on_cancel = on_cancel
        self.closing = False
        """Cancelled because session or tree connect goes away, not by the client's CANCEL."""
        self.refused_with: int | None = None
        """Status to answer when the request is not allowed to wait. [MS-SMB2 3.3.4.2]"""
        self._finish: Callable[[Request, Response | StatusError], None] | None = finish
        self._held = True
        """The request's handler is on the stack: a result waits in ``_early``."""
        self._early: Response | StatusError | None = None

    @property
    def done(self) -> bool:
        return self._finish is None

    def complete(self, response: Response) -> None:
        if self._finish is not None:
            self._end(self._finish, response)
        elif response.on_sent is not None:
            response.on_sent()

    def fail(self, error: StatusError) -> None:
        if self._finish is not None:
            self._end(self._finish, error)

    def _end(self, finish: Callable[[Request, Response | StatusError], None], result: Response | StatusError) -> None:
        self._finish = self.on_cancel = None
        if self._held:
            self._early = result
        else:
            finish(self.request, result)

    def handler_returned(self) -> Response | StatusError | None:
        """Return the result if the request is done by now. From now on a result is finished at once."""
        self._held = False
        early, self._early = self._early, None
        return early

    def drop(self) -> None:
        """Ignore what completes the request, or has: its handler raised after it had called ``pend``."""
        self._finish = self.on_cancel = None
        early = self.handler_returned()
        if isinstance(early, Response) and early.on_sent is not None:
            early.on_sent()

    def cancel(self, closing: bool = False) -> None:
        self.closing = closing
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()
        elif self._finish is not None:
            self.fail(StatusError(NtStatus.CANCELLED))


class Host(Protocol):
    """The dispatcher that a request came through: what requests and their handlers need of it."""

    server: ServerState
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
    """One command. Handlers that need a session or a tree connect get a ``SessionRequest`` or ``TreeRequest``."""

    host: Host
    connection: Connection
    header: Header
    message: memoryview
    """This command from its SMB2 header to its end (NextCommand or end of message): wire offsets count from here."""
    chain: Chain
    """The message that it came in."""
    session: Session | None = None
    tree: TreeConnect | None = None
    encrypted: bool = False
    signed: bool = False
    """Its signature was verified."""
    signer: Signer | None = None
    """Signs the reply instead of the channel, where the session has none on this connection."""
    async_id: int = 0
    """Of the interim reply; 0: there was none."""
    pending: Pending | None = None
    open: Open | None = None
    """The one it works on, once found."""
    counted: int = 0
    """``Open.sequence_epoch`` in which it was counted as outstanding; 0: it was not."""
    on_encoded: Callable[[Sequence[Buffer]], None] | None = None
    """Gets the segments of the reply as they are sent (preauthentication integrity)."""

    @property
    def server(self) -> ServerState:
        return self.host.server

    @property
    def body(self) -> memoryview:
        return self.message[64:]

    def pend(self, interim: Interim = Interim.DELAYED, on_cancel: Callable[[], None] | None = None) -> Pending:
        """Make this request asynchronous. Its handler calls this and returns the result. What completes the request
        before the handler has returned is held back until then."""
        self.pending = Pending(self, self.host.finish, interim, on_cancel)
        return self.pending


class SessionRequest(Request):
    """A command of a session, as handlers get it: the dispatcher has found the session. [MS-SMB2 3.3.5.2.9]"""

    __slots__ = ()
    session: Session


class TreeRequest(SessionRequest):
    """A command on a tree connect, as handlers get it: the dispatcher has found session and tree connect. [MS-SMB2
    3.3.5.2.11]"""

    __slots__ = ()
    tree: TreeConnect


KINDS: dict[int, type[Request]] = {
    **dict.fromkeys((Command.LOGOFF, Command.TREE_CONNECT), SessionRequest),
    **dict.fromkeys(
        (
            Command.TREE_DISCONNECT,
            Command.CREATE,
            Command.CLOSE,
            Command.FLUSH,
            Command.READ,
            Command.WRITE,
            Command.LOCK,
            Command.IOCTL,
            Command.QUERY_DIRECTORY,
            Command.CHANGE_NOTIFY,
            Command.QUERY_INFO,
            Command.SET_INFO,
            Command.OPLOCK_BREAK,
        ),
        TreeRequest,
    ),
}
"""What the requests of a command are; ``Request`` for those that are not here.

Invariant: a handler runs when ``checks.check`` has found what the class promises. There is one exception: the IOCTL by
which smbtorture marks a connection as stalled has neither session nor tree connect
(``checks.RUNS_WITHOUT_SESSION``)."""

R = TypeVar("R", bound=Request)
Handler = Callable[[Any], "Response | Pending"]
"""Takes what the command's requests are (``KINDS``)."""
HANDLERS: dict[int, Handler] = {}

SMB1_NEGOTIATE = 0x10072
"""SMB_COM_NEGOTIATE (MS-CIFS 2.2.4.52) among the commands of SMB2, which have 16 bits: what a client may begin with."""


def handles(
    command: int, kind: type[R]
) -> Callable[[Callable[[R], Response | Pending]], Callable[[R], Response | Pending]]:
    """Register the handler of a command. ``kind``: what it takes. Raises ``TypeError`` if that is more than the
    command's requests have been checked to be."""
    if not issubclass(KINDS.get(command, Request), kind):
        raise TypeError(f"command {command} does not come as a {kind.__name__}")

    def register(handler: Callable[[R], Response | Pending]) -> Callable[[R], Response | Pending]:
        HANDLERS[command] = handler
        return handler

    return register
