"""Rates from two reports of one server: what moved between them, by second.

The server counts and does not divide: who asks twice knows the rates, and a server that nobody asks has no work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import astuple

from smb3server.status.model import ChannelRecord, Rates, Report, ShareRecord, UserRecord

_Counted = TypeVar("_Counted", ChannelRecord, ShareRecord, UserRecord)


def channel_counters(entry: ChannelRecord) -> Rates:
    """Return the counters of a channel that rates are made of. Bytes in messages include the messages' headers."""
    return Rates(
        read=entry.rdma_write_bytes + entry.inline_bytes_sent,
        written=entry.rdma_read_bytes + entry.inline_bytes_received,
        rdma=entry.rdma_read_bytes + entry.rdma_write_bytes,
        requests=entry.requests,
    )


def _data_counters(entry: ShareRecord | UserRecord) -> Rates:
    requests = entry.requests if isinstance(entry, UserRecord) else 0
    return Rates(read=entry.bytes_read, written=entry.bytes_written, requests=requests)


def add_rates(report: Report, before: Report) -> float:
    """Add ``rates`` to the channels, shares, users and sessions of a report, and to its ``server``: bytes and requests
    per second since the report ``before``. Return the seconds between the two.

    ``read`` is what clients read, ``written`` what they wrote. ``rdma`` is what moved by RDMA in either direction. Only
    channels know that. What was not there before has begun at 0. A session's rates are those of its channels.
    """
    seconds = report.server.clock - before.server.clock
    _add(report.channels, before.channels, lambda entry: (entry.peer, entry.since), channel_counters, seconds)
    _add(report.shares, before.shares, lambda entry: entry.share, _data_counters, seconds)
    _add(report.users, before.users, lambda entry: entry.user, _data_counters, seconds)
    by_number = {entry.channel: entry.rates or Rates() for entry in report.channels}
    for session in report.sessions:
        session.rates = _sum(by_number[number] for number in session.channels)
    report.server.rates = _sum(by_number.values())
    report.server.rates_seconds = round(seconds, 3)
    return seconds


def _add(
    now: Sequence[_Counted],
    before: Sequence[_Counted],
    key: Callable[[_Counted], object],
    counters: Callable[[_Counted], Rates],
    seconds: float,
) -> None:
    known = {key(entry): counters(entry) for entry in before}
    for entry in now:
        entry.rates = _per_second(counters(entry), known.get(key(entry), Rates()), seconds)


def _per_second(now: Rates, before: Rates, seconds: float) -> Rates:
    if seconds <= 0:
        return Rates()
    # A counter that is less than before has begun again.
    return Rates(*(max(0.0, (new - old) / seconds) for new, old in zip(astuple(now), astuple(before), strict=True)))


def _sum(rates: Iterable[Rates]) -> Rates:
    return Rates(*map(sum, zip(*map(astuple, [Rates(), *rates]), strict=True)))
