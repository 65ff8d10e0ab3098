"""The values that one side of a connection may choose. [MS-SMBD 3.1.4.1, 3.1.7.2]"""

from __future__ import annotations

from dataclasses import dataclass

from smbdirect.core import constants


@dataclass(frozen=True, slots=True)
class Settings:
    """Initial values of one connection's variables. Sizes are in bytes, times in seconds.

    Raises ``ValueError`` for values that no peer could accept.
    """

    receive_credit_max: int = 255
    """ReceiveCreditMax (appendix B <3>, <8>)."""
    send_credit_target: int = 255
    """SendCreditTarget (appendix B <3>, <8>)."""
    max_send_size: int = 8192
    """MaxSendSize. The smaller of this and the peer's MaxReceiveSize applies, which is 8192 on Windows and 1364 on
    Linux. (Windows and Linux send 1364 at most: appendix B <3>, <8>.)"""
    max_receive_size: int = 1364
    """MaxReceiveSize. The smaller of this and the peer's MaxSendSize applies, which is 1364 on Windows and Linux, so
    larger buffers would only cost memory."""
    max_fragmented_receive_size: int = 1_048_576 + 4096
    """MaxFragmentedRecvSize: the 1 MiB of appendix B <3> and <8>, and room for headers. An upper layer that accepts
    longer messages must state a larger value: Linux fails a WRITE that does not fit its peer's."""
    max_read_write_size: int = 8_388_608
    """MaxReadWriteSize (appendix B <7>, <8>)."""
    keepalive_interval: float = 120.0
    """KeepaliveInterval (appendix B <2>)."""
    keepalive_response_timeout: float = 5.0
    """How long a keepalive may go unanswered (appendix B <4>)."""
    negotiation_timeout_active: float = 120.0
    """Negotiation Timer of the initiator (3.1.4.1)."""
    negotiation_timeout_passive: float = 5.0
    """Negotiation Timer of the acceptor (3.1.7.2)."""
    send_credit_timeout: float = 5.0
    """How long queued messages wait for a peer that grants no credit. Not in spec: Windows ends such a connection after
    five seconds."""
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
