"""The values that one side of a connection may choose. [MS-SMBD 3.1.4.1, 3.1.7.2]"""

from __future__ import annotations

from dataclasses import dataclass

from smbdirect.core import constants


@dataclass(frozen=True, slots=True)
class Settings:
    """Initial values of one connection's variables. Sizes are in bytes, times in seconds.

    Raises ``ValueError`` for values that no peer could accept.
    """

    receive_credit_max: int = constants.DEFAULT_CREDITS
    send_credit_target: int = constants.DEFAULT_CREDITS
    max_send_size: int = constants.DEFAULT_SEND_SIZE
    max_receive_size: int = constants.DEFAULT_RECEIVE_SIZE
    max_fragmented_receive_size: int = constants.DEFAULT_FRAGMENTED_SIZE
    max_read_write_size: int = constants.DEFAULT_READ_WRITE_SIZE
    keepalive_interval: float = constants.KEEPALIVE_INTERVAL
    keepalive_response_timeout: float = constants.KEEPALIVE_RESPONSE_TIMEOUT
    negotiation_timeout_active: float = constants.NEGOTIATION_TIMEOUT_ACTIVE
    negotiation_timeout_passive: float = constants.NEGOTIATION_TIMEOUT_PASSIVE
    send_credit_timeout: float = constants.SEND_CREDIT_TIMEOUT
    max_send_segments: int = 16
    """Most pieces of memory in one Send, including the header; a message in more pieces is sent in more fragments."""

    def __post_init__(self) -> None:
        for name in ("receive_credit_max", "send_credit_target"):
            if not 1 <= getattr(self, name) <= 0xFFFF:
                raise ValueError(f"{name} must be within 1..65535")
        for name in ("max_send_size", "max_receive_size"):
            if not constants.MIN_RECEIVE_SIZE <= getattr(self, name) <= 0xFFFFFFFF:
                raise ValueError(f"{name} must be at least {constants.MIN_RECEIVE_SIZE}")
        if not constants.MIN_FRAGMENTED_SIZE <= self.max_fragmented_receive_size <= 0xFFFFFFFF:
            raise ValueError(f"max_fragmented_receive_size must be at least {constants.MIN_FRAGMENTED_SIZE}")
        if not 0 <= self.max_read_write_size <= 0xFFFFFFFF:
            raise ValueError("max_read_write_size must fit 32 bits")
        if self.max_send_segments < 2:
            raise ValueError("a Send needs room for the header and one segment")
