"""The way of a message to the command handlers and of their results to replies. [MS-SMB2 3.3.5.2, 3.3.4.1-3.3.4.4]

A received message is a ``Chain`` of one or more commands. Its commands run in order. A command that pends stops its own
chain until it completes, but no other chain. The replies of a chain are sent together, except that those which are
ready are sent before an interim reply. ``Parking`` decides when a chain has to wait for its client or for others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from smb3server.compression.benefit import Counts
from smb3server.crypto.encryption import TRANSFORM_PROTOCOL_ID
from smb3server.dispatch import checks, lookup
from smb3server.dispatch.chain import Chain
from smb3server.dispatch.denials import record_denial
from smb3server.dispatch.fast_lane import FastLane
from smb3server.dispatch.holding import hold, unless_failed
from smb3server.dispatch.in_turn import InTurn
from smb3server.dispatch.look_lane import LookLane
from smb3server.dispatch.parking import CHAIN_MARK, MESSAGE_MARK, TURN, Parking
from smb3server.dispatch.pending import PendingRequests
from smb3server.dispatch.reply import ReplyWriter
from smb3server.dispatch.request import HANDLERS, KINDS, SMB1_NEGOTIATE, Handler, Pending, Request, Response
from smb3server.dispatch.unwrapping import Unwrapping
from smb3server.dispatch.waiting import failure
from smb3server.state.file_events import DENIALS
from smb3server.state.life import ConnectionLife
from smb3server.state.objects import Connection
from smb3server.wire.compression import COMPRESSION_PROTOCOL_ID
from smb3server.wire.header import HEADER, HEADER_SIZE, PROTOCOL_ID, Command, Header, HeaderFlags
from smb3server.wire.server_notification import SERVER_TO_CLIENT_NOTIFICATION
from smb3server.wire.status import Disconnect, NtStatus, StatusError
from smbdirect.codec import Buffer

if TYPE_CHECKING:
    from smb3server.dispatch.measuring import Measuring
    from smb3server.state.objects import Session
    from smb3server.state.server_state import ServerState
    from smbdirect.message_transport import InboundMessage, MessageTransport

SMB1_PROTOCOL_ID = b"\xffSMB"
_SIGNED = int(HeaderFlags.SIGNED)
_NEGOTIATE = int(Command.NEGOTIATE)
_SESSION_SETUP = int(Command.SESSION_SETUP)
_CANCEL = int(Command.CANCEL)
_CREATE = int(Command.CREATE)
_TRANSFORM = TRANSFORM_PROTOCOL_ID[0]
_TREE_CONNECT = int(Command.TREE_CONNECT)
_MESSAGE_OVERHEAD = 128
"""Transform header and tag."""


def _is_secret(request: Request) -> bool:
    """Return whether the reply must be encrypted although the request was not, which was refused for that reason.
    [MS-SMB2 3.3.4.1.4]"""
    session, tree, command = request.session, request.tree, request.header.command
    if session is None or session.cipher is None or command in checks.SESSIONLESS:
        return False
    return (session if tree is None or command == _TREE_CONNECT else tree).encrypt_data


class Owner(Protocol):
    """Keeps account of all connections."""

    def connection_authenticated(self, connection: Connection) -> None:
        """Note that the first session on the connection has become valid."""
        ...

    def connection_closed(self, connection: Connection) -> None:
        """Note that the connection has ended, together with its sessions that have no other connection."""
        ...


class Dispatcher:
    """Runs one connection: its messages, its requests and its end."""

    def __init__(self, server: ServerState, transport: MessageTransport, owner: Owner, measuring: Measuring) -> None:
        """``owner`` keeps account of connections. ``measuring`` says what is measured of commands."""
        self.server = server
        self.opens = server.opens
        self._owner = owner
        self._measuring = measuring
        self.connection = Connection(transport, server.settings, self)
        self.connection.compressed = Counts(server.compressed)
        self.writer = ReplyWriter(self.connection, server)
        self.handlers: Mapping[int, Handler] = HANDLERS
        """The handlers of the connection's commands, by command."""
        self.requests = PendingRequests(server.settings, self.connection.loop, self._send_interim)
        self.parking = Parking(server, self.connection, partial(self._go_on, waited=True))
        self._unwrapping = Unwrapping(server, self.connection, self.parking)
        self._look_lane: LookLane | None = None
        """See ``_made_look_lane``."""
        self._fast_lane = FastLane(self, self.connection, self.writer, self.parking, self.requests, measuring)

    def start(self) -> None:
        """Serve the messages that the transport delivers."""
        self.connection.transport.offer_payloads(self._fast_lane)
        self.connection.transport.start(self.receive, self._closed)

    # Receiving

    def receive(self, inbound: InboundMessage) -> None:
        """Begin or park one message of the transport. [MS-SMB2 3.3.5.2]"""
        server = self.server
        if server.fence is not None and server.is_fenced(self.connection):
            # Do not even execute it: another node may own the share by now.
            inbound.release()
            self.connection.disconnect("this node is fenced")
            return
        view = inbound.view
        cipher_session: Session | None = None
        try:
            if len(view) >= HEADER_SIZE:
                if view[0] == _TRANSFORM and view[:4] == TRANSFORM_PROTOCOL_ID:
                    view, cipher_session = self._unwrapping.decrypt(inbound)
                # More commands follow if NextCommand is not 0. It is a multiple of eight.
                if not (view[20] or view[21]):
                    if self._fast_lane.take(inbound, view, cipher_session):
                        return
                elif view[12] == _CREATE and (lane := self._look_lane or self._made_look_lane()) is not None:
                    if self._fast_lane.row is not None:
                        self._fast_lane.end_row()
                    if lane.take(inbound, view, cipher_session):
                        return
            if self._fast_lane.row is not None:
                self._fast_lane.end_row()
            chain = self._begin(inbound, view, cipher_session)
        except Disconnect as reason:
            inbound.release()
            self.connection.violated(reason)
            return
        if self.parking.chains or self.connection.transport.pending_send_bytes > MESSAGE_MARK:
            self.parking.park(chain)
        else:
            self._go_on(chain)

    def _made_look_lane(self) -> LookLane | None:
        """Return the lane of looks, made for the first message that begins with CREATE. None: strangers need none."""
        if self.connection.is_authenticated:
            self._look_lane = LookLane(self, self.connection, self.parking, self._measuring)
        return self._look_lane

    def _begin(self, inbound: InboundMessage, view: memoryview, cipher_session: Session | None) -> Chain:
        """Begin a message of one or more commands. ``view``: the commands, decrypted. Raises ``Disconnect``."""
        magic = view[:4]
        if magic == SMB1_PROTOCOL_ID:
            return self._answer_smb1(inbound, view)
        if magic == COMPRESSION_PROTOCOL_ID:
            if self.connection.compression is None:
                raise Disconnect("compressed message, and compression was not negotiated")
            return Chain(inbound, view, cipher_session, compressed=True)
        if len(view) < HEADER_SIZE:
            raise Disconnect("message shorter than a header")
        if magic == PROTOCOL_ID:
            return Chain(inbound, view, cipher_session)
        raise Disconnect(f"unknown protocol identifier {bytes(magic).hex()}")

    def _answer_smb1(self, inbound: InboundMessage, view: memoryview) -> Chain:
        """Answer the first message of a client that begins with SMB1. [MS-SMB2 3.3.5.3]"""
        chain = Chain(inbound, view, None)
        request = Request(self, self.connection, Header(credits=1), view, chain)
        response = self.handlers[SMB1_NEGOTIATE](request)
        if isinstance(response, Pending):
            raise TypeError("the negotiation is answered at once")
        self.connection.command_sequence_window.consume(0, 1)
        chain.replies.append(self.writer.reply(request, response))
        chain.offset = -1
        return chain

    # Running

    def _go_on(self, chain: Chain, waited: bool = False) -> None:
        """Run the chain. Disconnect if it violates the protocol. ``waited``: it was parked, maybe before its first
        command."""
        try:
            if chain.compressed and not self._unwrapping.expand(chain):
                return
            self._advance(chain, waited)
        except Disconnect as reason:
            chain.end()
            self.connection.violated(reason)

    def _advance(self, chain: Chain, waited: bool) -> None:
        """Run the commands of the chain until one pends, none is left, or the chain has to wait: until its client has
        taken replies, or until other chains have had their turn.

        The fence is asked before each command. ``receive`` has done so before the first, unless the chain has
        ``waited``."""
        turn_ends = 0.0
        server, connection = self.server, self.connection
        while chain.offset >= 0:
            if (waited or chain.offset) and server.fence is not None and server.is_fenced(connection):
                chain.end()
                connection.disconnect("this node is fenced")
                return
            if chain.offset:
                if self._must_drain(chain):
                    self.parking.park(chain)
                    return
                now = time.monotonic()
                if not turn_ends:
                    turn_ends = now + TURN
                elif now >= turn_ends:
                    self.parking.give_way(chain)
                    return
            request = self._next_request(chain)
            if request.header.command == _CANCEL:
                self._cancel(request)
                continue
            observer = self._measuring.observer
            if observer is None:
                result = self._run(request, chain)
            else:
                start = observer.began()
                result = self._run(request, chain)
                observer.ran(request, result, start)
            if isinstance(result, Pending):
                lookup.begin(request)
                self.requests.add(request, result)
                return
            self._take(request, chain, result)
        self._flush(chain)
        chain.end()

    def _must_drain(self, chain: Chain) -> bool:
        """Return whether so many bytes of replies are unsent that the next command of the chain has to wait."""
        transport = self.connection.transport
        if transport.pending_send_bytes + chain.size <= CHAIN_MARK:
            return False
        self._flush(chain)
        return transport.pending_send_bytes > CHAIN_MARK

    def _next_request(self, chain: Chain) -> Request:
        """Return the next command of the message, and consume its MessageId. Raises ``Disconnect``. [MS-SMB2 3.3.5.2.7,
        3.3.5.2.3]"""
        view, start = chain.view, chain.offset
        # ``offset`` was set only after a check that a header is there.
        header = HEADER.make(HEADER.fields_from(view, start))
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
        command = header.command
        if command != _CANCEL:
            charge = header.credit_charge if connection.supports_multi_credit and header.credit_charge else 1
            if not connection.command_sequence_window.consume(header.message_id, charge):
                raise Disconnect(f"MessageId {header.message_id} is not in the window")
        if connection.life is not ConnectionLife.AUTHENTICATED and not connection.negotiated and command != _NEGOTIATE:
            raise Disconnect("first request is not NEGOTIATE")
        kind = KINDS.get(command, Request)
        return kind(self, connection, header, message, chain, None, None, chain.cipher_session is not None)

    def run_in_turn(self, request: Request, handler: Handler) -> Response | StatusError | Pending:
        """Call the handler of a command that was checked, and has waited for its turn. Raises ``Disconnect``."""
        try:
            request.check_fence()
            return self._run(request, request.chain, handler)
        except BaseException as error:
            # Even what is no ``Exception``: on this thread nobody else would answer the request.
            return failure(request, error)

    def _run(self, request: Request, chain: Chain, checked: Handler | None = None) -> Response | StatusError | Pending:
        """Check a command and call its handler. An exception becomes the status of the command.

        ``checked``: the handler of a command that was checked before."""
        persistence = self.server.opens.persistence
        touches = persistence.touches if persistence is not None else 0
        result: Response | StatusError | Pending
        try:
            if checked is not None:
                result = checked(request)
            else:
                checks.check(request, chain)
                handler = self.handlers.get(request.header.command)
                if handler is None:
                    return StatusError(NtStatus.INVALID_PARAMETER)
                tree = request.tree
                if tree is None or tree.share.queue is None:
                    result = handler(request)
                else:
                    result = InTurn(self, request, handler, tree.share.queue).pending
        except Exception as error:
            result = failure(request, error)
        if isinstance(result, Pending):
            early = result.handler_returned()
            if early is None:
                return result
            result = early
        elif request.pending is not None:
            request.pending.drop()
        if persistence is not None and persistence.touches != touches:
            return hold(request, result, persistence, touches)
        return result

    # Completing

    def _take(self, request: Request, chain: Chain, result: Response | StatusError) -> None:
        """Queue the reply of a command and remember the values that related commands inherit."""
        if isinstance(result, Response):
            chain.fresh = result.fresh
            if result.file_id is not None:
                chain.file_id = result.file_id
            command = request.header.command
            if command == _TREE_CONNECT and request.tree is not None:
                chain.tree_id = request.tree.tree_id
            elif command == _SESSION_SETUP and request.session is not None:
                chain.session_id = request.session.session_id
        else:
            chain.fresh = None
            if request.header.command == _CREATE:
                chain.status = result.status
                chain.file_id = None
            if result.status in DENIALS and request.tree is not None:
                self.server.events.counts.denied += 1
                if request.tree.share.audit is not None:
                    record_denial(request, request.tree, result.status)
        reply = self.writer.reply(request, result)
        if chain.cipher_session is None and _is_secret(request):
            # It must not be sent together with replies that are not encrypted.
            self._flush(chain)
            self.writer.send([reply], request.session)
            return
        if chain.replies:
            # Replies that do not fit into one message of the transport are sent in several. And a message invalidates
            # one token only (MS-SMBD 3.1.4.2).
            limit = self.connection.transport.max_outbound_message_size - _MESSAGE_OVERHEAD
            tokens = reply.invalidate is not None and any(other.invalidate is not None for other in chain.replies)
            if tokens or chain.size + reply.size > limit:
                self._flush(chain)
        chain.size += reply.size
        chain.replies.append(reply)

    def _flush(self, chain: Chain) -> None:
        """Send the replies that the chain has collected."""
        if chain.replies:
            replies, size, chain.replies, chain.size = chain.replies, chain.size, [], 0
            # Only a message that is large enough to make a chain wait has to report when it is sent.
            large = self.connection.transport.pending_send_bytes + size > CHAIN_MARK // 2
            self.writer.send(replies, chain.cipher_session, self.parking.drained if large else None)

    def _send_interim(self, request: Request) -> None:
        """Send the replies of the chain that are ready, then STATUS_PENDING for a request. [MS-SMB2 3.3.4.2]"""
        if not self.connection.closed:
            chain = request.chain
            self._flush(chain)
            self.writer.send([self.writer.interim(request)], chain.cipher_session)

    def finish(self, request: Request, result: Response | StatusError) -> None:
        """Answer a pending request, then continue its chain. [MS-SMB2 3.3.4.4]"""
        persistence = self.server.opens.persistence
        if persistence is None or not persistence.dirty:
            self._finish(request, result)
            return
        # Something has just been changed, most likely by this request.
        persistence.when_stored(
            persistence.touches - 1, lambda error: self._finish(request, unless_failed(result, error))
        )

    def _finish(self, request: Request, result: Response | StatusError) -> None:
        connection, chain, pending = self.connection, request.chain, request.pending
        lookup.end(request)
        self.requests.remove(request)
        observer = self._measuring.observer
        if observer is not None:
            observer.finished(request, result.status)
        if pending is not None and pending.refused_with is not None and isinstance(result, StatusError):
            result = StatusError(pending.refused_with)
        if connection.closed:
            if isinstance(result, Response) and result.on_sent is not None:
                result.on_sent()
            chain.end()
            return
        if isinstance(result, Response) and self._fast_lane.finish(request, result):
            return
        self._take(request, chain, result)
        if request.async_id:
            self._flush(chain)
        self._go_on(chain)

    def answer(self, request: Request, result: Response | StatusError) -> None:
        """See ``Host``."""
        self._take(request, request.chain, result)
        self._flush(request.chain)
        request.chain.end()

    def end_row(self) -> None:
        """See ``Host``."""
        self._fast_lane.end_row()

    def may_send_file(self, request: Request) -> bool:
        """See ``Host``."""
        chain = request.chain
        return (
            self.connection.transport.takes_file
            and chain.offset < 0
            and not chain.replies
            and chain.cipher_session is None
            and not _is_secret(request)
            and request.signer is None
            and self.writer.signer_for(request) is None
        )

    def _cancel(self, request: Request) -> None:
        """Cancel the request that a CANCEL names, if it is still pending. Never reply. [MS-SMB2 3.3.5.16]"""
        header = request.header
        session = self.connection.session_table.get(header.session_id)
        request.session = session
        if header.flags & _SIGNED and not request.encrypted:
            try:
                checks.verify(request, session)
            except StatusError:
                return
        if session is not None and checks.lacks_protection(session, None, request.chain.cipher_session, request.signed):
            return
        target = self.requests.find(header)
        if target is None:
            if not header.flags & HeaderFlags.ASYNC_COMMAND:
                self.requests.cancel_ahead(header.message_id, session)
        elif target.session is session and target.pending is not None:
            target.pending.cancel()

    # Unsolicited

    def notify(self, session: Session, segments: Sequence[Buffer], command: int = Command.OPLOCK_BREAK) -> None:
        """Send an oplock or lease break, or another unsolicited message. Breaks are never signed. [MS-SMB2 3.3.4.6,
        3.3.4.7]"""
        encrypt = session if session.encrypt_data else None
        named = session if command == SERVER_TO_CLIENT_NOTIFICATION else None
        self.writer.send([self.writer.notification(segments, command, named)], encrypt)

    # The connection's life

    def authenticated(self) -> None:
        """Allow the client messages of full size and all credits, as a session is valid now."""
        connection = self.connection
        if connection.life is ConnectionLife.NEGOTIATED:
            connection.enter(ConnectionLife.AUTHENTICATED)
            connection.drop_deadlines()
            self._owner.connection_authenticated(connection)
        connection.transport.trust(self.server.settings.max_message_size)
        connection.limit_credits()

    @property
    def pending_requests(self) -> int:
        """Number of asynchronous requests that are not answered yet."""
        return len(self.requests)

    def cancel_waiting(self) -> None:
        """Cancel every request whose client was sent STATUS_PENDING. The others may finish."""
        self.requests.cancel_waiting()

    def cancel_requests(self, session: Session, tree_id: int | None = None) -> None:
        """Cancel the asynchronous requests of a session that ends, or of one of its tree connects that ends."""
        self.requests.cancel_of(session, tree_id)

    def _comes_again(self, request: Request, pending: Pending) -> bool:
        """Return whether the client will send the request again on another channel. [MS-SMB2 3.2.7.1]"""
        session = request.session
        return session is not None and len(session.channel_list) > 1 and self.server.opens.replays.owns(pending)

    def _closed(self, error: BaseException | None) -> None:
        """Cancel waiting requests, and remove the connection from its sessions. End those that have no other channel.
        [MS-SMB2 3.3.7.1]"""
        connection = self.connection
        if connection.closed:
            return
        connection.enter(ConnectionLife.CLOSED)
        connection.drop_deadlines()
        if connection.is_smb_direct and any(connection.client_guid):
            reason = connection.ended_by or str(error or "closed by the client")
            self.server.rdma_lost(connection.client_guid, reason)
        self.server.events.connection_ended(connection, error)
        self.requests.close(self._comes_again)
        self.parking.clear()
        for session in list(connection.session_table.values()):
            self.server.sessions.leave(session, connection)
        self.server.sessions.leave_client(connection)
        connection.session_table.clear()
        connection.preauth_session_table.clear()
        self._owner.connection_closed(connection)
