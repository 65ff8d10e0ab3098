"""Adding, changing and removing links of namespaces while the server runs.

The links of the configuration file belong to that file. Those of run time are kept in ``shares.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from smb3server.config.error import ConfigError
from smb3server.config.model import Config, NamespaceConfig
from smb3server.config.sources import stored_shares
from smb3server.config.sources.stored_shares import Table
from smb3server.dfs.namespace import Link
from smb3server.service.admin.shares import ShareAdmin, put
from smb3server.service.reload import Reload
from smb3server.state.ports import ShareChangeError, ShareProblem


def _key(namespace: str, path: str) -> str:
    parts = (part for part in path.replace("\\", "/").split("/") if part)
    return "/".join((namespace, *parts)).casefold()


class LinkAdmin:
    """The links that were added at run time."""

    def __init__(self, reload: Reload, shares: ShareAdmin) -> None:
        """``shares`` keeps the file, and the lock that is held while anything changes."""
        self._reload = reload
        self._shares = shares

    def complete(self, config: Config) -> Config:
        """Return ``config`` with the links of run time. Those that cannot be served are noted, and stay in the file."""
        links, notes = self._shares.stored.links, []
        namespaces = {entry.name.casefold(): entry for entry in config.namespaces}
        for table in links.values():
            where = f"link {table['namespace']}/{table['path']}, added at run time,"
            entry = namespaces.get(str(table["namespace"]).casefold())
            if entry is None:
                notes.append(f"{where} is not served: there is no namespace {table['namespace']}")
                continue
            try:
                namespaces[entry.name.casefold()] = _with(entry, stored_shares.link_of(where, table))
            except ConfigError as error:
                notes.append(f"{where} is not served: {error}")
        return replace(config, namespaces=list(namespaces.values()), notes=[*config.notes, *notes])

    async def add(self, namespace: str, path: str, options: Mapping[str, object]) -> bool:
        """Add a link. Return whether it outlives a restart. Raises ``ShareChangeError``."""
        async with self._shares.lock:
            entry = self._namespace(namespace)
            key = _key(namespace, path)
            if any(_key(namespace, link.name) == key for link in entry.namespace.links):
                raise ShareChangeError(ShareProblem.DUPLICATE, f"link {namespace}/{path}: there is one of this name")
            self._shares.check_alone(f"link {namespace}/{path}")
            table = _table(entry.name, path, options)
            return await self._change(key, table)

    async def change(self, namespace: str, path: str, options: Mapping[str, object | None]) -> None:
        """Change a link that was added at run time. None gives a setting its default. Raises ``ShareChangeError``."""
        async with self._shares.lock:
            key, before = self._own(namespace, path)
            given = {key: value for key, value in options.items() if value is not None}
            table = before | _table(str(before["namespace"]), str(before["path"]), given)
            await self._change(
                key, {name: value for name, value in table.items() if options.get(name, True) is not None}
            )

    async def remove(self, namespace: str, path: str) -> None:
        """Remove a link that was added at run time. What its targets have stays. Raises ``ShareChangeError``."""
        async with self._shares.lock:
            await self._change(self._own(namespace, path)[0], None)

    async def _change(self, key: str, table: Table | None) -> bool:
        """Store a link, or remove it, and serve it so. Raises ``ShareChangeError``, and then changes nothing."""
        stored, config = self._shares.stored.links, self._reload.config
        before = stored.get(key)
        bare = list(config.namespaces)
        try:
            if before is not None:
                # The configuration file may have a link of this name by now. That one stays.
                gone = stored_shares.link_of(f"link {key}", before)
                bare = [_without(entry, key, gone) for entry in bare]
            if table is not None:
                name = str(table["namespace"])
                link = stored_shares.link_of(f"link {name}/{table['path']}", table)
                bare = [_with(entry, link) if entry.name.casefold() == name.casefold() else entry for entry in bare]
        except ConfigError as error:
            raise ShareChangeError(ShareProblem.INVALID, str(error)) from error
        put(stored, key, table)
        try:
            lasting = await self._shares.store()
            outcome = await self._reload.apply(replace(config, namespaces=bare, notes=[]))
        except (ShareChangeError, ConfigError) as error:
            put(stored, key, before)
            if isinstance(error, ConfigError):
                await self._shares.store()
                raise ShareChangeError(ShareProblem.INVALID, str(error)) from error
            raise
        outcome.write_log()
        return lasting

    def _namespace(self, name: str) -> NamespaceConfig:
        for entry in self._reload.config.namespaces:
            if entry.name.casefold() == name.casefold():
                return entry
        raise ShareChangeError(
            ShareProblem.UNKNOWN,
            f"namespace {name}: there is none of this name; remedy: a section [[namespace]] in the configuration file",
        )

    def _own(self, namespace: str, path: str) -> tuple[str, Table]:
        """Return a link that was added at run time. Raises ``ShareChangeError``."""
        entry, key = self._namespace(namespace), _key(namespace, path)
        table = self._shares.stored.links.get(key)
        if table is not None:
            return key, table
        if any(_key(namespace, link.name) == key for link in entry.namespace.links):
            raise ShareChangeError(
                ShareProblem.FIXED,
                f"link {namespace}/{path}: the configuration file has it; remedy: change it there, then "
                "`smb3server reload`",
            )
        raise ShareChangeError(ShareProblem.UNKNOWN, f"link {namespace}/{path}: there is none of this name")

    def report(self) -> list[dict[str, Any]]:
        """Return all namespaces of the configuration with their links, for the operator."""
        stored = self._shares.stored.links
        return [
            {
                "name": entry.name,
                "ttl": entry.namespace.ttl,
                "failback": entry.namespace.failback,
                "links": [
                    {
                        "path": link.name,
                        "targets": list(map(str, link.targets)),
                        "comment": link.comment,
                        "ttl": entry.namespace.ttl if link.ttl is None else link.ttl,
                        "failback": entry.namespace.failback or bool(link.failback),
                        "origin": "run time" if _key(entry.name, link.name) in stored else "configuration",
                    }
                    for link in entry.namespace.links
                ],
            }
            for entry in self._reload.config.namespaces
        ]


def _table(namespace: str, path: str, options: Mapping[str, object]) -> Table:
    """Make the table of a link. Raises ``ShareChangeError`` for values of other types."""
    try:
        found = stored_shares.from_options(namespace, path, options)
    except ConfigError as error:
        raise ShareChangeError(ShareProblem.INVALID, str(error)) from error
    return {("namespace" if key == "name" else key): value for key, value in found.items()}


def _with(entry: NamespaceConfig, link: Link) -> NamespaceConfig:
    """Return a namespace with one more link. Raises ``ConfigError``."""
    try:
        namespace = entry.namespace.with_links([*entry.namespace.links, link])
    except ValueError as error:
        raise ConfigError(f"namespace {entry.name}: {error}") from error
    return msgspec.structs.replace(entry, namespace=namespace)


def _without(entry: NamespaceConfig, key: str, gone: Link) -> NamespaceConfig:
    """Return a namespace without a link."""
    left = [link for link in entry.namespace.links if link != gone or _key(entry.name, link.name) != key]
    return msgspec.structs.replace(entry, namespace=entry.namespace.with_links(left))
