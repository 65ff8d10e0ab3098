"""The report of ``smb3server status`` as tables and lines for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec import UnsetType
from rich.text import Text

from smb3server.cli.status.layout import Cell, Column, Table, fit, paragraph
from smb3server.process.words import amount
from smb3server.status.model import (
    Caching,
    ChannelRecord,
    ClusterRecord,
    FlowRecord,
    InterfaceRecord,
    LockRecord,
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
_FEW_FILES = 50
"""Most files of the overview. ``status files`` has all."""
_GOOD, _BAD, _WRONG = "green", "yellow", "bold red"
_NEARLY = 0.8
"""Share of a limit from which on it is told."""


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


_Entry = TypeVar("_Entry")
_Columns = Sequence[tuple[Column, Callable[[_Entry], Cell | str]]]
"""Columns, and what their cell says of an entry."""
_MOVED: _Columns[Moving] = (
    (Column("read", right=True, fixed=True), lambda entry: rate(entry, "read")),
    (Column("written", right=True, fixed=True), lambda entry: rate(entry, "written")),
)
_REQUESTS: _Columns[Moving] = ((Column("req/s", right=True, fixed=True), lambda entry: rate(entry, "requests")),)


def _table(title: str, entries: Iterable[_Entry], columns: _Columns[_Entry]) -> Table:
    """Return a table with a row for each entry."""
    table = Table(title, [column for column, _ in columns])
    for entry in entries:
        table.add(*(cell(entry) for _, cell in columns))
    return table


def _sessions(report: Report) -> list[Table]:
    now = report.server.now
    columns: _Columns[SessionRecord] = (
        (Column("user", fixed=True, wraps=True), lambda entry: entry.user + (" (guest)" if entry.guest else "")),
        (Column("client", fixed=True), lambda entry: entry.client),
        (Column("opens", right=True, fixed=True), lambda entry: str(entry.open_count)),
        *_MOVED,
        (Column("RDMA", fixed=True), lambda entry: "; ".join([*entry.rdma_protection, *_one_sided(entry)]) or "-"),
        (Column("channels", wraps=True), lambda entry: ", ".join(f"#{number}" for number in entry.channels) or "-"),
        (Column("since", right=True), lambda entry: duration(now - entry.since)),
        (
            Column("protection"),
            lambda entry: "encrypted" if entry.encrypted else "signed" if entry.signing_required else "-",
        ),
        (Column("shares", wraps=True), lambda entry: ", ".join(dict.fromkeys(entry.shares)) or "-"),
        (Column("session"), lambda entry: entry.session),
    )
    return [_table("Sessions", busiest(report.sessions), columns)]


def _one_sided(entry: SessionRecord) -> list[str]:
    """Return what is lent to a session for transfers without requests, if there is anything."""
    lent = entry.one_sided
    if isinstance(lent, UnsetType):
        return []
    moved = f"{amount(lent.bytes_read)} read, {amount(lent.bytes_written)} written"
    return [f"one-sided by {lent.fabric}: {lent.files} files, {moved}"]


def _channels(report: Report) -> list[Table]:
    columns: _Columns[ChannelRecord] = (
        (Column("#", right=True, fixed=True), lambda entry: str(entry.channel)),
        (Column("fabric", fixed=True), lambda entry: Cell(entry.fabric, _GOOD if entry.rdma.code == "used" else "")),
        (Column("client", fixed=True, wraps=True), lambda entry: entry.peer),
        *_MOVED,
        *_REQUESTS,
        (Column("RDMA Read", right=True), lambda entry: amount(entry.rdma_read_bytes)),
        (Column("RDMA Write", right=True), lambda entry: amount(entry.rdma_write_bytes)),
        (Column("inline in", right=True), lambda entry: amount(entry.inline_bytes_received)),
        (Column("inline out", right=True), lambda entry: amount(entry.inline_bytes_sent)),
        (Column("dialect"), lambda entry: entry.dialect),
        (
            Column("protection"),
            lambda entry: entry.cipher if entry.encryption else entry.signing if entry.signing_required else "-",
        ),
        (Column("credits", right=True), _credits),
        (Column("resent", right=True), lambda entry: str(entry.retransmissions)),
        (Column("errors", right=True), lambda entry: str(entry.errors)),
    )
    table = _table("Channels", busiest(report.channels), columns)
    return [table, *_compression(report)]


def _credits(entry: ChannelRecord) -> str:
    own = "" if entry.send_credits is None else f" + {entry.send_credits}/{entry.receive_credits}"
    return f"{entry.smb_credits}{own}"


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


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _sizes(report: Report) -> Table:
    columns: _Columns[ChannelRecord] = (
        (Column("#", right=True, fixed=True), lambda entry: str(entry.channel)),
        (Column("read", right=True, fixed=True), lambda entry: _count(entry.sizes.max_read)),
        (Column("write", right=True, fixed=True), lambda entry: _count(entry.sizes.max_write)),
        (Column("other", right=True, fixed=True), lambda entry: _count(entry.sizes.max_transact)),
        (Column("message in", right=True), lambda entry: _count(entry.sizes.max_fragmented_received)),
        (Column("message out", right=True), lambda entry: _count(entry.sizes.max_fragmented_sent)),
        (Column("RDMA Reads at once", right=True), lambda entry: _count(entry.sizes.read_depth)),
        (Column("most credits", right=True), lambda entry: str(entry.sizes.credit_limit)),
    )
    return _table("Sizes in force", report.channels, columns)


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


def _options(entry: ShareRecord) -> str:
    options = [name for name in ("read_only", "encrypted", "continuous_availability") if getattr(entry, name)]
    if isinstance(entry.storage, StorageRecord) and entry.storage.seconds >= _SILENT:
        silent = f"storage has not answered for {entry.storage.seconds:.0f} s"
        options.append(f"{silent}: {entry.storage.requests} requests wait")
    return ", ".join(options).replace("_", " ") or "-"


def _shares(report: Report) -> list[Table]:
    shown = [entry for entry in busiest(report.shares) if entry.type != "pipe" or entry.connects]
    columns: _Columns[ShareRecord] = (
        (Column("share", fixed=True, wraps=True), lambda entry: entry.share),
        (Column("connects", right=True, fixed=True), lambda entry: str(entry.connects)),
        (Column("opens", right=True, fixed=True), lambda entry: str(entry.open_count)),
        *_MOVED,
        (Column("read in all", right=True), lambda entry: amount(entry.bytes_read)),
        (Column("written in all", right=True), lambda entry: amount(entry.bytes_written)),
        (Column("options"), _options),
        (
            Column("path", wraps=True),
            lambda entry: entry.path or (f"namespace, {entry.links} links" if isinstance(entry.links, int) else "-"),
        ),
    )
    table = _table("Shares", shown, columns)
    recycled = [(entry.share, entry.recycle) for entry in report.shares if isinstance(entry.recycle, RecycleRecord)]
    if not recycled:
        return [table]
    columns_of_folders: _Columns[tuple[str, RecycleRecord]] = (
        (Column("share", fixed=True, wraps=True), lambda entry: entry[0]),
        (Column("files", right=True, fixed=True), lambda entry: str(entry[1].files)),
        (Column("bytes", right=True, fixed=True), lambda entry: amount(entry[1].bytes)),
        (Column("files removed", right=True), lambda entry: str(entry[1].removed_files)),
        (Column("bytes removed", right=True), lambda entry: amount(entry[1].removed_bytes)),
    )
    return [table, _table("Recycle folders", recycled, columns_of_folders)]


def _users(report: Report) -> list[Table]:
    columns: _Columns[UserRecord] = (
        (Column("user", fixed=True, wraps=True), lambda entry: entry.user),
        (Column("sessions", right=True, fixed=True), lambda entry: str(entry.sessions)),
        (Column("opens", right=True, fixed=True), lambda entry: str(entry.open_count)),
        *_MOVED,
        *_REQUESTS,
        (Column("connections", right=True), lambda entry: str(entry.connections)),
        (Column("locks", right=True), lambda entry: str(entry.locks)),
        (Column("watchers", right=True), lambda entry: str(entry.watchers)),
        (Column("read in all", right=True), lambda entry: amount(entry.bytes_read)),
        (Column("written in all", right=True), lambda entry: amount(entry.bytes_written)),
    )
    return [_table("Users", busiest(report.users), columns)]


_LETTERS = {"read": "r", "write": "w", "execute": "x", "delete": "d"}


def _letters(names: Iterable[str]) -> str:
    return "".join(_LETTERS[name] for name in names) or "-"


def _cached(caching: Caching | None) -> str:
    if caching is None or not caching.state:
        return "-"
    breaking = ", breaking" if caching.breaking else ""
    return f"{caching.kind} {caching.state}{breaking}"


def _path(opened: OpenRecord) -> str:
    return f"{opened.share}/{opened.path}" + ("/" if opened.directory and opened.path else "")


def _state(opened: OpenRecord) -> str:
    marks = (opened.durable, "deleted at close" if opened.delete_pending else "", "pipe" if opened.pipe else "")
    return ", ".join(filter(None, marks)) or "-"


_FILES: _Columns[tuple[OpenRecord, str]] = (
    (Column("user", fixed=True, wraps=True), lambda row: row[1]),
    (Column("path", fixed=True, wraps=True), lambda row: _path(row[0])),
    (Column("access", fixed=True), lambda row: _letters(row[0].rights) if row[0].rights else "attr"),
    (Column("denies", fixed=True), lambda row: _letters(row[0].denies)),
    (Column("caching", fixed=True), lambda row: _cached(row[0].caching)),
    (Column("locks", right=True), lambda row: str(row[0].locks)),
    (Column("read", right=True), lambda row: amount(row[0].bytes_read) if row[0].bytes_read else "-"),
    (Column("written", right=True), lambda row: amount(row[0].bytes_written) if row[0].bytes_written else "-"),
    (Column("state"), lambda row: _state(row[0])),
    (Column("open"), lambda row: row[0].id),
)
"""Columns of an open and its user."""


def _files(report: Report) -> list[Table]:
    """Every open with what it may do (read, write, execute, delete), and what it denies others."""
    rows = [(opened, entry.user) for entry in report.sessions for opened in entry.opens]
    tables = [_table("Open files", sorted(rows, key=lambda row: (row[0].share, row[0].path)), _FILES)]
    if report.away:
        tables.append(_table("Opens whose client is away", [(opened, opened.user) for opened in report.away], _FILES))
    return tables


def _unlisted(report: Report, width: int) -> list[Text]:
    """Say what the server did not list."""
    more = sum(max(0, entry.open_count - len(entry.opens)) for entry in report.sessions)
    text = f"the server lists 1000 opens of a session; {more:,} more are not shown"
    return [Text(line, _BAD) for line in paragraph(text, width)] if more else []


def _locks(report: Report) -> list[Table]:
    columns: _Columns[LockRecord] = (
        (Column("user", fixed=True, wraps=True), lambda entry: entry.user),
        (Column("path", fixed=True, wraps=True), lambda entry: f"{entry.share}/{entry.path}"),
        (Column("from", right=True, fixed=True), lambda entry: str(entry.offset)),
        (Column("bytes", right=True, fixed=True), lambda entry: str(entry.length)),
        (Column("kind", fixed=True), lambda entry: "exclusive" if entry.exclusive else "shared"),
        (Column("state", fixed=True), lambda entry: Cell("waits", _BAD) if entry.waiting else "held"),
        (Column("open"), lambda entry: entry.open),
    )
    return [_table("Byte-range locks", report.locks, columns)]


def _interfaces(report: Report) -> list[Table]:
    """The list that FSCTL_QUERY_NETWORK_INTERFACE_INFO gives to clients, and the addresses that are not in it."""
    columns: _Columns[InterfaceRecord] = (
        (Column("interface", fixed=True), lambda entry: entry.interface),
        (Column("address", fixed=True, wraps=True), lambda entry: entry.address),
        (Column("speed", right=True, fixed=True), lambda entry: _speed(entry.speed)),
        (Column("RDMA", fixed=True), lambda entry: Cell("yes", _GOOD) if entry.rdma else "no"),
        (Column("RSS", fixed=True), lambda entry: "yes" if entry.rss else "no"),
        (Column("clients see it", fixed=True, wraps=True), lambda entry: _told(entry, report.server)),
        (Column("index", right=True), lambda entry: str(entry.index)),
        (Column("queues", right=True), lambda entry: str(entry.queues)),
    )
    return [
        _table("Interfaces as clients see them", sorted(report.interfaces, key=lambda entry: not entry.told), columns)
    ]


def _told(entry: InterfaceRecord, server: ServerRecord) -> str:
    if entry.told:
        return "yes"
    if not server.multichannel:
        return "no: multichannel is off"
    if entry.loopback:
        return "no: loopback"
    return "no: no link" if not entry.link else "no: not served"


def _flows(report: Report) -> list[Table]:
    """The logical flows of storage quality of service."""
    columns: _Columns[FlowRecord] = (
        (Column("flow", fixed=True), lambda entry: entry.flow),
        (Column("policy"), lambda entry: entry.policy or "-"),
        (Column("initiator"), lambda entry: entry.initiator or "-"),
        (Column("IOPS", right=True, fixed=True), lambda entry: f"{entry.iops:.0f}"),
        (Column("limit", right=True), lambda entry: str(entry.maximum_iops or "-")),
        (Column("bytes/s", right=True, fixed=True), lambda entry: amount(entry.bandwidth)),
        (Column("KiB/s limit", right=True), lambda entry: str(entry.maximum_bandwidth or "-")),
        (Column("opens", right=True), lambda entry: str(entry.opens)),
        (Column("operations", right=True), lambda entry: str(entry.operations)),
        (Column("delayed", right=True), lambda entry: str(entry.delayed)),
    )
    return [_table("Flows", report.flows or (), columns)]


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
