"""Requests and their responses, the part of a session that protects them, and the ways that data travels."""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from smb3server.crypto.encryption import SessionCipher
from smb3server.crypto.signing import Signer
from smb3server.wire.header import Header
from smb3server.wire.rdma_transform import RdmaTransformId
from smb3server.wire.status import StatusError
from smbdirect.codec import Buffer
from smbdirect.errors import ProtocolError
from smbdirect.message_transport import InboundMessage

if TYPE_CHECKING:
    from smb3server.wire.oplock_break import LeaseBreakNotification, OplockBreak

    Break = OplockBreak | LeaseBreakNotification
CREDIT_SIZE = 65536
"""Payload bytes that one credit pays for. [MS-SMB2 3.1.5.2]"""


class ServerError(StatusError):
    """The server answered with this status. ``data`` is the error response's ErrorData."""


class UnprovenServer(ProtocolError):
    """The server offers a session without the protection that was asked for. It need not know the user's password."""


class LogonError(Exception):
    """A logon that came to no end: there is no ticket, or the server's part of it is wrong."""


@dataclass(slots=True, eq=False, repr=False)
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
    encrypt: bool
    """Whether every request is encrypted."""
    encrypted_trees: set[int]
    """Tree connects whose requests are encrypted."""
    signer: Signer | None
    cipher: SessionCipher | None

    def encrypts(self, tree_id: int) -> bool:
        """Return whether requests on this tree are encrypted; 0 means no tree."""


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """A request in flight."""

    header: Header
    charge: int
    session: Protection | None
    future: asyncio.Future[Reply]
    signed: bool = False
    encrypted: bool = False
    async_id: int = 0
    """AsyncId of the interim response (STATUS_PENDING); 0 before it."""
    since: float = 0.0
    """The event loop's time from which the server has had this request to answer; 0 if it is not known."""


class Part(NamedTuple):
    """One request of a chain."""

    command: int
    body: Sequence[Buffer]
    payload: int = 0
    """Bytes that are sent or expected."""


@dataclass(slots=True, eq=False, repr=False)
class Chains:
    """What is known of how a server takes chains of related requests."""

    allowed: bool = True
    """Whether they are sent."""
    proven: bool = False
    """Whether the server has answered one as it should."""


class Way(enum.Enum):
    """How the data of one READ or WRITE travels. The values are for people."""

    INLINE = "inline"
    RDMA = "RDMA"
    RDMA_SIGNED = "RDMA, signed"
    RDMA_ENCRYPTED = "RDMA, encrypted"

    @property
    def transform(self) -> RdmaTransformId:
        """The transform that protects the data."""
        return _TRANSFORMS.get(self, RdmaTransformId.NONE)


_TRANSFORMS = {Way.RDMA_SIGNED: RdmaTransformId.SIGNING, Way.RDMA_ENCRYPTED: RdmaTransformId.ENCRYPTION}


class Payloads:
    """The payloads of one connection."""

    def __init__(self) -> None:
        self.read: Counter[Way] = Counter()
        """Bytes that READs returned, by their ways."""
        self.written: Counter[Way] = Counter()
        """Bytes that WRITEs wrote."""
        self.numbers = itertools.count()
        """Numbers for the nonces of signed payloads. Invariant: none is used twice."""
