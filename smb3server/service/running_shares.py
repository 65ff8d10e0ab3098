"""The shares of a running server: adding, changing and removing them while clients are connected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from smb3server.access.descriptor import SecurityDescriptor
from smb3server.config.checks import FolderDownError, check_folder
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.persistence.store import StoreError
from smb3server.server.server import Server
from smb3server.service.shadow_copies import follow
from smb3server.service.shares import Prepared, Queues, adopt, make_share, prepare
from smb3server.service.stored_opens import StoredOpens
from smb3server.state import endings
from smb3server.state.audit import ShareAudit
from smb3server.state.caller import maximal_access_of, may_use
from smb3server.state.share import Share

log = logging.getLogger(__name__)


class ClusterShares(Protocol):
    """What this module needs of a cluster."""

    async def add_share(self, share: Share) -> None:
        """Serve one more share with its service. Raises ``StoreError``."""
        ...

    def remove_share(self, share: Share) -> None:
        """Forget a share that is no longer served."""
        ...

    async def permit(self, share: Share, permissions: SecurityDescriptor | None) -> None:
        """Set the permissions of a service's share, at all nodes. Raises ``StoreError``."""
        ...


def folders_down(shares: Iterable[ShareConfig]) -> dict[str, str]:
    """Return why the folders of shares cannot be used, by the shares' names. A file system may take long to answer."""
    found = {}
    for share in shares:
        try:
            check_folder(share.path, share.require_mount)
        except ConfigError as error:
            found[share.name] = str(error)
    return found


class Change(NamedTuple):
    """A share that is served, and what is to become of it."""

    share: Share
    prepared: Prepared


class RunningShares:
    """The shares of one server. A share is made first, which may fail, and added to the server afterwards."""

    def __init__(self, server: Server, stored: StoredOpens) -> None:
        self._server = server
        self._stored = stored
        self.audit_of: Callable[[frozenset[str]], ShareAudit | None] = lambda kinds: None
        """Returns the audit of a share that records these kinds of events. May raise ``ConfigError``."""
        self.cluster: ClusterShares | None = None
        """None outside a cluster, and until the server has joined it with the shares of its start."""
        self.permissions: Mapping[str, SecurityDescriptor] = {}
        """The permissions of shares that have any, by case-folded name."""
        self._queues: Queues = {}
        self.down: dict[str, str] = {}
        """Why shares of the configuration could not be used when this was looked at last, by name."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a share was added or removed."""

    def for_backups(self) -> list[str]:
        """Return the names of the shares that Macs back up to and that lists of shares have.

        Homes would name users, and services of a cluster are at addresses of their own."""
        shares = [share for share in self._server.share_list.values() if share.rules.time_machine]
        return [share.name for share in shares if not (share.hidden or share.is_home or share.service)]

    def find(self, name: str) -> Share | None:
        """Return the share of this name; case does not matter."""
        return self._server.share_list.get(name.casefold())

    def make(self, config: Config, wanted: ShareConfig, notes: list[str]) -> Share:
        """Make a share that is not served yet. Raises ``ConfigError``."""
        audit = self.audit_of(wanted.audit)
        share = make_share(config, wanted, notes, queues=self._queues)
        share.audit = audit
        share.permissions = self.permissions.get(wanted.name.casefold())
        return share

    def try_make(self, config: Config, wanted: ShareConfig, notes: list[str]) -> Share | None:
        """Make a share, or return None if its folder is not there: the log says so once. Raises ``ConfigError``."""
        try:
            check_folder(wanted.path, wanted.require_mount)
            share = self.make(config, wanted, notes)
        except FolderDownError as error:
            self.take_down(wanted, str(error))
            return None
        self.down.pop(wanted.name, None)
        return share

    def take_down(self, wanted: ShareConfig, why: str) -> None:
        """Note why a share is not served."""
        if self.down.get(wanted.name) != why:
            log.warning("share %s is down: %s; it is served as soon as that changes", wanted.name, why)
        self.down[wanted.name] = why

    def count(self, share: Share) -> int:
        """Return the number of tree connects to a share."""
        return len(self._server.trees_of(share))

    @staticmethod
    def discard(share: Share) -> None:
        """Undo ``make``."""
        if share.snapshots is not None:
            share.snapshots.close()
        if share.backend is not None:
            share.backend.close()

    async def add(self, share: Share) -> None:
        """Serve a share that was made. Raises ``ConfigError``, and then discards it."""
        try:
            if share.service:
                await self._add_to_service(share)
            elif share.rules.continuous_availability:
                await self._stored.serve([share], all_shares=False)
        except (ConfigError, StoreError) as error:
            self._forget(share)
            self.discard(share)
            raise ConfigError(f"share {share.name}: {error}") from error
        self._server.add_share(share)
        self.on_change()

    async def _add_to_service(self, share: Share) -> None:
        if self.cluster is None:
            raise ConfigError(f"service {share.service} needs a cluster, which the server joins at its start")
        await self.cluster.add_share(share)

    def prepare(self, config: Config, wanted: ShareConfig, notes: list[str]) -> Change:
        """Prepare the change of a share that is served. Raises ``ConfigError``."""
        share = self.find(wanted.name)
        if share is None:
            raise ConfigError(f"share {wanted.name}: it is not served")
        audit = self.audit_of(wanted.audit)
        prepared = prepare(share, config, wanted, notes)
        prepared.share.audit = audit
        return Change(share, prepared)

    def change(self, change: Change) -> int:
        """Change a share. End the tree connects that it no longer allows, and return how many."""
        adopt(change.share, change.prepared)
        self.on_change()
        return self.review(change.share)

    def review(self, share: Share) -> int:
        """End the tree connects that a share no longer allows, and return how many. Give the others their rights anew:
        these count for files opened from now on.
        """
        server = self._server
        for shown in self._showing(share):
            follow(shown, share)
            self.review(shown)
        ended = endings.end_trees(server, share, lambda tree: not may_use(tree.session, share, server.accounts))
        for tree in server.trees_of(share):
            tree.maximal_access = maximal_access_of(tree.session, share, server.accounts)
            tree.caller = None
        return ended

    def _showing(self, share: Share) -> list[Share]:
        """Return the shares that show a snapshot of this one."""
        return [shown for shown in self._server.share_list.values() if shown.original is share]

    def remove(self, share: Share) -> int:
        """Stop serving a share: end its tree connects, and return how many. [MS-SMB2 3.3.4.15]"""
        server, backend = self._server, share.backend
        for shown in self._showing(share):
            server.remove_share(shown)
            endings.end_share(server, shown)
            if shown.snapshots is not None:
                shown.snapshots.close()
        server.remove_share(share)
        ended = endings.end_share(server, share)
        self._forget(share)
        if share.snapshots is not None:
            share.snapshots.close()
        self.on_change()
        if backend is not None:
            server.host_changes.leave(backend)
            # Work that was under way may still use the store on a thread.
            queue = share.queue
            close = backend.close if queue is None else lambda: queue.or_now(backend.close)
            server.long_work.after_present(close)
        return ended

    def _forget(self, share: Share) -> None:
        if share.service and self.cluster is not None:
            self.cluster.remove_share(share)
        if self._stored.persistence is not None:
            self._stored.persistence.leave(share)
