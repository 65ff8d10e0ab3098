"""The table of all opens: how they come, stay while their client is away, and end. [MS-SMB2 3.3.1.5, 3.3.1.10]"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Callable
from functools import partial

from smb3server.backends.deferred import DeferredHandle
from smb3server.files import write_times
from smb3server.files.file import File
from smb3server.state import last_close
from smb3server.state.durable import Durability, HandleCounts, covers, may_come_back
from smb3server.state.objects import Open
from smb3server.state.ports import Persistence
from smb3server.state.replays import Replays
from smb3server.state.share import Share

log = logging.getLogger(__name__)


class OpenTable:
    """GlobalOpenTable and what finds its entries by other keys.

    Invariant: an open is in ``by_id`` from ``add`` to ``close``. Its session's table has it, too, unless its client is
    away. Every other table here has only opens of ``by_id``.
    """

    def __init__(self, has_lost: Callable[[Share], bool]) -> None:
        """``has_lost``: whether another node may be serving a share by now."""
        self._has_lost = has_lost
        self.by_id: dict[int, Open] = {}
        """By the persistent half of the FileId."""
        self.by_application: dict[bytes, dict[Open, None]] = {}
        """By AppInstanceId."""
        self.persistent: dict[tuple[bytes, bytes], Open] = {}
        """Persistent ones, by (ClientGuid, CreateGuid)."""
        self.replays = Replays()
        self.persistence: Persistence | None = None
        """Stores persistent opens; None where there are none."""
        self.limit = sys.maxsize
        """Opens of all clients that the process has descriptors for."""
        self.dormant = 0
        """Restored opens whose client is not back yet; they take no descriptor."""
        self.counts = HandleCounts()

    def new_file_id(self) -> tuple[int, int]:
        """Return an unused (persistent, volatile) FileId; never all zeros or all ones."""
        while True:
            # Unpredictable: whoever guesses a persistent id could try to take over a durable open.
            persistent = secrets.randbits(63) or 1
            if persistent not in self.by_id:
                return persistent, secrets.randbits(63) or 1

    def add(self, opened: Open) -> None:
        """Enter a new open of a client that is there."""
        opened.session.open_table[opened.file_id[1]] = opened
        self.by_id[opened.file_id[0]] = opened
        self._count(opened)

    def restore(self, opened: Open) -> None:
        """Enter a persistent open of an earlier run, or of another node, whose client is away."""
        self.by_id[opened.file_id[0]] = opened
        if opened.is_dormant:
            self.dormant += 1
        self.persist(opened)
        self.disconnect(opened)
        self.counts.restored += 1

    def reattach(self, opened: Open) -> None:
        """Enter a durable open into the table of its new session: its client is back. The volatile half of its FileId
        changes."""
        opened.file_id = (opened.file_id[0], self.new_file_id()[1])
        opened.session.open_table[opened.file_id[1]] = opened
        if opened.usage is None:
            self._count(opened)
        if opened.durable is not None:
            opened.durable.disconnected = False
            opened.durable.stop_timer()
        if opened.usage is not None:
            opened.usage.away.pop(opened, None)
        holder = opened.caching
        if holder is not None and holder.breaking:
            # Behind the response: only that tells the client the open's new FileId.
            asyncio.get_running_loop().call_soon(holder.resend)

    @staticmethod
    def _count(opened: Open) -> None:
        """Count an open for its user."""
        usage = opened.session.usage
        if usage is not None:
            opened.usage = usage
            usage.opens += 1

    # Other keys

    def join_application(self, opened: Open, app_instance_id: bytes) -> None:
        """Set Open.AppInstanceId."""
        self._leave_application(opened)
        opened.app_instance_id = app_instance_id
        self.by_application.setdefault(app_instance_id, {})[opened] = None

    def _leave_application(self, opened: Open) -> None:
        known = opened.app_instance_id
        others = self.by_application.get(known) if known is not None else None
        if known is None or others is None:
            return
        others.pop(opened, None)
        if not others:
            del self.by_application[known]

    def persist(self, opened: Open) -> None:
        """Make a durable open persistent: it outlives the server, and so does what is written through it.
        (Open.IsPersistent)"""
        durable = opened.durable
        if durable is None:
            raise ValueError("not a durable open")
        durable.persistent = opened.write_through = True
        if durable.create_guid is not None:
            self.persistent[durable.client_guid, durable.create_guid] = opened

    def store_all(
        self, opened: Open, undo: Callable[[], None] | None = None, sync: Callable[[], None] | None = None
    ) -> None:
        """Store the persistent opens of a file anew, before the reply: something has changed that all opens of the file
        share. ``undo`` and ``sync`` as for ``Persistence.changed``."""
        if self.persistence is None or opened.file is None:
            return
        for file in opened.file.table.streams(opened.file.key):
            for other in file.opens:
                self.persistence.changed(other, undo, sync)

    # The end

    def close(self, opened: Open) -> None:
        """Free everything of an open, and delete the file if this was to be its last close. [MS-FSA 2.1.5.4]

        Does nothing for one that is closed. Never fails: what the store refuses now is logged."""
        opened.session.open_table.pop(opened.file_id[1], None)
        if self.by_id.pop(opened.file_id[0], None) is None:
            return
        if opened.app_instance_id is not None:
            self._leave_application(opened)
        if opened.usage is not None:
            opened.usage.opens -= 1
            opened.usage.reserved -= opened.reserved
            opened.usage.away.pop(opened, None)
        lost = self._has_lost(opened.tree.share)
        if lost:
            self._leave_to_others(opened)
        if opened.durable is not None:
            self._forget_durable(opened, opened.durable)
        if opened.replayable is not None:
            self.replays.forget(opened)
        on_close, opened.on_close = opened.on_close, []
        for callback in on_close:
            callback()
        if opened.pipe is not None:
            opened.pipe.close()
        file, handle = opened.file, opened.handle
        if file is not None and handle is not None:
            if file.write_time is not None and not lost:
                settle_write_time(opened)
            last_close.leave(file, opened)
            if opened.delete_on_close and self.persistence is not None:
                # Opens that are left keep in mind, over a restart, that the file ends with the last of them.
                for other in file.opens:
                    self.persistence.changed(other)
            if opened.is_dormant:
                self.dormant -= 1
            opened.close_handle()

    def _forget_durable(self, opened: Open, durable: Durability) -> None:
        durable.stop_timer()
        if not durable.persistent:
            return
        if durable.create_guid is not None:
            self.persistent.pop((durable.client_guid, durable.create_guid), None)
        if self.persistence is not None and not durable.abandoned:
            self.persistence.closed(opened)

    def abandon(self, opened: Open) -> None:
        """Let go of the file of an open that continues elsewhere, or in the next run of the server, without closing it
        in the sense of the protocol. Nothing is deleted, neither the file nor what is stored of the open."""
        self._leave_to_others(opened)
        self.close(opened)

    def _leave_to_others(self, opened: Open) -> None:
        if opened.durable is not None and self.persistence is not None:
            self.persistence.abandon(opened)
            opened.durable.abandoned = True
        opened.delete_on_close = False
        if opened.file is not None:
            opened.file.keep()

    # While the client is away

    def disconnect(self, opened: Open) -> None:
        """Keep an open whose connection is lost for its client to come back to, if it is durable; close others.
        [MS-SMB2 3.3.7.1]"""
        if opened.durable is not None and self._keep(opened, opened.durable):
            opened.session.open_table.pop(opened.file_id[1], None)
        else:
            self.close(opened)

    def _keep(self, opened: Open, durable: Durability) -> bool:
        """Keep a durable open if its caching rights still cover it, resilient and persistent ones in any case, and
        start the clock. Delete-on-close happens when that ends."""
        protected = durable.persistent or durable.resilient
        if not protected and not covers(opened.caching):
            return False
        durable.disconnected = True
        if opened.usage is not None and not protected:
            opened.usage.away[opened] = partial(self.close, opened)
        durable.stop_timer()
        durable.timer = asyncio.get_running_loop().call_later(durable.timeout, self._expire, opened)
        return True

    def _expire(self, opened: Open) -> None:
        self.counts.expired += 1
        self.close(opened)

    def close_if_disconnected(self, opened: Open) -> None:
        """Close a durable open whose client is away and cannot be notified of a break, unless it is to stay for its
        client in any case. [MS-SMB2 3.3.4.6, 3.3.4.7]"""
        if opened.durable is not None and opened.durable.disconnected and not may_come_back(opened):
            self.close(opened)

    def close_gone(self, file: File[Open] | None) -> None:
        """Close restored opens of a file that is gone, whose inode number another file has by now."""
        for opened in list(file.opens) if file is not None else ():
            handle = opened.handle
            if isinstance(handle, DeferredHandle) and handle.gone:
                self.close(opened)

    def wake(self, opened: Open) -> None:
        """Open what so far was only remembered of the file: its client comes back. Raises ``OSError``,
        ``FileNotFoundError`` if the file is gone."""
        handle = opened.handle
        if isinstance(handle, DeferredHandle):
            opened.use_handle(handle.open())
            self.dormant -= 1


def settle_write_time(opened: Open) -> None:
    """Set the last write time as this open leaves it."""
    try:
        write_times.closing(opened)
    except OSError as error:
        log.warning("last write time of %s: %s", "/".join(opened.path), error)


def client_guid_of(opened: Open) -> bytes:
    """Return Open.ClientGuid: that of the connection it was made on."""
    return opened.durable.client_guid if opened.durable is not None else opened.session.connection.client_guid
