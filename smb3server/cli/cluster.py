"""``smb3server cluster``: inspect and control a cluster through its store, from any machine that reaches it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import math
import os
import secrets
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from smb3server.cli.cluster_status import describe, show
from smb3server.cluster.freshness import stamped
from smb3server.cluster.view import View, answers_prefix, coordination_prefix, read_view
from smb3server.config.error import ConfigError
from smb3server.config.reader import read_cluster
from smb3server.persistence.seal import new_secret
from smb3server.persistence.sealed_store import SealedStore
from smb3server.persistence.store import Condition, ConditionFailed, Delete, LeaseLost, Put, StoreError
from smb3server.settings.cluster import DEFAULT_NAME, StoreAccess

EXIT_FAILED, EXIT_USAGE = 1, 2
_EVENT_LIFE = 30.0
_POLL = 0.2
_ANSWER_POLL = 0.02
_ANSWER_TIMEOUT = 1.5
"""Seconds that a node has to answer."""


class AdminError(Exception):
    """Says why the command cannot be carried out."""


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError(text)
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smb3server cluster",
        description="Inspect and control a cluster, from any machine that reaches its etcd.",
        epilog="Exit status: 0, 1 if it cannot be done (etcd does not answer, no such node or service, timeout), "
        "2 for wrong usage.",
    )

    def store_options(to: argparse.ArgumentParser, **keywords: Any) -> None:
        to.add_argument("--cluster", metavar="etcds://HOST:PORT,...", help="the cluster's store", **keywords)
        to.add_argument(
            "--config", type=Path, metavar="FILE.toml", help="take [cluster] from a node's configuration", **keywords
        )
        to.add_argument("--name", help=f"the cluster's name (default: {DEFAULT_NAME})", **keywords)
        to.add_argument("--ca", type=Path, metavar="FILE", help="authority that signed etcd's certificate", **keywords)
        to.add_argument("--cert", type=Path, metavar="FILE", help="certificate to show to etcd", **keywords)
        to.add_argument("--key", type=Path, metavar="FILE", help="its key", **keywords)
        to.add_argument("--user", help="of etcd", **keywords)
        to.add_argument("--password-file", type=Path, metavar="FILE", help="with the user's password", **keywords)
        to.add_argument("--secret-file", type=Path, metavar="FILE", help="the cluster's secret", **keywords)

    store_options(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, more: str = "") -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}. {more}".strip())
        # Options are also accepted after the command; those before it apply if the command has none.
        store_options(added, default=argparse.SUPPRESS)
        return added

    status = command("status", "show nodes and services: which node serves what, since when, and to how many clients")
    status.add_argument("--json", action="store_true", help="for programs")
    status.add_argument("--quick", action="store_true", help="do not ask the nodes: only what the store knows")
    drain = command(
        "drain",
        "move all services off a node, and let none move back",
        "Witness notifies clients first, then services move to the next node of their order.",
    )
    drain.add_argument("node", metavar="NODE")
    drain.add_argument(
        "--undo", action="store_true", help="allow services on the node again (none moves back by itself)"
    )
    move = command("move", "move a service to a node", "Witness notifies clients first.")
    move.add_argument("service", metavar="SERVICE")
    move.add_argument("node", metavar="NODE")
    for waiting in (drain, move):
        waiting.add_argument(
            "--timeout", type=_seconds, default=30.0, metavar="SECONDS", help="how long to wait (default: 30)"
        )
    client = command(
        "move-client",
        "ask a client, by Witness, to connect to a node",
        "It is sent to the addresses at which the node serves what the client registered for.",
    )
    client.add_argument("client", metavar="CLIENT", help="ClientComputerName of its registrations")
    client.add_argument("node", metavar="NODE")
    command(
        "purge",
        "remove records that are not sealed with the cluster's secret",
        "Such records are ignored, but block valid ones. Records older than the secret are removed, too.",
    )
    secret = commands.add_parser(
        "secret", help="make a secret for a cluster", description="Make a secret for a cluster, in a new file."
    )
    secret.add_argument("file", type=Path, metavar="FILE", help="new; copy it to all nodes, mode 600")
    return parser


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

    def __init__(self, store: SealedStore, name: str) -> None:
        self.store = store
        self.name = name
        self.prefix = coordination_prefix(name)
        self._answers = answers_prefix(name)

    async def view(self) -> View:
        """Return the current state of the cluster, as its records describe it."""
        return await read_view(self.store, self.prefix)

    async def status(self, quick: bool) -> dict[str, Any]:
        """Return the status as plain data. With ``quick``, do not ask the nodes."""
        view = await self.view()
        left: dict[str, float | None] = {}
        for node, info in view.nodes.items():
            left[node] = None
            with contextlib.suppress(LeaseLost):
                left[node] = await self.store.time_left(int(info.get("lease", 0)))
        reports = None if quick else await self._ask({"kind": "report"}, view.nodes)
        for report in (reports or {}).values():
            await self._look_at(report.get("refused"))
        return describe(view, left, reports, time.time(), self.store.refused)

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
                raise AdminError(f"after {timeout:g} s {node} still has {', '.join(sorted(left))}; it stays draining")
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
                raise AdminError(f"after {timeout:g} s {service} is not on {node}; the cluster keeps trying")
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


async def _run(options: argparse.Namespace, url: str, name: str, access: StoreAccess) -> None:
    # Needs aiohttp, which is an extra; ``make_secret`` does not.
    from smb3server.persistence.cluster_store import open_store

    store = open_store(url, name, access)
    admin = Admin(store, name)
    try:
        if options.command == "status":
            status = await admin.status(options.quick)
            print(json.dumps(status)) if options.json else show(status)
            return
        if options.command == "drain" and options.undo:
            said = await admin.undo_drain(options.node)
        elif options.command == "drain":
            said = await admin.drain(options.node, options.timeout)
        elif options.command == "purge":
            said = await admin.purge()
        elif options.command == "move":
            said = await admin.move(options.service, options.node, options.timeout)
        else:
            said = await admin.move_client(options.client, options.node)
        print(said)
    finally:
        await store.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status, as ``--help`` describes."""
    options = _parser().parse_args(arguments)
    # Refused records are part of the output, so that they need no log lines.
    logging.getLogger("smb3server").addHandler(logging.NullHandler())
    url, name, access = options.cluster, options.name, StoreAccess()
    try:
        if options.command == "secret":
            make_secret(options.file)
            return 0
        if options.config is not None:
            try:
                known = read_cluster(options.config)
            except ConfigError as error:
                raise AdminError(str(error)) from error
            url, name, access = url or known.url, name or known.name, known.access
        for key in ("ca", "cert", "key", "user", "password_file", "secret_file"):
            setattr(access, key, getattr(options, key) or getattr(access, key))
        if not url:
            print(
                "smb3server cluster: no cluster given: use --cluster etcds://HOST:PORT,... or --config", file=sys.stderr
            )
            return EXIT_USAGE
        asyncio.run(_run(options, url, name or DEFAULT_NAME, access))
    except ImportError as error:
        print(f"smb3server cluster: needs {error.name}: install smb3server[cluster]", file=sys.stderr)
        return EXIT_FAILED
    except ValueError as error:
        print(f"smb3server cluster: {error}", file=sys.stderr)
        return EXIT_USAGE
    except (AdminError, StoreError) as error:
        print(f"smb3server cluster: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0
