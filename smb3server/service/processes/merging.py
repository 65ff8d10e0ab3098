"""The reports and the metrics of several processes, as those of one server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET

from smb3server.config.processes import FIRST
from smb3server.status.model import Handles, PartRecord, Report, ShareRecord, UserRecord

Counted = TypeVar("Counted", Handles, UserRecord)

_CHANNELS = 10_000_000
"""Channels of process N have numbers from N times this: each process counts its own."""


def merge_reports(reports: Mapping[int, Report | str], addresses: Sequence[str], owners: Mapping[str, int]) -> Report:
    """Return the report of process 1 with what the others have. A text instead of a report says why there is none.

    ``owners``: which process serves a share, by case-folded name. A share stands in the report once, as its owner
    has it."""
    whole = reports[FIRST]
    assert isinstance(whole, Report)
    users = {(user.user, user.guests): user for user in whole.users}
    whole.processes, shares = [], list[ShareRecord]()
    for number, report in reports.items():
        if isinstance(report, str):
            whole.processes.append(PartRecord(number, addresses[number - 1], error=report))
            continue
        whole.processes.append(
            PartRecord(number, addresses[number - 1], report.pid, len(report.sessions), len(report.channels))
        )
        for session in report.sessions:
            session.process = number
            session.channels = [_number(channel, number) for channel in session.channels]
        for channel in report.channels:
            channel.process, channel.channel = number, _number(channel.channel, number)
        for share in report.shares:
            # IPC$ and namespaces are those of process 1. Who led to a share's owner has no share.
            if owners.get(share.share.casefold(), number if share.links is UNSET else FIRST) == number and (
                share.share.casefold() in owners or number == FIRST
            ):
                share.process = number
                shares.append(share)
        if number != FIRST:
            _add(whole, report, users)
    whole.shares = shares
    whole.server.shares = [share.share for share in shares]
    return whole


def _number(channel: int, process: int) -> int:
    return channel if process == FIRST else process * _CHANNELS + channel


def _add(whole: Report, report: Report, users: dict[tuple[str, bool], UserRecord]) -> None:
    """Add what another process has."""
    whole.sessions += report.sessions
    whole.channels += report.channels
    whole.locks += report.locks
    whole.away += report.away
    if report.flows is not UNSET:
        whole.flows = [*(whole.flows or ()), *report.flows]
    whole.server.addresses += report.server.addresses
    whole.server.opens += report.server.opens
    whole.server.path_lookups += report.server.path_lookups
    whole.server.lock_count += report.server.lock_count
    whole.server.rdma_choices += report.server.rdma_choices
    whole.server.handles = _sum(whole.server.handles, report.server.handles)
    if whole.down is not UNSET and report.down is not UNSET:
        whole.down = {**whole.down, **report.down}
    for user in report.users:
        known = users.get((user.user, user.guests))
        if known is None:
            whole.users.append(user)
            users[user.user, user.guests] = user
        else:
            whole.users[whole.users.index(known)] = users[user.user, user.guests] = _sum(known, user)
    told = {entry.address: entry.told for entry in report.interfaces}
    for interface in whole.interfaces:
        interface.told = interface.told or told.get(interface.address, False)


def _sum(one: Counted, other: Counted) -> Counted:
    """Return a record with the sums of two: names stay."""
    sums = {
        name: getattr(one, name) + getattr(other, name)
        for name in one.__struct_fields__
        if isinstance(getattr(one, name), int) and not isinstance(getattr(one, name), bool)
    }
    return msgspec.structs.replace(one, **sums)


def merge_metrics(texts: Mapping[int, str]) -> str:
    """Return the metrics of all processes, each with the label ``process``. Texts are in Prometheus' format."""
    from prometheus_client import generate_latest
    from prometheus_client.core import Metric
    from prometheus_client.parser import text_string_to_metric_families
    from prometheus_client.registry import Collector, CollectorRegistry

    families: dict[str, Metric] = {}
    for number, text in texts.items():
        for family in text_string_to_metric_families(text):
            kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            kept.samples += [
                sample._replace(labels={**sample.labels, "process": str(number)}) for sample in family.samples
            ]

    class _All(Collector):
        def collect(self) -> Iterator[Metric]:
            return iter(families.values())

    registry = CollectorRegistry()
    registry.register(_All())
    return generate_latest(registry).decode()
