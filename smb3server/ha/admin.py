"""``smb3server cluster``: look at a cluster and steer it, through its store; on any machine that reaches it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from smb3server.ha.cluster import DEFAULT_NAME, View, coordination_prefix, read_view
from smb3server.ha.store import Delete, Put, Store, StoreError
from smb3server.ha.store_url import parse_url

EXIT_FAILED, EXIT_USAGE = 1, 2
_EVENT_LIFE = 30.0
_POLL = 0.2


class AdminError(Exception):
    """Says why it cannot be done."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="smb3server cluster", description="Look at a cluster and steer it.")
    parser.add_argument("--cluster", metavar="etcd://HOST:PORT,...", help="the cluster's store")
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="take [cluster] from a node's configuration")
    parser.add_argument("--name", help=f"the cluster's name (default: {DEFAULT_NAME})")
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="nodes, services and where they are")
    status.add_argument("--json", action="store_true", help="for programs")
    drain = commands.add_parser("drain", help="move everything off a node, and keep it free")
    drain.add_argument("node")
    drain.add_argument("--undo", action="store_true", help="the node may have services again")
    drain.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS")
    move = commands.add_parser("move", help="move a service to a node")
    move.add_argument("service")
    move.add_argument("node")
    move.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS")
    client = commands.add_parser("move-client", help="ask a client, by Witness, to connect to a node")
    client.add_argument("client")
    client.add_argument("node")
    return parser


def describe(view: View) -> dict[str, object]:
    services = sorted({*view.owners, *view.targets})
    return {
        "nodes": [
            {"name": node, "draining": node in view.draining, "addresses": info.get("addresses", [])}
            for node, info in sorted(view.nodes.items())
        ],
        "services": [
            {"name": name, "node": view.owners.get(name), "target": view.targets.get(name)} for name in services
        ],
    }


def _print(view: View) -> None:
    for node, info in sorted(view.nodes.items()):
        draining = "  draining" if node in view.draining else ""
        print(f"node {node:16} {', '.join(info.get('addresses', ()))}{draining}")
    for name in sorted({*view.owners, *view.targets}):
        print(f"service {name:13} {view.owners.get(name) or '(nobody)'}")


async def drain(store: Store, prefix: str, node: str, undo: bool, timeout: float) -> None:
    """Raises ``AdminError``, ``StoreError``."""
    key = f"{prefix}draining/{node}"
    if undo:
        await store.commit([Delete(key)])
        return
    view = await read_view(store, prefix)
    if node not in view.nodes:
        raise AdminError(f"there is no node {node}")
    await store.commit([Put(key, b"{}")])
    deadline = time.monotonic() + timeout
    while node in (view := await read_view(store, prefix)).owners.values():
        if time.monotonic() > deadline:
            left = [name for name, owner in view.owners.items() if owner == node]
            raise AdminError(f"after {timeout:g} s {node} still has {', '.join(left)}")
        await asyncio.sleep(_POLL)


async def move(store: Store, prefix: str, service: str, node: str, timeout: float) -> None:
    view = await read_view(store, prefix)
    if node not in view.nodes:
        raise AdminError(f"there is no node {node}")
    if service not in view.owners:
        raise AdminError(f"there is no service {service}")
    await store.commit([Put(f"{prefix}services/{service}/target", json.dumps({"node": node}).encode())])
    deadline = time.monotonic() + timeout
    while (await read_view(store, prefix)).owners.get(service) != node:
        if time.monotonic() > deadline:
            raise AdminError(f"after {timeout:g} s {service} is not on {node}; it stays wanted there")
        await asyncio.sleep(_POLL)


async def move_client(store: Store, prefix: str, client: str, node: str) -> None:
    if node not in (await read_view(store, prefix)).nodes:
        raise AdminError(f"there is no node {node}")
    event = {"kind": "move-client", "client": client, "node": node}
    lease = await store.grant(_EVENT_LIFE)
    await store.commit([Put(f"{prefix}events/admin-{time.time_ns()}", json.dumps(event).encode(), lease)])


async def _run(options: argparse.Namespace, url: str, name: str) -> None:
    from smb3server.ha.etcd_store import EtcdStore

    store = EtcdStore(parse_url(url))
    prefix = coordination_prefix(name)
    try:
        if options.command == "status":
            view = await read_view(store, prefix)
            if options.json:
                print(json.dumps(describe(view)))
            else:
                _print(view)
        elif options.command == "drain":
            await drain(store, prefix, options.node, options.undo, options.timeout)
        elif options.command == "move":
            await move(store, prefix, options.service, options.node, options.timeout)
        else:
            await move_client(store, prefix, options.client, options.node)
    finally:
        await store.close()


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    url, name = options.cluster, options.name
    try:
        if options.config is not None:
            from smb3server.config import ConfigError, parse_arguments

            try:
                config = parse_arguments(["--config", str(options.config)]).cluster
            except ConfigError as error:
                raise AdminError(str(error)) from error
            url, name = url or config.url, name or config.name
        if not url:
            raise AdminError("which cluster? --cluster or --config")
        asyncio.run(_run(options, url, name or DEFAULT_NAME))
    except ValueError as error:
        print(f"smb3server cluster: {error}", file=sys.stderr)
        return EXIT_USAGE
    except (AdminError, StoreError) as error:
        print(f"smb3server cluster: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0
