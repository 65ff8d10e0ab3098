"""The fast lane: the most frequent messages, answered without the objects of the general path.

A busy connection mostly carries ordinary messages: one ECHO, one plain CLOSE, or one READ or WRITE, whose session, tree
connect and open are in order. The lane answers such a message at once. The reply has the same bytes as the reply of the
general path (``dispatcher``, ``checks``, ``reply``), and the same state results.

``FastLane.take`` looks before it acts. It leaves a message that is not ordinary in any respect to the general path, as
it came and before any state has changed. So the lane refuses nothing: it knows only requests that the general path
would serve at once.

Consecutive short WRITEs to one store are a row (``Backend.begin_row``). It ends with the turn of the transport, and
before anything but the lane itself goes on.

The part that differs between commands is their ``short_forms.ShortForm``, beside the command's handler in ``commands``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from smb3server.crypto.envelope import seal, seal_in, sign_reply
from smb3server.dispatch import lookup
from smb3server.dispatch.chain import Chain
from smb3server.dispatch.checks import has_expired, lacks_protection, pays_for
from smb3server.dispatch.fetch import Fetch
from smb3server.dispatch.measuring import named_path
from smb3server.dispatch.parking import CHAIN_MARK
from smb3server.dispatch.reply import ECHOED_FLAGS, REPLY_HEADER, ReplyWriter
from smb3server.dispatch.request import KINDS, Host, Pending, Request, Response
from smb3server.dispatch.short_forms import LARGEST_DATA, SHORT_FORMS, Begin, Body, Long
from smb3server.dispatch.waiting import failure
from smb3server.state.life import ConnectionLife
from smb3server.state.objects import SessionState
from smb3server.wire.header import HEADER, HEADER_SIZE, PROTOCOL_ID, SIGNATURE_OFFSET, Header, HeaderFlags
from smb3server.wire.read_write import TAIL
from smb3server.wire.status import StatusError
from smbdirect.codec import new_record
from smbdirect.errors import ProviderError

if TYPE_CHECKING:
    from smb3server.backends.base import Backend
    from smb3server.crypto.signing import Signer
    from smb3server.dispatch.data_channel import RemoteMemory
    from smb3server.dispatch.measuring import Measuring, Observer, Start
    from smb3server.dispatch.parking import Parking
    from smb3server.dispatch.pending import PendingRequests
    from smb3server.state.objects import Connection, Open, Session, TreeConnect
    from smbdirect.message_transport import InboundMessage, Payload

_SIGNED = int(HeaderFlags.SIGNED)
_KNOWN_FLAGS = int(HeaderFlags.PRIORITY_MASK) | _SIGNED
_UNKNOWN_FLAGS = ~_KNOWN_FLAGS
_REPLY = int(HeaderFlags.SERVER_TO_REDIR)
_VALID = SessionState.VALID
_AUTHENTICATED, _CLOSED = ConnectionLife.AUTHENTICATED, ConnectionLife.CLOSED
_SMALLEST = HEADER_SIZE + 4
_SMALL = 4096
"""Bytes of a handler's response up to which its parts are joined."""
_LONGEST_IN_ROW = LARGEST_DATA + TAIL
"""Bytes of a WRITE that begins a row. Answers wait for the row's end, and those to long ones should not."""
_FEW_UNSENT = CHAIN_MARK // 2 - LARGEST_DATA - 4096
"""Bytes of unsent replies up to which one more does not have to report that it is sent (``Dispatcher._flush``)."""

_NEVER: Start = (0.0, 0.0)


def _sent(release: Callable[[], None] | None, drained: Callable[[], None]) -> None:
    if release is not None:
        release()
    drained()


class FastLane:
    """Answers the ordinary messages of one connection. Implements ``message_transport.PayloadTaker``."""

    head_size = TAIL
    __slots__ = (
        "_connection",
        "_host",
        "_measuring",
        "_parking",
        "_window",
        "_writer",
        "requests",
        "row",
    )

    def __init__(
        self,
        host: Host,
        connection: Connection,
        writer: ReplyWriter,
        parking: Parking,
        requests: PendingRequests,
        measuring: Measuring,
    ) -> None:
        self._host = host
        self.requests = requests
        self._connection = connection
        self._window = connection.command_sequence_window
        self._writer = writer
        self._parking = parking
        self._measuring = measuring
        self.row: Backend | None = None
        """The store of the row of writes that was begun here, while the thread is in it."""

    def wants_payload(self, head: memoryview, length: int) -> bool:
        """See ``PayloadTaker``."""
        form = SHORT_FORMS.get(head[12])
        return form is not None and form.ends_with_payload(head, length)

    def take_payload(self, head: InboundMessage, payload: Payload) -> bool:
        """See ``PayloadTaker``."""
        server = self._host.server
        fenced = server.fence is not None and server.is_fenced(self._connection)
        return not fenced and self.take(head, head.view, None, payload)

    def take(
        self, inbound: InboundMessage, view: memoryview, cipher_session: Session | None, payload: Payload | None = None
    ) -> bool:
        """Answer an ordinary message and release it. Return False, with nothing changed, for any other.

        ``view``: its commands, decrypted if it was encrypted. ``cipher_session``: the session whose key encrypted it;
        None in the clear. ``payload``: the end of the message, if that is not in ``view``. The caller has asked the
        fence."""
        if len(view) < _SMALLEST:
            return False
        # The low byte of the command. Most other messages cost no more than this look.
        form = SHORT_FORMS.get(view[12])
        if form is None:
            return False
        header = HEADER.fields_from(view)
        protocol, size, charge, sequence, command, credits, flags, step, message_id, _, tree_id, session_id, _ = header
        if protocol != PROTOCOL_ID or size != HEADER_SIZE or command > 0xFF or step or flags & _UNKNOWN_FLAGS:
            return False
        connection = self._connection
        window = self._window
        cost = charge if charge and connection.supports_multi_credit else 1
        in_order = not window.used and message_id == window.low and message_id + cost <= window.high
        if not in_order and not window.allows(message_id, cost):
            return False
        if self._host.handlers.get(command) is not form.handler:
            return False
        if self._parking.chains or connection.transport.pending_send_bytes > _FEW_UNSENT:
            return False
        session = connection.session_table.get(session_id)
        if session is None or session.state is not _VALID or connection.life is not _AUTHENTICATED:
            return False
        tree = session.tree_connect_table.get(tree_id)
        if tree is not None and tree.share.queue is not None:
            return False  # requests wait for their turn there
        signer: Signer | None = None
        if lacks_protection(session, tree, cipher_session, flags & _SIGNED):
            return False
        if session.expiration_time is not None and has_expired(session):
            return False
        if flags & _SIGNED:
            signer = session.signer_on(connection)
            if signer is None or cipher_session is not None:
                return False
        if payload is None:
            found = form.look(connection, session, tree, sequence, view)
        elif pays_for(cost, payload.length):
            found = form.look_at_payload(connection, session, tree, sequence, view, payload)
        else:
            return False
        if found is None:
            return False
        opened, answer, remote = found
        if remote is not None and (
            cipher_session is not None
            or session.signing_required
            or (signer is not None and connection.rdma_transform_ids)
        ):
            return False  # the data needs protection of its own
        if signer is not None and not signer.verify(view):
            view[SIGNATURE_OFFSET:HEADER_SIZE] = header[-1]
            return False
        observer = self._measuring.observer
        start = observer.began() if observer is not None else _NEVER
        if isinstance(answer, Fetch):
            if self._fetch(answer, header, cost, inbound, view, session, tree, signer):
                if observer is not None:
                    observer.fetches(answer, connection, start)
                return True
            begin = answer.begin
            answer = lambda: begin  # noqa: E731
        if form.ends_row:
            if self.row is not None:
                self.end_row()
        elif (
            form.writes
            and self.row is None
            and opened is not None
            and remote is None
            and payload is None
            and len(view) <= _LONGEST_IN_ROW
        ):
            self.begin_row(opened)
        body: Body | Response | Begin | Exception | None
        try:
            if isinstance(answer, Long):
                body = answer.answer(cipher_session is not None, signer is not None)
            else:
                body = answer()
        except Exception as error:
            body = error
        if body is None:
            view[SIGNATURE_OFFSET:HEADER_SIZE] = header[-1]
            return False
        if type(body) is not tuple and not isinstance(body, Response):
            window.consume(message_id, cost)
            if self.row is not None:
                self.end_row()
            request = self.request(
                new_record(Header, header), inbound, view, cipher_session, session, tree, opened, signer
            )
            if not isinstance(body, tuple):
                self._settle(request, body, remote, observer, start)
            return True
        if observer is not None:
            path = opened.path if opened is not None else named_path(command, view)
            observer.answered(command, connection, tree, path, start)
        packed = REPLY_HEADER.pack(
            PROTOCOL_ID,
            HEADER_SIZE,
            charge,
            0,
            command,
            window.grant(credits, connection.credit_limit, message_id, cost),
            _REPLY | flags,
            0,
            message_id,
            tree_id << 32,
            session_id,
        )
        if isinstance(body, Response):
            self._send_long(packed, body, signer, message_id, cipher_session)
        else:
            invalidate = remote.invalidate if remote is not None else None
            self._send(packed, body, signer, message_id, cipher_session, invalidate)
        inbound.release()
        return True

    def end_row(self) -> None:
        """End the row of writes that is under way here, if there is one."""
        if self.row is not None:
            row, self.row = self.row, None
            row.end_row()

    def _fetch(
        self,
        fetch: Fetch,
        header: tuple[Any, ...],
        cost: int,
        inbound: InboundMessage,
        view: memoryview,
        session: Session,
        tree: TreeConnect | None,
        signer: Signer | None,
    ) -> bool:
        """Begin to fetch the data of an ordinary request. Return False, with nothing changed, if it is not."""
        server, opened, remote = self._host.server, fetch.open, fetch.remote
        file = opened.file
        if server.fence is not None or server.opens.persistence is not None or opened.flow is not None or file is None:
            return False
        try:
            buffer = self._connection.transport.acquire(fetch.length)
        except ProviderError:
            return False
        try:
            remote.rdma.read_from_peer(remote.buffers, (buffer.view,), fetch.fetched)
        except ValueError:
            buffer.release()
            return False
        message_id, requests = header[8], self.requests
        self._window.consume(message_id, cost)
        fetch.lane, fetch.fields, fetch.buffer = self, header, buffer
        fetch.inbound, fetch.view = inbound, view
        fetch.session, fetch.tree, fetch.signer = session, tree, signer
        fetch.counted = opened.sequence_epoch
        opened.outstanding_requests += 1
        opened.in_flight += 1
        fetch.caching = file.caching
        fetch.caching.arriving.add(fetch)
        requests.fetches[message_id] = fetch
        if not requests.watching:
            requests.watch_fetches()
        return True

    def settled(self, fetch: Fetch, pending: Pending) -> None:
        """Note that the fetch has become a request."""
        observer = self._measuring.observer
        if observer is not None:
            observer.settled(fetch, pending)

    def can_answer(self) -> bool:
        """Return whether an ordinary reply can be sent."""
        connection = self._connection
        return connection.life is not _CLOSED and connection.transport.pending_send_bytes <= _FEW_UNSENT

    def begin_row(self, opened: Open) -> None:
        """Begin a row of writes if more may follow. There is none now."""
        if opened.store is not None and self._connection.transport.at_end_of_turn(self.end_row):
            self.row = opened.store
            self.row.begin_row()

    def answer_fetched(self, fetch: Fetch, body: Body) -> None:
        """End a request whose data was fetched and stored, and send the reply."""
        _, _, charge, sequence, command, credits, flags, _, message_id, _, tree_id, session_id, _ = fetch.fields
        opened, observer = fetch.open, self._measuring.observer
        opened.in_flight -= 1  # It was not closed, so nobody waits for this.
        if fetch.counted == opened.sequence_epoch and sequence & 0xFFFF == opened.channel_sequence:
            opened.outstanding_requests -= 1
        else:
            lookup.end(fetch)
        del self.requests.fetches[message_id]
        if observer is not None:
            observer.fetched(fetch, self._connection)
        packed = REPLY_HEADER.pack(
            PROTOCOL_ID,
            HEADER_SIZE,
            charge,
            0,
            command,
            self._window.grant(credits, self._connection.credit_limit),
            _REPLY | flags & ECHOED_FLAGS,
            0,
            message_id,
            tree_id << 32,
            session_id,
        )
        self._send(packed, body, fetch.signer, message_id, None, fetch.remote.invalidate)

    def _send(
        self,
        header: bytes,
        body: Body,
        signer: Signer | None,
        message_id: int,
        cipher_session: Session | None,
        invalidate: int | None,
    ) -> None:
        """Sign or encrypt the reply and send it, unless another node may be answering by now."""
        connection = self._connection
        server = self._host.server
        if server.fence is not None and server.is_fenced(connection):
            connection.disconnect("this node is fenced")
            return
        fixed, data = body
        if signer is not None:
            # Copying a small message into one segment costs less than signing several segments.
            message = bytearray().join((header, fixed, data) if data is not None else (header, fixed))
            sign_reply(message, (message,), signer, message_id)
            connection.transport.send((message,), invalidate)
        elif cipher_session is not None and cipher_session.cipher is not None:
            segments = (header, fixed, data) if data is not None else (header, fixed)
            sealed, release = seal(segments, cipher_session.cipher, connection.transport.acquire)
            connection.transport.send((sealed,), invalidate, release)
        elif data is not None:
            connection.transport.send((header + fixed, data), invalidate)
        else:
            connection.transport.send((header + fixed,), invalidate)

    def _send_long(
        self, header: bytes, response: Response, signer: Signer | None, message_id: int, cipher_session: Session | None
    ) -> None:
        """As ``_send``, for a reply that is too long to be copied: its data is in a file or in a frame."""
        connection, on_sent = self._connection, response.on_sent
        server, transport = self._host.server, connection.transport
        if server.fence is not None and server.is_fenced(connection):
            connection.disconnect("this node is fenced")
            if on_sent is not None:
                on_sent()
            return
        fixed, data, frame = response.segments[0], response.data, response.frame
        length = data.length if data is not None else len(response.segments[1])
        if transport.pending_send_bytes + length > CHAIN_MARK // 2 - LARGEST_DATA:
            # A message behind this one may have to wait until it is sent (``Dispatcher._flush``).
            on_sent = partial(_sent, on_sent, self._parking.drained)
        if data is not None:
            transport.send((b"".join((header, fixed)),), None, on_sent, data)
            return
        assert frame is not None
        if cipher_session is not None and cipher_session.cipher is not None:
            message = seal_in(frame.memory, (header, fixed, response.segments[1]), cipher_session.cipher)
        else:
            message = frame.memory[: frame.data_at + length]
            message[: frame.data_at] = b"".join((header, fixed))
            if signer is not None:
                sign_reply(message, (message,), signer, message_id)
        transport.send((message,), None, on_sent)

    def _settle(
        self,
        request: Request,
        outcome: Begin | Exception,
        remote: RemoteMemory | None,
        observer: Observer | None,
        start: Start,
    ) -> None:
        """Go on as the general path does with a request that has failed, or that is begun now. It may be answered later
        (``Dispatcher.finish``)."""
        result: Response | StatusError | Pending
        try:
            if isinstance(outcome, Exception):
                raise outcome
            result = outcome(request)
        except Exception as error:
            result = remote.failure(request, error) if remote is not None else failure(request, error)
        if observer is not None:
            observer.ran(request, result, start)
        if isinstance(result, Pending):
            lookup.begin(request)
            self.requests.add(request, result)
            early = result.handler_returned()
            if early is not None:
                self._host.finish(request, early)
            return
        if request.pending is not None:
            request.pending.drop()
        if isinstance(result, StatusError) or not self.finish(request, result):
            self._host.answer(request, result)

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
    ) -> Request:
        """Return the request that the general path would have by now."""
        kind = KINDS.get(header.command, Request)
        return kind(
            self._host,
            self._connection,
            header,
            view,
            Chain(inbound, view, cipher_session, -1),
            session,
            tree,
            cipher_session is not None,
            signer is not None,
            signer,
            0,
            None,
            opened,
        )

    def finish(self, request: Request, response: Response) -> bool:
        """Answer an ordinary request, as the only one of its message. Return False, with nothing changed, for any
        other, or if its reply is not ordinary."""
        chain, header, connection = request.chain, request.header, self._connection
        if (
            header.command not in SHORT_FORMS
            or chain.offset >= 0
            or chain.replies
            or request.async_id
            or request.session is None
            or request.tree is None
            or (
                request.signer is None
                and chain.cipher_session is None
                and (request.signed or request.session.signing_required)
            )
            or response.status
            or response.on_sent is not None
            or response.data is not None
            or response.packed is not None
            or sum(map(len, response.segments)) > _SMALL
            or connection.transport.pending_send_bytes > _FEW_UNSENT
        ):
            return False
        packed = REPLY_HEADER.pack(
            PROTOCOL_ID,
            HEADER_SIZE,
            header.credit_charge,
            0,
            header.command,
            self._window.grant(header.credits, connection.credit_limit),
            _REPLY | header.flags & ECHOED_FLAGS,
            0,
            header.message_id,
            request.tree.tree_id << 32,
            request.session.session_id,
        )
        body = b"".join(response.segments), None
        self._send(packed, body, request.signer, header.message_id, chain.cipher_session, response.invalidate)
        chain.end()
        return True
