"""The report of ``smb3server status`` as tables and lines for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec import UnsetType
from rich.text import Text

from smb3server.cli.status.layout import Cell, Column, Table, fit, paragraph
from smb3server.status.model import (
    Caching,
    ChannelRecord,
    ClusterRecord,
    InterfaceRecord,
    Moving,
    OpenRecord,
    ProcessRecord,
    RecycleRecord,
    Report,
    ServerRecord,
    SessionRecord,
    ShareRecord,
    StorageRecord,
    UserRecord,
)

_Moving = TypeVar("_Moving", SessionRecord, ChannelRecord, ShareRecord, UserRecord)

OVERVIEW = ("sessions", "channels", "shares", "files")
"""The sections that are shown if none is named."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FEW_FILES = 50
"""Most files of the overview. ``status files`` has all."""
_GOOD, _BAD, _WRONG = "green", "yellow", "bold red"
_NEARLY = 0.8
"""Share of a limit from which on it is told."""


def amount(count: float) -> str:
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


def rate(entry: Moving, name: str) -> str:
    """Format one of an entry's rates; a dash if they were not measured or nothing moves."""
    value = getattr(entry.rates, name) if entry.rates else 0.0
    if not value:
        return "-"
    return f"{value:,.0f}" if name == "requests" else f"{amount(value)}/s"


def busiest(entries: Iterable[_Moving]) -> list[_Moving]:
    """Return the entries, the one that moves most first."""

    def moving(entry: _Moving) -> float:
        return -(entry.rates.read + entry.rates.written) if entry.rates else 0.0

    return sorted(entries, key=moving)


def _speed(bits: int) -> str:
    return f"{bits / 10**9:g} Gbit/s" if bits >= 10**9 else f"{bits / 10**6:g} Mbit/s"


# The server


def head(report: Report, width: int) -> list[Text]:
    """Return what is told of the server itself."""
    server = report.server
    name = f"{server.name}: smb3server {server.version}".rstrip()
    lines = [Text(line, "bold") for line in paragraph(f"{name}, process {report.pid}", width, "  ")]
    about = [f"up {duration(server.now - server.since)}, {', '.join(short_addresses(server.addresses))}"]
    about.append(throughput(server))
    about.append(_limits(server))
    if report.process:
        about.append(_process(report.process))
    for part in report.processes or ():
        says = f"does not answer: {part.error}" if part.error else f"{part.sessions} sessions, pid {part.pid}"
        about.append(f"process {part.number} at {part.address}: {says}")
    lines += [Text(line) for text in about if text for line in paragraph(text, width, "  ")]
    for name, why in (report.down or {}).items():
        lines += [Text(line, _BAD) for line in paragraph(f"share {name} is down: {why}", width, "  ")]
    for text, style in _cluster(report.cluster):
        lines += [Text(line, style) for line in paragraph(text, width, "  ")]
    for text, style in _fabrics(server):
        lines += [Text(line, style) for line in paragraph(text, width, "  ")]
    return lines


def short_addresses(addresses: Sequence[str]) -> list[str]:
    """Return the served addresses, with one entry in place of 0.0.0.0 and [::] of the same port."""
    found: dict[str, None] = {}
    for text in addresses:
        kind, _, address = text.partition(" ")
        host, _, port = address.rpartition(":")
        other = f"{kind} {'[::]' if host == '0.0.0.0' else '0.0.0.0'}:{port}"
        both = host in ("0.0.0.0", "[::]") and other in addresses
        found[f"{kind} *:{port}" if both else text] = None
    return list(found)


def _cluster(cluster: ClusterRecord | UnsetType) -> Iterable[tuple[str, str]]:
    """Return what is told of the cluster that the server is a node of: texts and their styles."""
    if not cluster:
        return
    who = f"node {cluster.node} of cluster {cluster.name}"
    if not cluster.member:
        yield (
            f"{who}: NOT A MEMBER: it serves no services; remedy: `smb3server cluster status` and the log say why",
            _WRONG,
        )
    else:
        yield f"{who}: member, lease for {cluster.lease_left:.0f} s, up: {', '.join(cluster.nodes)}", ""
    for service in cluster.services:
        where = "served here" if service.owned else f"at {service.node}" if service.node else "served nowhere"
        if not cluster.member and not service.owned:
            where = "not served here, and where is not known"
        text = f"service {service.name}: {where}"
        if service.owned:
            text += f", {service.clients} clients, {service.opens} opens, {service.restored} restored"
        if service.takeovers or service.losses:
            text += f", taken over {service.takeovers} and gone {service.losses} times"
        yield text, "" if service.node else _WRONG
    most = cluster.max_opens
    if most and cluster.opens >= _NEARLY * most:
        yield f"{cluster.opens} of at most {most} opens: raise the limit of open files of the process", _BAD
    for problem in cluster.etcd.problems:
        yield problem.text, _WRONG if problem.is_error else _BAD


def throughput(server: ServerRecord) -> str:
    """Return what moves now, as one line; empty if it was not measured."""
    rates = server.rates
    if not rates:
        return ""
    moved = rates.read + rates.written
    by_rdma = f", {rates.rdma / moved:.0%} by RDMA" if moved and rates.rdma else ""
    return (
        f"now: {amount(rates.read)}/s read, {amount(rates.written)}/s written{by_rdma},"
        f" {rates.requests:,.0f} requests/s"
    )


def _limits(server: ServerRecord) -> str:
    parts = [f"{name} {used:,} of {most:,}" for name, (used, most) in server.limits.items()]
    return f"in use: {', '.join(parts)}, locks {server.lock_count:,}"


def _process(process: ProcessRecord) -> str:
    """Format the user and the privileges of the server."""
    parts = [f"runs as {process.user}"]
    if process.acts_as_users:
        parts.append("acts as users")
    parts.append(", ".join(process.capabilities) or "no capabilities")
    parts.append("no_new_privs" if process.no_new_privs else "may gain privileges")
    parts.append("dumpable" if process.dumpable else "not dumpable")
    parts.append("no core" if process.core_limit == 0 else "may dump core")
    parts.append("sandbox" if process.sandbox else "no sandbox")
    return "process: " + "; ".join(parts)


def _fabrics(server: ServerRecord) -> Iterable[tuple[str, str]]:
    if server.rdma == "off":
        yield "rdma: off", _BAD
    for choice in server.rdma_choices:
        host = f"[{choice.host}]" if ":" in choice.host else choice.host
        where = f" on {host}" if host else ""
        if choice.served:
            yield f"rdma: {choice.fabric}{where}: {choice.reason}", ""
        else:
            remedy = f" ({choice.remedy})" if choice.remedy else ""
            yield f"rdma: no {choice.fabric}{where}: {choice.reason}{remedy}", _BAD
    watchdog = server.watchdog
    if watchdog is not None and watchdog.worst is not None:
        worst = watchdog.worst
        path = f": {worst.path}" if worst.path else ""
        yield (
            f"blocked: {watchdog.count} times for more than {watchdog.limit * 1000:.0f} ms, at worst"
            f" {worst.seconds * 1000:.0f} ms by {worst.command} of {worst.client}{path}",
            _BAD,
        )


# Sections


def _sessions(report: Report) -> list[Table]:
    table = Table(
        "Sessions",
        (
            Column("user", fixed=True, wraps=True),
            Column("client", fixed=True),
            Column("opens", right=True, fixed=True),
            Column("read", right=True, fixed=True),
            Column("written", right=True, fixed=True),
            Column("RDMA", fixed=True),
            Column("channels", wraps=True),
            Column("since", right=True),
            Column("protection"),
            Column("shares", wraps=True),
            Column("session"),
        ),
    )
    now = report.server.now
    for entry in busiest(report.sessions):
        table.add(
            entry.user + (" (guest)" if entry.guest else ""),
            entry.client,
            str(entry.open_count),
            rate(entry, "read"),
            rate(entry, "written"),
            "; ".join([*entry.rdma_protection, *_one_sided(entry)]) or "-",
            ", ".join(f"#{number}" for number in entry.channels) or "-",
            duration(now - entry.since),
            "encrypted" if entry.encrypted else "signed" if entry.signing_required else "-",
            ", ".join(dict.fromkeys(entry.shares)) or "-",
            entry.session,
        )
    return [table]


def _one_sided(entry: SessionRecord) -> list[str]:
    """Return what is lent to a session for transfers without requests, if there is anything."""
    lent = entry.one_sided
    if isinstance(lent, UnsetType):
        return []
    moved = f"{amount(lent.bytes_read)} read, {amount(lent.bytes_written)} written"
    return [f"one-sided by {lent.fabric}: {lent.files} files, {moved}"]


def _channels(report: Report) -> list[Table]:
    table = Table(
        "Channels",
        (
            Column("#", right=True, fixed=True),
            Column("fabric", fixed=True),
            Column("client", fixed=True, wraps=True),
            Column("read", right=True, fixed=True),
            Column("written", right=True, fixed=True),
            Column("req/s", right=True, fixed=True),
            Column("RDMA Read", right=True),
            Column("RDMA Write", right=True),
            Column("inline in", right=True),
            Column("inline out", right=True),
            Column("dialect"),
            Column("protection"),
            Column("credits", right=True),
            Column("resent", right=True),
            Column("errors", right=True),
        ),
    )
    for entry in busiest(report.channels):
        protection = entry.cipher if entry.encryption else entry.signing if entry.signing_required else "-"
        credits = str(entry.smb_credits)
        if entry.send_credits is not None:
            credits += f" + {entry.send_credits}/{entry.receive_credits}"
        table.add(
            str(entry.channel),
            Cell(entry.fabric, _GOOD if entry.rdma.code == "used" else ""),
            entry.peer,
            rate(entry, "read"),
            rate(entry, "written"),
            rate(entry, "requests"),
            amount(entry.rdma_read_bytes),
            amount(entry.rdma_write_bytes),
            amount(entry.inline_bytes_received),
            amount(entry.inline_bytes_sent),
            entry.dialect,
            protection,
            credits,
            str(entry.retransmissions),
            str(entry.errors),
        )
    return [table, *_compression(report)]


def _compression(report: Report) -> list[Table]:
    """Return what compression gives, if some client has asked for it."""
    names = ("algorithm", "received", "took", "sent", "took", "saved")
    columns = [Column(name, right=name != "algorithm") for name in names]
    table = Table("Compression", (Column("#", right=True, fixed=True), *columns))
    for entry in report.channels:
        packed = entry.compression
        if not packed:
            continue
        counts = (packed.received, packed.received_compressed, packed.sent, packed.sent_compressed)
        saved = counts[0] - counts[1] + counts[2] - counts[3]
        used = [name for name in (packed.algorithm, "patterns" if packed.patterns else "") if name]
        table.add(str(entry.channel), ", ".join(used) or "none", *map(amount, counts), amount(saved))
    return [table] if table.rows else []


def _sizes(report: Report) -> Table:
    table = Table(
        "Sizes in force",
        (
            Column("#", right=True, fixed=True),
            Column("read", right=True, fixed=True),
            Column("write", right=True, fixed=True),
            Column("other", right=True, fixed=True),
            Column("message in", right=True),
            Column("message out", right=True),
            Column("RDMA Reads at once", right=True),
            Column("most credits", right=True),
        ),
    )
    for entry in report.channels:
        sizes = entry.sizes
        lengths = (
            sizes.max_read,
            sizes.max_write,
            sizes.max_transact,
            sizes.max_fragmented_received,
            sizes.max_fragmented_sent,
        )
        table.add(
            str(entry.channel),
            *("-" if length is None else f"{length:,}" for length in lengths),
            "-" if sizes.read_depth is None else str(sizes.read_depth),
            str(sizes.credit_limit),
        )
    return table


def reasons(report: Report, width: int) -> list[Text]:
    """Return whether each channel uses RDMA, why not, and what to do."""
    lines = [Text("Is RDMA used?", "bold")] if report.channels else []
    for entry in report.channels:
        why = entry.rdma
        style = _GOOD if why.code == "used" else ""
        text = f"#{entry.channel}: {why.text}"
        lines += [Text(line, style) for line in paragraph(text, width, "  ")]
        if why.remedy:
            lines += [Text("    " + line) for line in paragraph("-> " + why.remedy, max(width - 4, 10), "   ")]
    return lines


_SILENT = 1.0
"""Seconds without an answer after which a share's storage is said to be silent."""


def _shares(report: Report) -> list[Table]:
    table = Table(
        "Shares",
        (
            Column("share", fixed=True, wraps=True),
            Column("connects", right=True, fixed=True),
            Column("opens", right=True, fixed=True),
            Column("read", right=True, fixed=True),
            Column("written", right=True, fixed=True),
            Column("read in all", right=True),
            Column("written in all", right=True),
            Column("options"),
            Column("path", wraps=True),
        ),
    )
    for entry in busiest(report.shares):
        if entry.type == "pipe" and not entry.connects:
            continue
        options = [name for name in ("read_only", "encrypted", "continuous_availability") if getattr(entry, name)]
        if isinstance(entry.storage, StorageRecord) and entry.storage.seconds >= _SILENT:
            silent = f"storage has not answered for {entry.storage.seconds:.0f} s"
            options.append(f"{silent}: {entry.storage.requests} requests wait")
        table.add(
            entry.share,
            str(entry.connects),
            str(entry.open_count),
            rate(entry, "read"),
            rate(entry, "written"),
            amount(entry.bytes_read),
            amount(entry.bytes_written),
            ", ".join(options).replace("_", " ") or "-",
            entry.path or (f"namespace, {entry.links} links" if isinstance(entry.links, int) else "-"),
        )
    recycled = [(entry.share, entry.recycle) for entry in report.shares if isinstance(entry.recycle, RecycleRecord)]
    if not recycled:
        return [table]
    folders = Table(
        "Recycle folders",
        (
            Column("share", fixed=True, wraps=True),
            Column("files", right=True, fixed=True),
            Column("bytes", right=True, fixed=True),
            Column("files removed", right=True),
            Column("bytes removed", right=True),
        ),
    )
    for share, found in recycled:
        folders.add(share, str(found.files), amount(found.bytes), str(found.removed_files), amount(found.removed_bytes))
    return [table, folders]


def _users(report: Report) -> list[Table]:
    table = Table(
        "Users",
        (
            Column("user", fixed=True, wraps=True),
            Column("sessions", right=True, fixed=True),
            Column("opens", right=True, fixed=True),
            Column("read", right=True, fixed=True),
            Column("written", right=True, fixed=True),
            Column("req/s", right=True, fixed=True),
            Column("connections", right=True),
            Column("locks", right=True),
            Column("watchers", right=True),
            Column("read in all", right=True),
            Column("written in all", right=True),
        ),
    )
    for entry in busiest(report.users):
        table.add(
            entry.user,
            str(entry.sessions),
            str(entry.open_count),
            rate(entry, "read"),
            rate(entry, "written"),
            rate(entry, "requests"),
            str(entry.connections),
            str(entry.locks),
            str(entry.watchers),
            amount(entry.bytes_read),
            amount(entry.bytes_written),
        )
    return [table]


_FILE_COLUMNS = (
    Column("user", fixed=True, wraps=True),
    Column("path", fixed=True, wraps=True),
    Column("access", fixed=True),
    Column("denies", fixed=True),
    Column("caching", fixed=True),
    Column("locks", right=True),
    Column("read", right=True),
    Column("written", right=True),
    Column("state"),
    Column("open"),
)
_LETTERS = {"read": "r", "write": "w", "execute": "x", "delete": "d"}


def _letters(names: Iterable[str]) -> str:
    return "".join(_LETTERS[name] for name in names) or "-"


def _cached(caching: Caching | None) -> str:
    if caching is None or not caching.state:
        return "-"
    breaking = ", breaking" if caching.breaking else ""
    return f"{caching.kind} {caching.state}{breaking}"


def _add_file(table: Table, opened: OpenRecord, user: str) -> None:
    state = [name for name, there in (("deleted at close", opened.delete_pending), ("pipe", opened.pipe)) if there]
    path = f"{opened.share}/{opened.path}" + ("/" if opened.directory and opened.path else "")
    table.add(
        user,
        path,
        _letters(opened.rights) if opened.rights else "attr",
        _letters(opened.denies),
        _cached(opened.caching),
        str(opened.locks),
        amount(opened.bytes_read) if opened.bytes_read else "-",
        amount(opened.bytes_written) if opened.bytes_written else "-",
        ", ".join([*([opened.durable] if opened.durable else []), *state]) or "-",
        opened.id,
    )


def _files(report: Report) -> list[Table]:
    """Every open with what it may do (read, write, execute, delete), and what it denies others."""
    table = Table("Open files", _FILE_COLUMNS)
    rows = [(opened, entry.user) for entry in report.sessions for opened in entry.opens]
    for opened, user in sorted(rows, key=lambda row: (row[0].share, row[0].path)):
        _add_file(table, opened, user)
    if not report.away:
        return [table]
    waiting = Table("Opens whose client is away", _FILE_COLUMNS)
    for opened in report.away:
        _add_file(waiting, opened, opened.user)
    return [table, waiting]


def _unlisted(report: Report, width: int) -> list[Text]:
    """Say what the server did not list."""
    more = sum(max(0, entry.open_count - len(entry.opens)) for entry in report.sessions)
    text = f"the server lists 1000 opens of a session; {more:,} more are not shown"
    return [Text(line, _BAD) for line in paragraph(text, width)] if more else []


def _locks(report: Report) -> list[Table]:
    table = Table(
        "Byte-range locks",
        (
            Column("user", fixed=True, wraps=True),
            Column("path", fixed=True, wraps=True),
            Column("from", right=True, fixed=True),
            Column("bytes", right=True, fixed=True),
            Column("kind", fixed=True),
            Column("state", fixed=True),
            Column("open"),
        ),
    )
    for entry in report.locks:
        table.add(
            entry.user,
            f"{entry.share}/{entry.path}",
            str(entry.offset),
            str(entry.length),
            "exclusive" if entry.exclusive else "shared",
            Cell("waits", _BAD) if entry.waiting else "held",
            entry.open,
        )
    return [table]


def _interfaces(report: Report) -> list[Table]:
    """The list that FSCTL_QUERY_NETWORK_INTERFACE_INFO gives to clients, and the addresses that are not in it."""
    table = Table(
        "Interfaces as clients see them",
        (
            Column("interface", fixed=True),
            Column("address", fixed=True, wraps=True),
            Column("speed", right=True, fixed=True),
            Column("RDMA", fixed=True),
            Column("RSS", fixed=True),
            Column("clients see it", fixed=True, wraps=True),
            Column("index", right=True),
            Column("queues", right=True),
        ),
    )
    for entry in sorted(report.interfaces, key=lambda entry: not entry.told):
        table.add(
            entry.interface,
            entry.address,
            _speed(entry.speed),
            Cell("yes", _GOOD) if entry.rdma else "no",
            "yes" if entry.rss else "no",
            "yes" if entry.told else f"no: {_why_hidden(entry, report.server)}",
            str(entry.index),
            str(entry.queues),
        )
    return [table]


def _why_hidden(entry: InterfaceRecord, server: ServerRecord) -> str:
    if not server.multichannel:
        return "multichannel is off"
    if entry.loopback:
        return "loopback"
    return "no link" if not entry.link else "not served"


def _flows(report: Report) -> list[Table]:
    """The logical flows of storage quality of service."""
    table = Table(
        "Flows",
        (
            Column("flow", fixed=True),
            Column("policy"),
            Column("initiator"),
            Column("IOPS", right=True, fixed=True),
            Column("limit", right=True),
            Column("bytes/s", right=True, fixed=True),
            Column("KiB/s limit", right=True),
            Column("opens", right=True),
            Column("operations", right=True),
            Column("delayed", right=True),
        ),
    )
    for entry in report.flows or ():
        table.add(
            entry.flow,
            entry.policy or "-",
            entry.initiator or "-",
            f"{entry.iops:.0f}",
            str(entry.maximum_iops or "-"),
            amount(entry.bandwidth),
            str(entry.maximum_bandwidth or "-"),
            str(entry.opens),
            str(entry.operations),
            str(entry.delayed),
        )
    return [table]


_TABLES: dict[str, Callable[[Report], list[Table]]] = {
    "sessions": _sessions,
    "channels": _channels,
    "shares": _shares,
    "users": _users,
    "files": _files,
    "locks": _locks,
    "interfaces": _interfaces,
    "flows": _flows,
}


def section(report: Report, name: str, width: int, most: int | None = None) -> list[Text]:
    """Return one section as lines of at most ``width`` cells. ``most`` limits the rows of its tables."""
    lines: list[Text] = []
    for table in _TABLES[name](report):
        lines += [Text(), *fit(table, width, most)]
    return lines


def render(report: Report, width: int, sections: Sequence[str] = (), most: int | None = None) -> list[Text]:
    """Return the report as lines of at most ``width`` cells: the overview, or the sections that are named. Tables have
    at most ``most`` rows, and say how many there are beyond it."""
    few = _FEW_FILES if most is None and not sections else most
    lines = head(report, width)
    for name in sections or OVERVIEW:
        if name == "channels" and not report.channels:
            lines += [Text(), Text("no connections")]
            continue
        if not sections and name == "files" and not any(entry.opens for entry in report.sessions):
            continue
        lines += section(report, name, width, few if name == "files" else most)
        if name == "channels":
            if sections:
                lines += [Text(), *fit(_sizes(report), width, most)]
            lines += [Text(), *reasons(report, width)]
        if name == "files":
            lines += _unlisted(report, width)
    return lines
