"""A way for RoCEv2 packets that leads nowhere, and work requests for the sending side."""

from __future__ import annotations

from collections.abc import Sequence

from smbdirect.codec import Buffer
from smbdirect.providers.base import Operation
from smbdirect.providers.roce.requester import Work


class NoPath:
    """Takes every packet. Implements ``requester.Path``."""

    ready = True

    def send(
        self,
        opcode: int,
        flags: int,
        psn: int,
        ack_request: bool,
        extension: bytes,
        segments: Sequence[Buffer],
        size: int,
    ) -> None:
        """Look at everything that would be sent."""
        if len(b"".join(segments)) != size:
            raise AssertionError(f"{size} bytes are announced, others are sent")

    def send_middles(
        self, opcode: int, psn: int, memory: memoryview, count: int, countdown: int = 0, ask_every: int = 0
    ) -> int:
        """Take all packets."""
        return count


def send() -> list[Work]:
    """Return one Send of several packets."""
    return [Work(Operation.SEND, [memoryview(bytes(3000))], 3000, None, True)]


def read() -> list[Work]:
    """Return one RDMA Read of several packets."""
    return [Work(Operation.READ, [memoryview(bytearray(3000))], 3000, None, True, 5, 0x1000)]
