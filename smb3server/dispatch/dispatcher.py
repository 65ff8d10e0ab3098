"""From received messages to handlers and back to replies (MS-SMB2 3.3.5.2, 3.3.4.1-3.3.4.4).

A received message is a ``Chain`` of one or more commands. Its commands run in order; one that pends stops its chain
until it completes, and no other. Replies of a chain go out together, except that a chain which tells its client
STATUS_PENDING sends what it has first.

Answers take memory until the client has taken them. A chain whose connection has more than ``CHAIN_MARK`` of them
unsent is parked before its next command, and goes on when they have drained; meanwhile nothing more is read. So is one
that has worked for ``TURN`` seconds: the server's ``Turns`` let it go on after the others have had theirs.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from smb3server.crypto.encryption import ENCRYPTED, TRANSFORM, TRANSFORM_PROTOCOL_ID, TRANSFORM_SIZE
from smb3server.dispatch import checks
from smb3server.dispatch.errno_status import as_status_error
from smb3server.dispatch.reply import Reply, ReplyWriter
from smb3server.dispatch.request import (
    HANDLERS,
    RELATED_FILE_ID,
    SMB1_NEGOTIATE,
    CompoundState,
    Disconnect,
    Handler,
    Interim,
    Pending,
    Request,
    Response,
)
from smb3server.process.turns import call_apart
from smb3server.state import replay
from smb3server.state.connection import Connection
from smb3server.wire.header import HEADER, HEADER_SIZE, PROTOCOL_ID, Command, Header, HeaderFlags
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError

if TYPE_CHECKING:
    from smb3server.persistence.journal import Persistence
    from smb3server.persistence.store import StoreError
    from smb3server.server.server import Server
    from smb3server.state.objects import Session
    from smbdirect.message_transport import InboundMessage, MessageTransport

log = logging.getLogger(__name__)

SMB1_PROTOCOL_ID = b"\xffSMB"
ALL_ONES_SESSION = 0xFFFFFFFFFFFFFFFF
ALL_ONES_TREE = 0xFFFFFFFF
_RELATED = int(HeaderFlags.RELATED_OPERATIONS)
_SIGNED = int(HeaderFlags.SIGNED)
_NEGOTIATE = int(Command.NEGOTIATE)
_SESSION_SETUP = int(Command.SESSION_SETUP)
_CANCEL = int(Command.CANCEL)
_CREATE = int(Command.CREATE)
_TREE_CONNECT = int(Command.TREE_CONNECT)
_SESSIONLESS = frozenset((_NEGOTIATE, _SESSION_SETUP))
_MESSAGE_OVERHEAD = 128
"""Transform header and tag."""
CHAIN_MARK = 4 << 20
"""Bytes of unsent answers above which a chain does not go on."""
MESSAGE_MARK = 16 << 20
"""Bytes of unsent answers above which no message is begun: where the transport does not stop reading by itself."""
TURN = 0.005
"""Seconds after which a chain does not go on in this turn of the event loop."""
_PATIENCE = 0.05
"""Seconds until a parked chain looks again whether answers have drained, should nobody tell it."""
_INSTEAD = "instead"
"""Marks a request that may not wait (3.3.4.2): the status it fails with instead of CANCELLED."""


class Chain(CompoundState):
    """A received message on its way through: the state that related commands inherit, and what is to be sent."""

    __slots__ = (
        "cipher_session",
        "executing",
        "inbound",
        "last_command_seen",
        "no_session",
        "offset",
        "pending",
        "replies",
        "result",
        "size",
        "view",
    )

    def __init__(self, inbound: InboundMessage, view: memoryview, cipher_session: Session | None) -> None:
        super().__init__()
        self.inbound = inbound
        self.view = view
        self.cipher_session = cipher_session
        """The session whose key encrypted it; None in the clear."""
        self.offset = 0
        """Of the next command; -1 after the last."""
        self.last_command_seen = False
        """A command came before: only then can one be related."""
        self.no_session = False
        """The last command named a session that does not exist: none can be related to it."""
        self.replies: list[Reply] = []
        self.size = 0
        """Bytes of ``replies``."""
        self.executing = False
        """A handler is on the stack: what it completes at once waits in ``result``."""
        self.result: Response | StatusError | None = None
        self.pending: Request | None = None


def _unless_failed(result: Response | StatusError, error: StoreError | None) -> Response | StatusError:
    """The result, or what became of it because it could not be stored."""
    if error is None or isinstance(result, StatusError):
        return result
    if result.on_sent is not None:
        result.on_sent()
    return StatusError(error.status)


def _is_secret(request: Request) -> bool:
    """Whether the reply is encrypted although the request was not (3.3.4.1.4): it says why that was refused."""
    session, tree, command = request.session, request.tree, request.header.command
    if session is None or session.cipher is None or command in _SESSIONLESS:
        return False
    return session.encrypt_data or (tree is not None and tree.encrypt_data and command != _TREE_CONNECT)


class Dispatcher:
    """Runs one connection: its messages, its requests and its end."""

    def __init__(self, server: Server, transport: MessageTransport) -> None:
        self.server = server
        self.connection = Connection(transport, server.settings, self)
        self.writer = ReplyWriter(self.connection, server)
        self.handlers: Mapping[int, Handler] = HANDLERS
        """What serves the connection's commands, by command."""
        self.request_list: dict[int, Request] = {}
        """Asynchronous requests by MessageId (Connection.RequestList)."""
        self.async_command_list: dict[int, Request] = {}
        """Those of them whose client was sent STATUS_PENDING, by AsyncId (Connection.AsyncCommandList)."""
        self._delayed: deque[tuple[float, Request]] = deque()
        """Requests that get an interim reply at that time, if still pending; all delays are alike, so it is sorted."""
        self._timer_running = False
        self._next_async_id = 0
        self._parked: deque[Chain] = deque()
        """Those that wait for answers to drain, in their order; reading is paused while there are any."""
        self._resuming = False
        self._has_turn = False
        """A turn is coming for the chain that is parked first."""

    def start(self) -> None:
        """Serve what the transport delivers."""
        self.connection.transport.start(self.receive, self._closed)

    @property
    def pending_requests(self) -> int:
        """Asynchronous requests that are not answered yet."""
        return len(self.request_list)

    # Receiving

    def receive(self, inbound: InboundMessage) -> None:
        """3.3.5.2, for one message of the transport."""
        if self.server.is_fenced(self.connection):
            # Not even done: somebody else may be doing it by now.
            inbound.release()
            self.connection.disconnect("this node is fenced")
            return
        try:
            self._receive(inbound)
        except Disconnect as reason:
            inbound.release()
            self.connection.disconnect(str(reason))

    def _receive(self, inbound: InboundMessage) -> None:
        view = inbound.view
        if len(view) < HEADER_SIZE and view[:4] != SMB1_PROTOCOL_ID:
            raise Disconnect("message shorter than a header")
        magic = view[:4]
        if magic == PROTOCOL_ID:
            chain = Chain(inbound, view, None)
            if self._parked or self.connection.transport.pending_send_bytes > MESSAGE_MARK:
                self._park(chain)
            else:
                self._advance(chain)
        elif magic == TRANSFORM_PROTOCOL_ID:
            chain = self._decrypt(inbound, view)
            if self._parked or self.connection.transport.pending_send_bytes > MESSAGE_MARK:
                self._park(chain)
            else:
                self._advance(chain)
        elif magic == SMB1_PROTOCOL_ID:
            self._receive_smb1(inbound, view)
        else:
            # 3.3.5.2.13: compression is never negotiated, so a compressed message ends up here, too.
            raise Disconnect(f"unknown protocol identifier {bytes(magic).hex()}")

    def _receive_smb1(self, inbound: InboundMessage, view: memoryview) -> None:
        """Answer the first message of a client that begins with SMB1. [MS-SMB2 3.3.5.3]"""
        chain = Chain(inbound, view, None)
        request = Request(self, self.connection, Header(credits=1), view, chain)
        response = self.handlers[SMB1_NEGOTIATE](request)
        if isinstance(response, Pending):
            raise TypeError("the negotiation is answered at once")
        self.connection.command_sequence_window.consume(0, 1)
        chain.replies.append(self.writer.reply(request, response))
        chain.offset = -1
        self._advance(chain)

    def _decrypt(self, inbound: InboundMessage, view: memoryview) -> Chain:
        """3.3.5.2.1.1."""
        header = TRANSFORM.unpack(view)
        session = self.connection.session_table.get(header.session_id)
        if session is None or session.cipher is None:
            raise Disconnect("encrypted for a session that does not exist")
        if header.flags != ENCRYPTED or header.original_message_size != len(view) - TRANSFORM_SIZE:
            raise Disconnect("bad transform header")
        if header.original_message_size < HEADER_SIZE:
            raise Disconnect("encrypted message shorter than a header")
        plain = session.cipher.decrypt(view)
        if plain is None:
            raise Disconnect("encrypted message is not authentic")
        if plain[:4] != PROTOCOL_ID:
            raise Disconnect("encrypted message is no SMB2 message")
        if int.from_bytes(plain[40:48], "little") != header.session_id:
            raise Disconnect("encrypted message of another session")
        return Chain(inbound, plain, session)

    # Running

    def _advance(self, chain: Chain) -> None:
        """Run the chain's commands until one pends, none is left, the client has to take answers first or others have
        waited for long enough."""
        turn_ends = 0.0
        while chain.offset >= 0:
            if chain.offset:
                if self._must_drain(chain):
                    self._park(chain)
                    return
                now = time.monotonic()
                if not turn_ends:
                    turn_ends = now + TURN
                elif now >= turn_ends:
                    self._yield(chain)
                    return
            request = self._next_request(chain)
            command = request.header.command
            if command == _CANCEL:
                self._cancel(request, chain)
                continue
            watchdog = self.server.watchdog
            if watchdog is None:
                result = self._run(request, chain)
            else:
                began, processor = time.monotonic(), time.thread_time()
                result = self._run(request, chain)
                watchdog.finished(request, began, processor)
            if isinstance(result, Pending):
                chain.pending = request
                self._wait(request, chain, result)
                return
            self._take(request, chain, result)
        self._flush(chain)
        chain.inbound.release()

    def _must_drain(self, chain: Chain) -> bool:
        """Whether so many answers are unsent that the chain's next command has to wait."""
        transport = self.connection.transport
        if transport.pending_send_bytes + chain.size <= CHAIN_MARK:
            return False
        self._flush(chain)
        return transport.pending_send_bytes > CHAIN_MARK

    def _park(self, chain: Chain) -> None:
        self._parked.append(chain)
        self.connection.transport.pause_reading()
        self._later()

    def _yield(self, chain: Chain) -> None:
        """Let others have their turn. Ahead of what is parked: it came first."""
        self._parked.appendleft(chain)
        self.connection.transport.pause_reading()
        self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self.server.turns.add(self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        self._go_on()

    def _later(self) -> None:
        """Look again whether answers have drained, in a moment. ``_drained`` usually comes first."""
        if not self._resuming:
            self._resuming = True
            self.connection.loop.call_later(_PATIENCE, self._resume)

    def _drained(self) -> None:
        """A message is sent. The transport is still busy with that."""
        if self._parked:
            self.connection.loop.call_soon(self._go_on)

    def _resume(self) -> None:
        self._resuming = False
        self._go_on()

    def _go_on(self) -> None:
        """Take up parked chains in their order, as far as answers have drained and none has to let others have their
        turn."""
        connection = self.connection
        while (
            self._parked
            and not self._has_turn
            and not connection.closed
            and connection.transport.pending_send_bytes <= CHAIN_MARK // 2
        ):
            chain = self._parked.popleft()
            try:
                self._advance(chain)
            except Disconnect as reason:
                chain.inbound.release()
                connection.disconnect(str(reason))
        if connection.closed:
            return
        if self._parked:
            if not self._has_turn:
                self._later()
        elif not self.server.stopping:
            connection.transport.resume_reading()

    def _flush(self, chain: Chain) -> None:
        if chain.replies:
            replies, size, chain.replies, chain.size = chain.replies, chain.size, [], 0
            # Only what is large enough to make a chain wait has to tell of its end.
            large = self.connection.transport.pending_send_bytes + size > CHAIN_MARK // 2
            self.writer.send(replies, chain.cipher_session, self._drained if large else None)

    def _next_request(self, chain: Chain) -> Request:
        """Cut the next command out of the message (3.3.5.2.7) and take its MessageId (3.3.5.2.3)."""
        view, start = chain.view, chain.offset
        header = HEADER.unpack(view, start)
        if header.protocol_id != PROTOCOL_ID or header.structure_size != HEADER_SIZE:
            raise Disconnect("bad SMB2 header")
        step = header.next_command
        if step:
            if step & 7 or step < HEADER_SIZE or start + step + HEADER_SIZE > len(view):
                raise Disconnect("bad NextCommand")
            message = view[start : start + step]
            chain.offset = start + step
        else:
            message = view[start:] if start else view
            chain.offset = -1
        connection = self.connection
        if header.command != _CANCEL:
            charge = header.credit_charge if connection.supports_multi_credit and header.credit_charge else 1
            if not connection.command_sequence_window.consume(header.message_id, charge):
                raise Disconnect(f"MessageId {header.message_id} is not in the window")
        if not connection.negotiated and header.command != _NEGOTIATE:
            raise Disconnect("first request is not NEGOTIATE")
        return Request(self, connection, header, message, chain, None, None, chain.cipher_session is not None)

    def _run(self, request: Request, chain: Chain) -> Response | StatusError | Pending:
        """Check a command and call its handler; whatever it raises becomes its status."""
        persistence = self.server.persistence
        touches = persistence.touches if persistence is not None else 0
        try:
            self._check(request, chain)
            handler = self.handlers.get(request.header.command)
            if handler is None:
                return StatusError(NtStatus.INVALID_PARAMETER)
            chain.executing = True
            result: Response | StatusError | Pending = handler(request)
        except StatusError as error:
            result = error
        except OSError as error:
            result = as_status_error(error)
        except DecodeError:
            result = StatusError(NtStatus.INVALID_PARAMETER)
        except Disconnect:
            raise
        except Exception:
            log.exception("%s: command %d failed", self.connection.client_name, request.header.command)
            result = StatusError(NtStatus.INTERNAL_ERROR)
        finally:
            chain.executing = False
        early, chain.result = chain.result, None
        if isinstance(result, Pending):
            if early is None:
                return result
            result = early
        elif request.pending is not None:
            request.pending.drop()
        if persistence is not None and persistence.touches != touches:
            return self._hold(request, result, persistence, touches)
        return result

    def _hold(
        self, request: Request, result: Response | StatusError, persistence: Persistence, touches: int
    ) -> Pending:
        """What the command changed of persistent opens is stored before its reply leaves. Not to be cancelled."""
        pending = request.pend(Interim.DELAYED, lambda: None)

        def stored(error: StoreError | None) -> None:
            outcome = _unless_failed(result, error)
            if isinstance(outcome, Response):
                pending.complete(outcome)
            else:
                pending.fail(outcome)

        # Not from within the handler's frame: a request that completes at once must not look like one that waits.
        self.connection.loop.call_soon(persistence.when_stored, touches, stored)
        persistence.flush()
        return pending

    def _check(self, request: Request, chain: Chain) -> None:
        """Everything that is the same for all commands: 3.3.5.2.4 to 3.3.5.2.11 in their order."""
        header = request.header
        command = header.command
        related = header.flags & _RELATED
        if related:
            if not chain.last_command_seen or chain.no_session:
                # Related to nothing, but signed all the same: so is the answer (3.3.4.1.1).
                request.session = self.connection.session_table.get(header.session_id)
                if request.session is not None and header.flags & _SIGNED and not request.encrypted:
                    self._verify(request, request.session)
                raise StatusError(NtStatus.INVALID_PARAMETER)
            session_id, tree_id = chain.session_id, chain.tree_id
        else:
            session_id, tree_id = header.session_id, header.tree_id
            chain.session_id, chain.tree_id = session_id, tree_id
            chain.file_id = None
            chain.status = NtStatus.SUCCESS
            chain.no_session = False
        chain.last_command_seen = True
        connection = self.connection
        session = connection.session_table.get(session_id) if session_id else None
        request.session = session
        if header.flags & _SIGNED and not request.encrypted:
            self._verify(request, session)
        if command in _SESSIONLESS:
            return
        checks.check_body(request)
        if session is None:
            if session_id or (command != Command.ECHO and not checks.is_test_request(request)):
                chain.no_session = True
                raise StatusError(NtStatus.USER_SESSION_DELETED)
            return
        if chain.cipher_session is not None:
            if chain.cipher_session is not session:
                raise StatusError(NtStatus.USER_SESSION_DELETED)
        else:
            if session.signing_required and not request.signed:
                raise StatusError(NtStatus.ACCESS_DENIED)
            if session.encrypt_data:
                raise StatusError(NtStatus.ACCESS_DENIED)
        checks.check_session(session, command)
        if command in checks.TREE_COMMANDS:
            tree = session.tree_connect_table.get(tree_id)
            if tree is None:
                raise StatusError(NtStatus.NETWORK_NAME_DELETED)
            request.tree = tree
            if tree.encrypt_data and chain.cipher_session is None:
                raise StatusError(NtStatus.ACCESS_DENIED)
            self._inherit_file(request, chain, related)

    def _verify(self, request: Request, session: Session | None) -> None:
        """3.3.5.2.4. A session setup that binds has no channel here yet: its handler verifies it."""
        if request.header.command == _NEGOTIATE:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        if session is None:
            return
        channel = session.channel_list.get(self.connection)
        if channel is None or channel.signer is None:
            if request.header.command == _SESSION_SETUP:
                return
            if session.identity is not None and (session.is_guest or session.is_anonymous):
                return
            raise StatusError(NtStatus.ACCESS_DENIED)
        if not channel.signer.verify(request.message):
            raise StatusError(NtStatus.ACCESS_DENIED)
        request.signed = True

    def _inherit_file(self, request: Request, chain: Chain, related: int) -> None:
        """3.3.5.2.7.2: a related command without a FileId of its own works on the previous command's, and fails as the
        CREATE failed that should have provided it."""
        offset = checks.FILE_ID_OFFSET.get(request.header.command)
        if offset is None:
            return
        file_id = checks.FILE_ID.unpack_from(request.message, HEADER_SIZE + offset)
        if file_id != RELATED_FILE_ID:
            chain.file_id = file_id
        elif related and chain.file_id is None and chain.status:
            # STOPPED_ON_SYMLINK is no more than a warning, but no FileId comes of it either.
            raise StatusError(chain.status)

    # Completing

    def _take(self, request: Request, chain: Chain, result: Response | StatusError) -> None:
        """Queue a command's reply and remember what related commands inherit."""
        if isinstance(result, Response):
            if result.file_id is not None:
                chain.file_id = result.file_id
            if request.header.command == Command.TREE_CONNECT and request.tree is not None:
                chain.tree_id = request.tree.tree_id
            if request.header.command == _SESSION_SETUP and request.session is not None:
                chain.session_id = request.session.session_id
        elif request.header.command == _CREATE:
            chain.status = result.status
            chain.file_id = None
        reply = self.writer.reply(request, result)
        if chain.cipher_session is None and _is_secret(request):
            # Not together with replies that go out in clear.
            self._flush(chain)
            self.writer.send([reply], request.session)
            return
        if chain.replies:
            # Replies that do not fit one message of the transport's go out in several.
            limit = self.connection.transport.max_outbound_message_size - _MESSAGE_OVERHEAD
            if chain.size + reply.size > limit:
                self._flush(chain)
        chain.size += reply.size
        chain.replies.append(reply)

    def _wait(self, request: Request, chain: Chain, pending: Pending) -> None:
        """The handler left ``request`` pending: make it known to CANCEL and, in time, to the client."""
        connection = self.connection
        replay.begin(request)
        if len(self.request_list) >= self.server.settings.max_async_requests:
            self._refuse(request, pending, NtStatus.INSUFFICIENT_RESOURCES)
            return
        if request.header.command == Command.CHANGE_NOTIFY and chain.offset >= 0:
            # What follows would wait for it for ever. Windows, too, answers so what must not wait within a compound.
            self._refuse(request, pending, NtStatus.INTERNAL_ERROR)
            return
        self.request_list[request.header.message_id] = request
        if pending.interim is Interim.AT_ONCE and chain.offset < 0:
            self._send_interim(request)
        elif pending.interim is not Interim.NEVER:
            delay = self.server.settings.interim_delay
            self._delayed.append((connection.loop.time() + delay, request))
            if not self._timer_running:
                self._timer_running = True
                connection.loop.call_later(delay, self._on_timer)

    def _refuse(self, request: Request, pending: Pending, status: NtStatus) -> None:
        """End what a handler left pending, with ``status``."""
        self.request_list[request.header.message_id] = request
        request.extra[_INSTEAD] = status
        pending.cancel()

    def _on_timer(self) -> None:
        """Send the interim replies that are due."""
        loop, delayed = self.connection.loop, self._delayed
        now = loop.time()
        while delayed:
            deadline, request = delayed[0]
            if request.pending is None or request.pending.done:
                delayed.popleft()
            elif deadline <= now:
                delayed.popleft()
                self._send_interim(request)
            else:
                loop.call_at(deadline, self._on_timer)
                return
        self._timer_running = False

    def _send_interim(self, request: Request) -> None:
        """3.3.4.2, after the replies of the chain that are ready."""
        chain = request.compound
        if self.connection.closed or not isinstance(chain, Chain):
            return
        self._flush(chain)
        self._next_async_id += 1
        request.async_id = self._next_async_id
        self.async_command_list[request.async_id] = request
        self.writer.send([self.writer.interim(request)], chain.cipher_session)

    def finish(self, request: Request, result: Response | StatusError) -> None:
        """A pending request is done: reply, then go on with its chain."""
        chain = request.compound
        if not isinstance(chain, Chain):
            raise TypeError("request did not come through a dispatcher")
        if chain.executing:
            chain.result = result
            return
        persistence = self.server.persistence
        if persistence is None or not persistence.dirty:
            self._finish(request, chain, result)
            return
        # The caller changed something just now: most likely this request's own doing.
        persistence.when_stored(
            persistence.touches - 1, lambda error: self._finish(request, chain, _unless_failed(result, error))
        )

    def _finish(self, request: Request, chain: Chain, result: Response | StatusError) -> None:
        connection = self.connection
        replay.end(request)
        self.request_list.pop(request.header.message_id, None)
        if request.async_id:
            self.async_command_list.pop(request.async_id, None)
        chain.pending = None
        if _INSTEAD in request.extra and isinstance(result, StatusError):
            result = StatusError(cast("int", request.extra[_INSTEAD]))
        if connection.closed:
            if isinstance(result, Response) and result.on_sent is not None:
                result.on_sent()
            chain.inbound.release()
            return
        self._take(request, chain, result)
        if request.async_id:
            self._flush(chain)
        try:
            self._advance(chain)
        except Disconnect as reason:
            chain.inbound.release()
            connection.disconnect(str(reason))

    def _cancel(self, request: Request, chain: Chain) -> None:
        """3.3.5.16: no reply ever; what it names and is still pending fails with CANCELLED."""
        header = request.header
        connection = self.connection
        session = connection.session_table.get(header.session_id)
        request.session = session
        if header.flags & _SIGNED and not request.encrypted:
            try:
                self._verify(request, session)
            except StatusError:
                return
        if session is not None and not request.encrypted:
            if session.encrypt_data or (session.signing_required and not request.signed):
                return
        elif session is not None and chain.cipher_session is not session:
            return
        if header.flags & HeaderFlags.ASYNC_COMMAND:
            target = self.async_command_list.get(header.async_id)
        else:
            target = self.request_list.get(header.message_id)
        if target is not None and target.session is session and target.pending is not None:
            target.pending.cancel()

    # Unsolicited

    def notify(self, session: Session, segments: Sequence[Buffer], command: int = Command.OPLOCK_BREAK) -> None:
        """Send an oplock or lease break, or another message that no request asked for. It is never signed. [MS-SMB2
        3.3.4.6, 3.3.4.7]"""
        encrypt = session if session.encrypt_data else None
        self.writer.send([self.writer.notification(segments, command)], encrypt)

    # The connection's life

    def authenticated(self) -> None:
        """Trust the client with messages and credits of full size, as a session is valid now."""
        connection = self.connection
        if not connection.is_authenticated:
            connection.is_authenticated = True
            connection.drop_deadlines()
            self.server.connection_authenticated(connection)
        connection.transport.max_message_size = self.server.settings.max_message_size
        connection.limit_credits()

    def cancel_waiting(self) -> None:
        """Cancel every request whose client was sent STATUS_PENDING. The others may finish."""
        for request in list(self.async_command_list.values()):
            if request.pending is not None:
                call_apart(request.pending.cancel)

    def cancel_requests(self, session: Session, tree_id: int | None = None) -> None:
        """Cancel the asynchronous requests of a session, or of one of its tree connects, that goes away."""
        for request in list(self.request_list.values()):
            if request.session is not session or request.pending is None:
                continue
            if tree_id is None or (request.tree is not None and request.tree.tree_id == tree_id):
                call_apart(request.pending.cancel, closing=True)

    def _closed(self, error: BaseException | None) -> None:
        """Cancel what waits, leave every session and forget those that have no other channel. [MS-SMB2 3.3.7.1]"""
        connection = self.connection
        if connection.closed:
            return
        connection.closed = True
        connection.drop_deadlines()
        if connection.transport.rdma is not None and connection.negotiated:
            reason = connection.ended_by or str(error or "closed by the client")
            self.server.rdma_lost(connection.client_guid, reason)
        if error is not None:
            log.info("%s: connection lost: %s", connection.client_name, error)
        for request in list(self.request_list.values()):
            session = request.session
            if request.pending is None:
                continue
            if session is not None and len(session.channel_list) > 1 and self.server.replays.owns(request.pending):
                # The client sends it again on another channel (3.2.7.1).
                continue
            call_apart(request.pending.cancel)
        self._delayed.clear()
        while self._parked:
            self._parked.popleft().inbound.release()
        for session in list(connection.session_table.values()):
            self.server.leave_session(session, connection)
        connection.session_table.clear()
        connection.preauth_session_table.clear()
        self.server.connection_closed(connection)
