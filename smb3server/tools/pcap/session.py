"""A capture file, read as a whole: every connection in it with its fabric and its messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from smb3server.tools.pcap.capture import read_frames
from smb3server.tools.pcap.direct_tcp import UpperMessage, read_direct_tcp
from smb3server.tools.pcap.iwarp import IwarpReader, is_iwarp
from smb3server.tools.pcap.packets import Address, PacketError, TcpSegment, UdpDatagram, read_packet
from smb3server.tools.pcap.rdma import Problem, Wire
from smb3server.tools.pcap.roce import PORT, RoceReader
from smb3server.tools.pcap.smb2 import Smb2Error, Smb2Message, split
from smb3server.tools.pcap.smbdirect import SmbDirectReader
from smb3server.tools.pcap.tcp import Conversation, Reassembler


@dataclass
class Session:
    """One connection. ``fabric`` is iwarp, roce or tcp; ``smbdirect`` is None for tcp."""

    fabric: str
    client: Address
    server: Address
    upper: list[UpperMessage]
    problems: list[Problem]
    smbdirect: SmbDirectReader | None = None

    @property
    def wire(self) -> Wire | None:
        """The connection as seen on its fabric; None for tcp."""
        return self.smbdirect.wire if self.smbdirect else None

    def smb2(self) -> list[tuple[UpperMessage, Smb2Message]]:
        """Return every part of every message that is plain SMB2."""
        parts = []
        for message in self.upper:
            try:
                parts += [(message, part) for part in split(message.data)]
            except Smb2Error:
                continue  # The reader of the message has already reported it as a problem.
        return parts


@dataclass
class CaptureFile:
    """The contents of one capture file."""

    path: Path
    frames: int = 0
    sessions: list[Session] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Problems of the capture as a whole: truncated frames, wrong ICRCs, unknown queue pairs."""
    roce: RoceReader | None = None

    @property
    def all_problems(self) -> list[Problem]:
        """The problems of the capture and of all its sessions."""
        return self.problems + [problem for session in self.sessions for problem in session.problems]


def _tcp_session(conversation: Conversation) -> Session | None:
    if not conversation.chunks:
        return None
    if is_iwarp(conversation):
        session = _rdma_session(IwarpReader(conversation).wire)
    else:
        upper, problems = read_direct_tcp(conversation)
        for message in upper:
            try:
                list(split(message.data))
            except Smb2Error as error:
                problems.append(Problem(message.number, "MS-SMB2 2.2.1", str(error)))
        session = Session("tcp", conversation.client, conversation.server, upper, problems)
    if conversation.missing:
        session.problems.append(Problem(0, "capture", "bytes of the TCP stream are missing"))
    return session


def _rdma_session(wire: Wire) -> Session:
    reader = SmbDirectReader(wire)
    return Session(wire.fabric, wire.client, wire.server, reader.upper, wire.problems, reader)


def read_capture(path: Path) -> CaptureFile:
    """Read a pcap or pcapng file. Raises ``CaptureError`` for other files."""
    capture = CaptureFile(path)
    tcp, roce = Reassembler(), RoceReader()
    for frame in read_frames(path):
        capture.frames += 1
        try:
            packet = read_packet(frame)
        except PacketError as error:
            capture.problems.append(Problem(frame.number, "capture", str(error)))
            continue
        if isinstance(packet, TcpSegment):
            tcp.add(packet)
        elif isinstance(packet, UdpDatagram) and PORT in (packet.source[1], packet.destination[1]):
            roce.add(packet)
    capture.sessions = [session for c in tcp.conversations if (session := _tcp_session(c)) is not None]
    if roce.packets:
        capture.roce = roce
        capture.problems += roce.problems
        capture.sessions += [_rdma_session(wire) for wire in roce.wires]
    return capture
