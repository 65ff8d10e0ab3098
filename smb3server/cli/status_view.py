"""The report of a running server, as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def amount(count: int) -> str:
    """Format a number of bytes for people."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """Format a number of seconds for people."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days} d {hour:02}:{minute:02}" if days else f"{hour:02}:{minute:02}:{second:02}"


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", expand=False)
    for column in columns:
        right = column in ("opens", "RDMA Read", "RDMA Write", "inline in", "inline out", "credits", "resent", "errors")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    return table


def _head(server: dict[str, Any]) -> str:
    lines = [
        f"[bold]{escape(server['name'])}[/bold], up {duration(server['now'] - server['since'])}: "
        + escape(", ".join(server["addresses"]))
    ]
    for choice in server["rdma_choices"]:
        where = f" on {choice['host']}" if choice["host"] else ""
        if choice["served"]:
            lines.append(f"rdma: {choice['fabric']}{where}: {escape(choice['reason'])}")
        else:
            remedy = f" ({escape(choice['remedy'])})" if choice["remedy"] else ""
            lines.append(f"rdma: [yellow]no {choice['fabric']}{where}[/yellow]: {escape(choice['reason'])}{remedy}")
    if server["rdma"] == "off":
        lines.append("rdma: [yellow]off[/yellow]")
    watchdog = server.get("watchdog")
    if watchdog is not None and watchdog["worst"] is not None:
        worst = watchdog["worst"]
        lines.append(
            f"blocked: {watchdog['count']} times for more than {watchdog['limit'] * 1000:.0f} ms, at worst "
            f"[yellow]{worst['seconds'] * 1000:.0f} ms[/yellow] by {worst['command']} of {escape(worst['client'])}"
            + (f": {escape(worst['path'])}" if worst["path"] else "")
        )
    return "\n".join(lines)


def _process(process: dict[str, Any]) -> str:
    """Format the user and the privileges of the server."""
    parts = [f"runs as {process['user']}"]
    if process["acts_as_users"]:
        parts.append("acts as users")
    parts.append(", ".join(process["capabilities"]) or "no capabilities")
    parts.append("no_new_privs" if process["no_new_privs"] else "may gain privileges")
    parts.append("dumpable" if process["dumpable"] else "not dumpable")
    parts.append("no core" if process["core_limit"] == 0 else "may dump core")
    parts.append("sandbox" if process["sandbox"] else "no sandbox")
    return escape("process: " + "; ".join(parts))


def _sessions(report: dict[str, Any]) -> Table:
    table = _table(
        "Sessions", ("session", "user", "client", "shares", "channels", "opens", "protection", "RDMA", "since")
    )
    now = report["server"]["now"]
    for entry in report["sessions"]:
        protection = "encrypted" if entry["encrypted"] else "signed" if entry["signing_required"] else "-"
        table.add_row(
            entry["session"],
            escape(entry["user"]) + (" (guest)" if entry["guest"] else ""),
            entry["client"],
            escape(", ".join(entry["shares"])),
            ", ".join(str(number) for number in entry["channels"]),
            str(entry["open_count"]),
            protection,
            "; ".join(entry["rdma_protection"]) or "-",
            duration(now - entry["since"]),
        )
    return table


def _channels(report: dict[str, Any]) -> Table:
    table = _table(
        "Channels",
        (
            "#",
            "fabric",
            "client",
            "dialect",
            "protection",
            "RDMA Read",
            "RDMA Write",
            "inline in",
            "inline out",
            "credits",
            "resent",
            "errors",
        ),
    )
    for entry in report["channels"]:
        protection = entry["cipher"] if entry["encryption"] else entry["signing"] if entry["signing_required"] else "-"
        fabric = entry["fabric"]
        used = entry["rdma"]["code"] == "used"
        credits = str(entry["smb_credits"])
        if entry["send_credits"] is not None:
            credits += f" + {entry['send_credits']}/{entry['receive_credits']}"
        table.add_row(
            str(entry["channel"]),
            f"[green]{fabric}[/green]" if used else fabric,
            entry["peer"],
            entry["dialect"],
            protection,
            amount(entry["rdma_read_bytes"]),
            amount(entry["rdma_write_bytes"]),
            amount(entry["inline_bytes_received"]),
            amount(entry["inline_bytes_sent"]),
            credits,
            str(entry["retransmissions"]),
            str(entry["errors"]),
        )
    return table


def _sizes(report: dict[str, Any]) -> Table:
    columns = ("#", "read", "write", "other", "message in", "message out", "RDMA Reads at once", "most credits")
    table = _table("Sizes in force", columns)
    for entry in report["channels"]:
        sizes = entry["sizes"]
        keys = ("max_read", "max_write", "max_transact", "max_fragmented_received", "max_fragmented_sent")
        table.add_row(
            str(entry["channel"]),
            *("-" if sizes[key] is None else f"{sizes[key]:,}" for key in keys),
            "-" if sizes["read_depth"] is None else str(sizes["read_depth"]),
            str(sizes["credit_limit"]),
        )
    return table


def _reasons(report: dict[str, Any]) -> Table:
    table = _table("Is RDMA used?", ("#", "answer", "what to do"))
    for entry in report["channels"]:
        why = entry["rdma"]
        table.add_row(str(entry["channel"]), escape(why["text"]), escape(why["remedy"]))
    return table


def _opens(report: dict[str, Any]) -> Table:
    table = _table("Opens", ("session", "share", "path", "access"))
    for entry in report["sessions"]:
        for opened in entry["opens"]:
            table.add_row(
                entry["session"], escape(opened["share"]), escape(opened["path"]) or "(root)", opened["access"]
            )
    return table


def render(report: dict[str, Any]) -> RenderableType:
    """Render the whole report for a terminal."""
    parts: list[RenderableType] = [_head(report["server"])]
    if "process" in report:
        parts.append(_process(report["process"]))
    if report["sessions"]:
        parts += [_sessions(report)]
    if report["channels"]:
        parts += [_channels(report), _sizes(report), _reasons(report)]
    else:
        parts.append("no connections")
    if any(entry["opens"] for entry in report["sessions"]):
        parts.append(_opens(report))
    return Group(*parts)
