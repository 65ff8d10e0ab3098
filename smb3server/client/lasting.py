"""What makes an open outlive its connection: a durable or persistent handle, and the lease that it needs. A file that
the server is to lend needs a lease, too. [MS-SMB2 3.2.4.3.5, 3.2.4.4]
"""

from __future__ import annotations

import os

from smb3server.client.protocol.tree import RemoteFile, Tree
from smb3server.wire import create_contexts as contexts
from smb3server.wire.negotiate import Capability, Dialect
from smb3server.wire.oplock_break import LeaseState, OplockLevel
from smbdirect.errors import DecodeError

SHARE_CAP_CONTINUOUS_AVAILABILITY = 0x10
"""[MS-SMB2 2.2.10]"""
_LEASE = int(LeaseState.READ | LeaseState.HANDLE)
_EXCLUSIVE = _LEASE | int(LeaseState.WRITE)


class Lasting:
    """The contexts of one open: those that ask for a lasting handle, and those that reclaim it."""

    def __init__(self, durable: bool = True, exclusive: bool = False) -> None:
        """``durable``: the open is to outlive its connection. ``exclusive``: the lease is to keep others out."""
        self._durable = durable
        self._wanted = _EXCLUSIVE if exclusive else _LEASE
        self.lease_key = os.urandom(16)
        self.granted = False
        """Whether the server keeps the open when the connection is lost."""
        self._create_guid = os.urandom(16)
        self._flags = 0

    def request(self, tree: Tree) -> tuple[list[contexts.RawContext], int]:
        """Return create contexts and oplock level that ask for the handle; none if the server cannot have any."""
        self.granted = False
        if tree.client.dialect < Dialect.SMB_3_0 or not tree.client.negotiated.capabilities & Capability.LEASING:
            return [], int(OplockLevel.NONE)
        if not self._durable:
            return [self._lease()], int(OplockLevel.LEASE)
        self._flags = contexts.PERSISTENT if tree.capabilities & SHARE_CAP_CONTINUOUS_AVAILABILITY else 0
        wanted = contexts.DurableRequestV2(0, self._flags, 0, self._create_guid)
        return [
            contexts.RawContext(contexts.DURABLE_REQUEST_V2, contexts.DURABLE_REQUEST_V2_CODEC.pack(wanted)),
            self._lease(),
        ], int(OplockLevel.LEASE)

    def _lease(self) -> contexts.RawContext:
        return contexts.RawContext(
            contexts.REQUEST_LEASE, contexts.LEASE_V2_CODEC.pack(contexts.LeaseV2(self.lease_key, self._wanted))
        )

    def opened(self, file: RemoteFile) -> None:
        """Note what the server granted. Raises ``DecodeError``."""
        data = next((data for name, data in file.contexts if name == contexts.DURABLE_REQUEST_V2), None)
        self.granted = data is not None
        if data is not None:
            response = contexts.RESPONSES[contexts.DURABLE_REQUEST_V2](data)
            if not isinstance(response, contexts.DurableResponseV2):
                raise DecodeError("a durable handle of another kind")
            self._flags = response.flags & contexts.PERSISTENT

    def reclaim(self, file: RemoteFile) -> tuple[list[contexts.RawContext], int]:
        """Return create contexts and oplock level that reclaim the open on another connection."""
        data = contexts.DURABLE_RECONNECT_V2_CODEC.pack(
            contexts.DurableReconnectV2(*file.file_id, self._create_guid, self._flags)
        )
        return [contexts.RawContext(contexts.DURABLE_RECONNECT_V2, data), self._lease()], int(OplockLevel.LEASE)

    def broken(self, state: int) -> None:
        """Note a lease break. Without handle caching the server keeps the open no longer. [MS-SMB2 3.3.4.7]"""
        if not state & LeaseState.HANDLE:
            self.granted = self.granted and bool(self._flags)
