"""The packets of a real session over RoCEv2, to be changed, with right ICRCs."""

from __future__ import annotations

import struct
from pathlib import Path

from smb3server.lab.pcap.capture import Frame, Frames, opened
from smb3server.lab.pcap.ib_transport import BTH, ICRC, icrc
from smb3server.lab.pcap.packets import IbPacket, read_packet
from tests.lab.captures import FOLDER

_UDP = 8
SEND_ONLY, WRITE_FIRST, WRITE_MIDDLE, ACK = 0x04, 0x06, 0x07, 0x11
CLIENT, SERVER = "10.9.0.2", "10.9.0.1"


class RoceSession:
    """A session as frames."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames

    @classmethod
    def of(cls, name: str) -> RoceSession:
        with opened(str(FOLDER / f"{name}.pcap")) as stream:
            return cls(list(Frames(stream)))

    def packet(self, at: int) -> IbPacket:
        """The InfiniBand packet of a frame."""
        found = read_packet(self.frames[at])
        assert isinstance(found, IbPacket)
        return found

    def find(self, opcode: int, sender: str, nth: int = 0) -> int:
        """Where the nth packet with ``opcode`` from ``sender`` is."""
        found = [
            at
            for at in range(len(self.frames))
            if (packet := self.packet(at)).data[0] == opcode and packet.source[0] == sender
        ]
        return found[nth]

    def change(self, at: int, data: bytes, right: bool = True) -> None:
        """Give a frame another packet of the same or another length: ``data`` without its ICRC."""
        frame, packet = self.frames[at], self.packet(at)
        start = len(frame.data) - len(packet.data)
        raw = bytearray(frame.data[:start] + data + bytes(ICRC))
        network = 14
        struct.pack_into("!H", raw, network + 2, len(raw) - network)
        struct.pack_into("!H", raw, start - _UDP + 4, len(raw) - start + _UDP)
        self.frames[at] = frame._replace(data=bytes(raw), original_length=len(raw))
        raw[-ICRC:] = struct.pack("<I", icrc(self.packet(at)) ^ (not right))
        self.frames[at] = frame._replace(data=bytes(raw), original_length=len(raw))

    def body(self, at: int) -> bytes:
        """Headers and payload of a packet, without its ICRC."""
        return self.packet(at).data[:-ICRC]

    def end_after(self, at: int) -> None:
        """Drop all frames behind one: the fault is the last thing that happens."""
        del self.frames[at + 1 :]

    def write(self, path: Path) -> None:
        with path.open("wb") as output:
            output.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 0x40000, self.frames[0].link_type))
            for frame in self.frames:
                whole = int(frame.time)
                part = int((frame.time - whole) * 1e6)
                output.write(struct.pack("<IIII", whole, part, len(frame.data), len(frame.data)) + frame.data)


def with_psn(body: bytes, psn: int) -> bytes:
    """Return a packet with another PSN."""
    return body[:9] + (psn & 0xFFFFFF).to_bytes(3, "big") + body[BTH:]


def psn_of(body: bytes) -> int:
    """Return the PSN of a packet."""
    return int.from_bytes(body[9:12], "big")
