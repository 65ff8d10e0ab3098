"""Shares, users, limits and interfaces as records: what is used of the server, and how much of it."""

from __future__ import annotations

import ipaddress
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from smb3server.net.interfaces import serves
from smb3server.qos.flows import NO_ID, Flow
from smb3server.state.ceilings import GUESTS
from smb3server.status.model import (
    FlowRecord,
    InterfaceRecord,
    RecycleRecord,
    ShareRecord,
    StorageRecord,
    UserRecord,
)

if TYPE_CHECKING:
    from smb3server.server.server import Server
    from smb3server.state.share import Share


def shares(server: Server) -> list[ShareRecord]:
    """Return what is used of each share. Bytes are those of READs and WRITEs since the server's start."""
    connects: Counter[Share] = Counter()
    opens: Counter[Share] = Counter()
    read: Counter[Share] = Counter()
    written: Counter[Share] = Counter()
    for session in server.sessions.by_id.values():
        connects.update(tree.share for tree in session.tree_connect_table.values())
    for opened in server.opens.by_id.values():
        share = opened.tree.share
        opens[share] += 1
        read[share] += opened.bytes_read
        written[share] += opened.bytes_written
    return [
        ShareRecord(
            share=share.name,
            path=share.path,
            type="disk" if share.backend is not None else "pipe",
            read_only=share.read_only,
            encrypted=share.rules.encrypt,
            continuous_availability=share.rules.continuous_availability,
            connects=connects[share],
            open_count=opens[share],
            bytes_read=share.bytes_read + read[share],
            bytes_written=share.bytes_written + written[share],
            recycle=_recycle(share),
            storage=UNSET if share.queue is None else StorageRecord(len(share.queue), share.queue.silent_for()),
            links=UNSET if share.namespace is None else len(share.namespace.links),
        )
        for share in server.share_list.values()
    ]


def _recycle(share: Share) -> RecycleRecord | UnsetType:
    found = share.emptied
    if found is None:
        return UNSET
    return RecycleRecord(
        files=found.files, bytes=found.bytes, removed_files=found.removed_files, removed_bytes=found.removed_bytes
    )


def users(server: Server) -> list[UserRecord]:
    """Return what each user has of the server. All guests and anonymous users count as one user.

    ``requests`` are those of connections that exist now; a connection counts for the user who first logged on to it.
    """
    read: Counter[object] = Counter()
    written: Counter[object] = Counter()
    requests: Counter[object] = Counter()
    for opened in server.opens.by_id.values():
        if opened.usage is not None:
            read[opened.usage] += opened.bytes_read
            written[opened.usage] += opened.bytes_written
    for connection in server.connection_list:
        if connection.usage is not None:
            requests[connection.usage] += connection.command_sequence_window.requests
    return [
        UserRecord(
            user="guests" if usage.name == GUESTS else usage.name,
            guests=usage.name == GUESTS,
            connections=usage.connections,
            sessions=usage.sessions,
            open_count=usage.opens,
            locks=usage.locks,
            watchers=usage.watchers,
            bytes_read=usage.bytes_read + read[usage],
            bytes_written=usage.bytes_written + written[usage],
            requests=requests[usage],
        )
        for usage in server.ceilings.users()
    ]


def flows(server: Server) -> list[FlowRecord]:
    """Return the logical flows. [MS-SQOS 3.2.1.3]"""
    now = time.monotonic()
    return [_flow(flow, now) for flow in server.flows.by_id.values()]


def _flow(flow: Flow, now: float) -> FlowRecord:
    iops, bandwidth = flow.rates(now)
    named, policy = flow.policy, ""
    if flow.policy_id != NO_ID:
        policy = named.name if named is not None else str(uuid.UUID(bytes_le=flow.policy_id))
    return FlowRecord(
        flow=str(flow),
        policy=policy,
        initiator=flow.initiator,
        node=flow.node,
        opens=flow.opens,
        iops=round(iops, 1),
        bandwidth=round(bandwidth, 1),
        maximum_iops=flow.maximum_iops,
        maximum_bandwidth=flow.maximum_bandwidth,
        operations=flow.operations,
        delayed=flow.delayed,
    )


def limits(server: Server) -> dict[str, tuple[int, int]]:
    """Return how much is used of each limit of the server: the number in use, and the limit."""
    settings = server.settings
    return {
        "connections": (server.logged_on, settings.max_connections),
        "unauthenticated": (len(server.unauthenticated), server.unauthenticated.limit),
        "opens": (len(server.opens.by_id) - server.opens.dormant, server.opens.limit),
    }


def interfaces(server: Server) -> list[InterfaceRecord]:
    """Return the addresses of this machine as clients are told of them. [MS-SMB2 2.2.32.5]"""
    settings = server.settings
    return [
        InterfaceRecord(
            index=entry.number,
            interface=entry.name,
            address=str(entry.address),
            speed=entry.speed,
            link=entry.running,
            rdma=(rdma := serves(server.rdma_addresses, entry.address)),
            tcp=(tcp := serves(server.tcp_addresses, entry.address)),
            rss=settings.rss and entry.queues > 1,
            queues=entry.queues,
            loopback=entry.loopback,
            told=settings.multichannel and entry.running and not entry.loopback and (rdma or tcp),
        )
        for entry in sorted(server.interfaces.interfaces, key=lambda entry: (entry.number, _order(str(entry.address))))
    ]


def _order(address: str) -> tuple[int, int]:
    found = ipaddress.ip_address(address)
    return found.version, int(found)
