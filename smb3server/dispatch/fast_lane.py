"""The fast lane: the most frequent messages, answered without the objects of the general path.

A busy connection mostly carries messages of one kind: a single ECHO, READ or WRITE of some kilobytes, of a session, a
tree connect and an open that are in order. The lane answers such a message at once. Its reply has the same bytes as the
general path's (``dispatcher``, ``checks``, ``reply``), and it has the same effects.

Each step of ``FastLane.take`` only looks, until the signature is verified. A message that is not ordinary in any
respect is left to the general path as it came, and nothing has changed by then. So the lane never refuses anything: it
knows only what a request looks like that the general path would serve at once.

What a command needs is its ``ShortForm``, which lies beside its handler in ``commands``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from smb3server.dispatch.chain import Chain
from smb3server.dispatch.parking import CHAIN_MARK
from smb3server.dispatch.reply import ECHOED_FLAGS, REPLY_HEADER, ReplyWriter
from smb3server.dispatch.request import Handler, Host, Request
from smb3server.dispatch.waiting import failure
from smb3server.state.objects import SessionState
from smb3server.wire.header import HEADER, HEADER_SIZE, PROTOCOL_ID, SIGNATURE_OFFSET, HeaderFlags
from smbdirect.codec import Buffer

if TYPE_CHECKING:
    from smb3server.crypto.signing import Signer
    from smb3server.dispatch.parking import Parking
    from smb3server.dispatch.watchdog import Watchdog
    from smb3server.state.objects import Connection, Open, Session
    from smbdirect.message_transport import InboundMessage

_SIGNED = int(HeaderFlags.SIGNED)
_KNOWN_FLAGS = int(HeaderFlags.PRIORITY_MASK) | _SIGNED
_REPLY = int(HeaderFlags.SERVER_TO_REDIR)
_VALID = SessionState.VALID
_SMALLEST = HEADER_SIZE + 4
LARGEST_DATA = 65535
"""Bytes of data of a READ or WRITE: any number of credits pays for them, and their buffers count for nobody."""
_FEW_UNSENT = CHAIN_MARK // 2 - LARGEST_DATA - 4096
"""Bytes of unsent answers up to which nobody has to be notified when this one is sent (``Dispatcher._flush``)."""

Body = tuple[bytes, Buffer | None]
"""A response's fixed part, and the data behind it if there is any."""
Answer = Callable[[], Body | None]
"""Do what the request asks for, and return the response. None: nothing was done, the general path has to do it. What it
raises becomes the response's status, as in a handler."""
Found = tuple["Open | None", Answer]
"""The open that a request works on, and what answers it."""


class ShortForm(NamedTuple):
    """How the lane serves one command."""

    handler: Handler
    """The command's handler, in whose place it stands. On a connection that has another one it does nothing."""
    look: Callable[[Connection, Session, int, int, memoryview], Found | None]
    """Takes connection, session, TreeId, ChannelSequence and the message. Returns None if anything in its body is not
    ordinary. Changes nothing: the signature is not verified yet."""


SHORT_FORMS: dict[int, ShortForm] = {}
"""By command."""


def ordinary_open(session: Session, tree_id: int, sequence: int, persistent: int, volatile: int) -> Open | None:
    """Return the open that a request names, if ``checks.check`` and ``lookup.find_open`` would find it and change
    nothing by that; else None."""
    found = session.open_table.get(volatile)
    if (
        found is None
        or found.file_id[0] != persistent
        or found.tree is not session.tree_connect_table.get(tree_id)
        or found.tree.encrypt_data
        or found.replayable is not None
        or found.channel_sequence != sequence
    ):
        return None
    return found


class FastLane:
    """One connection's."""

    __slots__ = ("_connection", "_host", "_parking", "_watchdog", "_writer")

    def __init__(
        self, host: Host, connection: Connection, writer: ReplyWriter, parking: Parking, watchdog: Watchdog | None
    ) -> None:
        self._host = host
        self._connection = connection
        self._writer = writer
        self._parking = parking
        self._watchdog = watchdog

    def take(self, inbound: InboundMessage) -> bool:
        """Answer an ordinary message and release it. Return False, with nothing changed, for any other. The caller has
        asked the fence."""
        view = inbound.view
        if len(view) < _SMALLEST:
            return False
        # The low byte of the command: most other messages are left alone after this one look.
        form = SHORT_FORMS.get(view[12])
        if form is None:
            return False
        header = HEADER.fields_from(view)
        protocol, size, charge, sequence, command, credits, flags, step, message_id, _, tree_id, session_id, _ = header
        if protocol != PROTOCOL_ID or size != HEADER_SIZE or command > 0xFF or step or flags & ~_KNOWN_FLAGS:
            return False
        connection = self._connection
        window = connection.command_sequence_window
        cost = charge if charge and connection.supports_multi_credit else 1
        if not window.is_next(message_id, cost) or self._host.handlers.get(command) is not form.handler:
            return False
        if self._parking.chains or connection.transport.pending_send_bytes > _FEW_UNSENT:
            return False
        session = connection.session_table.get(session_id)
        if session is None or session.state is not _VALID or session.encrypt_data:
            return False
        if session.expiration_time is not None and time.monotonic() >= session.expiration_time:
            return False
        signer: Signer | None = None
        if flags & _SIGNED:
            channel = session.channel_list.get(connection)
            signer = channel.signer if channel is not None else None
            if signer is None:
                return False
        elif session.signing_required:
            return False
        found = form.look(connection, session, tree_id, sequence, view)
        if found is None:
            return False
        signature = header[-1]
        if signer is not None and not signer.verify(view):
            view[SIGNATURE_OFFSET:HEADER_SIZE] = signature
            return False
        opened, answer = found
        watchdog = self._watchdog
        began, processor = (time.monotonic(), time.thread_time()) if watchdog is not None else (0.0, 0.0)
        body: Body | Exception | None
        try:
            body = answer()
        except Exception as error:
            body = error
        if body is None:
            view[SIGNATURE_OFFSET:HEADER_SIZE] = signature
            return False
        window.consume(message_id, cost)
        if watchdog is not None or isinstance(body, Exception):
            request = self._request(inbound, session, opened, signer)
            if watchdog is not None:
                watchdog.finished(request, began, processor)
            if isinstance(body, Exception):
                self._writer.send([self._writer.reply(request, failure(request, body))], None)
                inbound.release()
                return True
        packed = REPLY_HEADER.pack(
            PROTOCOL_ID,
            HEADER_SIZE,
            charge,
            0,
            command,
            window.grant(credits, connection.credit_limit),
            _REPLY | flags & (ECHOED_FLAGS | _SIGNED),
            0,
            message_id,
            tree_id << 32,
            session_id,
        )
        self._send(packed, body, signer, message_id)
        inbound.release()
        return True

    def _send(self, header: bytes, body: Body, signer: Signer | None, message_id: int) -> None:
        """Sign the reply and send it, unless another node may be answering by now."""
        connection = self._connection
        if self._host.server.is_fenced(connection):
            connection.disconnect("this node is fenced")
            return
        fixed, data = body
        if signer is not None:
            # To copy a small message into one segment costs less than to sign several.
            message = bytearray().join((header, fixed, data) if data is not None else (header, fixed))
            message[SIGNATURE_OFFSET:HEADER_SIZE] = signer.sign((message,), message_id)
            connection.transport.send((message,))
        elif data is not None:
            connection.transport.send((header + fixed, data))
        else:
            connection.transport.send((header + fixed,))

    def _request(
        self, inbound: InboundMessage, session: Session, opened: Open | None, signer: Signer | None
    ) -> Request:
        """Make what the general path would have made of the message by now."""
        view = inbound.view
        chain = Chain(inbound, view, None)
        signed = signer is not None
        request = Request(self._host, self._connection, HEADER.unpack(view), view, chain, session, signed=signed)
        request.open = opened
        return request
