"""A received message on its way through: a chain of one or more commands, and their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smb3server.wire.status import NtStatus
from smbdirect.codec import Buffer

if TYPE_CHECKING:
    from smb3server.crypto.signing import Signer
    from smb3server.state.objects import Session
    from smb3server.wire.file_id import FileId
    from smbdirect.message_transport import InboundMessage


@dataclass(slots=True)
class Reply:
    """One command's part of an outgoing message."""

    header: bytearray
    segments: Sequence[Buffer]
    message_id: int
    size: int = 0
    """Bytes of a reply, header and padding included; 0 for what is sent on its own."""
    signer: Signer | None = None
    """Signs it; None: it goes out without a signature."""
    on_sent: Callable[[], None] | None = None
    """Called when ``segments`` are no longer needed."""
    invalidate: int | None = None
    """Remote token to invalidate with it."""
    on_encoded: Callable[[Sequence[Buffer]], None] | None = None
    """Gets the finished segments (preauthentication integrity)."""


@dataclass(slots=True)
class Chain:
    """A message that is being worked on: where in it, what related commands inherit, and what is to be sent.

    Invariant: at most one of its commands is with a handler or pends. The next one begins when that is answered.
    """

    inbound: InboundMessage
    """To be released at the end."""
    view: memoryview
    """Its commands, decrypted if it was encrypted."""
    cipher_session: Session | None
    """The session whose key encrypted it; None in the clear."""
    offset: int = 0
    """Of the next command; -1 after the last."""
    session_id: int = 0
    """What a related command inherits, as are the next three (3.3.5.2.7.2)."""
    tree_id: int = 0
    file_id: FileId | None = None
    status: int = NtStatus.SUCCESS
    """How the last CREATE failed that later related commands fail with."""
    last_command_seen: bool = False
    """A command came before: only then can one be related."""
    no_session: bool = False
    """The last command named a session that does not exist: none can be related to it."""
    replies: list[Reply] = field(default_factory=list)
    """Those that are ready and not sent."""
    size: int = 0
    """Bytes of ``replies``."""
