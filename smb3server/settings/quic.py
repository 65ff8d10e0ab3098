"""Settings of SMB over QUIC. The section [quic] of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class QuicConfig:
    """The section [quic]. Without it, nobody is served over QUIC."""

    certificate: Path
    """PEM file with the server's certificate and those between it and its authority."""
    key: Path | None = None
    """PEM file with the certificate's key. None means that it is in the same file."""
    listen: list[str] = field(default_factory=list)
    """Addresses to listen on. Empty means those of the server."""
    port: int = 443
    """UDP port. 0 means any."""
    client_authority: Path | None = None
    """PEM file with the authorities whose certificates clients must have. None means that the list alone counts."""
    clients: frozenset[str] = frozenset()
    """SHA-256 of the certificates of the clients that may connect, in lower case without colons. Empty means all that
    the authority has signed, and without one everybody."""
