"""CREATE in a snapshot of the share: previous versions of files. [MS-SMB2 3.3.5.9, 3.3.5.9.4]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from smb3server.access.caller import Caller
from smb3server.access.past import rights_now
from smb3server.backends.base import Backend, OpenRequest, Path
from smb3server.backends.snapshot_names import parse_token, seconds_in, token
from smb3server.backends.snapshots import Snapshots
from smb3server.commands.create.opening import Opening
from smb3server.state.objects import Open
from smb3server.state.share import READ_ONLY_ACCESS
from smb3server.wire.create import Access, CreateDisposition
from smb3server.wire.status import NtStatus, StatusError

_MAY_MISS = frozenset([CreateDisposition.OPEN, CreateDisposition.OPEN_IF])
_READS = READ_ONLY_ACCESS | int(Access.MAXIMUM_ALLOWED | Access.ACCESS_SYSTEM_SECURITY)
_WRITES_DATA = int(Access.WRITE_DATA | Access.APPEND_DATA)


def asked_for(name: str, timewarp: int) -> tuple[int, str]:
    """Return the time of the snapshot that a request is about, in seconds since 1970, and the name in it. 0: it is
    about the share as it is now.

    ``timewarp``: the FILETIME of the request's context, 0 without one. Clients that send none put the time into the
    first component of the name."""
    if timewarp:
        return max(seconds_in(timewarp), 1), name
    if not name.startswith("@"):
        return 0, name
    first, _, rest = name.partition("\\")
    seconds = parse_token(first)
    return (seconds, rest) if seconds is not None else (0, name)


@dataclass(slots=True)
class PreviousOpening(Opening):
    """A CREATE in a snapshot. ``backend`` is the store of the share until an attempt has found that of the snapshot."""

    snapshots: Snapshots
    seconds: int
    """The time of the snapshot, since 1970."""
    present: Backend
    """The store of the share as it is now."""
    share_access_now: int
    """The tree connect's MaximalAccess."""

    def attempt(self) -> Open:
        """Open the file as ``Opening.attempt`` does. The snapshot must exist; it may be gone when a request that had to
        wait tries again."""
        snapshots = self.snapshots
        self.backend = store = snapshots.hold(self.seconds)
        if self.contexts.posix is not None:
            self.backend = store.as_posix() or store
        try:
            self._check_reading()
            allowed = self._limit(self.backend)
            opened = Opening.attempt(self)
        except BaseException:
            snapshots.release(store)
            raise
        opened.on_close.append(partial(snapshots.release, store))
        # Though nobody gets more than reading: as Samba, and Windows by smbtorture's smb2.twrp.write, answer MxAc.
        opened.maximal_access = allowed
        # For reports and logs.
        opened.path = (token(self.seconds), *opened.path)
        return opened

    def _check_reading(self) -> None:
        """Refuse what would change a file, as for a medium with a switch against writing.

        Whoever asks for writing data gets an open for reading, as from Windows and Samba: programs open files for both
        and only read. A WRITE is refused then. Opens that only change something are refused at once."""
        wanted = self.wanted
        changes = wanted.access & ~_READS and not wanted.access & _WRITES_DATA
        if changes or wanted.deletes or self.body.create_disposition not in _MAY_MISS:
            raise StatusError(NtStatus.MEDIA_WRITE_PROTECTED)

    def _limit(self, store: Backend) -> int:
        """Limit what may be granted to reading, and to what the user may do now. Return all that the descriptors of
        then and now allow."""
        caller = self.opener.caller._replace(share=self.share_access_now)
        path, then = self._look(store, caller)
        self.present.defer_reading = True
        try:
            now = rights_now(caller, self.present, path)
        finally:
            self.present.defer_reading = False
        if self.wanted.access & ~_READS & ~now:
            raise StatusError(NtStatus.ACCESS_DENIED)
        self.wanted = self.wanted._replace(access=self.wanted.access & _READS)
        reading = READ_ONLY_ACCESS & now
        limited = caller._replace(share=reading, for_backup=caller.for_backup & reading)
        self.opener = self.opener._replace(caller=limited)
        return then & now

    def _look(self, store: Backend, caller: Caller) -> tuple[Path, int]:
        """Return the path of the file in the snapshot, without the links that lead to it, and the user's rights then.

        By a link that is not there any longer, nobody gets around the rights on what it led to."""
        store.defer_reading = True
        try:
            handle = store.open(OpenRequest(self.path, open_reparse_point=not self._follow, user=caller.user))
            try:
                path = handle.path
                return path, caller.rights_on(store, path, handle.describe())
            finally:
                handle.close()
        except FileNotFoundError:
            if self.body.create_disposition == CreateDisposition.OPEN_IF:
                raise StatusError(NtStatus.MEDIA_WRITE_PROTECTED) from None
            raise
        finally:
            store.defer_reading = False
