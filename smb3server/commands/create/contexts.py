"""What the create contexts of a request ask for. [MS-SMB2 2.2.13.2]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from smb3server.wire import create_contexts as wire


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
    lease: wire.Lease | wire.LeaseV2 | None = None
    durable: bool = False
    """Whether a durable open of version 1 is requested."""
    durable_v2: wire.DurableRequestV2 | None = None
    reconnect: wire.DurableReconnect | wire.DurableReconnectV2 | None = None
    """The durable open to which the client reconnects."""
    others: Mapping[bytes, Any] = {}
    """By name the decoded data of the contexts that have a module of their own (``registry``)."""

    @property
    def lease_key(self) -> bytes | None:
        """The key of the requested lease; None without one."""
        return self.lease.lease_key if self.lease is not None else None


NOTHING = CreateContexts()
