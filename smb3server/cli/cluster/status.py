"""``smb3server cluster status``: the state of a cluster, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smb3server.cli.status.tables import duration
from smb3server.cluster.view import View


def describe(
    view: View,
    time_left: Mapping[str, float | None],
    reports: Mapping[str, Mapping[str, Any]] | None,
    now: float,
    refused: Mapping[str, str],
) -> dict[str, Any]:
    """Return the state of a cluster as plain data.

    ``time_left`` holds the seconds left of each node's lease. ``reports`` holds the nodes' answers; None means that
    they were not asked. ``now`` is Unix time. ``refused`` holds records without a valid seal, and the reasons.
    """
    nodes = [
        {
            "name": node,
            "draining": node in view.draining,
            "addresses": info.get("addresses", []),
            "lease_left": time_left.get(node),
            "cannot_tickle": str(info.get("cannot_tickle") or ""),
            "storage_missing": {
                service: problem
                for service in sorted(view.services())
                if (problem := view.lacks_storage(node, service))
            },
            "opens": (reports or {}).get(node, {}).get("all_opens"),
            "max_opens": (reports or {}).get(node, {}).get("max_opens"),
            "answers": None if reports is None else node in reports,
        }
        for node, info in sorted(view.nodes.items())
    ]
    services = []
    for name in sorted(view.services()):
        owner, serving = view.owners.get(name), view.serving.get(name, {})
        report = (reports or {}).get(owner or "", {}).get("services", {}).get(name, {})
        since = serving.get("since")
        services.append(
            {
                "name": name,
                "node": owner,
                "serving": view.served_by(name) is not None,
                "since": since,
                "seconds": max(0.0, now - since) if isinstance(since, int | float) else None,
                "target": view.targets.get(name),
                "fencing": view.fencing.get(name),
                "last": view.last.get(name),
                "clients": report.get("clients"),
                "opens": report.get("opens"),
            }
        )
    away = sorted(node for node in view.draining if node not in view.nodes)
    return {"nodes": nodes, "services": services, "draining_and_down": away, "refused": dict(refused)}


def _node_state(node: Mapping[str, Any], stale: bool) -> str:
    if stale:
        return "[yellow]not known[/yellow]"
    if node["answers"] is False:
        return "[red]up, but does not answer[/red]"
    return "[yellow]up, draining[/yellow]" if node["draining"] else "[green]up[/green]"


def _service_state(service: Mapping[str, Any]) -> str:
    if service["node"] is None:
        return "[red]on no node[/red]"
    if service["fencing"] is not None:
        return f"[red]fencing {_text(service['fencing'].get('node'))}[/red]"
    if not service["serving"]:
        return "[yellow]being taken over[/yellow]"
    if service["target"] not in (None, service["node"]):
        return f"[yellow]to move to {escape(service['target'])}[/yellow]"
    return "[green]served[/green]"


def _text(value: object) -> str:
    return "-" if value is None else escape(str(value))


def _size(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"


def _show_etcd(status: Mapping[str, Any], console: Console) -> None:
    """Print the state of etcd's members, and what is wrong with them."""
    members = Table(title="etcd", title_justify="left", header_style="bold")
    for column in ("member", "state", "database", "quota", "in use", "answers in"):
        members.add_column(column, overflow="fold")
    for member in status["etcd"]:
        if member["error"]:
            members.add_row(escape(member["endpoint"]), f"[red]{escape(member['error'])}[/red]", "-", "-", "-", "-")
            continue
        state = "[green]answers[/green]" if member["has_leader"] else "[red]no leader[/red]"
        if member["alarms"]:
            state = f"[red]alarm {escape(', '.join(member['alarms']))}[/red]"
        members.add_row(
            escape(member["endpoint"]),
            state,
            _size(member["size"]),
            _size(member["quota"]) if member["quota"] else "not known",
            _size(member["in_use"]),
            f"{1000 * member['seconds']:.0f} ms",
        )
    console.print(members)
    for problem in status["problems"]:
        color = "red" if problem["is_error"] else "yellow"
        console.print(
            f"[{color}]{'error' if problem['is_error'] else 'warning'}[/{color}]: {escape(problem['text'])}",
            soft_wrap=True,
        )
    for text in status["unknown"]:
        console.print(f"[red]not known[/red]: {escape(text)}", soft_wrap=True)
    if status["stale"]:
        console.print("[red]This is what one member of etcd had last, and may be old.[/red]")


def show(status: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the tables in one write: ``status | grep -q`` ends at its first match, and must not break the rest off.

    Columns are never truncated if the output is not a terminal.
    """
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=200)
    with console:
        _show(status, console)


def _show(status: Mapping[str, Any], console: Console) -> None:
    nodes = Table(title="Nodes", title_justify="left", header_style="bold")
    for column in ("node", "state", "lease left", "serves", "opens", "addresses"):
        nodes.add_column(column, overflow="fold")
    for node in status["nodes"]:
        left = node["lease_left"]
        serves = [service["name"] for service in status["services"] if service["node"] == node["name"]]
        nodes.add_row(
            escape(node["name"]),
            _node_state(node, status["stale"]),
            "-" if status["stale"] else "expired" if left is None else f"{left:.0f} s",
            escape(", ".join(serves)) or "-",
            "-" if node["opens"] is None else f"{node['opens']} of {_text(node['max_opens'])}",
            escape(", ".join(node["addresses"])),
        )
    for name in status["draining_and_down"]:
        nodes.add_row(escape(name), "[red]down[/red], draining", "-", "-", "-", "")
    services = Table(title="Services", title_justify="left", header_style="bold")
    for column in ("service", "node", "state", "served for", "clients", "opens"):
        services.add_column(column, overflow="fold")
    for service in status["services"]:
        seconds = service["seconds"]
        services.add_row(
            escape(service["name"]),
            _text(service["node"]),
            _service_state(service),
            "-" if seconds is None else duration(seconds),
            _text(service["clients"]),
            _text(service["opens"]),
        )
    for table in (nodes, services):
        if table.row_count:
            console.print(table)
    _show_etcd(status, console)
    for node in status["nodes"]:
        if node["cannot_tickle"]:
            console.print(
                f"[yellow]{escape(node['name'])}[/yellow]: it cannot notify clients that only wait when it takes "
                f"over from a silent node ({escape(node['cannot_tickle'])})"
            )
        for service, problem in node["storage_missing"].items():
            console.print(
                f"[red]{escape(node['name'])}[/red]: storage missing, so it cannot have {escape(service)}: "
                f"{escape(problem)}",
                soft_wrap=True,
            )
    for service in status["services"]:
        fencing = service["fencing"] or {}
        if fencing.get("problem"):
            node = _text(fencing.get("node"))
            console.print(
                f"[red]{escape(service['name'])}[/red]: node {node} cannot be fenced: {_text(fencing['problem'])}; "
                f"remedy, if it is certainly off: smb3server cluster fenced {node}",
                soft_wrap=True,
            )
    if not status["nodes"] and not status["unknown"]:
        console.print("No node is up.")
    for key, reason in sorted(status["refused"].items()):
        # The writer of the key may have put control characters into its name.
        console.print(f"[red]not acted upon[/red]: {escape(ascii(key))}: {escape(reason)}")
    if status["refused"]:
        console.print(
            "Another party writes to etcd, or they are older than the secret; remedy: smb3server cluster purge"
        )
