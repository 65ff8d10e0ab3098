"""What all listeners of a server share: who takes connections, and who may come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smbdirect.message_transport import OnTransport
from smbdirect.transport.pool import BufferPool
from smbdirect.unauthenticated import UnauthenticatedPeers


@dataclass(frozen=True, slots=True)
class Reception:
    """Of one server; every listener, on TCP or on a fabric, is handed the same."""

    accept: OnTransport
    """Takes each new connection."""
    admits: Callable[[str], bool]
    """Whether connections from an address are taken."""
    buffers: BufferPool
    silent_peers: UnauthenticatedPeers
    """Connections that have said nothing."""
    unauthenticated: UnauthenticatedPeers
    """Connections that have said something, and have no session."""
