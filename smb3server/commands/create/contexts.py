"""Decodes the create contexts of a request, and drops those that the dialect or other contexts exclude.

[MS-SMB2 2.2.13.2]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from smb3server.wire import create_contexts as wire
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus, StatusError

_SINCE_3_0 = (wire.DURABLE_REQUEST_V2, wire.DURABLE_RECONNECT_V2)
_ABOUT_DURABILITY = frozenset((wire.DURABLE_REQUEST, wire.DURABLE_RECONNECT, *_SINCE_3_0))


class CreateContexts(NamedTuple):
    """The contexts of one request. None, False or 0 in a field: the context was not sent, or does not count."""

    eas: tuple[tuple[bytes, bytes], ...] | None = None
    """Names and values for a new or overwritten file."""
    security_descriptor: bytes | None = None
    """Self-relative, for a new file."""
    allocation_size: int | None = None
    """Bytes."""
    timewarp: int = 0
    """FILETIME of the snapshot in which to open the file; 0 means the file as it is now."""
    maximal_access: bool = False
    """Whether the response is to contain the maximal access."""
    maximal_access_since: int = 0
    """FILETIME. If the file was last written then, the client knows the maximal access already."""
    on_disk_id: bool = False
    """Whether the response is to contain the numbers of the file and the volume."""
    lease: wire.Lease | wire.LeaseV2 | None = None
    durable: bool = False
    """Whether a durable open of version 1 is requested."""
    durable_v2: wire.DurableRequestV2 | None = None
    reconnect: wire.DurableReconnect | wire.DurableReconnectV2 | None = None
    """The durable open to which the client reconnects."""
    app_instance_id: bytes | None = None
    app_instance_version: tuple[int, int] | None = None
    """High and low half. [MS-SMB2 2.2.13.2.15]"""

    @property
    def lease_key(self) -> bytes | None:
        """The key of the requested lease; None without one."""
        return self.lease.lease_key if self.lease is not None else None


NOTHING = CreateContexts()


def decode(raw: Sequence[wire.RawContext], dialect: int) -> CreateContexts:
    """Decode the contexts of a request. Raises INVALID_PARAMETER for contexts that cannot come together."""
    if not raw:
        return NOTHING
    found = wire.decode_requests(raw)
    if dialect < Dialect.SMB_3_0:
        for name in _SINCE_3_0:
            found.pop(name, None)
    if wire.DURABLE_RECONNECT in found:
        # 3.3.5.9.7: a version 1 request beside it is ignored.
        found.pop(wire.DURABLE_REQUEST, None)
    if len(_ABOUT_DURABILITY & found.keys()) > 1:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return _named(found, dialect)


def _named(found: dict[bytes, Any], dialect: int) -> CreateContexts:
    eas = found.get(wire.EA_BUFFER)
    allocation = found.get(wire.ALLOCATION_SIZE)
    timewarp = found.get(wire.TIMEWARP)
    since = found.get(wire.MAXIMAL_ACCESS)
    application = found.get(wire.APP_INSTANCE_ID)
    version = found.get(wire.APP_INSTANCE_VERSION) if dialect >= Dialect.SMB_3_1_1 else None
    return CreateContexts(
        eas=tuple((name, value) for name, value, _ in eas) if eas is not None else None,
        security_descriptor=found.get(wire.SD_BUFFER),
        allocation_size=allocation.allocation_size if allocation is not None else None,
        timewarp=timewarp.timestamp if timewarp is not None else 0,
        maximal_access=wire.MAXIMAL_ACCESS in found,
        maximal_access_since=since.timestamp if since is not None else 0,
        on_disk_id=wire.QUERY_ON_DISK_ID in found,
        lease=_lease(found.get(wire.REQUEST_LEASE), dialect),
        durable=wire.DURABLE_REQUEST in found,
        durable_v2=found.get(wire.DURABLE_REQUEST_V2),
        reconnect=found.get(wire.DURABLE_RECONNECT) or found.get(wire.DURABLE_RECONNECT_V2),
        app_instance_id=application.app_instance_id if application is not None else None,
        app_instance_version=(version.version_high, version.version_low) if version is not None else None,
    )


def _lease(asked: wire.Lease | wire.LeaseV2 | None, dialect: int) -> wire.Lease | wire.LeaseV2 | None:
    """Return a requested lease if the dialect has it: version 1 since 2.1, version 2 since 3.0. [MS-SMB2 3.3.5.9.8]"""
    known = Dialect.SMB_3_0 if isinstance(asked, wire.LeaseV2) else Dialect.SMB_2_1
    return asked if dialect >= known else None
