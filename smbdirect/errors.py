"""Errors of the SMB Direct stack. All of them end the connection they belong to."""

from __future__ import annotations


class SmbDirectError(Exception):
    """Base of everything this package raises on purpose."""


class ProtocolError(SmbDirectError):
    """The peer broke a rule of MS-SMBD; the connection must be terminated (MS-SMBD 3.1.5).

    ``rule`` names the violated section, for logs and conformance verdicts.
    """

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(f"{message} [{rule}]" if rule else message)
        self.rule = rule


class DecodeError(ProtocolError):
    """Bytes that are too short or inconsistent for the layout they claim to have."""


class TimerExpired(ProtocolError):
    """A timer of MS-SMBD 3.1.6 ended the connection: the peer is too slow or gone."""


class ProviderError(SmbDirectError):
    """The RDMA provider cannot do what was asked (bad registration, queue full, device trouble)."""


class ConnectionLost(SmbDirectError):
    """The connection is gone; ``reason`` says why."""

    def __init__(self, reason: object) -> None:
        super().__init__(str(reason))
        self.reason = reason
