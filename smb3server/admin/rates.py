"""Rates from two reports of one server: what moved between them, by second.

The server counts and does not divide: who asks twice knows the rates, and a server that nobody asks has no work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]

NOTHING: Json = {"read": 0.0, "written": 0.0, "rdma": 0.0, "requests": 0.0}


def channel_counters(entry: Json) -> Json:
    """Return the counters of a channel that rates are made of. Bytes in messages include the messages' headers."""
    by_rdma = entry["rdma_read_bytes"] + entry["rdma_write_bytes"]
    return {
        "read": entry["rdma_write_bytes"] + entry["inline_bytes_sent"],
        "written": entry["rdma_read_bytes"] + entry["inline_bytes_received"],
        "rdma": by_rdma,
        "requests": entry["requests"],
    }


def _data_counters(entry: Json) -> Json:
    return {
        "read": entry["bytes_read"],
        "written": entry["bytes_written"],
        "rdma": 0,
        "requests": entry.get("requests", 0),
    }


_KINDS: tuple[tuple[str, Callable[[Json], object], Callable[[Json], Json]], ...] = (
    ("channels", lambda entry: (entry["peer"], entry["since"]), channel_counters),
    ("shares", lambda entry: entry["share"], _data_counters),
    ("users", lambda entry: entry["user"], _data_counters),
)


def add_rates(report: Json, before: Json) -> float:
    """Add ``rates`` to the channels, shares, users and sessions of a report, and to its ``server``: bytes and requests
    per second since the report ``before``. Return the seconds between the two.

    ``read`` is what clients read, ``written`` what they wrote. ``rdma`` is what moved by RDMA in either direction. Only
    channels know that. What was not there before has begun at 0. A session's rates are those of its channels.
    """
    seconds = float(report["server"]["clock"]) - float(before["server"]["clock"])
    for kind, key, counters in _KINDS:
        known = {key(entry): counters(entry) for entry in before[kind]}
        for entry in report[kind]:
            entry["rates"] = _per_second(counters(entry), known.get(key(entry), {}), seconds)
    by_number = {entry["channel"]: entry["rates"] for entry in report["channels"]}
    for entry in report["sessions"]:
        entry["rates"] = _sum(by_number[number] for number in entry["channels"])
    report["server"]["rates"] = _sum(by_number.values())
    report["server"]["rates_seconds"] = round(seconds, 3)
    return seconds


def _per_second(now: Json, before: Json, seconds: float) -> Json:
    if seconds <= 0:
        return dict(NOTHING)
    # A counter that is less than before began anew.
    return {name: max(0.0, (value - before.get(name, 0)) / seconds) for name, value in now.items()}


def _sum(rates: Any) -> Json:
    total = dict(NOTHING)
    for entry in rates:
        for name in total:
            total[name] += entry[name]
    return total
