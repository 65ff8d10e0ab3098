"""A received message on its way through: a chain of one or more commands, and their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from smb3server.wire.status import NtStatus
from smbdirect.codec import Buffer

if TYPE_CHECKING:
    from smb3server.crypto.signing import Signer
    from smb3server.state.objects import Session
    from smb3server.wire.file_id import FileId
    from smbdirect.message_transport import InboundMessage


class Reply:
    """One command's part of an outgoing message."""

    __slots__ = ("header", "invalidate", "message_id", "on_encoded", "on_sent", "segments", "signer", "size")

    def __init__(self, header: bytearray, segments: Sequence[Buffer], message_id: int) -> None:
        self.header = header
        self.segments = segments
        self.size = len(header) + sum(map(len, segments)) + 7 & -8
        """Bytes, padding included."""
        self.message_id = message_id
        self.signer: Signer | None = None
        """Signs it; None: it goes out without a signature."""
        self.on_sent: Callable[[], None] | None = None
        self.invalidate: int | None = None
        self.on_encoded: Callable[[Sequence[Buffer]], None] | None = None
        """Gets the finished segments (preauthentication integrity)."""


class Chain:
    """A message that is being worked on: where in it, what related commands inherit, and what is to be sent.

    Invariant: at most one of its commands is with a handler or pends. The next one begins when that is answered.
    """

    __slots__ = (
        "cipher_session",
        "file_id",
        "inbound",
        "last_command_seen",
        "no_session",
        "offset",
        "replies",
        "session_id",
        "size",
        "status",
        "tree_id",
        "view",
    )

    def __init__(self, inbound: InboundMessage, view: memoryview, cipher_session: Session | None) -> None:
        """``inbound``: to be released at the end. ``view``: its commands, decrypted if it was encrypted.
        ``cipher_session``: the session whose key encrypted it; None in the clear."""
        self.inbound = inbound
        self.view = view
        self.cipher_session = cipher_session
        self.offset = 0
        """Of the next command; -1 after the last."""
        self.session_id = 0
        """What a related command inherits, as are the next three (3.3.5.2.7.2)."""
        self.tree_id = 0
        self.file_id: FileId | None = None
        self.status: int = NtStatus.SUCCESS
        """How the last CREATE failed that later related commands fail with."""
        self.last_command_seen = False
        """A command came before: only then can one be related."""
        self.no_session = False
        """The last command named a session that does not exist: none can be related to it."""
        self.replies: list[Reply] = []
        """Those that are ready and not sent."""
        self.size = 0
        """Bytes of ``replies``."""
