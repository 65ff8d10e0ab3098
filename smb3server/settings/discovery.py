"""Settings of discovery: how clients find the server on their network. The section [discovery] of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class DiscoveryConfig:
    """The section [discovery]. Without it, nothing is announced."""

    mdns: bool = True
    """Whether the server is announced by mDNS (Finder, Nautilus, Dolphin)."""
    ws_discovery: bool = True
    """Whether the server is announced by WS-Discovery (Windows Explorer)."""
    interfaces: list[str] = field(default_factory=list)
    """Names of the interfaces to announce on. Empty means all that the server listens on, except loopback."""
    workgroup: str = "WORKGROUP"
    """The workgroup that Explorer shows."""
    model: str = "RackMac"
    """The model of _device-info._tcp, which chooses the icon in Finder."""
