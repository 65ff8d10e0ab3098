"""One connection of a capture: the layers that its fabric needs, put together."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from smb3server.lab.pcap.direct_tcp import DirectTcpReader, UpperMessage
from smb3server.lab.pcap.exchange import Exchange
from smb3server.lab.pcap.given_secrets import Secrets
from smb3server.lab.pcap.iwarp import REPLY_KEY, REQUEST_KEY, IwarpReader, begins_fpdu
from smb3server.lab.pcap.packets import Address
from smb3server.lab.pcap.rdma import Kind, RdmaMessage, Wire
from smb3server.lab.pcap.records import CommandRecord
from smb3server.lab.pcap.sessions import SessionTable
from smb3server.lab.pcap.smb2 import READ, Smb2Error, Smb2Message, is_compressed, split
from smb3server.lab.pcap.smbdirect import SmbDirectReader
from smb3server.lab.pcap.tcp import Chunk, Conversation, Direction
from smb3server.lab.pcap.verdicts import Verdicts

_SMB_PORT = 445
_IWARP_PORT = 5445
_SMB = re.compile(rb"\x00[\x00-\xff]{3}[\xfc-\xff]SMB")
_UNDECIDED = 256
"""Chunks after which a connection that shows no protocol of ours is given up."""


@dataclass
class Settings:
    """What all connections of a capture share."""

    table: SessionTable
    secrets: Secrets
    emit: Callable[[CommandRecord], None]
    record: bool = False
    """Whether to keep all messages, for those who look at them afterwards."""
    on_rdma: Callable[[int, RdmaMessage], None] | None = None
    """Called with the number of the connection and every message of a fabric."""


@dataclass
class Counters:
    """Sums over a connection; the server's own counters must agree with them."""

    rdma_read_bytes: int = 0
    """Bytes the server fetched from the client by RDMA Read."""
    rdma_write_bytes: int = 0
    """Bytes the server put into the client's memory by RDMA Write."""
    inline_read_bytes: int = 0
    """Bytes inside READ responses."""
    inline_write_bytes: int = 0
    """Bytes inside WRITE requests."""
    invalidations: int = 0


class Connection:
    """One connection. ``fabric`` is iwarp, roce, ib or tcp; ``smbdirect`` is None for tcp."""

    def __init__(
        self,
        fabric: str,
        client: Address,
        server: Address,
        verdicts: Verdicts,
        settings: Settings,
        number: int,
        saw_start: bool,
    ) -> None:
        """Begin in frame ``number``."""
        self.fabric, self.client, self.server = fabric, client, server
        self.number = verdicts.connection
        self.verdicts = verdicts
        self.saw_start = saw_start
        self.upper: list[UpperMessage] = []
        """All messages, if the settings record."""
        self.messages = 0
        self.smbdirect: SmbDirectReader | None = None
        self.wire: Wire | None = None
        """The connection as seen on its fabric; None for tcp."""
        self.first: tuple[int, float] | None = None
        """Frame and time of the first message."""
        self.last = (0, 0.0)
        self._inline_read = self._inline_write = 0
        self._settings = settings
        self._ended = False
        if not saw_start:
            verdicts.unjudged(number, "the capture begins within the connection")
        self.exchange = Exchange(self.number, server[0], verdicts, settings.table, settings.secrets, self._emit)
        if not saw_start:
            self.exchange.lose(number)
        if fabric != "tcp":
            wire = self.wire = Wire(
                fabric, client, server, verdicts, self._rdma, self.lost, saw_start=saw_start, record=settings.record
            )
            self.smbdirect = SmbDirectReader(wire, self.receive)

    def receive(self, message: UpperMessage) -> None:
        """Take a message of the upper layer."""
        if self.wire is None:
            self._note(message.number, message.time)
        self.messages += 1
        if self._settings.record:
            self.upper.append(message)
        self.exchange.receive(message)

    def _note(self, number: int, time: float) -> None:
        self.verdicts.message()
        self.last = number, time
        if self.first is None:
            self.first = self.last

    def _rdma(self, message: RdmaMessage) -> None:
        self._note(message.number, message.time)
        if self._settings.on_rdma is not None:
            self._settings.on_rdma(self.number, message)
        if message.kind is Kind.SEND:
            assert self.smbdirect is not None
            self.smbdirect.send(message)
        elif message.kind is not Kind.TERMINATE:
            self.exchange.memory.operation(message)

    def lost(self, direction: Direction, number: int) -> None:
        if self.smbdirect is not None:
            self.smbdirect.lose(direction, number)
        self.exchange.lose(number)

    def _emit(self, record: CommandRecord) -> None:
        if record.way == "inline":
            if record.command == READ:
                self._inline_read += record.bytes
            else:
                self._inline_write += record.bytes
        self._settings.emit(record)

    def finish(self, refused: Direction | None = None) -> None:
        """Judge what is left: the connection has ended, by a reset of the receiver in the direction ``refused``."""
        if self._ended:
            return
        self._ended = True
        if self.smbdirect is not None:
            self.smbdirect.finish(*self.last, refused)
        self.exchange.finish()
        self.verdicts.finish()

    @property
    def counters(self) -> Counters:
        """The bytes so far."""
        memory = self.exchange.memory
        return Counters(memory.read, memory.written, self._inline_read, self._inline_write, memory.invalidations)

    def smb2(self) -> list[tuple[UpperMessage, Smb2Message]]:
        """Return every part of every message that is SMB2 and not encrypted, if the settings record."""
        parts = []
        for message in self.upper:
            if is_compressed(message.data):
                message = message._replace(data=self.exchange.compressed.read(message.data) or b"")
            try:
                parts += [(message, part) for part in split(message.data, message.known)]
            except Smb2Error:
                continue  # That has been judged.
        return parts


class TcpConnection:
    """Finds out by its first bytes what a TCP connection carries, and reads that."""

    def __init__(
        self,
        conversation: Conversation,
        make: Callable[[str, Conversation], Connection],
        unreadable: Callable[[int], None],
    ) -> None:
        """Call ``unreadable`` with the frame number when a possible SMB connection has no payload in the capture."""
        self._conversation = conversation
        self._make = make
        self._unreadable = unreadable
        self._undecided = 0
        conversation.receive, conversation.end = self._decide, None

    def _decide(self, chunk: Chunk) -> None:
        conversation = self._conversation
        fabric = self._fabric(chunk)
        if not fabric:
            self._undecided += 1
            if not chunk.known and conversation.server[1] in (_SMB_PORT, _IWARP_PORT):
                self._unreadable(chunk.number)
            if self._undecided > _UNDECIDED or conversation.saw_start:
                conversation.receive = _ignore
            return
        connection = self._make(fabric, conversation)
        reader: IwarpReader | DirectTcpReader
        if connection.wire is not None:
            reader = IwarpReader(connection.wire)
        else:
            verdicts, lost = connection.verdicts, connection.lost
            reader = DirectTcpReader(verdicts, conversation.saw_start, connection.receive, lost)

        def end() -> None:
            reader.finish(conversation.last[0], conversation.refused)
            connection.finish(conversation.refused)

        conversation.receive, conversation.end = reader.receive, end
        reader.receive(chunk)

    def _fabric(self, chunk: Chunk) -> str:
        """Return what the connection carries; empty if it is nothing of ours, or does not show yet."""
        conversation, data = self._conversation, chunk.data
        port = conversation.server[1]
        if data[:4] in (REQUEST_KEY[:4], REPLY_KEY[:4]):
            return "iwarp"
        if conversation.saw_start:
            return "tcp" if port == _SMB_PORT or (data[:1] == b"\0" and _SMB.match(data[:8])) else ""
        if _SMB.search(data):
            # An FPDU has SMB2 in it, too, behind the header of SMB Direct.
            return "iwarp" if port == _IWARP_PORT or begins_fpdu(data) else "tcp"
        return "iwarp" if port == _IWARP_PORT and begins_fpdu(data) else ""


def _ignore(chunk: Chunk) -> None:
    """Drop what is none of our protocols."""
