"""The lane of looks: CREATE, one more command and CLOSE in one message, answered without an open that others could see.

Clients ask so for the attributes of a file (stat) by QUERY_INFO, and read or write a small file by READ or WRITE.
Nobody else has the file open, so the open stands in nobody's way and breaks no caching rights. [MS-FSA 2.1.5.1.2.2,
2.1.4.12] It would come and go within one turn of the event loop.

As the fast lane, this lane refuses nothing. A message that is not ordinary in any respect goes the general way, as it
came and before any state has changed. Only what fails while a READ or WRITE is done is answered here. The replies have
the same bytes as those of the general way, except for the FileId, which is chosen by chance.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

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
    from smb3server.backends.base import Path
    from smb3server.crypto.signing import Signer
    from smb3server.dispatch.measuring import Measuring, Start
    from smb3server.dispatch.parking import Parking
    from smb3server.dispatch.request import Handler, Host
    from smb3server.state.objects import Connection, Session, TreeConnect
    from smbdirect.message_transport import InboundMessage

_CREATE, _CLOSE = int(Command.CREATE), int(Command.CLOSE)
BETWEEN = frozenset((int(Command.QUERY_INFO), int(Command.READ), int(Command.WRITE)))
"""The commands that an ordinary message may have between CREATE and CLOSE."""
_SIGNED, _RELATED = int(HeaderFlags.SIGNED), int(HeaderFlags.RELATED_OPERATIONS)
_PRIORITY = int(HeaderFlags.PRIORITY_MASK)
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

Requests = tuple[memoryview, memoryview, memoryview]
"""The three requests with their headers."""
Seen = tuple["Path", bytes, bytes, bytes, int]
"""The path of the open that nobody saw, the bodies of the three responses, and the status of the second."""
_HEAD = struct.Struct("<20sIQ")
"""A header up to its MessageId: what ``_shape`` looks at, NextCommand, and the MessageId."""
_IDS = struct.Struct("<IQ")
"""TreeId and SessionId, at ``_IDS_AT``."""
_IDS_AT = 36
_CREDITS_AT, _MESSAGE_ID_AT = 14, 24


class Shape(NamedTuple):
    """What the headers of an ordinary message say, apart from ids and offsets."""

    codes: tuple[int, int, int]
    """The commands."""
    costs: tuple[int, int, int]
    """How many MessageIds each takes."""
    total: int
    """The sum of ``costs``."""
    wishes: tuple[tuple[int, int], ...]
    """For each command how many credits it asks for, and its cost."""
    signed: int
    """The flag SIGNED, or 0."""
    sequence: int
    """The ChannelSequence."""
    replies: tuple[tuple[int, int, int, bool], ...]
    """CreditCharge, command and flags of the replies, and whether another one follows."""


@functools.lru_cache(maxsize=1024)
def _shape(heads: tuple[bytes, bytes, bytes], multi_credit: bool) -> Shape | None:
    """Return what the first 20 bytes of three headers say. None: they are not ordinary. The answer depends on nothing
    else, and most messages of a client have the same."""
    found = [HEADER.fields_from(head.ljust(HEADER_SIZE, b"\0")) for head in heads]
    codes, costs, wishes, replies = [], [], [], []
    _, _, _, sequence, _, _, first_flags, *_ = found[0]
    signed = first_flags & _SIGNED
    for number, (protocol, size, charge, status, code, credits, flags, *_) in enumerate(found):
        related = _RELATED if number else 0
        if (
            protocol != PROTOCOL_ID
            or size != HEADER_SIZE
            or (code not in BETWEEN if number == 1 else code != (_CLOSE if number else _CREATE))
            or flags & ~(_PRIORITY | _SIGNED) != related
            or flags & _SIGNED != signed
            or status != sequence
        ):
            return None
        cost = charge if charge and multi_credit else 1
        codes.append(code)
        costs.append(cost)
        wishes.append((credits, cost))
        replies.append((charge, code, _REPLY | flags & ECHOED_FLAGS, number < 2))
    return Shape(_three(codes), _three(costs), sum(costs), tuple(wishes), signed, sequence, tuple(replies))


class _Layout(NamedTuple):
    """How the three replies lie in one message, each at a multiple of eight bytes. [MS-SMB2 3.3.4.1.3]"""

    pack: Callable[..., bytes]
    """Takes for each reply head, credits, tail, MessageId, TreeId, SessionId and body."""
    heads: tuple[bytes, ...]
    """What a header has before its credits."""
    tails: tuple[bytes, ...]
    """What it has between credits and MessageId."""
    parts: tuple[slice, ...]


@functools.lru_cache(maxsize=1024)
def _layout(replies: tuple[tuple[int, int, int, bool], ...], status: int, *lengths: int) -> _Layout:
    """Return the layout of replies. ``status``: that of the second. ``lengths``: those of their bodies."""
    form, start, heads, tails, parts = "<", 0, [], [], []
    for (charge, command, flags, more), reply_status, body in zip(replies, (0, status, 0), lengths, strict=True):
        length = HEADER_SIZE + body
        padding = -length & 7
        following = length + padding if more else 0
        packed = REPLY_HEADER.pack(
            PROTOCOL_ID, HEADER_SIZE, charge, reply_status, command, 0, flags, following, 0, 0, 0
        )
        heads.append(packed[:_CREDITS_AT])
        tails.append(packed[_CREDITS_AT + 2 : _MESSAGE_ID_AT])
        form += f"{_CREDITS_AT}sH{_MESSAGE_ID_AT - _CREDITS_AT - 2}sQQQ16x{body}s{padding}x"
        parts.append(slice(start, start + length + padding))
        start += length + padding
    return _Layout(struct.Struct(form).pack, tuple(heads), tuple(tails), tuple(parts))


def _three(numbers: list[int]) -> tuple[int, int, int]:
    first, second, third = numbers
    return first, second, third


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
        shape, message_id, parts = found
        tree_id, session_id = _IDS.unpack_from(view, _IDS_AT)
        session = connection.session_table.get(session_id)
        if session is None or session.state is not _VALID or connection.life is not _AUTHENTICATED:
            return False
        tree = session.tree_connect_table.get(tree_id)
        signed = shape.signed
        if tree is None or tree.share.queue is not None or lacks_protection(session, tree, cipher_session, signed):
            return False
        if session.expiration_time is not None and has_expired(session):
            return False
        signer: Signer | None = None
        signatures: list[bytes] = []
        if signed:
            signer = session.signer_on(connection)
            if signer is None or cipher_session is not None:
                return False
            signatures = [bytes(part[SIGNATURE_OFFSET:HEADER_SIZE]) for part in parts]
            if not all(signer.verify(part) for part in parts):
                _restore(parts, signatures)
                return False
        observer = self._measuring.observer
        begun = observer.began() if observer is not None else _NEVER
        seen = look.answer(self._host, connection, session, tree, shape.sequence, parts)
        if seen is None:
            _restore(parts, signatures)
            return False
        server = self._host.server
        if server.fence is not None and server.is_fenced(connection):
            connection.disconnect("this node is fenced")
            inbound.release()
            return True
        if observer is not None:
            for number, code in enumerate(shape.codes):
                # All of the work was that of the first.
                observer.answered(code, connection, tree, seen[0], begun, seen[4] if number == 1 else 0)
                begun = observer.began()
        if seen[4] in DENIALS:
            server.events.counts.denied += 1
        self._reply(shape, message_id, seen, tree, signer, cipher_session)
        inbound.release()
        return True

    def _split(self, view: memoryview, look: Look) -> tuple[Shape, int, Requests] | None:
        """Return the shape of an ordinary message, its first MessageId, and the requests. None for any other."""
        end, connection = len(view), self._connection
        first, step, message_id = _HEAD.unpack_from(view)
        if step & 7 or not HEADER_SIZE <= step <= end - 2 * HEADER_SIZE:
            return None
        second, next_step, second_id = _HEAD.unpack_from(view, step)
        last = step + next_step
        if next_step & 7 or next_step < HEADER_SIZE or last > end - HEADER_SIZE:
            return None
        third, no_step, third_id = _HEAD.unpack_from(view, last)
        if no_step:
            return None
        shape = _shape((first, second, third), connection.supports_multi_credit)
        if shape is None:
            return None
        handlers, replaced, code = self._host.handlers, look.handlers, shape.codes[1]
        if (
            second_id != message_id + shape.costs[0]
            or third_id != second_id + shape.costs[1]
            or handlers.get(_CREATE) is not replaced[_CREATE]
            or handlers.get(code) is not replaced[code]
            or handlers.get(_CLOSE) is not replaced[_CLOSE]
            or not connection.command_sequence_window.allows(message_id, shape.total)
        ):
            return None
        return shape, message_id, (view[:step], view[step:last], view[last:])

    def _reply(
        self,
        shape: Shape,
        message_id: int,
        seen: Seen,
        tree: TreeConnect,
        signer: Signer | None,
        cipher_session: Session | None,
    ) -> None:
        """Send the three responses in one message, signed or encrypted as the requests were."""
        connection = self._connection
        first, second, third = connection.command_sequence_window.grant_each(
            shape.wishes, connection.credit_limit, message_id
        )
        _, create, between, closing, status = seen
        layout = _layout(shape.replies, status, len(create), len(between), len(closing))
        heads, tails, target, session_id = layout.heads, layout.tails, tree.tree_id << 32, tree.session.session_id
        second_id = message_id + shape.costs[0]
        third_id = second_id + shape.costs[1]
        message: Buffer = layout.pack(
            heads[0],
            first,
            tails[0],
            message_id,
            target,
            session_id,
            create,
            heads[1],
            second,
            tails[1],
            second_id,
            target,
            session_id,
            between,
            heads[2],
            third,
            tails[2],
            third_id,
            target,
            session_id,
            closing,
        )
        transport = connection.transport
        if signer is not None:
            replies = memoryview(bytearray(message))
            for part, number in zip(layout.parts, (message_id, second_id, third_id), strict=True):
                reply = replies[part]
                sign_reply(reply, (reply,), signer, number)
            transport.send((replies,))
        elif cipher_session is not None and cipher_session.cipher is not None:
            sealed, release = seal((message,), cipher_session.cipher, transport.acquire)
            transport.send((sealed,), None, release)
        else:
            transport.send((message,))


def _restore(parts: Requests, signatures: list[bytes]) -> None:
    """Put back the signatures, which verifying has taken out. The message is signed if there are any."""
    for part, signature in zip(parts, signatures, strict=False):
        part[SIGNATURE_OFFSET:HEADER_SIZE] = signature
