"""Packets of RoCEv2, a way for them that leads nowhere, and work requests for the sending side."""

from __future__ import annotations

from collections.abc import Sequence

from smbdirect.codec import Buffer
from smbdirect.providers.base import Operation
from smbdirect.providers.roce.headers import BTH, HEAD, ICRC_LENGTH, Bth, Opcode
from smbdirect.providers.roce.icrc import Flow, crc32
from smbdirect.providers.roce.requester import Work

FLOW = Flow(b"\x0a\0\0\1", b"\x0a\0\0\2", 4791, 4791)


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


def whole(packet: bytes) -> memoryview:
    """Return the packet with its ICRC."""
    size = len(packet) + ICRC_LENGTH
    head, rest = packet[: HEAD.size], packet[HEAD.size :]
    return memoryview(packet + crc32(rest, FLOW.state(size, head)).to_bytes(ICRC_LENGTH, "little"))


def packet(opcode: Opcode, psn: int, extension: bytes = b"", payload: Buffer = b"") -> bytes:
    """Return a packet without its ICRC, behind the byte that does nothing else."""
    return b"\0" + BTH.pack(Bth(opcode, psn=psn)) + extension + payload
