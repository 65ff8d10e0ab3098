"""Opens (MS-SMB2 3.3.1.10): one per successful CREATE, in the server's and the session's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from smb3server.request import RELATED_FILE_ID, FileId, Request
from smb3server.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.backends.base import Handle, Path
    from smb3server.session import Session
    from smb3server.tree import TreeConnect


class Pipe(Protocol):
    """A named pipe instance in message mode (MS-FSA 2.1.1.x has none of it; see MS-SMB2 3.3.5.12-15 and 3.3.5.10)."""

    def write(self, data: bytes) -> int: ...

    def read(self, size: int) -> tuple[bytes, bool]:
        """Data and whether more of the same message is left (STATUS_BUFFER_OVERFLOW). Raises PIPE_EMPTY."""
        ...

    def close(self) -> None: ...


class Open:
    """Names are the specification's; file state shared by all opens of one file hangs on ``file``."""

    __slots__ = (
        "__dict__",
        "create_options",
        "durable_file_id",
        "file",
        "file_id",
        "granted_access",
        "handle",
        "is_directory",
        "path",
        "pipe",
        "session",
        "share_access",
        "tree",
    )

    def __init__(self, file_id: FileId, session: Session, tree: TreeConnect) -> None:
        self.file_id = file_id
        self.session = session
        self.tree = tree
        self.granted_access = 0
        self.share_access = 0
        self.create_options = 0
        self.path: Path = ()
        self.is_directory = False
        self.handle: Handle | None = None
        self.pipe: Pipe | None = None
        self.file: Any = None


def find_open(request: Request, file_id: FileId) -> Open:
    """The open a command names, or its compound's (MS-SMB2 3.3.5.2.7.2); FILE_CLOSED if there is none."""
    if file_id == RELATED_FILE_ID and request.compound.file_id is not None:
        file_id = request.compound.file_id
    session = request.session
    found = session.open_table.get(file_id[1]) if session is not None else None
    if found is None or found.file_id != file_id or found.tree is not request.tree:
        raise StatusError(NtStatus.FILE_CLOSED)
    return found
