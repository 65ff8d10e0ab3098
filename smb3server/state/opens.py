"""The table of all opens: adding them, keeping them while their client is away, and closing them. [MS-SMB2 3.3.1.5]"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
import sys
from collections.abc import Callable
from functools import partial

from smb3server.backends.deferred import DeferredHandle
from smb3server.files import write_times
from smb3server.files.caching import WRITE
from smb3server.files.file import File
from smb3server.state import change_reports, deletions
from smb3server.state.durable import Durability, HandleCounts, covers
from smb3server.state.objects import Open
from smb3server.state.ports import Persistence
from smb3server.state.replays import Replays
from smb3server.state.share import Share

log = logging.getLogger(__name__)

_NUMBER = struct.Struct("<Q")
_MAX_ID = (1 << 63) - 1


class OpenTable:
    """GlobalOpenTable, and the tables that find its entries by other keys."""

    def __init__(self, has_lost: Callable[[Share], bool]) -> None:
        """``has_lost``: returns whether another node may be serving a share by now."""
        self.has_lost = has_lost
        # Invariant: an open is in ``by_id`` from ``add`` or ``restore`` to ``close``. It is in its session's table as
        # well, unless its client is away. Every other table here has only opens of ``by_id``.
        self.by_id: dict[int, Open] = {}
        """All opens, by the persistent half of the FileId."""
        self.by_application: dict[bytes, dict[Open, None]] = {}
        """By AppInstanceId."""
        self.persistent: dict[tuple[bytes, bytes], Open] = {}
        """Persistent ones, by (ClientGuid, CreateGuid)."""
        self._leaving: set[Open] = set()
        """Those whose client is away, and that wait for the turn of their storage to be disconnected."""
        self.replays = Replays()
        self.persistence: Persistence | None = None
        """Stores persistent opens; None if no share has any."""
        self.limit = sys.maxsize
        """Number of opens of all clients for which the process has descriptors."""
        self.dormant = 0
        """Number of restored opens whose client is not back yet; they take no descriptor."""
        self.counts = HandleCounts()
        self.on_expire: Callable[[Open], None] = lambda opened: None
        """Called before a durable open ends whose client did not come back in time."""
        self._random: list[int] = []
        """Random numbers for the next FileIds, each used once. One system call yields many."""
        # Invariant: between calls their number is even.

    @property
    def ceiling(self) -> int | None:
        """``limit`` for reports; None if there is none."""
        return None if self.limit == sys.maxsize else self.limit

    def new_file_id(self) -> tuple[int, int]:
        """Return an unused (persistent, volatile) FileId; never all zeros or all ones."""
        while True:
            # Unpredictable: a client that guesses a persistent id could try to take over a durable open.
            if not self._random:
                self._random = [number & _MAX_ID or 1 for (number,) in _NUMBER.iter_unpack(secrets.token_bytes(512))]
            persistent, volatile = self._random.pop(), self._random.pop()
            if persistent not in self.by_id:
                return persistent, volatile

    def add(self, opened: Open) -> None:
        """Enter a new open of a connected client."""
        opened.session.open_table[opened.file_id[1]] = opened
        self.by_id[opened.file_id[0]] = opened
        self._count(opened)

    def restore(self, opened: Open) -> None:
        """Enter a persistent open of an earlier run of the server, or of another node, whose client is away."""
        self.by_id[opened.file_id[0]] = opened
        if opened.is_dormant:
            self.dormant += 1
        self.persist(opened)
        self.disconnect(opened)
        self.counts.restored += 1

    def reattach(self, opened: Open) -> None:
        """Enter a durable open into the table of its new session, as its client is back. The volatile half of its
        FileId changes."""
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
            # After the response, because the client learns the new FileId from it.
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
        """Make a durable open persistent: it and data written through it outlive the server. (Open.IsPersistent)"""
        durable = opened.durable
        if durable is None:
            raise ValueError("not a durable open")
        durable.persistent = opened.write_through = True
        if durable.create_guid is not None:
            self.persistent[durable.client_guid, durable.create_guid] = opened

    def store_all(
        self, opened: Open, undo: Callable[[], None] | None = None, sync: Callable[[], None] | None = None
    ) -> None:
        """Store the persistent opens of a file again before the reply, as something has changed that they share.
        ``undo`` and ``sync`` as for ``Persistence.changed``."""
        if self.persistence is None or opened.file is None:
            return
        for file in opened.file.table.streams(opened.file.key):
            for other in file.opens:
                self.persistence.changed(other, undo, sync)

    # The end

    def close(self, opened: Open) -> None:
        """Free everything of an open, and delete the file if this was the last close of a file to be deleted. [MS-FSA
        2.1.5.4]

        Do nothing if the open is closed already. This never fails: errors of the store are logged. Where the storage of
        the share may answer late, it happens when that has its turn."""
        share = opened.tree.share
        if share.queue is not None and not share.queue.is_here:
            share.queue.add(partial(self.close, opened))
            return
        opened.session.open_table.pop(opened.file_id[1], None)
        if self.by_id.pop(opened.file_id[0], None) is None:
            return
        self._leaving.discard(opened)
        if opened.app_instance_id is not None:
            self._leave_application(opened)
        if opened.bytes_read or opened.bytes_written:
            count_data(opened)
        if opened.usage is not None:
            opened.usage.opens -= 1
            opened.usage.reserved -= opened.reserved
            opened.usage.away.pop(opened, None)
        lost = self.has_lost(share)
        if lost:
            self._leave_to_others(opened)
        if opened.durable is not None:
            self._forget_durable(opened, opened.durable)
        if opened.replayable is not None:
            self.replays.forget(opened)
        on_close, opened.on_close = opened.on_close, []
        for callback in on_close:
            callback()
        if opened.wrote:
            change_reports.report_written(opened)
        if opened.pipe is not None:
            opened.pipe.close()
        file, handle = opened.file, opened.handle
        if file is not None and handle is not None:
            if file.write_time is not None and not lost:
                settle_write_time(opened)
            deletions.leave(file, opened)
            if opened.delete_on_close and self.persistence is not None:
                # The remaining opens must know, after a restart too, that the file is deleted with the last of them.
                for other in file.opens:
                    self.persistence.changed(other)
            if handle.dormant:
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
        """Release the file of an open that continues on another node or in the next run of the server, without closing
        it in the sense of the protocol. Nothing is deleted, neither the file nor the stored record of the open."""
        self._leave_to_others(opened)
        self.close(opened)

    def _leave_to_others(self, opened: Open) -> None:
        if opened.durable is not None and self.persistence is not None:
            self.persistence.abandon(opened)
            opened.durable.abandoned = True
        opened.delete_on_close = False
        if opened.file is not None:
            opened.file.keep()
            for asked in list(opened.file.link_deletions):
                opened.file.keep_link(asked)

    # While the client is away

    def disconnect(self, opened: Open) -> None:
        """Keep a durable open, whose connection is lost, for its client; close another one. [MS-SMB2 3.3.7.1]"""
        queue = opened.tree.share.queue
        if queue is not None and not queue.is_here:
            self._leaving.add(opened)
            queue.add(partial(self._leave, opened))
        elif opened.durable is not None and self._keep(opened, opened.durable):
            opened.session.open_table.pop(opened.file_id[1], None)
        else:
            self.close(opened)

    def _leave(self, opened: Open) -> None:
        """Disconnect an open that waits for that, if it still does."""
        if opened in self._leaving:
            self._leaving.remove(opened)
            self.disconnect(opened)

    def _keep(self, opened: Open, durable: Durability) -> bool:
        """Start the timeout of a durable open whose caching rights still cover it, or that is resilient or persistent.
        Return False for others. Delete-on-close happens when the timeout ends."""
        protected = durable.persistent or durable.resilient
        if not protected and not (covers(opened.caching) and _may_lock_alone(opened)):
            return False
        durable.disconnected = True
        if opened.usage is not None and not protected:
            opened.usage.away[opened] = partial(self.close, opened)
        durable.stop_timer()
        durable.timer = asyncio.get_running_loop().call_later(durable.timeout, self._expire, opened)
        return True

    def _expire(self, opened: Open) -> None:
        self.counts.expired += 1
        self.on_expire(opened)
        self.close(opened)

    def close_if_disconnected(self, opened: Open) -> None:
        """Close a durable open whose client is away and cannot be notified of a break, unless it is resilient or
        persistent. [MS-SMB2 3.3.4.6, 3.3.4.7]

        The client may have gone while the request ran that breaks: then the open waits for its turn to be
        disconnected."""
        self._leave(opened)
        if opened.durable is not None and opened.durable.disconnected and not opened.may_come_back:
            self.close(opened)

    def close_gone(self, file: File[Open] | None) -> None:
        """Close restored opens of a file that is gone, if another file has its inode number by now."""
        for opened in list(file.opens) if file is not None else ():
            handle = opened.handle
            if isinstance(handle, DeferredHandle) and handle.gone:
                self.close(opened)

    def wake(self, opened: Open) -> None:
        """Open the file of a restored open, as its client comes back. Raises ``OSError``, ``FileNotFoundError`` if the
        file is gone."""
        handle = opened.handle
        if isinstance(handle, DeferredHandle):
            opened.use_handle(handle.open())
            self.dormant -= 1


def count_data(opened: Open) -> None:
    """Count the data that an open has read and written for its share and its user."""
    share, usage = opened.tree.share, opened.usage
    share.bytes_read += opened.bytes_read
    share.bytes_written += opened.bytes_written
    if usage is not None:
        usage.bytes_read += opened.bytes_read
        usage.bytes_written += opened.bytes_written


def settle_write_time(opened: Open) -> None:
    """Set the last write time that this open leaves behind. Errors are logged."""
    try:
        write_times.closing(opened)
    except OSError as error:
        log.warning("last write time of %s: %s", "/".join(opened.path), error)


def _may_lock_alone(opened: Open) -> bool:
    """Return whether the client of an open may stay away with the open's locks, if it has any: only with write caching,
    because then others first break it. Without it the locks would stop readers and writers who break nothing.

    Windows closes such an open; the specification says nothing about it."""
    file, holder = opened.file, opened.caching
    if file is None or not file.locks.holds_any(opened):
        return True
    return holder is not None and bool(holder.state & WRITE)


def client_guid_of(opened: Open) -> bytes:
    """Return Open.ClientGuid: that of the connection on which the open was made."""
    return opened.durable.client_guid if opened.durable is not None else opened.session.connection.client_guid
