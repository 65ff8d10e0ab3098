"""The state of a server: sessions, their channels and opens, and whether RDMA is used.

The report reads state and changes none. ``model`` has its records.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from smb3server import __version__
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.process.words import endpoint
from smb3server.status import open_files, resources
from smb3server.status.model import (
    ChannelRecord,
    Compression,
    Handles,
    OneSidedRecord,
    RdmaAnswer,
    RdmaChoice,
    Report,
    ServerRecord,
    SessionRecord,
    Sizes,
    Turn,
    Watchdog,
)
from smb3server.status.open_files import MAX_LOCKS, MAX_OPENS
from smb3server.status.rdma_reasons import Facts, Reason, why_inline, why_tcp
from smb3server.wire.compression import NAMES
from smb3server.wire.negotiate import DIALECT_NAMES, Capability, Dialect
from smb3server.wire.rdma_transform import RdmaTransformId

if TYPE_CHECKING:
    from smb3server.server.server import Server
    from smb3server.state.objects import Connection, Session

_TRANSFORMS = {int(kind): kind.name.lower() for kind in RdmaTransformId}
_NO_DIALECT = {0: "-", int(Dialect.WILDCARD): "2.???"}
"""Texts shown before a dialect is negotiated."""


def dialect_name(dialect: int) -> str:
    """Return the name of a dialect, such as "3.1.1"."""
    return (_NO_DIALECT | DIALECT_NAMES).get(dialect, f"0x{dialect:04x}")


def rdma_protection(connection: Connection) -> str:
    """Return how the data was protected that moved by RDMA, such as "encrypted"; empty if none has moved."""
    moved = connection.transport.traffic
    clear = moved.rdma_read_bytes + moved.rdma_write_bytes
    clear -= connection.rdma_bytes_encrypted + connection.rdma_bytes_signed
    kinds = ("encrypted", connection.rdma_bytes_encrypted), ("signed", connection.rdma_bytes_signed), ("clear", clear)
    return ", ".join(name for name, count in kinds if count)


def sizes(connection: Connection) -> Sizes:
    """Return the size limits in force on a connection."""
    return Sizes(
        max_read=connection.max_read_size,
        max_write=connection.max_write_size,
        max_transact=connection.max_transact_size,
        **connection.transport.limits._asdict(),
        credit_limit=connection.credit_limit,
    )


def facts(server: Server, connection: Connection) -> Facts:
    """Collect the facts that ``rdma_reasons`` judges by."""
    sessions = list(connection.session_table.values())
    siblings = {channel for session in sessions for channel in session.channel_list} | {connection}
    named = [session for session in sessions if session.identity is not None]
    carried = connection.transport.traffic
    real = [dialect for dialect in connection.client_dialects if dialect != Dialect.WILDCARD]
    return Facts(
        rdma_off=server.rdma == "off",
        served=any(choice.served for choice in server.rdma_choices),
        not_served="; ".join(str(choice) for choice in server.rdma_choices if not choice.served),
        negotiated=connection.negotiated,
        dialect=connection.dialect,
        server_max_dialect=server.settings.max_dialect,
        client_max_dialect=max(real, default=connection.dialect),
        server_multichannel=server.settings.multichannel,
        client_multichannel=bool(connection.client_capabilities & Capability.MULTI_CHANNEL),
        logged_on=bool(named),
        guest=bool(named) and all(session.is_guest or session.is_anonymous for session in named),
        asked=any(entry.interfaces_asked for entry in siblings),
        flagged=max(entry.rdma_interfaces_told for entry in siblings),
        rdma_channels=sum(entry is not connection and entry.is_smb_direct for entry in siblings),
        lost=server.lost_rdma.get(connection.client_guid, ""),
        encrypted=_who_encrypts(sessions),
        signing_required=any(session.signing_required for session in sessions),
        transforms=connection.rdma_transform_ids,
        server_transforms=server.settings.rdma_transforms,
        rdma_protection=rdma_protection(connection),
        rdma_bytes=carried.rdma_read_bytes + carried.rdma_write_bytes,
        largest_inline=connection.largest_inline,
    )


def _who_encrypts(sessions: Iterable[Session]) -> str:
    for session in sessions:
        if session.encrypt_data:
            return "the session"
        for tree in session.tree_connect_table.values():
            if tree.encrypt_data:
                return f"share {tree.share.name}"
    return ""


def reason(server: Server, connection: Connection) -> Reason:
    """Return whether a connection uses RDMA, and if not, why."""
    known = facts(server, connection)
    return why_inline(known) if connection.is_smb_direct else why_tcp(known)


def _channel(server: Server, connection: Connection, number: int) -> ChannelRecord:
    transport = connection.transport
    sessions = list(connection.session_table.values())
    why = reason(server, connection)
    signing = "none" if not connection.negotiated else _name(SigningAlgorithm, connection.signing_algorithm_id)
    return ChannelRecord(
        channel=number,
        fabric=transport.fabric,
        peer=endpoint(transport.peer_address),
        local=endpoint(transport.local_address),
        since=connection.creation_time,
        dialect=dialect_name(connection.dialect),
        signing=signing,
        signing_required=any(session.signing_required for session in sessions),
        cipher=_name(Cipher, connection.cipher_id),
        encryption=_who_encrypts(sessions),
        smb_credits=connection.command_sequence_window.available,
        requests=connection.command_sequence_window.requests,
        pending_requests=connection.host.pending_requests,
        sizes=sizes(connection),
        sessions=[f"0x{session.session_id:016x}" for session in sessions],
        rdma=RdmaAnswer(why.code.value, why.text, why.remedy),
        rdma_transforms=[_TRANSFORMS[kind] for kind in connection.rdma_transform_ids],
        rdma_protection=rdma_protection(connection),
        rdma_bytes_encrypted=connection.rdma_bytes_encrypted,
        rdma_bytes_signed=connection.rdma_bytes_signed,
        **transport.traffic._asdict(),
        smb_direct=dict(transport.counters) if connection.is_smb_direct else UNSET,
        compression=_compression(connection),
    )


def _compression(connection: Connection) -> Compression | UnsetType:
    agreed, counts = connection.compression, connection.compressed
    if agreed is None:
        return UNSET
    return Compression(
        algorithm=NAMES.get(agreed.algorithm, ""),
        patterns=agreed.patterns,
        chained=agreed.chained,
        received=counts.received,
        received_compressed=counts.received_compressed,
        sent=counts.sent,
        sent_compressed=counts.sent_compressed,
    )


def _name(kind: type[Cipher] | type[SigningAlgorithm], value: int) -> str:
    try:
        return kind(value).name.replace("_", "-")
    except ValueError:
        return f"0x{value:04x}"


def _session(server: Server, session: Session, numbers: Mapping[Connection, int], files: bool) -> SessionRecord:
    opens = list(session.open_table.values())
    line = server.one_sided.lines.get(session)
    return SessionRecord(
        session=f"0x{session.session_id:016x}",
        user=str(session.identity) if session.identity is not None else "",
        guest=session.is_guest or session.is_anonymous,
        state=session.state.value,
        client=session.connection.client_name,
        since=session.creation_time,
        encrypted=session.encrypt_data,
        signing_required=session.signing_required,
        rdma_protection=sorted({word for entry in session.channel_list if (word := rdma_protection(entry))}),
        shares=[tree.share.name for tree in session.tree_connect_table.values()],
        channels=sorted(numbers[entry] for entry in session.channel_list if entry in numbers),
        open_count=len(opens),
        opens=[open_files.describe(entry) for entry in opens[:MAX_OPENS]] if files else [],
        one_sided=UNSET if line is None else OneSidedRecord(*line.traffic),
    )


def _handles(server: Server) -> Handles:
    """Report the opens that outlive their connection: their number, the disconnected ones, and the fate of
    former ones.
    """
    kept = [entry.durable for entry in server.opens.by_id.values() if entry.durable is not None]
    counts = Counter(durable.kind for durable in kept)
    return Handles(
        durable=counts["durable"],
        resilient=counts["resilient"],
        persistent=counts["persistent"],
        waiting=sum(durable.disconnected for durable in kept),
        **asdict(server.opens.counts),
    )


def _watchdog(server: Server) -> Watchdog | None:
    """Report the requests that blocked all clients; None if the watchdog is off."""
    watchdog = server.measuring.watchdog
    if watchdog is None:
        return None
    worst = Turn(*watchdog.worst) if watchdog.worst is not None else None
    return Watchdog(watchdog.limit, watchdog.count, worst, [Turn(*turn) for turn in watchdog.turns])


def collect(server: Server, addresses: Iterable[str] = (), files: bool = True) -> Report:
    """Return the whole report. ``addresses`` are listed as the served ones.

    Without ``files`` it lists neither opens nor locks, of which there may be many."""
    connections = sorted(server.connection_list, key=lambda entry: entry.creation_time)
    numbers = {connection: number for number, connection in enumerate(connections, 1)}
    channels = [_channel(server, connection, numbers[connection]) for connection in connections]
    backends = {id(share.backend): share.backend for share in server.share_list.values() if share.backend}.values()
    locks = open_files.locks(server) if files else iter(())
    opens = server.opens.by_id.values()
    return Report(
        pid=os.getpid(),
        server=ServerRecord(
            version=__version__,
            name=server.settings.server_name,
            guid=str(uuid.UUID(bytes_le=server.server_guid)),
            since=server.server_start_time,
            now=time.time(),
            clock=time.monotonic(),
            addresses=list(addresses),
            shares=[share.name for share in server.share_list.values()],
            rdma=server.rdma,
            rdma_choices=[
                RdmaChoice(choice.fabric, choice.host, list(choice.ports), choice.served, choice.reason, choice.remedy)
                for choice in server.rdma_choices
            ],
            multichannel=server.settings.multichannel,
            limits=resources.limits(server),
            watchdog=_watchdog(server),
            buffer_allocations=server.buffers.allocations,
            opens=sum(backend.opens for backend in backends),
            path_lookups=sum(backend.path_lookups for backend in backends),
            handles=_handles(server),
            lock_count=sum(usage.locks for usage in server.ceilings.users()),
        ),
        sessions=[_session(server, session, numbers, files) for session in server.sessions.by_id.values()],
        channels=channels,
        shares=resources.shares(server),
        users=resources.users(server),
        interfaces=resources.interfaces(server),
        locks=list(itertools.islice(locks, MAX_LOCKS)),
        flows=resources.flows(server) or UNSET,
        away=list(itertools.islice(open_files.away(opens), MAX_OPENS)) if files else [],
    )
