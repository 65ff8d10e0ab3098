"""What operators are told: the log, the audit and the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class LogSettings:
    """The log, besides its levels."""

    format: str = "text"
    """One of ``process.log_output.FORMATS``."""
    file: Path | None = None
    """None means stderr."""
    audit_file: Path | None = None
    """Where the audit of shares goes. None means the log."""


@dataclass(slots=True)
class MetricsSettings:
    """The port for Prometheus."""

    listen: str = "127.0.0.1"
    port: int = 9445
    """0 means that there are metrics on the admin socket alone."""


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """A trace that begins with the server."""

    client: str
    """An address or a network."""
    file: Path
    decrypt: bool = False
    """Whether the file has what was encrypted in the clear."""
