"""The server's global state (MS-SMB2 3.3.1.5) and its life."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from smb3server.break_notifications import BreakNotifications
from smb3server.files import FileTable
from smb3server.tree import Share

if TYPE_CHECKING:
    from smb3server.connection import Connection
    from smb3server.open import Open
    from smb3server.session import Session


class Server:
    """3.3.1.5."""

    def __init__(self) -> None:
        self.server_guid = uuid.uuid4().bytes_le
        self.server_start_time = time.time()
        self.share_list: dict[str, Share] = {}
        """Keyed by case-folded name."""
        self.global_session_table: dict[int, Session] = {}
        self.global_open_table: dict[int, Open] = {}
        """Keyed by the persistent half of the FileId."""
        self.connection_list: set[Connection] = set()
        self.max_transact_size = 8 << 20
        self.max_read_size = 8 << 20
        self.max_write_size = 8 << 20
        self.file_table = FileTable(BreakNotifications())
        """What is open, by file: share modes, locks, oplocks and leases (GlobalLeaseTableList is in it)."""
        self._next_file_id = 0

    def add_share(self, share: Share) -> None:
        """Replaces a share of the same name."""
        self.share_list[share.name.casefold()] = share

    def new_file_id(self) -> tuple[int, int]:
        """An unused (persistent, volatile) FileId; never all zeros or all ones."""
        self._next_file_id += 1
        return self._next_file_id, self._next_file_id
