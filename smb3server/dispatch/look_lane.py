"""The lane of looks: CREATE, one more command and CLOSE in one message, answered without an open that others could see.

Clients ask so for the attributes of a file (stat) by QUERY_INFO, and read or write a small file by READ or WRITE.
Nobody else has the file open, so the open stands in nobody's way and breaks no caching rights. [MS-FSA 2.1.5.1.2.2,
2.1.4.12] It would come and go within one turn of the event loop.

As the fast lane, this lane refuses nothing. A message that is not ordinary in any respect goes the general way, as it
came and before any state has changed. Only what fails while a READ or WRITE is done is answered here. The replies have
the same bytes as those of the general way, except for the FileId, which is chosen by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from smb3server.crypto.envelope import seal, sign_reply
from smb3server.dispatch.checks import has_expired, lacks_protection
from smb3server.dispatch.parking import CHAIN_MARK
from smb3server.dispatch.reply import ECHOED_FLAGS, REPLY_HEADER
from smb3server.dispatch.short_forms import LARGEST_DATA
from smb3server.state.file_events import DENIALS
from smb3server.state.life import ConnectionLife
from smb3server.state.objects import SessionState
from smb3server.wire.header import HEADER, HEADER_SIZE, PROTOCOL_ID, SIGNATURE_OFFSET, Command, HeaderFlags
from smbdirect.codec import Buffer

if TYPE_CHECKING:
    from smb3server.crypto.signing import Signer
    from smb3server.dispatch.measuring import Measuring, Start
    from smb3server.dispatch.parking import Parking
    from smb3server.dispatch.request import Handler, Host
    from smb3server.state.objects import Connection, Open, Session, TreeConnect
    from smbdirect.message_transport import InboundMessage

_CREATE, _CLOSE = int(Command.CREATE), int(Command.CLOSE)
BETWEEN = frozenset((int(Command.QUERY_INFO), int(Command.READ), int(Command.WRITE)))
"""The commands that an ordinary message may have between CREATE and CLOSE."""
_SIGNED, _RELATED = int(HeaderFlags.SIGNED), int(HeaderFlags.RELATED_OPERATIONS)
_ALLOWED = int(HeaderFlags.PRIORITY_MASK) | _SIGNED
_REPLY = int(HeaderFlags.SERVER_TO_REDIR)
_VALID, _AUTHENTICATED = SessionState.VALID, ConnectionLife.AUTHENTICATED
_SHORTEST = 3 * HEADER_SIZE + 56 + 40 + 24
LONGEST = LARGEST_DATA + 4096
"""Bytes of an ordinary message. The rest is a name, or data."""
LARGEST_REPLY = LARGEST_DATA + 4096
"""Bytes of the replies."""
_OVERHEAD = 128
"""Bytes of a message beside the replies: transform header and tag."""
_FEW_UNSENT = CHAIN_MARK // 2 - LARGEST_REPLY
"""Bytes of unsent replies up to which these do not have to report that they are sent (``Dispatcher._flush``)."""
_NEVER: Start = (0.0, 0.0)
_PADDING = tuple(bytes(n) for n in range(8))

Requests = tuple[memoryview, memoryview, memoryview]
"""The three requests with their headers."""
Seen = tuple["Open", Buffer, Buffer, Buffer, int]
"""The open that nobody saw, the bodies of the three responses, and the status of the second."""
Fields = tuple[Any, ...]
"""Those of a header, as ``HEADER.fields_from`` returns them."""


class Look(NamedTuple):
    """The part of the lane that belongs to the commands."""

    handlers: Mapping[int, Handler]
    """The handlers that it replaces, by command. It is not used on a connection that has others."""
    answer: Callable[[Host, Connection, Session, TreeConnect, int, Requests], Seen | None]
    """Takes the host, connection, session, tree connect, ChannelSequence and the requests. Returns None, with nothing
    changed, if the general way has to answer."""


class Registered:
    """The look that lies with the commands."""

    look: Look | None = None


class LookLane:
    """Answers the ordinary looks of one connection."""

    __slots__ = ("_connection", "_host", "_measuring", "_parking")

    def __init__(self, host: Host, connection: Connection, parking: Parking, measuring: Measuring) -> None:
        self._host = host
        self._connection = connection
        self._parking = parking
        self._measuring = measuring

    def take(self, inbound: InboundMessage, view: memoryview, cipher_session: Session | None) -> bool:
        """Answer an ordinary message and release it. Return False, with nothing changed, for any other.

        ``view``: its commands, decrypted if it was encrypted. ``cipher_session``: the session whose key encrypted it;
        None in the clear. The caller has asked the fence, and knows that the first command is CREATE."""
        look, connection = Registered.look, self._connection
        if look is None or not _SHORTEST <= len(view) <= LONGEST:
            return False
        transport = connection.transport
        found = self._split(view, look)
        if (
            found is None
            or self._parking.chains
            or transport.pending_send_bytes > _FEW_UNSENT
            or transport.max_outbound_message_size < LARGEST_REPLY + _OVERHEAD
        ):
            return False
        headers, costs, parts = found
        first = headers[0]
        session = connection.session_table.get(first[11])
        if session is None or session.state is not _VALID or connection.life is not _AUTHENTICATED:
            return False
        tree = session.tree_connect_table.get(first[10])
        signed = first[6] & _SIGNED
        if tree is None or tree.share.queue is not None or lacks_protection(session, tree, cipher_session, signed):
            return False
        if session.expiration_time is not None and has_expired(session):
            return False
        signer: Signer | None = None
        if signed:
            signer = session.signer_on(connection)
            if signer is None or cipher_session is not None:
                return False
            if not all(signer.verify(part) for part in parts):
                _restore(parts, headers)
                return False
        observer = self._measuring.observer
        begun = observer.began() if observer is not None else _NEVER
        seen = look.answer(self._host, connection, session, tree, first[3], (parts[0], parts[1], parts[2]))
        if seen is None:
            if signed:
                _restore(parts, headers)
            return False
        server = self._host.server
        if server.fence is not None and server.is_fenced(connection):
            connection.disconnect("this node is fenced")
            inbound.release()
            return True
        if observer is not None:
            for number, header in enumerate(headers):
                # All of the work was that of the first.
                observer.answered(header[4], connection, tree, seen[0], begun, seen[4] if number == 1 else 0)
                begun = observer.began()
        if seen[4] in DENIALS:
            server.events.counts.denied += 1
        self._reply(headers, costs, seen, tree, signer, cipher_session)
        inbound.release()
        return True

    def _split(self, view: memoryview, look: Look) -> tuple[list[Fields], list[int], list[memoryview]] | None:
        """Return the headers of an ordinary message, what each request costs, and the requests. None for any other."""
        headers: list[Fields] = []
        costs: list[int] = []
        parts: list[memoryview] = []
        handlers, multi_credit = self._host.handlers, self._connection.supports_multi_credit
        start, end, total = 0, len(view), 0
        for number in range(3):
            if start + HEADER_SIZE > end:
                return None
            header = HEADER.fields_from(view, start)
            protocol, size, charge, status, code, _, flags, step, message_id, _, _, _, _ = header
            if number == 0:
                allowed, first, signed, sequence = _ALLOWED, message_id, flags & _SIGNED, status
            elif not flags & _RELATED or flags & _SIGNED != signed or status != sequence or message_id != first + total:
                return None
            else:
                allowed = _ALLOWED | _RELATED
            if (
                protocol != PROTOCOL_ID
                or size != HEADER_SIZE
                or (code not in BETWEEN if number == 1 else code != (_CLOSE if number else _CREATE))
                or flags & ~allowed
                or (step == 0) is not (number == 2)
                or step & 7
                or handlers.get(code) is not look.handlers[code]
            ):
                return None
            cost = charge if charge and multi_credit else 1
            total += cost
            costs.append(cost)
            parts.append(view[start : start + step] if step else view[start:])
            headers.append(header)
            start += step
        if not self._connection.command_sequence_window.allows(first, total):
            return None
        return headers, costs, parts

    def _reply(
        self,
        headers: list[Fields],
        costs: list[int],
        seen: Seen,
        tree: TreeConnect,
        signer: Signer | None,
        cipher_session: Session | None,
    ) -> None:
        """Send the three responses in one message, signed or encrypted as the requests were."""
        connection = self._connection
        grant, limit = connection.command_sequence_window.grant, connection.credit_limit
        target, session_id = tree.tree_id << 32, tree.session.session_id
        replies: list[Buffer] = []
        for header, cost, body, status in zip(headers, costs, seen[1:4], (0, seen[4], 0), strict=True):
            _, _, charge, _, command, credits, flags, step, message_id, _, _, _, _ = header
            length = HEADER_SIZE + len(body)
            padding = -length & 7
            packed = REPLY_HEADER.pack(
                PROTOCOL_ID,
                HEADER_SIZE,
                charge,
                status,
                command,
                grant(credits, limit, message_id, cost),
                _REPLY | flags & ECHOED_FLAGS,
                length + padding if step else 0,
                message_id,
                target,
                session_id,
            )
            if signer is None:
                replies += (packed, body, _PADDING[padding]) if padding else (packed, body)
            else:
                part = bytearray().join((packed, body, _PADDING[padding]))
                sign_reply(part, (part,), signer, message_id)
                replies.append(part)
        transport = connection.transport
        if cipher_session is not None and cipher_session.cipher is not None:
            sealed, release = seal(replies, cipher_session.cipher, transport.acquire)
            transport.send((sealed,), None, release)
        else:
            transport.send((b"".join(replies),))


def _restore(parts: list[memoryview], headers: list[Fields]) -> None:
    """Put back the signatures, which verifying has taken out."""
    for part, header in zip(parts, headers, strict=True):
        part[SIGNATURE_OFFSET:HEADER_SIZE] = header[-1]
