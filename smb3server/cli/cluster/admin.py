"""The administrator's operations on a cluster, through its store, from any machine that reaches it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from smb3server.cli.cluster.status import describe
from smb3server.cluster.view import View, answers_prefix, coordination_prefix, decode, read_view, stamped
from smb3server.net.store_access import StoreAccess
from smb3server.persistence.etcd_health import problems
from smb3server.persistence.seal import new_secret
from smb3server.persistence.store import Condition, ConditionFailed, Delete, LeaseLost, Put, StoreError

if TYPE_CHECKING:
    from smb3server.persistence.etcd import ClusterStore

_EVENT_LIFE = 30.0
_POLL = 0.2
_ANSWER_POLL = 0.02
_ANSWER_TIMEOUT = 1.5
"""Seconds that a node has to answer."""


_Result = TypeVar("_Result")


class AdminError(Exception):
    """Says why the command cannot be carried out."""


def make_secret(path: Path) -> None:
    """Write a new secret into a new file of mode 600.

    Raises ``AdminError``; an existing file is not changed.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w") as file:
            file.write(f"{new_secret()}\n")
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise AdminError(f"{path}: {error.strerror}") from error


class Admin:
    """The administrator's operations on a cluster. Methods raise ``AdminError`` and ``StoreError``."""

    def __init__(self, store: ClusterStore, name: str) -> None:
        self.store = store
        self.name = name
        self.prefix = coordination_prefix(name)
        self._answers = answers_prefix(name)

    async def view(self) -> View:
        """Return the current state of the cluster, as its records describe it."""
        return await read_view(self.store, self.prefix)

    async def status(self, quick: bool) -> dict[str, Any]:
        """Return the status as plain data. With ``quick``, do not ask the nodes.

        ``unknown`` says what could not be found out, and why. ``stale``: etcd has no leader, and this is what a member
        had last."""
        members = await self.store.etcd.members_state()
        stale = self.store.etcd.stale = any(not member.error for member in members) and not any(
            member.has_leader for member in members
        )
        unknown: list[str] = []
        try:
            view = await self.view()
        except StoreError as error:
            if not stale:
                raise
            view = View(self.prefix)
            unknown.append(f"nodes and services: {error}")
        left: dict[str, float | None] = {}
        for node, info in view.nodes.items():
            left[node] = None
            if not stale:
                with contextlib.suppress(LeaseLost):
                    left[node] = await self.store.time_left(int(info.get("lease", 0)))
        reports = None
        if not quick and not stale:
            try:
                reports = await self._ask({"kind": "report"}, view.nodes)
            except StoreError as error:
                unknown.append(f"what the nodes say: {error}")
        for report in (reports or {}).values():
            await self._look_at(report.get("refused"))
        return {
            **describe(view, left, reports, time.time(), self.store.refused),
            "stale": stale,
            "unknown": unknown,
            "etcd": [member.as_json() for member in members],
            "problems": [problem._asdict() for problem in problems(members)],
        }

    async def _why(self) -> str:
        """Return what is wrong with etcd, as the end of an error; empty if nothing is."""
        found = problems(await self.store.etcd.members_state())
        return "".join(f"; {problem.text}" for problem in found if problem.is_error)

    async def _look_at(self, keys: object) -> None:
        """Check the records that a node refused at some time: those that still exist are then refused here, too."""
        for key in keys if isinstance(keys, list) else ():
            if isinstance(key, str) and key.startswith(f"{self.name}/"):
                await self.store.get(key)

    async def _ask(self, event: dict[str, Any], nodes: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the nodes' answers by node, without nodes that do not answer in time."""
        if not nodes:
            return {}
        lease = await self.store.grant(_EVENT_LIFE)
        try:
            number = secrets.token_hex(8)
            answer = f"{self._answers}{number}"
            version = await self.store.version(self.prefix)
            told = json.dumps(stamped({**event, "answer": answer, "lease": lease}, version)).encode()
            await self.store.commit([Put(f"{self.prefix}events/admin-{number}", told, lease)])
            deadline = time.monotonic() + _ANSWER_TIMEOUT
            while True:
                found = await self.store.scan(answer + "/")
                if len(found) >= len(nodes) or time.monotonic() > deadline:
                    return {entry.key.rpartition("/")[2]: json.loads(entry.value) for entry in found}
                await asyncio.sleep(_ANSWER_POLL)
        finally:
            await self.store.revoke(lease)

    def _known(self, view: View, node: str) -> None:
        if node not in view.nodes:
            up = ", ".join(sorted(view.nodes)) or "none"
            refused = self.store.refused.get(f"{self.prefix}nodes/{node}")
            why = f"; its record is refused: {refused}" if refused else ""
            raise AdminError(f"there is no node {node} that is up (up: {up}){why}")

    async def purge(self) -> str:
        """Remove the records without a valid seal, and return which."""
        if not self.store.sealed:
            raise AdminError("cannot recognize the cluster's records: give --secret-file, or --config with secret_file")
        gone = await self.store.purge(f"{self.name}/")
        return "\n".join([*(f"removed {key!r}" for key in gone), f"{len(gone)} records removed"])

    async def drain(self, node: str, timeout: float) -> str:
        """Move all services off a node and wait up to ``timeout`` seconds; return a sentence with the result."""
        view = await self.view()
        self._known(view, node)
        moved = sorted(service for service, owner in view.owners.items() if owner == node)
        await self.store.commit([Put(f"{self.prefix}draining/{node}", b"{}")])
        if moved and not [other for other in view.nodes if other != node and other not in view.draining]:
            raise AdminError(f"{node} is marked as draining, but no other node is up to take {', '.join(moved)}")
        deadline = time.monotonic() + timeout
        while left := [name for name, owner in (await self.view()).owners.items() if owner == node]:
            if time.monotonic() > deadline:
                raise AdminError(
                    f"after {timeout:g} s {node} still has {', '.join(sorted(left))}; it stays draining"
                    + await self._why()
                )
            await asyncio.sleep(_POLL)
        return f"{node} serves nothing until drain --undo; moved: {', '.join(moved) or 'nothing'}"

    async def undo_drain(self, node: str) -> str:
        """Allow services on a drained node again; return a sentence with the result."""
        view = await self.view()
        if node not in view.draining:
            self._known(view, node)
            return f"{node} was not draining"
        await self.store.commit([Delete(f"{self.prefix}draining/{node}")])
        return f"{node} may serve again"

    async def fenced(self, node: str) -> str:
        """Note that a node is fenced, by the word of the administrator; return a sentence with the result."""
        view = await self.view()
        services = sorted(name for name, last in view.last.items() if last == node)
        if not services:
            raise AdminError(f"no service waits for node {node} to be fenced")
        if node in view.nodes:
            raise AdminError(f"node {node} is up: stop its server, or cut it off from the storage, first")
        for service in services:
            key = f"{self.prefix}services/{service}/last"
            entry = await self.store.get(key)
            if entry is None or decode(entry.value).get("node") != node:
                continue
            with contextlib.suppress(ConditionFailed):
                await self.store.commit([Delete(key)], [Condition(key, entry.version)])
        return f"{node} counts as fenced: other nodes may take {', '.join(services)}"

    async def move(self, service: str, node: str, timeout: float) -> str:
        """Move a service and wait up to ``timeout`` seconds; return a sentence with the result."""
        view = await self.view()
        self._known(view, node)
        if service not in view.services():
            raise AdminError(
                f"there is no service {service} (there are: {', '.join(sorted(view.services())) or 'none'})"
            )
        if node in view.draining:
            raise AdminError(f"{node} is draining: drain --undo {node} first")
        target = f"{self.prefix}services/{service}/target"
        wished = await self.store.commit([Put(target, json.dumps({"node": node}).encode())])
        deadline = time.monotonic() + timeout
        while (await self.view()).served_by(service) != node:
            if time.monotonic() > deadline:
                raise AdminError(
                    f"after {timeout:g} s {service} is not on {node}; the cluster keeps trying" + await self._why()
                )
            await asyncio.sleep(_POLL)
        # The move is done. If the record stayed, the service would return here after every failure of this node.
        with contextlib.suppress(ConditionFailed):
            await self.store.commit([Delete(target)], [Condition(target, wished)])
        return f"{service} is on {node}"

    async def move_client(self, client: str, node: str) -> str:
        """Notify a client by Witness that it should use ``node``; return a sentence with the result."""
        view = await self.view()
        self._known(view, node)
        if not [service for service in view.serving if view.served_by(service) == node]:
            raise AdminError(f"{node} serves nothing: a client would find no share there; move a service first")
        answers = await self._ask({"kind": "move-client", "client": client, "node": node}, view.nodes)
        told = sum(int(answer.get("told", 0)) for answer in answers.values())
        silent = sorted(view.nodes.keys() - answers.keys())
        if not told:
            doubt = f" (no answer from {', '.join(silent)})" if silent else ""
            raise AdminError(
                f"no client was notified: no client {client} is registered with a Witness for what {node} serves{doubt}"
            )
        return f"{told} {'registration' if told == 1 else 'registrations'} of {client} notified"


async def administer(
    url: str, name: str, access: StoreAccess, operation: Callable[[Admin], Awaitable[_Result]]
) -> _Result:
    """Carry out one operation on the cluster and return its result.

    Raises ``AdminError``, ``StoreError`` and ``ValueError``; ``ImportError`` without the extra "cluster".
    """
    # Needs aiohttp, which is an extra; ``make_secret`` does not.
    from smb3server.persistence.etcd import open_store

    store = open_store(url, name, access)
    try:
        return await operation(Admin(store, name))
    finally:
        await store.close()
