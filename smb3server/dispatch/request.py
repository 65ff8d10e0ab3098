"""The parameter and the results of command handlers. Only the dispatcher creates requests and sends replies.

A handler is ``def handler(request: TreeRequest) -> Response | Pending``, registered for its command with
``@handles(Command.X, TreeRequest)``. It raises ``StatusError`` for every other outcome. It runs on the thread of the
event loop and must not block for long: longer work is done through ``dispatch.waiting``.
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
    from smb3server.compression.transform import Packed
    from smb3server.crypto.signing import Signer
    from smb3server.dispatch.chain import Chain, Frame, Fresh
    from smb3server.state.objects import Connection, Open, Session, TreeConnect
    from smb3server.state.server_state import ServerState
    from smb3server.wire.header import FileId
    from smbdirect.message_transport import FileRange


@dataclass(slots=True)
class Response:
    """The body of a reply. The dispatcher adds header, credits, signature and encryption."""

    segments: Sequence[Buffer]
    status: int = NtStatus.SUCCESS
    on_sent: Callable[[], None] | None = None
    """Called once when the segments are no longer needed. Release pooled buffers here."""
    invalidate: int | None = None
    """Remote token to invalidate with the reply (channel RDMA_V1_INVALIDATE)."""
    file_id: FileId | None = None
    """CREATE only: the FileId for related commands of the compound."""
    data: FileRange | None = None
    """Data behind the segments that is sent out of a file. Only if ``Host.may_send_file`` allows it."""
    frame: Frame | None = None
    """The memory around the last segment, if it has room for the rest of the message."""
    packed: Packed | None = None
    """The last segment compressed."""
    compress: Callable[[Buffer], Packed | None] | None = None
    """Compresses a message from the last segment on, where the response is one of several in it."""
    fresh: Fresh | None = None
    """For the next command of the compound. A command that only looks at the file hands on what it was given."""


class Interim(enum.Enum):
    """When STATUS_PENDING is sent for a pending request. [MS-SMB2 3.3.4.2]"""

    AT_ONCE = "at once"
    DELAYED = "when it takes longer than a moment"
    NEVER = "never"


class Pending:
    """A request that completes later. The first call of ``complete`` or ``fail`` counts. A later one is ignored, except
    that the ``on_sent`` of its response is called, so that nothing leaks.

    ``on_cancel`` is called at most once: on SMB2 CANCEL, or when session, tree connect or connection ends. It releases
    the resources of the waiting request and then calls ``fail``, immediately or later. By default the request only
    fails with CANCELLED.
    """

    __slots__ = (
        "_early",
        "_finish",
        "_held",
        "closing",
        "in_turn",
        "interim",
        "on_cancel",
        "refused_with",
        "request",
        "waits",
        "wanted",
    )

    def __init__(
        self,
        request: Request,
        finish: Callable[[Request, Response | StatusError], None],
        interim: Interim,
        on_cancel: Callable[[], None] | None,
    ) -> None:
        """``finish`` is called once with the result."""
        self.request = request
        self.interim = interim
        self.on_cancel = on_cancel
        self.closing = False
        """The request was cancelled because its session or tree connect ends, not by a CANCEL of the client."""
        self.refused_with: int | None = None
        """Status to answer when the request is not allowed to wait. [MS-SMB2 3.3.4.2]"""
        self.wanted = interim
        """``interim`` of what the handler waits for, from ``PendingRequests.go_on`` on."""
        self.in_turn = False
        """It began as a wait for the turn of a share's storage (``dispatch.in_turn``), and is used again by what the
        handler waits for."""
        self.waits = False
        """It waits for another client to acknowledge a break, and does nothing else."""
        self._finish: Callable[[Request, Response | StatusError], None] | None = finish
        """None once the request is done."""
        # Invariant: _early is None unless _held is true and the request is done.
        self._held = True
        """The handler has not returned yet: a result waits in ``_early``."""
        self._early: Response | StatusError | None = None

    @property
    def done(self) -> bool:
        """Whether the request has been completed, failed or dropped."""
        return self._finish is None

    def goes_on(
        self, finish: Callable[[Request, Response | StatusError], None], on_cancel: Callable[[], None] | None
    ) -> None:
        """Begin again, as if made now: the handler of a request runs that had to wait for its turn."""
        self.in_turn = True
        self.on_cancel = on_cancel
        self._finish = finish
        self._held, self._early = True, None

    def complete(self, response: Response) -> None:
        """Answer the request with ``response``, unless it is done."""
        if self._finish is not None:
            self._end(self._finish, response)
        elif response.on_sent is not None:
            response.on_sent()

    def fail(self, error: StatusError) -> None:
        """Answer the request with the status of ``error``, unless it is done."""
        if self._finish is not None:
            self._end(self._finish, error)

    def _end(self, finish: Callable[[Request, Response | StatusError], None], result: Response | StatusError) -> None:
        self._finish = self.on_cancel = None
        if self._held:
            self._early = result
        else:
            finish(self.request, result)

    def handler_returned(self) -> Response | StatusError | None:
        """Return the result if the request is done already. Later results are passed on immediately."""
        self._held = False
        early, self._early = self._early, None
        return early

    def drop(self) -> None:
        """Ignore any result of the request, because its handler has raised an exception after its call of ``pend``."""
        self._finish = self.on_cancel = None
        early = self.handler_returned()
        if isinstance(early, Response) and early.on_sent is not None:
            early.on_sent()

    def cancel(self, closing: bool = False) -> None:
        """Call ``on_cancel``, or fail with CANCELLED. ``closing``: the session or tree connect ends."""
        self.closing = closing
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()
        elif self._finish is not None:
            self.fail(StatusError(NtStatus.CANCELLED))


class Host(Protocol):
    """The part of a connection's dispatcher that requests and handlers need."""

    server: ServerState
    handlers: Mapping[int, Handler]
    """The handlers of the connection's commands, by command."""

    def finish(self, request: Request, result: Response | StatusError) -> None:
        """Send the reply to an asynchronous request. [MS-SMB2 3.3.4.4]"""
        ...

    def answer(self, request: Request, result: Response | StatusError) -> None:
        """Send the reply to the only request of a message, which was never asynchronous."""
        ...

    def may_send_file(self, request: Request) -> bool:
        """Return whether the reply to a request, if it is made now, can end with data out of a file.

        It can if the transport sends files, and if the reply is a message of its own that is neither signed nor
        encrypted: nothing but the socket needs the bytes then."""
        ...

    def end_row(self) -> None:
        """End the row of writes that is under way, if there is one: what goes on now does more than to write."""
        ...

    def authenticated(self) -> None:
        """Allow the client full message size and credits, as a session on its connection is valid now."""
        ...


@dataclass(slots=True)
class Request:
    """One command. Handlers that need a session or a tree connect get a ``SessionRequest`` or ``TreeRequest``."""

    host: Host
    connection: Connection
    header: Header
    message: memoryview
    """This command from its SMB2 header up to the next command or the end of the message. Offsets in the request count
    from here."""
    chain: Chain
    """The message that contains the command."""
    session: Session | None = None
    tree: TreeConnect | None = None
    encrypted: bool = False
    signed: bool = False
    """The signature was verified."""
    signer: Signer | None = None
    """Signs the reply if the session has no channel on this connection."""
    async_id: int = 0
    """AsyncId of the interim reply; 0 if there was none."""
    pending: Pending | None = None
    open: Open | None = None
    """The open that the command works on, once it has been looked up."""
    counted: int = 0
    """``Open.sequence_epoch`` in which the request was counted as outstanding; 0 if it was not counted."""
    on_encoded: Callable[[Sequence[Buffer]], None] | None = None
    """Called with the segments of the reply as they are sent, for the preauthentication integrity hash."""

    @property
    def server(self) -> ServerState:
        """The server of the connection."""
        return self.host.server

    @property
    def body(self) -> memoryview:
        """The command after its SMB2 header."""
        return self.message[64:]

    def check_fence(self) -> None:
        """Raise ``StatusError``, NETWORK_NAME_DELETED, if another node may be serving the share or the address by now.

        Call it whenever the request goes on after a wait, before it does or sends anything."""
        server = self.host.server
        if server.fence is None:
            return
        if server.is_fenced(self.connection) or (self.tree is not None and server.has_lost(self.tree.share)):
            raise StatusError(NtStatus.NETWORK_NAME_DELETED)

    def pend(self, interim: Interim = Interim.DELAYED, on_cancel: Callable[[], None] | None = None) -> Pending:
        """Make this request asynchronous. Its handler calls this and returns the result.

        A result that comes before the handler has returned is held back until then."""
        if self.pending is not None and self.pending.in_turn:
            self.pending.goes_on(self.host.finish, on_cancel)
            self.pending.wanted = interim
            return self.pending
        self.pending = Pending(self, self.host.finish, interim, on_cancel)
        return self.pending


class SessionRequest(Request):
    """A command of a session, which the dispatcher has looked up and checked. [MS-SMB2 3.3.5.2.9]"""

    __slots__ = ()
    session: Session


class TreeRequest(SessionRequest):
    """A command on a tree connect, which the dispatcher has looked up together with its session. [MS-SMB2
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
"""The class of the requests of a command. It is ``Request`` for commands that are not here.

Invariant: when a handler runs, ``checks.check`` has set the attributes that the class promises. There is one exception:
the IOCTL by which smbtorture marks a connection as stalled has neither session nor tree connect
(``checks.RUNS_WITHOUT_SESSION``)."""

R = TypeVar("R", bound=Request)
Handler = Callable[[Any], "Response | Pending"]
"""Called with a request of the class for its command (``KINDS``)."""
HANDLERS: dict[int, Handler] = {}

SMB1_NEGOTIATE = 0x10072
"""SMB_COM_NEGOTIATE, with which a client may begin, as a key of ``HANDLERS``. Commands of SMB2 have 16 bits only.
[MS-CIFS 2.2.4.52]"""


def handles(
    command: int, kind: type[R]
) -> Callable[[Callable[[R], Response | Pending]], Callable[[R], Response | Pending]]:
    """Register the handler of a command. ``kind`` is the class of its parameter.

    Raises ``TypeError`` if the requests of the command are not checked to be of this class."""
    if not issubclass(KINDS.get(command, Request), kind):
        raise TypeError(f"command {command} does not come as a {kind.__name__}")

    def register(handler: Callable[[R], Response | Pending]) -> Callable[[R], Response | Pending]:
        HANDLERS[command] = handler
        return handler

    return register
