"""The state of etcd's members, and what an administrator has to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

DEFAULT_QUOTA = 2 << 30
"""etcd's own default of --quota-backend-bytes."""
FULL_SHARE = 0.75
"""Share of the quota from which on the database's size is a warning."""
_ALARM = re.compile(r"alarm:(\w+)")
_QUOTA = re.compile(r"^etcd_server_quota_backend_bytes (\S+)$", re.MULTILINE)
_SLOW = 0.5
"""Seconds for one answer from which on a member counts as slow."""


class Problem(NamedTuple):
    """Something that an administrator has to know. ``is_error``: the cluster does not work properly."""

    is_error: bool
    text: str


@dataclass(slots=True)
class MemberState:
    """The state of one member, as it reports it."""

    endpoint: str
    error: str = ""
    """Why it does not answer; empty if it does."""
    version: str = ""
    revision: int = 0
    """The latest revision of the store that the member has."""
    size: int = 0
    """Bytes of its database file. etcd compares this with the quota."""
    in_use: int = 0
    """Bytes of the file that are in use. Compaction frees parts of the file, which etcd uses again; only ``defrag``
    makes the file smaller."""
    quota: int = 0
    """Bytes that the file may have; 0 if the member does not say."""
    has_leader: bool = False
    alarms: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """How long the answer took."""

    def as_json(self) -> dict[str, Any]:
        """Return the state as JSON types."""
        return asdict(self) | {"limit": self.limit}

    @property
    def limit(self) -> int:
        """The quota, or etcd's default if it is not known."""
        return self.quota or DEFAULT_QUOTA


def state_of(endpoint: str, answer: dict[str, Any], seconds: float) -> MemberState:
    """Return the state in an answer of ``/v3/maintenance/status``. Raises ``ValueError`` for any other answer."""
    header = answer.get("header")
    if not isinstance(header, dict):
        raise ValueError("no state of an etcd member")
    errors = answer.get("errors")
    texts = [str(text) for text in errors] if isinstance(errors, list) else []
    return MemberState(
        endpoint,
        version=str(answer.get("version", "")),
        revision=int(header.get("revision", 0)),
        size=int(answer.get("dbSize", 0)),
        in_use=int(answer.get("dbSizeInUse", 0)),
        quota=int(answer.get("dbSizeQuota", 0)),
        has_leader=int(answer.get("leader", 0)) != 0,
        alarms=sorted({found for text in texts for found in _ALARM.findall(text)}),
        seconds=round(seconds, 4),
    )


def quota_of(metrics: str) -> int:
    """Return the quota in a member's metrics, 0 if they do not have it."""
    found = _QUOTA.search(metrics)
    try:
        return max(0, int(float(found[1]))) if found is not None else 0
    except (ValueError, OverflowError):
        return 0


def remedy_of_full(members: Sequence[MemberState]) -> str:
    """Return the commands that make room in etcd and let it go on."""
    revision = max((member.revision for member in members), default=0)
    endpoints = ",".join(member.endpoint for member in members)
    return (
        f"etcdctl --endpoints={endpoints} compact {revision}, then etcdctl --endpoints={endpoints} defrag, then "
        f"etcdctl --endpoints={endpoints} alarm disarm, with etcd's root user if it has users"
    )


def problems(members: Sequence[MemberState]) -> list[Problem]:
    """Return what an administrator has to know, worst first."""
    found: list[Problem] = []
    alarms = sorted({alarm for member in members for alarm in member.alarms})
    living = [member for member in members if not member.error]
    if living and not any(member.has_leader for member in living):
        found.append(
            Problem(True, "etcd has no leader: services are served nowhere; remedy: start the members that are down")
        )
    if "NOSPACE" in alarms:
        found.append(
            Problem(
                True,
                "etcd has no space left (alarm NOSPACE): new opens and locks, moves and failovers fail; remedy: "
                + remedy_of_full(members),
            )
        )
    found += [
        Problem(True, f"etcd has the alarm {alarm}; remedy: etcdctl alarm list, and etcd's manual")
        for alarm in alarms
        if alarm != "NOSPACE"
    ]
    for member in members:
        if member.error:
            found.append(Problem(False, f"etcd member {member.endpoint} does not answer: {member.error}"))
        elif "NOSPACE" not in alarms and member.size >= FULL_SHARE * member.limit:
            found.append(Problem(False, _nearly_full(member)))
        elif member.seconds >= _SLOW:
            found.append(
                Problem(
                    False,
                    f"etcd member {member.endpoint} took {member.seconds:.1f} s for an answer; remedy: give it a disk "
                    "and a processor of its own",
                )
            )
    return sorted(found, key=lambda problem: not problem.is_error)


def _nearly_full(member: MemberState) -> str:
    text = (
        f"etcd member {member.endpoint} has used {member.size / member.limit:.0%} of its quota "
        f"({_mib(member.size)} of {_mib(member.limit)}, {_mib(member.in_use)} in use); when it is full, opens and "
        "failovers fail; remedy: "
    )
    if member.in_use < member.size / 2:
        return f"{text}etcdctl --endpoints={member.endpoint} defrag, which stops this member for a moment"
    return f"{text}start etcd's members with a larger --quota-backend-bytes"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
