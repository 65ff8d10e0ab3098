"""Errors of the SMB Direct stack. Each of them ends the connection that it belongs to."""

from __future__ import annotations


class SmbDirectError(Exception):
    """Base of all errors that this package raises on purpose."""


class ProtocolError(SmbDirectError):
    """The peer broke a rule of MS-SMBD; the connection must be terminated. [MS-SMBD 3.1.5]

    ``rule`` names the violated section, for logs and conformance verdicts.
    """

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(f"{message} [{rule}]" if rule else message)
        self.rule = rule


class DecodeError(ProtocolError):
    """The received bytes are too short or inconsistent for the layout they claim to have."""


class TimerExpired(ProtocolError):
    """A timer ended the connection: the peer is too slow or no longer there. [MS-SMBD 3.1.6]"""


class ProviderError(SmbDirectError):
    """The RDMA provider cannot do what was requested (bad registration, full queue, failure of the device)."""


class ConnectionLost(SmbDirectError):
    """The connection was lost for ``reason``."""

    def __init__(self, reason: object) -> None:
        super().__init__(str(reason))
        self.reason = reason
