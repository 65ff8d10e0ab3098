"""Windows' performance counters: what each is made of here, and its value between two readings of the metrics.

The names are Windows', as ``Get-Counter`` takes them. Each is made of metrics, so that a counter and Prometheus never
disagree, and several processes count as one server.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""Values of metrics by name and labels."""

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
TOTAL = "_Total"
"""The instance that is all others together."""


class Kind(enum.Enum):
    """What becomes of the metrics."""

    RATE = "per second"
    VALUE = "now"
    AVERAGE = "average"
    """What the first ones have grown by, divided by what the second ones have grown by."""
    PERCENT = "percent, now"


class Of(NamedTuple):
    """A metric, and the labels that it must have."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        shown = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.metric}{{{shown}}}" if shown else self.metric


class WindowsCounter(NamedTuple):
    """A counter of Windows."""

    set: str
    name: str
    kind: Kind
    of: tuple[Of, ...]
    by: tuple[Of, ...] = ()

    @property
    def metrics(self) -> str:
        """What it is made of, as text."""
        of, by = (" + ".join(map(str, terms)) for terms in (self.of, self.by))
        return f"{of} / {by}" if by else of


class Reading(NamedTuple):
    """The value of a counter."""

    path: str
    value: float


_SHARES = "windows_smb_server_shares_"
_READS, _WRITES, _OTHERS = (Of(f"{_SHARES}{kind}_requests_total") for kind in ("read", "write", "metadata"))
_READ_TIME, _WRITE_TIME, _OTHER_TIME = (Of(f"{_SHARES}{kind}_seconds_total") for kind in ("read", "write", "metadata"))
_READ, _WRITTEN = Of(f"{_SHARES}sent_bytes_total"), Of(f"{_SHARES}received_bytes_total")
_OPEN = Of(f"{_SHARES}current_open_file_count")
_OPENED = Of(f"{_SHARES}files_opened_total")
_IN = Of("smb3server_message_bytes_total", (("direction", "received"),))
_OUT = Of("smb3server_message_bytes_total", (("direction", "sent"),))
_RDMA_IN = Of("smb3server_rdma_bytes_total", (("direction", "received"),))
_RDMA_OUT = Of("smb3server_rdma_bytes_total", (("direction", "sent"),))
_ACTIVE = Of("smb3server_connections")


def _ended(how: str) -> Of:
    return Of("smb3server_sessions_ended_total", (("how", how),))


def _durable(kind: str) -> Of:
    return Of("smb3server_share_durable_opens", (("kind", kind),))


def _shares(name: str, kind: Kind, of: tuple[Of, ...], by: tuple[Of, ...] = ()) -> WindowsCounter:
    return WindowsCounter("SMB Server Shares", name, kind, of, by)


def _server(name: str, kind: Kind, *of: Of) -> WindowsCounter:
    return WindowsCounter("Server", name, kind, of)


COUNTERS = (
    _shares("Read Bytes/sec", Kind.RATE, (_READ,)),
    _shares("Write Bytes/sec", Kind.RATE, (_WRITTEN,)),
    _shares("Data Bytes/sec", Kind.RATE, (_READ, _WRITTEN)),
    _shares("Read Requests/sec", Kind.RATE, (_READS,)),
    _shares("Write Requests/sec", Kind.RATE, (_WRITES,)),
    _shares("Data Requests/sec", Kind.RATE, (_READS, _WRITES)),
    _shares("Metadata Requests/sec", Kind.RATE, (_OTHERS,)),
    _shares("Requests/sec", Kind.RATE, (_READS, _WRITES, _OTHERS)),
    _shares("Avg. sec/Read", Kind.AVERAGE, (_READ_TIME,), (_READS,)),
    _shares("Avg. sec/Write", Kind.AVERAGE, (_WRITE_TIME,), (_WRITES,)),
    _shares("Avg. sec/Data Request", Kind.AVERAGE, (_READ_TIME, _WRITE_TIME), (_READS, _WRITES)),
    _shares("Avg. sec/Request", Kind.AVERAGE, (_READ_TIME, _WRITE_TIME, _OTHER_TIME), (_READS, _WRITES, _OTHERS)),
    _shares("Avg. Bytes/Read", Kind.AVERAGE, (_READ,), (_READS,)),
    _shares("Avg. Bytes/Write", Kind.AVERAGE, (_WRITTEN,), (_WRITES,)),
    _shares("Avg. Data Bytes/Request", Kind.AVERAGE, (_READ, _WRITTEN), (_READS, _WRITES)),
    _shares("Avg. Read Queue Length", Kind.RATE, (_READ_TIME,)),
    _shares("Avg. Write Queue Length", Kind.RATE, (_WRITE_TIME,)),
    _shares("Avg. Data Queue Length", Kind.RATE, (_READ_TIME, _WRITE_TIME)),
    _shares("Current Data Queue Length", Kind.VALUE, (Of(f"{_SHARES}current_data_queue_length"),)),
    _shares("Current Pending Requests", Kind.VALUE, (Of(f"{_SHARES}current_pending_requests"),)),
    _shares("Current Open File Count", Kind.VALUE, (_OPEN,)),
    _shares("Current Durable Open File Count", Kind.VALUE, (Of("smb3server_share_durable_opens"),)),
    _shares("% Persistent Handles", Kind.PERCENT, (_durable("persistent"),), (_OPEN,)),
    _shares("% Resilient Handles", Kind.PERCENT, (_durable("resilient"),), (_OPEN,)),
    _shares("Files Opened/sec", Kind.RATE, (_OPENED,)),
    _shares("Total File Open Count", Kind.VALUE, (_OPENED,)),
    _shares("Tree Connect Count", Kind.VALUE, (Of(f"{_SHARES}tree_connect_count"),)),
    *(
        WindowsCounter("SMB Server", name, Kind.RATE, of)
        for name, of in (
            ("Read Bytes/sec", (_READ,)),
            ("Write Bytes/sec", (_WRITTEN,)),
            ("Read Requests/sec", (_READS,)),
            ("Write Requests/sec", (_WRITES,)),
            ("Receive Bytes/sec", (_IN, _RDMA_IN)),
            ("Send Bytes/sec", (_OUT, _RDMA_OUT)),
        )
    ),
    _server("Bytes Received/sec", Kind.RATE, _IN, _RDMA_IN),
    _server("Bytes Transmitted/sec", Kind.RATE, _OUT, _RDMA_OUT),
    _server("Bytes Total/sec", Kind.RATE, _IN, _OUT, _RDMA_IN, _RDMA_OUT),
    _server("Server Sessions", Kind.VALUE, Of("smb3server_sessions")),
    _server("Files Open", Kind.VALUE, _OPEN),
    _server("Files Opened Total", Kind.VALUE, _OPENED),
    _server("Errors Logon", Kind.VALUE, Of("smb3server_logon_failures_total")),
    _server("Errors Access Permissions", Kind.VALUE, Of("smb3server_denied_requests_total")),
    _server("Sessions Timed Out", Kind.VALUE, _ended("idle")),
    _server("Sessions Logged Off", Kind.VALUE, _ended("logoff")),
    _server("Sessions Forced Off", Kind.VALUE, _ended("other")),
    *(
        WindowsCounter("RDMA Activity", name, kind, of)
        for name, kind, of in (
            ("RDMA Active Connections", Kind.VALUE, (_ACTIVE,)),
            ("RDMA Accepted Connections", Kind.VALUE, (_ACTIVE, Of("smb3server_connections_ended_total"))),
            ("RDMA Inbound Bytes/sec", Kind.RATE, (_IN, _RDMA_IN)),
            ("RDMA Outbound Bytes/sec", Kind.RATE, (_OUT, _RDMA_OUT)),
        )
    ),
    *(
        WindowsCounter("SMB Direct Connection", name, Kind.RATE, of)
        for name, of in (
            ("Bytes Received/sec", (_IN,)),
            ("Bytes Sent/sec", (_OUT,)),
            ("Bytes RDMA Read/sec", (_RDMA_IN,)),
            ("Bytes RDMA Written/sec", (_RDMA_OUT,)),
        )
    ),
)
"""By set. What this server does not count is not here."""

INSTANCES = {"SMB Server Shares": "share", "RDMA Activity": "fabric", "SMB Direct Connection": "fabric"}
"""By set: the label whose values are its instances. The others have one value."""
_NO_RDMA = ("tcp", "quic")
"""Fabrics that are none."""


def parse(text: str) -> Samples:
    """Return the values of metrics in Prometheus' text format."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.match(line)
        if match is not None:
            labels = ((name, _ESCAPED.sub(_unescaped, value)) for name, value in _LABEL.findall(match[2] or ""))
            found[match[1], frozenset(labels)] = float(match[3])
    return found


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def read(before: Samples, now: Samples, seconds: float) -> Iterator[Reading]:
    """Return the values of all counters. ``seconds``: the time between the two readings."""
    for counter in COUNTERS:
        label = INSTANCES.get(counter.set)
        if label is None:
            yield Reading(f"{counter.set}\\{counter.name}", _value(counter, before, now, seconds))
            continue
        names = _instances(counter, now, label)
        for name in (*names, TOTAL) if names else ():
            chosen = [frozenset({(label, one)}) for one in (names if name == TOTAL else [name])]
            value = _value(counter, _only(before, chosen), _only(now, chosen), seconds)
            yield Reading(f"{counter.set}({name})\\{counter.name}", value)


def _instances(counter: WindowsCounter, samples: Samples, label: str) -> list[str]:
    metric = counter.of[0].metric
    found = {dict(labels).get(label, "") for name, labels in samples if name == metric}
    return sorted(name for name in found if name and not (label == "fabric" and name in _NO_RDMA))


def _only(samples: Samples, chosen: list[frozenset[tuple[str, str]]]) -> Samples:
    return {(name, labels): value for (name, labels), value in samples.items() if any(one <= labels for one in chosen)}


def _sum(terms: tuple[Of, ...], samples: Samples) -> float:
    return sum(
        value
        for term in terms
        for (name, labels), value in samples.items()
        if name == term.metric and labels.issuperset(term.labels)
    )


def _value(counter: WindowsCounter, before: Samples, now: Samples, seconds: float) -> float:
    of, by = _sum(counter.of, now), _sum(counter.by, now)
    if counter.kind is Kind.VALUE:
        return of
    if counter.kind is Kind.PERCENT:
        return 100 * of / by if by else 0.0
    # A counter that is less than before has begun again.
    grown = max(0.0, of - _sum(counter.of, before))
    if counter.kind is Kind.RATE:
        return grown / seconds if seconds > 0 else 0.0
    count = by - _sum(counter.by, before)
    return grown / count if count > 0 else 0.0
