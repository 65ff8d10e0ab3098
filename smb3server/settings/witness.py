"""What can be set about the Witness service; ``config`` fills it in from a file."""

from __future__ import annotations

from dataclasses import dataclass, field

from smb3server.wire.address import Address


@dataclass(slots=True)
class WitnessConfig:
    """Section [witness]."""

    listen: list[str] = field(default_factory=list)
    """Empty: where the server listens."""
    port: int = 0
    """0: any; clients ask the endpoint mapper."""
    endpoint_mapper_port: int | None = 135
    """None: no endpoint mapper."""
    require_privacy: bool = False
    """Refuse calls that are only signed."""
    names: list[str] = field(default_factory=list)
    """Net names; empty: the server's name."""
    addresses: list[Address] = field(default_factory=list)
    """Virtual addresses of the names."""
    nodes: list[tuple[str, list[Address]]] = field(default_factory=list)
    """The other nodes."""
