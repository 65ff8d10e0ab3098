"""What the create contexts of a request ask for, and who asks. [MS-SMB2 2.2.13.2]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from smb3server.access.caller import Caller
from smb3server.state.objects import Session, TreeConnect
from smb3server.wire import create_contexts as wire
from smb3server.wire.file_info import EaEntry
from smb3server.wire.negotiate import Capability


class CreateContexts(NamedTuple):
    """The contexts of one request. None, False or 0 in a field: the context was not sent, or does not count."""

    eas: tuple[EaEntry, ...] | None = None
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
    posix: int | None = None
    """The mode of a POSIX open, as it is on the wire. None: the open is not one. (``posix``)"""
    others: Mapping[bytes, Any] = {}
    """By name the decoded data of the contexts that have a module of their own (``registry``)."""

    @property
    def lease_key(self) -> bytes | None:
        """The key of the requested lease; None without one."""
        return self.lease.lease_key if self.lease is not None else None


NOTHING = CreateContexts()


class Opener(NamedTuple):
    """The session and tree connect of a new open, and properties of their connection."""

    session: Session
    tree: TreeConnect
    caller: Caller
    """The session's user, in the form that access checks take."""
    client_guid: bytes
    dialect: int
    server_capabilities: int
    """Connection.ServerCapabilities."""
    channel_sequence: int
    """ChannelSequence of the request."""

    @property
    def may_persist(self) -> bool:
        """Whether opens can be persistent: the share allows it, and the client knows about it. [MS-SMB2 3.3.5.9.10]"""
        return self.tree.share.stores_opens and bool(self.server_capabilities & Capability.PERSISTENT_HANDLES)
