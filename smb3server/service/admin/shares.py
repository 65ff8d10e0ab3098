"""Adding, changing and removing shares for administrators while the server runs. (``state.ports.ShareAdministration``)

The shares of the configuration file belong to that file: here they can be given permissions and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from smb3server.access import sddl
from smb3server.access.descriptor import SecurityDescriptor
from smb3server.config.checks import check_folder
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.sources import stored_shares
from smb3server.config.sources.stored_shares import StoredShares, Table
from smb3server.persistence.store import StoreError
from smb3server.process import folder_ways
from smb3server.service.reload import Outcome, Reload
from smb3server.service.running_shares import RunningShares
from smb3server.state.ports import ShareChangeError, ShareProblem
from smb3server.state.share import Share

log = logging.getLogger(__name__)


@contextlib.contextmanager
def _invalid() -> Iterator[None]:
    """Turn a mistake in the options of a share into the error for it."""
    try:
        yield
    except ConfigError as error:
        raise ShareChangeError(ShareProblem.INVALID, str(error)) from error


_Value = TypeVar("_Value")


def put(table: dict[str, _Value], key: str, value: _Value | None) -> None:
    """Set an entry, or remove it."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _resolved(name: str, path: str) -> str:
    """Return the path of a folder without symbolic links, so that nobody can lead it elsewhere later. Raises
    ``ShareChangeError`` for a link that somebody else than root may have made."""
    try:
        way = folder_ways.follow(path)
    except OSError as error:
        raise ShareChangeError(ShareProblem.NO_FOLDER, f"share {name}: {error.filename}: {error.strerror}") from error
    try:
        return way.path()
    finally:
        way.close()


class ShareAdmin:
    """The shares that were added at run time, and the permissions of all shares. It keeps their file, which has the
    links of namespaces, too (``LinkAdmin``)."""

    def __init__(self, reload: Reload, shares: RunningShares) -> None:
        self._reload = reload
        self._shares = shares
        self._path: Path | None = None
        self.stored = StoredShares()
        """What the file has. Invariant: no name is in ``_temporary``, too."""
        self._temporary: dict[str, Table] = {}
        """Shares that are forgotten at the next restart. Without a state directory all are."""
        self.claim: Callable[[str], None] = lambda name: None
        """Raises ``ConfigError`` for a share that this process may not add."""
        self.lock = asyncio.Lock()
        """Held while the configuration is read, or shares change."""
        self._copying: asyncio.Task[None] | None = None
        """Writes what the cluster has set to the file."""

    def load(self, state: Path | None) -> None:
        """Read what earlier runs have stored. Raises ``ConfigError``."""
        if state is not None:
            self._path = state / stored_shares.FILE_NAME
            self.stored = stored_shares.read(self._path)
        self._shares.permissions = self.stored.permissions

    # The configuration with these shares

    def complete(self, config: Config) -> Config:
        """Return ``config`` with the shares of run time.

        Those that cannot be served are noted in it, and stay in the file."""
        given = config.share_names
        present = {share.name.casefold(): share for share in self._reload.config.shares}
        added, notes = [], []
        for key, table in self._tables().items():
            if key in given:
                notes.append(f"share {table['name']}: the configuration file has it, too, and decides about it")
                continue
            try:
                added.append(self._share_of(table, config))
            except ConfigError as error:
                notes.append(f"share added at run time is not served: {error}")
                if key in present:
                    added.append(present[key])
        return replace(config, shares=[*config.shares, *added], notes=[*config.notes, *notes])

    def _tables(self) -> dict[str, Table]:
        return self.stored.tables | self._temporary

    @staticmethod
    def _share_of(table: Table, config: Config) -> ShareConfig:
        return stored_shares.share_of(f"share {table['name']}", table, config)

    # Changes

    async def add(self, name: str, path: str, options: Mapping[str, object], lasting: bool) -> None:
        """Add a share. Raises ``ShareChangeError``."""
        async with self.lock:
            if self._shares.find(name) is not None or name.casefold() in self._tables():
                raise ShareChangeError(ShareProblem.DUPLICATE, f"share {name}: there is one of this name")
            self.check_alone(f"share {name}")
            with _invalid():
                self.claim(name)
            if not os.path.isabs(path):
                raise ShareChangeError(ShareProblem.NO_FOLDER, f"share {name}: {path!r} is not an absolute path")
            if not os.path.isdir(path):
                raise ShareChangeError(ShareProblem.NO_FOLDER, f"share {name}: {path} is not a directory")
            path = _resolved(name, path)
            with _invalid():
                table = stored_shares.from_options(name, path, options)
                wanted = self._share_of(table, self._reload.config)
                check_folder(wanted.path, wanted.require_mount)
            await self._apply(name, table)
            keep = lasting and self._path is not None
            (self.stored.tables if keep else self._temporary)[name.casefold()] = table
            if keep:
                try:
                    await self.store()
                except ShareChangeError:
                    del self.stored.tables[name.casefold()]
                    await self._apply(name, None)
                    raise

    async def change(self, name: str, options: Mapping[str, object | None]) -> None:
        """Change a share that was added at run time. Raises ``ShareChangeError``."""
        async with self.lock:
            tables, before = self._own(name)
            given = {key: value for key, value in options.items() if value is not None}
            with _invalid():
                table = stored_shares.from_options(str(before["name"]), str(before["path"]), given)
            table = {key: value for key, value in (before | table).items() if options.get(key, True) is not None}
            if table == before:
                return
            await self._apply(name, table)
            tables[name.casefold()] = table
            if tables is self.stored.tables:
                try:
                    await self.store()
                except ShareChangeError:
                    tables[name.casefold()] = before
                    await self._apply(name, before)
                    raise

    async def remove(self, name: str) -> None:
        """Remove a share that was added at run time: its tree connects end. Raises ``ShareChangeError``."""
        async with self.lock:
            tables, before = self._own(name)
            del tables[name.casefold()]
            permissions = self.stored.permissions.pop(name.casefold(), None)
            if tables is self.stored.tables or permissions is not None:
                try:
                    await self.store()
                except ShareChangeError:
                    tables[name.casefold()] = before
                    if permissions is not None:
                        self.stored.permissions[name.casefold()] = permissions
                    raise
            await self._apply(name, None)

    async def make_temporary(self, name: str) -> None:
        """Forget a share at the next restart. It stays until then. Raises ``ShareChangeError``."""
        async with self.lock:
            tables, table = self._own(name)
            if tables is self._temporary:
                return
            del tables[name.casefold()]
            try:
                await self.store()
            except ShareChangeError:
                tables[name.casefold()] = table
                raise
            self._temporary[name.casefold()] = table

    async def permit(self, name: str, permissions: SecurityDescriptor | None) -> None:
        """Set who may do what in a share, whoever added it. Raises ``ShareChangeError``."""
        async with self.lock:
            share = self._shares.find(name)
            if share is None or share.backend is None:
                raise ShareChangeError(ShareProblem.UNKNOWN, f"share {name}: there is none of this name")
            if permissions is not None:
                try:
                    # As it will be read at the next start.
                    permissions = sddl.parse(sddl.show(permissions))
                except ValueError as error:
                    raise ShareChangeError(ShareProblem.INVALID, f"share {name}: permissions: {error}") from error
            if share.service and self._shares.cluster is not None:
                try:
                    await self._shares.cluster.permit(share, permissions)
                except StoreError as error:
                    raise ShareChangeError(
                        ShareProblem.NOT_STORED,
                        f"share {share.name}: its permissions are the cluster's: {error}; remedy: smb3server cluster "
                        "status says what is wrong; then set them again",
                    ) from error
                return
            stored, key = self.stored.permissions, name.casefold()
            before = stored.get(key)
            put(stored, key, permissions)
            try:
                await self.store()
            except ShareChangeError:
                put(stored, key, before)
                raise
            self._use(share, permissions)

    def _use(self, share: Share, permissions: SecurityDescriptor | None) -> None:
        share.permissions = permissions
        ended = self._shares.review(share)
        log.info("share %s: permissions changed, %d tree connects ended", share.name, ended)

    def adopt(self, share: Share, permissions: SecurityDescriptor | None) -> None:
        """Use the permissions that the cluster has for a service's share, and keep a copy in the file.

        The copy counts when etcd has lost them."""
        put(self.stored.permissions, share.name.casefold(), permissions)
        self._use(share, permissions)
        if self._copying is None or self._copying.done():
            self._copying = asyncio.ensure_future(self._copy())

    async def _copy(self) -> None:
        async with self.lock:
            try:
                await self.store()
            except ShareChangeError as error:
                log.warning("permissions of services' shares are not copied to this node's state directory: %s", error)

    def check_alone(self, what: str) -> None:
        """Raise ``ShareChangeError`` on a node of a cluster: the others would not have what is added here."""
        if self._shares.cluster is not None:
            raise ShareChangeError(
                ShareProblem.FIXED,
                f"{what}: this server is a node of a cluster, and the other nodes would not have it; remedy: add it to "
                "the configuration file of every node, then `smb3server reload` at each",
            )

    def allows_folder(self, path: str) -> bool:
        """Return whether administrators may share this directory from afar."""
        config = self._reload.config
        own = self._tables()
        folders = config.settings.share_folders or [
            str(share.path) for share in config.shares if share.name.casefold() not in own
        ]
        place = Path(os.path.realpath(path))
        return any(place.is_relative_to(os.path.realpath(folder)) for folder in folders)

    def _own(self, name: str) -> tuple[dict[str, Table], Table]:
        """Return the table of a share that was added at run time, and what it is in. Raises ``ShareChangeError``."""
        for tables in (self._temporary, self.stored.tables):
            if name.casefold() in tables:
                return tables, tables[name.casefold()]
        if self._shares.find(name) is None:
            raise ShareChangeError(ShareProblem.UNKNOWN, f"share {name}: there is none of this name")
        raise ShareChangeError(
            ShareProblem.FIXED,
            f"share {name}: the configuration file or the command line has it; remedy: change it there, then "
            "`smb3server reload`",
        )

    async def _apply(self, name: str, table: Table | None) -> Outcome:
        """Serve a share as a table says, or no longer. Raises ``ShareChangeError``, and then changes nothing."""
        config = self._reload.config
        shares = [share for share in config.shares if share.name.casefold() != name.casefold()]
        with _invalid():
            if table is not None:
                shares.append(self._share_of(table, config))
            outcome = await self._reload.apply(replace(config, shares=shares, notes=[]))
        outcome.write_log()
        if table is not None and self._shares.find(name) is None and str(table["name"]) not in self._shares.down:
            raise ShareChangeError(ShareProblem.NOT_STORED, "; ".join(outcome.notes))
        return outcome

    async def store(self) -> bool:
        """Write the file. Return whether there is one. Raises ``ShareChangeError``."""
        if self._path is None:
            return False
        try:
            await asyncio.to_thread(stored_shares.write, self._path, self.stored)
        except OSError as error:
            raise ShareChangeError(ShareProblem.NOT_STORED, f"{self._path}: {error.strerror}") from error
        return True

    # Reports

    def _origin(self, key: str) -> str:
        if key in self.stored.tables:
            return "run time"
        return "until restart" if key in self._temporary else "configuration"

    def report(self) -> list[dict[str, Any]]:
        """Return all shares of files, for the operator."""
        found = []
        for config in self._reload.config.shares:
            share, key = self._shares.find(config.name), config.name.casefold()
            permissions = self.stored.permissions.get(key)
            found.append(
                {
                    "name": config.name,
                    "path": str(config.path),
                    "remark": config.comment,
                    "origin": self._origin(key),
                    "options": {k: v for k, v in self._tables().get(key, {}).items() if k not in ("name", "path")},
                    "permissions": sddl.show(permissions) if permissions is not None else "",
                    "tree_connects": self._shares.count(share) if share is not None else 0,
                    "served": share is not None,
                }
            )
        return found
