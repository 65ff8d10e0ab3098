"""The part that all listeners of a server share: admission of connections, buffers, and tables of unauthenticated
peers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smbdirect.message_transport import OnTransport
from smbdirect.providers.base import ConnectionRequest
from smbdirect.rdma.pool import BufferPool
from smbdirect.unauthenticated import UnauthenticatedPeers


@dataclass(frozen=True, slots=True)
class Reception:
    """Passed to every listener of one server, on TCP and on fabrics."""

    accept: OnTransport
    """Receives each new connection."""
    admits: Callable[[str], bool]
    """Returns whether connections from an address are accepted."""
    buffers: BufferPool
    silent_peers: UnauthenticatedPeers
    """Connections that have not sent anything yet."""
    unauthenticated: UnauthenticatedPeers
    """Connections that have sent something, and have no session yet."""
    divert: Callable[[ConnectionRequest], bool] | None = None
    """See ``SmbDirectListener.divert``."""
