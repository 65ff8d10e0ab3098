"""Requests and their responses, and the interfaces between connection, session and tree.

``Protection`` is the part of a session that a connection uses, ``Caller`` the part of a connection that sessions and
trees use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from smb3server.client.protocol.exposed import ExposedPool
from smb3server.client.protocol.negotiation import Negotiated, Offer
from smb3server.client.protocol.ways import Payloads
from smb3server.crypto.encryption import SessionCipher
from smb3server.crypto.signing import Signer
from smb3server.wire.header import Header
from smb3server.wire.oplock_break import LeaseBreakNotification, OplockBreak
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer
from smbdirect.errors import ProtocolError
from smbdirect.message_transport import InboundMessage, MessageTransport

Break = OplockBreak | LeaseBreakNotification
CREDIT_SIZE = 65536
"""Payload bytes that one credit pays for. [MS-SMB2 3.1.5.2]"""


class ServerError(StatusError):
    """The server answered with this status. ``data`` is the error response's ErrorData."""


class UnprovenServer(ProtocolError):
    """The server offers a session without the protection that was asked for. It need not know the user's password."""


@dataclass(slots=True)
class Reply:
    """One response. ``message`` starts at its SMB2 header. Call ``release`` when the message is no longer needed."""

    header: Header
    message: memoryview
    inbound: InboundMessage | None = None
    sealed_by: int = 0
    """The session that encrypted the response; 0 for one in the clear."""

    @property
    def encrypted(self) -> bool:
        """Whether the response came encrypted."""
        return bool(self.sealed_by)

    @property
    def status(self) -> int:
        """The status in the response's header."""
        return self.header.status

    def release(self) -> None:
        """Give the buffer back. Idempotent."""
        inbound, self.inbound = self.inbound, None
        if inbound is not None:
            inbound.release()


class Protection(Protocol):
    """The part of a session that signs and encrypts messages."""

    session_id: int
    sign: bool
    """Whether every request is signed."""
    signer: Signer | None
    cipher: SessionCipher | None

    def encrypts(self, tree_id: int) -> bool:
        """Return whether requests on this tree are encrypted; 0 means no tree."""


class Call:
    """A request in flight."""

    __slots__ = ("async_id", "charge", "encrypted", "future", "header", "session", "signed", "since")

    def __init__(
        self, header: Header, charge: int, session: Protection | None, signed: bool = False, encrypted: bool = False
    ) -> None:
        self.header = header
        self.charge = charge
        self.session = session
        self.signed = signed
        self.encrypted = encrypted
        self.async_id = 0
        """AsyncId of the interim response (STATUS_PENDING); 0 before it."""
        self.since = 0.0
        """The event loop's time from which the server has had this request to answer; 0 if it is not known."""
        self.future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()


class Caller(Protocol):
    """The part of a connection that sessions and trees use, and code that has only those.
    ``connection.Client`` is one.
    """

    transport: MessageTransport
    closed: BaseException | None
    """Why the connection ended; None while it lives."""
    on_break: Callable[[Break], None]
    dialect: int
    offered: tuple[Sequence[int], Offer]
    """The dialects, algorithms and capabilities that the NEGOTIATE request had."""
    client_guid: bytes
    negotiated: Negotiated
    preauth_hash: bytes
    sessions: dict[int, Protection]
    exposed: ExposedPool | None
    payloads: Payloads

    @property
    def supports_multi_credit(self) -> bool:
        """Whether one request may cost several credits."""

    @property
    def payload_limit(self) -> int:
        """Bytes that one request can carry with the credits available."""

    async def call(
        self,
        command: int,
        body: Sequence[Buffer],
        session: Protection | None = None,
        tree_id: int = 0,
        *,
        payload: int = 0,
        accept: Sequence[int] = (NtStatus.SUCCESS,),
        sign: bool = False,
        flags: int = 0,
        on_encoded: Callable[[Sequence[Buffer]], None] | None = None,
    ) -> Reply:
        """Send one request and wait for its final response."""

    async def start(
        self,
        command: int,
        body: Sequence[Buffer],
        session: Protection | None = None,
        tree_id: int = 0,
        *,
        payload: int = 0,
        sign: bool = False,
        flags: int = 0,
        on_encoded: Callable[[Sequence[Buffer]], None] | None = None,
    ) -> Call:
        """Send one request as soon as there are enough credits."""

    async def finish(self, started: Call) -> Reply:
        """Wait for the final response of a started request."""

    def check(self, reply: Reply, accept: Sequence[int] = (NtStatus.SUCCESS,)) -> Reply:
        """Return the reply; raise ``ServerError`` if its status is not one of ``accept``."""

    async def echo(self) -> None:
        """Check that the server answers. [MS-SMB2 3.2.4.20]"""

    async def close(self) -> None:
        """Send the queued messages, close, and return when the connection has ended."""


class TreeSession(Protection, Protocol):
    """The part of a session that its trees use."""

    client: Caller
