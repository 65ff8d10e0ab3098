"""The server under test: where it is, who logs on, and how long its timers take."""

from __future__ import annotations

from dataclasses import dataclass

from smbdirect.core.settings import Settings
from smbdirect.providers.base import Provider

FABRICS = ("loopback", "iwarp", "roce", "verbs")
_DEFAULT = Settings()


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. The timers are those of the server under test."""

    negotiation: float = _DEFAULT.negotiation_timeout_passive
    keepalive: float = _DEFAULT.keepalive_interval
    keepalive_answer: float = _DEFAULT.keepalive_response_timeout
    """How long the server waits for the answer to its keepalive."""
    credit: float = _DEFAULT.send_credit_timeout
    """How long the server waits for credits. Not in spec: Windows waits five seconds."""
    setup: float = 10.0
    """How long a connection, a logon and a new file may take."""
    patience: float = 10.0
    """How long the server may take for what it must do at once."""
    quiet: float = 1.0
    """How long to watch that the server does not do something."""
    settle: float = 0.0
    """How long to wait after connecting, before the first message."""
    slack: float = 1.0
    """How far a timer may be off, and this machine be late."""

    @property
    def prompt(self) -> float:
        """How long the server may take for what one of its timers would do, too, a little later."""
        return min(self.patience, min(self.negotiation, self.keepalive, self.credit) - self.slack)


@dataclass(frozen=True, slots=True)
class Target:
    """One server on one fabric."""

    fabric: str
    provider: Provider
    host: str
    port: int
    tcp_port: int
    """Where the same server listens for SMB over TCP."""
    user: str = ""
    password: str = ""
    share: str = ""
    """The share that cases write to; empty if they must not log on."""
    timing: Timing = Timing()
    name: str = ""
    """What reports call the server."""
