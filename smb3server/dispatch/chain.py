"""A received message in progress: a chain of one or more commands, and their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from smb3server.wire.status import NtStatus
from smbdirect.codec import Buffer

if TYPE_CHECKING:
    from smb3server.backends.base import FileInfo, Path
    from smb3server.compression.transform import Packed
    from smb3server.crypto.signing import Signer
    from smb3server.state.ceilings import Usage
    from smb3server.state.objects import Open, Session
    from smb3server.wire.header import FileId
    from smbdirect.message_transport import FileRange, InboundMessage


class Frame(NamedTuple):
    """Memory with the data of a response, in which the whole message can be protected and sent as one piece."""

    memory: memoryview
    """Ends at least ``TAG_SIZE`` bytes behind the data if the message is to be encrypted."""
    data_at: int
    """Offset of the data. The message is made here only if what comes before the data is exactly as long."""


_NOTHING = memoryview(b"")


class Expanded:
    """A message that was decompressed, or is about to be: it lies in memory of its own. An ``InboundMessage``."""

    __slots__ = ("_usage", "view")

    def __init__(self, view: memoryview, usage: Usage | None = None) -> None:
        """``usage`` counts its memory."""
        self.view = view
        self._usage = usage

    def release(self) -> None:
        """Give up its memory, and count it no longer. Idempotent."""
        usage, self._usage = self._usage, None
        view, self.view = self.view, _NOTHING
        if usage is not None:
            usage.expand(-len(view))


@dataclass(slots=True)
class Reply:
    """The part of an outgoing message that answers one command."""

    header: bytearray
    segments: Sequence[Buffer]
    message_id: int
    size: int = 0
    """Bytes of a reply with header and padding; 0 for interim replies and notifications."""
    signer: Signer | None = None
    """Signs the reply. None means that it is not signed."""
    on_sent: Callable[[], None] | None = None
    """Called when ``segments`` are no longer needed."""
    invalidate: int | None = None
    """Remote token to invalidate with the message."""
    on_encoded: Callable[[Sequence[Buffer]], None] | None = None
    """Called with the finished segments, for the preauthentication integrity hash."""
    data: FileRange | None = None
    """Data behind the segments that is sent out of a file. The reply is sent alone, neither signed nor encrypted."""
    frame: Frame | None = None
    """The memory around the last segment, if it has room for the rest of the message."""
    packed: Packed | None = None
    """The last segment compressed. It is used if the reply is sent alone."""
    compress: Callable[[Buffer], Packed | None] | None = None
    """Compresses the message from the last segment on."""


class Fresh(NamedTuple):
    """What a CREATE has found out about its file, for the commands right behind it that only look at the file.

    They came in the same message. So the time of the CREATE is a time at which they may look: the client cannot tell
    the difference, and neither can others, as changes of theirs are not ordered with a message under way."""

    opened: Open
    info: FileInfo
    path: Path | None
    """The path on disk. None means that finding the file has not shown it."""


@dataclass(slots=True)
class Chain:
    """A message in progress: the position in it, the values that related commands inherit, and the unsent replies.

    Invariant: at most one of its commands is with a handler or pends. The next one begins when that one is answered.
    """

    inbound: InboundMessage
    """The message; released when the chain ends."""
    view: memoryview
    """The commands of the message, decrypted."""
    cipher_session: Session | None
    """The session whose key the message was encrypted with. None if it was not encrypted."""
    offset: int = 0
    """Offset of the next command in ``view``; -1 after the last."""
    session_id: int = 0
    """Inherited by a related command, as are the next three. [MS-SMB2 3.3.5.2.7.2]"""
    tree_id: int = 0
    file_id: FileId | None = None
    fresh: Fresh | None = None
    """Not inherited by way of a command that may change the file."""
    status: int = NtStatus.SUCCESS
    """The status of a failed CREATE. Related commands that follow and need its FileId fail with it, too."""
    last_command_seen: bool = False
    """The chain has had a command that is not related: only after it can there be related ones."""
    no_session: bool = False
    """The last command named a session that does not exist, so that no command can be related to it."""
    replies: list[Reply] = field(default_factory=list)
    """Replies that are ready and have not been sent."""
    cancelled: tuple[tuple[int, Session | None], ...] = ()
    """MessageIds that CANCELs have named while a command before them waited, and the sessions of the CANCELs."""
    compressed: bool = False
    """``view`` is compressed. It is decompressed when it is its turn, so that a connection has one such message."""
    expanding: bool = False
    """The message is being decompressed, or waits for memory. Until that is done, the chain is parked."""
    size: int = 0
    """Bytes of ``replies``."""
    # Invariant: size is the sum of the sizes of replies.

    def end(self) -> None:
        """Release the message, and the replies that have not been sent and never will be."""
        replies, self.replies, self.size = self.replies, [], 0
        for reply in replies:
            if reply.on_sent is not None:
                reply.on_sent()
        self.inbound.release()
        # Whoever still knows this chain must not keep megabytes with it.
        self.view = _NOTHING
