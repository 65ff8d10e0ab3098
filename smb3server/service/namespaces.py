"""The namespaces of a running server: serving them, and changing their links while clients are connected."""

from __future__ import annotations

from collections.abc import Iterable

from smb3server.config.model import NamespaceConfig
from smb3server.config.sections import keys_of
from smb3server.dfs.store import NamespaceStore
from smb3server.server.server import Server
from smb3server.service.running_shares import RunningShares
from smb3server.settings.share import ConnectionRules, ShareRules
from smb3server.state.share import Share, ShareCapabilities, ShareFlags
from smb3server.wire.change_notify import Action, NotifyFilter


class RunningNamespaces:
    """The namespaces of one server, each with its share."""

    def __init__(self, server: Server, shares: RunningShares) -> None:
        self._server = server
        self._shares = shares
        self._configured: dict[str, NamespaceConfig] = {}
        """Those of the configuration, by case-folded name. A program's own are not among them."""

    def leave(self, wanted: Iterable[NamespaceConfig]) -> list[str]:
        """Stop serving those of the configuration that are no longer ``wanted``. Return what was done, in words."""
        kept = {entry.name.casefold() for entry in wanted}
        changes = []
        for key in self._configured.keys() - kept:
            gone = self._configured.pop(key)
            share = self._shares.find(gone.name)
            if share is not None and share.namespace is not None:
                self._shares.remove(share)
            changes.append(f"namespace {gone.name}: removed")
        return changes

    def drop(self, name: str) -> None:
        """Stop serving one of the configuration."""
        self.leave(entry for entry in self._configured.values() if entry.name.casefold() != name.casefold())

    def serve(self, wanted: Iterable[NamespaceConfig]) -> list[str]:
        """Serve the namespaces of the configuration. Return what was changed, in words."""
        changes = []
        for entry in wanted:
            before = self._configured.get(entry.name.casefold())
            if before == entry:
                continue
            self.add(entry)
            self._configured[entry.name.casefold()] = entry
            changes.append(f"namespace {entry.name}: {'added' if before is None else 'changed'}")
        return changes

    def add(self, wanted: NamespaceConfig) -> None:
        """Serve a namespace, or change the one of this name. Tree connects end that it no longer allows."""
        share = self._shares.find(wanted.name)
        if share is None or share.namespace is None:
            share = Share(
                wanted.name,
                backend=NamespaceStore(wanted.namespace),
                flags=int(ShareFlags.DFS | ShareFlags.DFS_ROOT),
                capabilities=int(ShareCapabilities.DFS),
                read_only=True,
            )
            share.permissions = self._shares.permissions.get(wanted.name.casefold())
            _set(share, wanted)
            self._server.add_share(share)
            return
        _set(share, wanted)
        if isinstance(share.backend, NamespaceStore):
            for path, came in share.backend.use(wanted.namespace):
                action = Action.ADDED if came else Action.REMOVED
                share.notify.report(path, action, NotifyFilter.DIR_NAME)
                self._server.file_table.entry_changed(share.backend, path, None)
        self._shares.review(share)


def _set(share: Share, wanted: NamespaceConfig) -> None:
    share.namespace = wanted.namespace
    share.rules = ShareRules(read_only=True, **{key: getattr(wanted, key) for key in keys_of(ConnectionRules)})
    share.users, share.hosts = wanted.users, wanted.hosts
    share.hidden = wanted.hidden or wanted.name.endswith("$")
