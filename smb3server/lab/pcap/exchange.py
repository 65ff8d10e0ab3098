"""SMB2 of one connection: requests matched with responses, and the rules of MessageIds, credits and identifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from smb3server.lab.pcap import effects, entries, rules
from smb3server.lab.pcap.answers import Grants, judge_header
from smb3server.lab.pcap.compressed import Compressed
from smb3server.lab.pcap.credits import MessageWindow, Use
from smb3server.lab.pcap.dialect import SMB_2_0_2, Negotiated
from smb3server.lab.pcap.direct_tcp import UpperMessage
from smb3server.lab.pcap.effects import Pending
from smb3server.lab.pcap.form import judge_form
from smb3server.lab.pcap.given_secrets import Secrets
from smb3server.lab.pcap.logons import Logons
from smb3server.lab.pcap.memory import ClientMemory, Offer
from smb3server.lab.pcap.protection import Protection
from smb3server.lab.pcap.records import CommandRecord
from smb3server.lab.pcap.sessions import Session, SessionTable
from smb3server.lab.pcap.smb2 import (
    CANCEL,
    CHANGE_NOTIFY,
    CHANNEL_RDMA_V1,
    CHANNEL_RDMA_V1_INVALIDATE,
    CREATE,
    ECHO,
    FLAG_ASYNC,
    FLAG_RELATED,
    FLAG_SIGNED,
    HEADER_SIZE,
    IOCTL,
    NEGOTIATE,
    NO_FILE,
    QUERY_DIRECTORY,
    QUERY_INFO,
    READ,
    SESSION_SETUP,
    SET_INFO,
    STATUS_PENDING,
    TREE_CONNECT,
    UNSOLICITED,
    WITHOUT_TREE,
    WRITE,
    Smb2Error,
    Smb2Message,
    descriptors,
    is_compressed,
    is_encrypted,
    is_smb1,
    split,
    transfer_length,
)
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.transforms import Transforms
from smb3server.lab.pcap.verdicts import Verdicts

_PENDING_KEPT = 8192
"""Requests without a response that are remembered if credits do not bound them."""
_PAYLOAD_PER_CREDIT = 65536


class _Origin(NamedTuple):
    """Session and tree connect of the preceding part of a compound, which related parts share."""

    session: Session
    tree_id: int
    file_name: str


class Exchange:
    """Follows the SMB2 messages of one connection, in the order of the capture."""

    def __init__(
        self,
        number: int,
        server_host: str,
        verdicts: Verdicts,
        table: SessionTable,
        secrets: Secrets,
        emit: Callable[[CommandRecord], None],
    ) -> None:
        self.negotiated = Negotiated(server=server_host)
        self.memory = ClientMemory(verdicts)
        self._number = number
        self._verdicts = verdicts
        self._table = table
        self._emit = emit
        self._logons = Logons(self.negotiated, table, secrets, verdicts)
        self._protection = Protection(self.negotiated, self._logons, verdicts)
        self.compressed = Compressed(self.negotiated, verdicts)
        self._transforms = Transforms(self.negotiated, verdicts)
        self._window: MessageWindow | None = MessageWindow()
        """None if the capture does not show all requests and responses."""
        self._pending: dict[int, Pending] = {}
        self._async_ids: dict[int, int] = {}
        """MessageId by AsyncId."""

    def lose(self, number: int, secret: bool = False) -> None:
        """Note that messages are missing from frame ``number`` on: credits and identifiers cannot be judged.

        ``secret`` means that they could be read with a key.
        """
        if self._window is not None:
            self._verdicts.unjudged(number, "SMB2 credits, MessageIds and identifiers: messages are missing", secret)
        self._window = None
        for session_id in self._logons.established:
            self._table.get(self.negotiated.server, session_id).complete = False
        self.memory.blind = True
        self._logons.complete = False

    def receive(self, message: UpperMessage) -> None:
        """Take the next message."""
        session_id = None
        if is_encrypted(message.data):
            session_id = self._protection.session_of(message)
            session = self._table.get(self.negotiated.server, session_id)
            plain = self._protection.decrypt(message, session)
            if plain is None:
                session.known = False
                self.lose(message.number, secret=not session.ciphers)
                return
            message = message._replace(data=plain)
        if is_compressed(message.data):
            plain = self.compressed.expand(message)
            if plain is None:
                self.lose(message.number)
                return
            message = message._replace(data=plain)
        if is_smb1(message.data):
            self._smb1(message)
        else:
            self._plain(message, session_id)

    def finish(self) -> None:
        """Report the requests that got no response."""
        for pending in self._pending.values():
            self._emit(pending.record)
        self._pending.clear()

    def _smb1(self, message: UpperMessage) -> None:
        """Take an SMB1 NEGOTIATE, which uses MessageId 0. [MS-SMB2 3.3.5.3.1]"""
        if message.direction is not Direction.TO_SERVER or self._window is None:
            return
        self._window.use(0, 1)
        record = CommandRecord(self._number, message.number, message.time, NEGOTIATE)
        part = Smb2Message(NEGOTIATE, 0, 0, 0, 0, 0, 0, 0, 0, 0, b"", b"", 0)
        session = self._table.get(self.negotiated.server, 0)
        self._pending[0] = Pending(record, part, session, 0, False, False)

    def _plain(self, message: UpperMessage, encrypted_by: int | None) -> None:
        check, number, way = self._verdicts.check, message.number, message.direction
        try:
            parts = split(message.data, message.known)
        except Smb2Error as error:
            rule = rules.SMB2_NEXT if error.chain else rules.SMB2_HEADER
            check(rule, False, number, way, "{}", error)
            self.lose(number)
            return
        check(rules.SMB2_HEADER, True, number, way, "")
        if not parts:
            self._verdicts.unjudged(number, "headers of SMB2 are not captured")
            self.lose(number)
        elif parts[-1].next_command:
            self._verdicts.unjudged(number, "a compound is not captured whole")
            self.lose(number)
        if parts and encrypted_by is not None:
            self._protection.inside(message, parts[0], encrypted_by)
        origin: _Origin | None = None
        offers: list[Offer] = []
        grants = Grants()
        for part in parts:
            judge_form(message, part, self._verdicts)
            if way is Direction.TO_SERVER:
                origin = self._request(message, part, origin, encrypted_by is not None)
            else:
                last = part is parts[-1]
                offer = self._response(message, part, grants, last, encrypted_by is not None)
                offers += [offer] if offer is not None else []
        if message.invalidated is not None:
            self.memory.invalidated(message.invalidated, offers, number)

    # -- Requests -------------------------------------------------------------------------------------------------

    def _request(self, message: UpperMessage, part: Smb2Message, before: _Origin | None, encrypted: bool) -> _Origin:
        number = message.number
        related = bool(part.flags & FLAG_RELATED)
        if before is None:
            text = "the first {} of a message is related"
            self._verdicts.check(rules.SMB2_RELATED, not related, number, message.direction, text, part.name)
        session_id, tree_id, file_name = part.session_id, part.tree_id, ""
        if related and before is not None:
            session, tree_id, file_name = before
        else:
            session = self._table.get(self.negotiated.server, session_id)
        session.complete &= self._window is not None
        self._take_credits(message, part)
        effects.judge_file(part, session, number, self._verdicts)
        self._judge_identifiers(number, part, session, tree_id)
        if part.command == NEGOTIATE:
            self.negotiated.request(message, part)
        elif part.command == SESSION_SETUP:
            self._logons.request(message, part)
        self._protection.request(number, part, session, tree_id, encrypted)
        pending = self._make_pending(message, part, session, tree_id, encrypted, file_name)
        if part.command == CANCEL:
            self._emit(pending.record)
        else:
            self._pending[part.message_id] = pending
            if len(self._pending) > _PENDING_KEPT:
                self._emit(self._pending.pop(next(iter(self._pending))).record)
        return _Origin(session, tree_id, pending.record.file)

    def _make_pending(
        self,
        message: UpperMessage,
        part: Smb2Message,
        session: Session,
        tree_id: int,
        encrypted: bool,
        file_name: str,
    ) -> Pending:
        record = CommandRecord(
            self._number,
            message.number,
            message.time,
            part.command,
            part.message_id,
            session_id=session.session_id,
            tree_id=tree_id,
            signed=bool(part.flags & FLAG_SIGNED),
            encrypted=encrypted,
            charge=part.charge,
            requested=part.credits,
        )
        pending = Pending(
            record, part._replace(data=part.data[:HEADER_SIZE]), session, tree_id, record.signed, encrypted
        )
        tree = session.trees.get(tree_id)
        record.share = tree.name if tree else ""
        pending.file_id = effects.file_id_of(part)
        record.file = session.files.get(pending.file_id, "") if pending.file_id != NO_FILE else file_name
        if part.command in (CREATE, TREE_CONNECT):
            pending.name = effects.name_in(part)
            if part.command == CREATE:
                record.file = pending.name
            else:
                record.share = pending.name
        elif part.command in (READ, WRITE):
            self._transfer(message.number, part, pending)
        pending.listed = entries.layout_of_answer(part)
        return pending

    def _transfer(self, number: int, part: Smb2Message, pending: Pending) -> None:
        """Note what a READ or WRITE asks for, and where its data goes."""
        check, way = self._verdicts.check, Direction.TO_SERVER
        pending.length = transfer_length(part)
        limit = self.negotiated.max_read if part.command == READ else self.negotiated.max_write
        if limit:
            text = "{} of {} bytes, the maximum is {}"
            check(rules.SMB2_MAX_SIZE, pending.length <= limit, number, way, text, part.name, pending.length, limit)
        channel, places = descriptors(part)
        transformed = self._transforms.descriptors(number, part)
        if transformed is not None:
            channel, places, pending.crypto = transformed
        if channel not in (CHANNEL_RDMA_V1, CHANNEL_RDMA_V1_INVALIDATE):
            return
        if part.known < len(part.data) and not places:
            self.memory.blind = True
            self._verdicts.unjudged(number, "buffer descriptors are not captured")
            return
        enough = bool(places) and sum(place.length for place in places) >= (
            pending.length if part.command == WRITE else 1
        )
        text = "{} with {} descriptors for {} bytes"
        check(rules.DESCRIPTOR, enough, number, way, text, part.name, len(places), pending.length)
        if places:
            pending.offer = offer = Offer(number, part.command, channel, places)
            if self.negotiated.rdma_transforms and (pending.signed or pending.encrypted):
                offer.data = bytearray()
            self.memory.offer(offer)
            if part.command == WRITE:
                crypto, signed, encrypted = pending.crypto, pending.signed, pending.encrypted
                self._transforms.judge_presence(number, crypto, signed, encrypted, way)

    def _take_credits(self, message: UpperMessage, part: Smb2Message) -> None:
        """Use the credits of a request. [MS-SMB2 3.3.5.2.3, 3.3.5.2.5]"""
        if self._window is None or part.command == CANCEL:
            return
        check, number, way = self._verdicts.check, message.number, message.direction
        cost = 1 if self.negotiated.dialect == SMB_2_0_2 else max(part.charge, 1)
        use = self._window.use(part.message_id, cost)
        text = "{} with MessageId {} and a charge of {}"
        check(rules.SMB2_ID, use is not Use.TWICE, number, way, text, part.name, part.message_id, cost)
        check(rules.SMB2_OVERDRAWN, use is not Use.OVERDRAWN, number, way, text, part.name, part.message_id, cost)
        if self.negotiated.multi_credit and (payload := _payload(part)):
            needed = (payload - 1) // _PAYLOAD_PER_CREDIT + 1
            text = "{} of {} bytes with CreditCharge {}, {} are needed"
            kept = needed <= cost
            check(rules.SMB2_CHARGE, kept, number, way, text, part.name, payload, part.charge, needed)

    def _judge_identifiers(self, number: int, part: Smb2Message, session: Session, tree_id: int) -> None:
        """Judge that a request names a session of this connection and a tree connect of that session."""
        if self._window is None or part.command in (NEGOTIATE, SESSION_SETUP) or part.flags & FLAG_ASYNC:
            return
        check, way = self._verdicts.check, Direction.TO_SERVER
        if part.command not in (ECHO, CANCEL) or session.session_id:
            text = "{} names session {:#x}"
            kept = session.session_id in self._logons.established
            if not check(rules.SMB2_SESSION, kept, number, way, text, part.name, session.session_id):
                return
        if part.command not in WITHOUT_TREE and session.known:
            text = "{} names tree connect {:#x} of session {:#x}"
            kept = tree_id in session.trees
            check(rules.SMB2_TREE, kept, number, way, text, part.name, tree_id, session.session_id)

    # -- Responses ------------------------------------------------------------------------------------------------

    def _response(
        self, message: UpperMessage, part: Smb2Message, grants: Grants, last: bool, encrypted: bool
    ) -> Offer | None:
        """Take a response, and return what its request offers to RDMA."""
        check, number, way = self._verdicts.check, message.number, message.direction
        if part.message_id == UNSOLICITED:
            record = CommandRecord(self._number, 0, message.time, part.command, part.message_id, number)
            record.status, record.session_id, record.encrypted = part.status, part.session_id, encrypted
            self._emit(record)
            return None
        pending = self._pending.get(part.message_id)
        if pending is None:
            if self._window is not None:
                text = "{} response to MessageId {}, which waits for none"
                check(rules.SMB2_ANSWER, False, number, way, text, part.name, part.message_id)
            self._table.get(self.negotiated.server, part.session_id).complete = False
            return None
        asked = pending.record.command
        text = "{} response to a request of command {}"
        if check(rules.SMB2_ANSWER, part.command == asked, number, way, text, part.name, asked):
            judge_header(part, pending, number, self._verdicts)
        grants.add(part, pending)
        if last:
            grants.judge(number, self._verdicts)
        self._judge_async(number, part, pending)
        if self._window is not None:
            self._window.grant(part.credits)
        pending.record.granted += part.credits
        interim = part.status == STATUS_PENDING
        if not interim:
            del self._pending[part.message_id]
        self._judge_starving(number, last)
        if part.command == NEGOTIATE:
            self.negotiated.response(message, part, self._verdicts)
        elif part.command == SESSION_SETUP and not interim:
            self._logons.response(self.negotiated.server, part, pending.session.session_id, number)
            pending.record.session_id = part.session_id
        session = self._table.get(self.negotiated.server, part.session_id)
        self._protection.response(number, part, session, pending.signed, pending.encrypted, encrypted)
        if not interim:
            self._answered(message, part, pending)
        return pending.offer

    def _judge_async(self, number: int, part: Smb2Message, pending: Pending) -> None:
        """Judge the AsyncId of a response. [MS-SMB2 3.3.4.2, 3.3.4.4]"""
        check, way = self._verdicts.check, Direction.TO_CLIENT
        if part.status == STATUS_PENDING:
            owner = self._async_ids.get(part.async_id, part.message_id)
            kept = part.async_id != 0 and owner == part.message_id
            text = "interim response to MessageId {} with AsyncId {:#x}, which MessageId {} has"
            check(rules.SMB2_ASYNC, kept, number, way, text, part.message_id, part.async_id, owner)
            pending.async_id, pending.record.asynchronous = part.async_id, True
            self._async_ids[part.async_id] = part.message_id
        elif pending.async_id:
            text = "final response to MessageId {} with AsyncId {:#x}, the interim response had {:#x}"
            kept = part.async_id == pending.async_id
            check(rules.SMB2_ASYNC, kept, number, way, text, part.message_id, part.async_id, pending.async_id)
            self._async_ids.pop(pending.async_id, None)

    def _judge_starving(self, number: int, last: bool) -> None:
        """Judge that the client has a credit, or a request whose response may still grant some. [MS-SMB2 3.3.1.2]"""
        if self._window is None or not last:
            return
        hopeful = self._window.available > 0 or any(not pending.async_id for pending in self._pending.values())
        check = self._verdicts.check
        check(rules.SMB2_STARVED, hopeful, number, Direction.TO_CLIENT, "the client has no credit left")

    def _answered(self, message: UpperMessage, part: Smb2Message, pending: Pending) -> None:
        """Finish the record of a command."""
        record, number = pending.record, message.number
        record.reply, record.status = number, part.status
        record.latency = message.time - record.time
        effects.judge_answer(pending, part, number, self._verdicts, self.memory.blind)
        entries.judge_answer(pending.listed, part, number, message.direction, self._verdicts)
        if pending.offer is not None:
            self._judge_transform(number, part, pending)
            self.memory.answered(pending.offer, number, message.invalidated)
        effects.apply(pending, part, self._logons.established)
        self._emit(record)

    def _judge_transform(self, number: int, part: Smb2Message, pending: Pending) -> None:
        """Judge what protects the data that moved by RDMA, now that its command is answered."""
        offer, session = pending.offer, pending.session
        assert offer is not None
        if part.command == READ:
            if part.status or not offer.moved:
                return
            way, size, frame = Direction.TO_CLIENT, pending.record.bytes, number
            crypto = self._transforms.of_response(number, part)
            self._transforms.judge_presence(number, crypto, pending.signed, pending.encrypted, way)
        else:
            way, size, crypto, frame = Direction.TO_SERVER, pending.length, pending.crypto, offer.number
        if crypto is not None and offer.moved >= size:
            signer = self._logons.signers.get(session.session_id)
            self._transforms.judge_payload(frame, crypto, offer, size, session, signer, way)


def _payload(part: Smb2Message) -> int:
    """Return the larger of the bytes that a request sends and asks for. [MS-SMB2 3.1.5.2]"""
    if part.command in (READ, WRITE, SET_INFO, CHANGE_NOTIFY):
        return (part.fields("<I", 4) or (0,))[0]
    if part.command == QUERY_DIRECTORY:
        return (part.fields("<I", 28) or (0,))[0]
    if part.command == QUERY_INFO:
        output, _, _, count = part.fields("<IHHI", 4) or (0, 0, 0, 0)
        return max(output, count)
    if part.command == IOCTL:
        _, sent, most_in, _, output, most_out = part.fields("<IIIIII", 24) or (0,) * 6
        return max(sent + output, most_in + most_out)
    return 0
