"""Settings of the Witness service. ``config`` fills them in from a file."""

from __future__ import annotations

from dataclasses import dataclass, field

from smb3server.wire.address import Address


@dataclass(slots=True)
class WitnessConfig:
    """The section [witness]."""

    listen: list[str] = field(default_factory=list)
    """Addresses to listen on. Empty means those of the server."""
    port: int = 0
    """TCP port. 0 means any free port: clients ask the endpoint mapper."""
    endpoint_mapper_port: int | None = 135
    """TCP port of the endpoint mapper. None means that it is not served."""
    require_privacy: bool = False
    """Whether calls that are signed but not encrypted are refused."""
    names: list[str] = field(default_factory=list)
    """Net names that clients may register for. Empty means the server's name."""
    nodes: list[tuple[str, list[Address]]] = field(default_factory=list)
    """Names and addresses of the other nodes."""
