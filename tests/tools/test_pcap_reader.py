"""The capture reader on made-up captures: file formats, TCP reassembly, and rules that a session can break."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from smb3server.tools.pcap.capture import CaptureError, Frame, read_frames
from smb3server.tools.pcap.command import main
from smb3server.tools.pcap.packets import PacketError, TcpSegment, UdpDatagram, read_packet
from smb3server.tools.pcap.session import Session, read_capture
from smb3server.tools.pcap.tcp import Direction, Reassembler

CLIENT, SERVER = ("10.0.0.2", 40000), ("10.0.0.1", 5445)
PCAPS = Path(__file__).resolve().parents[2] / "pcaps"


def ipv4(address: str) -> bytes:
    return bytes(int(part) for part in address.split("."))


def tcp_frame(direction: Direction, sequence: int, payload: bytes, flags: int = 0x10) -> bytes:
    source, destination = (CLIENT, SERVER) if direction is Direction.TO_SERVER else (SERVER, CLIENT)
    tcp = struct.pack("!HHIIBBHHH", source[1], destination[1], sequence & 0xFFFFFFFF, 0, 0x50, flags, 8192, 0, 0)
    total = 20 + len(tcp) + len(payload)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, total, 0, 0, 64, 6, 0, ipv4(source[0]), ipv4(destination[0]))
    return bytes(12) + b"\x08\x00" + ip + tcp + payload


def pcap(frames: list[bytes], order: str = "<", nanoseconds: bool = False) -> bytes:
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    data = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, 1)
    for number, frame in enumerate(frames):
        data += struct.pack(order + "IIII", 1000, number, len(frame), len(frame)) + frame
    return data


def pcapng(frames: list[bytes], order: str = "<") -> bytes:
    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)

    data = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    data += block(1, struct.pack(order + "HHI", 1, 0, 0) + struct.pack(order + "HHB3xHH", 9, 1, 9, 0, 0))
    data += block(0x0BAD, b"a block nobody knows")
    for number, frame in enumerate(frames):
        data += block(6, struct.pack(order + "IIIII", 0, 0, 5_000_000 + number, len(frame), len(frame)) + frame)
    return data


def session_of(tmp_path: Path, exchange: list[tuple[Direction, bytes]]) -> Session:
    """A capture of one TCP connection that carries ``exchange``, read."""
    sequences = {Direction.TO_SERVER: 100, Direction.TO_CLIENT: 0xFFFFFF00}
    frames = [tcp_frame(d, sequences[d], b"", 2 if d is Direction.TO_SERVER else 0x12) for d in Direction]
    sequences = {direction: sequence + 1 for direction, sequence in sequences.items()}
    for direction, data in exchange:
        frames.append(tcp_frame(direction, sequences[direction], data))
        sequences[direction] += len(data)
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(frames))
    (session,) = read_capture(path).sessions
    return session


@pytest.mark.parametrize("order", ["<", ">"])
def test_file_formats(tmp_path: Path, order: str) -> None:
    frames = [b"first frame!", b"second"]
    for name, data, unit in (
        ("a", pcap(frames, order), 1e-6),
        ("b", pcap(frames, order, nanoseconds=True), 1e-9),
        ("c", pcapng(frames, order), 1e-9),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        read = list(read_frames(path))
        assert [frame.data for frame in read] == frames
        assert [frame.number for frame in read] == [1, 2]
        assert read[1].time - read[0].time == pytest.approx(unit, rel=0.2)
        path.write_bytes(data[:-3])
        assert [frame.data for frame in read_frames(path)] == frames[:1]


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"not a capture")
    with pytest.raises(CaptureError):
        read_frames(path)
    assert main([str(path), "--verify"]) == 1
    assert "neither pcap nor pcapng" in capsys.readouterr().err


def test_link_layers_and_vlan() -> None:
    ethernet = tcp_frame(Direction.TO_SERVER, 5, b"payload")
    ip = ethernet[14:]
    for link, data in (
        (1, ethernet + b"\0\0"),  # trailing bytes of a short frame
        (1, bytes(12) + b"\x81\x00\x00\x05\x08\x00" + ip),
        (113, bytes(14) + b"\x08\x00" + ip),
        (276, b"\x08\x00" + bytes(18) + ip),
        (101, ip),
    ):
        packet = read_packet(Frame(1, 0.0, link, data, len(data)))
        assert isinstance(packet, TcpSegment)
        assert (packet.source, packet.destination, packet.payload) == (CLIENT, SERVER, b"payload")


def test_ipv6_udp() -> None:
    udp = struct.pack("!HHHH", 1, 4791, 8 + 4, 0) + b"data"
    ip = struct.pack("!IHBB", 0x60000000, 8 + len(udp), 0, 64) + bytes(15) + b"\x01" + bytes(15) + b"\x02"
    ip += b"\x11\x00" + bytes(6) + udp  # behind a hop-by-hop header
    packet = read_packet(Frame(1, 0.0, 101, ip, len(ip)))
    assert isinstance(packet, UdpDatagram)
    assert (packet.source, packet.destination, packet.payload) == (("::1", 1), ("::2", 4791), b"data")


def test_frames_that_cannot_be_read_whole() -> None:
    whole = tcp_frame(Direction.TO_SERVER, 5, b"payload")
    fragment = bytearray(whole)
    fragment[20:22] = b"\x20\x00"
    for data in (whole[:-1], bytes(fragment), whole[:34] + bytes(20)[:4]):
        with pytest.raises(PacketError):
            read_packet(Frame(1, 0.0, 1, bytes(data), len(whole)))
    assert read_packet(Frame(1, 0.0, 1, whole[:13], len(whole))) is None


@pytest.mark.parametrize("seed", range(20))
def test_reassembly_of_reordered_and_repeated_segments(seed: int) -> None:
    chance = random.Random(seed)
    text = bytes(chance.randrange(256) for _ in range(3000))
    start = 0xFFFFFFF0  # wraps
    pieces = []
    at = 0
    while at < len(text):
        size = chance.randrange(1, 200)
        pieces.append((at, text[at : at + size]))
        if chance.random() < 0.2:  # a retransmission with other boundaries
            back = max(0, at - chance.randrange(100))
            pieces.append((back, text[back : at + size // 2]))
        at += size
    for index in range(len(pieces) - 3):
        if chance.random() < 0.3:
            other = index + chance.randrange(1, 4)
            pieces[index], pieces[other] = pieces[other], pieces[index]
    reassembler = Reassembler()
    reassembler.add(TcpSegment(0, 0.0, CLIENT, SERVER, start - 1, 2, b""))
    for number, (offset, data) in enumerate(pieces):
        reassembler.add(TcpSegment(number, 0.0, CLIENT, SERVER, (start + offset) & 0xFFFFFFFF, 0x10, data))
    (conversation,) = reassembler.conversations
    assert b"".join(chunk.data for chunk in conversation.chunks) == text
    assert not conversation.missing


def test_lost_bytes_are_noticed(tmp_path: Path) -> None:
    frames = [
        tcp_frame(Direction.TO_SERVER, 99, b"", 2),
        tcp_frame(Direction.TO_SERVER, 100, b"\0\0\0\x02"),
        tcp_frame(Direction.TO_SERVER, 105, b"x"),
    ]
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(frames))
    assert "missing" in str(read_capture(path).all_problems[-1])


def test_direct_tcp(tmp_path: Path) -> None:
    header = b"\xfeSMB" + struct.pack("<H", 64) + bytes(58)
    message = header + b"body"
    frame = struct.pack("!I", len(message)) + message
    session = session_of(tmp_path, [(Direction.TO_SERVER, (frame * 2)[:70]), (Direction.TO_SERVER, (frame * 2)[70:])])
    assert session.fabric == "tcp"
    assert [m.data for m in session.upper] == [message, message]
    assert session.problems == []
    broken = session_of(tmp_path, [(Direction.TO_SERVER, frame), (Direction.TO_SERVER, b"\x01\0\0\0")])
    assert [problem.rule for problem in broken.problems] == ["MS-SMB2 2.1"]


# -- SMB Direct sessions over iWARP, made rule by rule ------------------------------------------------------------

UP, DOWN = Direction.TO_SERVER, Direction.TO_CLIENT


class Peer:
    """Makes the bytes of one end, with every layer's numbers right unless told otherwise."""

    def __init__(self) -> None:
        self.msn = 0

    def fpdu(self, ulpdu: bytes, crc: bool = True) -> bytes:
        data = struct.pack("!H", len(ulpdu)) + ulpdu
        data += bytes(-len(data) % 4)
        return data + struct.pack("<I", crc32c(data) if crc else 0)

    def send(self, payload: bytes, opcode: int = 3, token: int = 0, skip: int = 0) -> bytes:
        self.msn += 1 + skip
        return self.fpdu(struct.pack("!BBIIII", 0x41, 0x40 | opcode, token, 0, self.msn, 0) + payload)

    def write(self, token: int, address: int, payload: bytes) -> bytes:
        return self.fpdu(struct.pack("!BBIQ", 0xC1, 0x40, token, address) + payload)


def mpa(key: bytes, flags: int) -> bytes:
    return key + struct.pack("!BBH", flags, 2, 4) + struct.pack("!HH", 16, 16)


def data(payload: bytes = b"", granted: int = 1, remaining: int = 0, flags: int = 0, offset: int = 24) -> bytes:
    header = struct.pack("<HHHHIII", 10, granted, flags, 0, remaining, offset if payload else 0, len(payload))
    return header + bytes(4) + payload if payload else header


REQUEST = struct.pack("<HHHHIII", 0x100, 0x100, 0, 10, 1364, 1364, 131072)
RESPONSE = struct.pack("<HHHHHHIIIII", 0x100, 0x100, 0x100, 0, 10, 2, 0, 1 << 20, 1364, 1364, 131072)


def smbdirect_session(
    tmp_path: Path, exchange: list[tuple[Direction, bytes]], response: bytes = RESPONSE, flags: int = 0x50
) -> Session:
    """Set-up and negotiation with 2 credits for the client, then ``exchange`` (payloads of Sends)."""
    peers = {UP: Peer(), DOWN: Peer()}
    wire = [(UP, mpa(b"MPA ID Req Frame", 0x10)), (DOWN, mpa(b"MPA ID Rep Frame", flags))]
    wire += [(d, peers[d].send(payload)) for d, payload in [(UP, REQUEST), (DOWN, response), *exchange]]
    return session_of(tmp_path, wire)


def rules(session: Session) -> list[str]:
    return [problem.rule for problem in session.problems]


def smb2(command: int, message_id: int, response: bool, body: bytes = b"") -> bytes:
    return (
        struct.pack("<4sHHIHHIIQIIQ16s", b"\xfeSMB", 64, 1, 0, command, 1, response, 0, message_id, 0, 0, 0, b"") + body
    )


ECHO = smb2(13, 1, False, b"\x04\0\0\0")


def test_healthy_session_has_no_problem(tmp_path: Path) -> None:
    session = smbdirect_session(
        tmp_path, [(UP, data(granted=5)), (UP, data(ECHO[:40], remaining=28)), (DOWN, data()), (UP, data(ECHO[40:]))]
    )
    assert session.fabric == "iwarp"
    assert rules(session) == []
    assert [message.data for message in session.upper] == [ECHO]
    assert session.smbdirect is not None
    assert session.smbdirect.peers[UP].credits == 2 + 1 - 3
    assert session.smbdirect.peers[DOWN].credits == 5 + 1 + 1 - 1
    assert session.smbdirect.wire.properties["crc"] is True


@pytest.mark.parametrize(
    ("exchange", "rule"),
    [
        ([(UP, data(granted=1)), (UP, data(granted=1)), (UP, data(granted=1))], "MS-SMBD 3.1.5.1"),  # no credit left
        ([(UP, data(granted=1)), (UP, data(granted=0))], "MS-SMBD 3.1.5.1"),  # the last credit grants nothing
        ([(DOWN, data(granted=1))], "MS-SMBD 3.1.5.1"),  # the client has granted nothing yet
        ([(UP, data(ECHO, offset=20))], "MS-SMBD 3.1.5.8"),
        ([(UP, data(ECHO, offset=32))], "MS-SMBD 3.1.5.8"),
        ([(UP, data(b"x" * 1400))], "MS-SMBD 3.1.5.8"),  # above MaxReceiveSize
        ([(UP, data(remaining=5))], "MS-SMBD 3.1.5.8"),
        ([(UP, data(ECHO[:40], remaining=27)), (UP, data(ECHO[40:]))], "MS-SMBD 3.1.5.9"),
        ([(UP, data(ECHO[:40], remaining=28))], "MS-SMBD 3.1.5.9"),  # never completed
        ([(UP, data(ECHO[:40], remaining=131072))], "MS-SMBD 3.1.5.9"),
        ([(UP, data(b"no SMB2 header"))], "MS-SMB2 2.2.1"),
        ([(UP, b"short")], "MS-SMBD 3.1.5.8"),
    ],
)
def test_broken_rule_is_reported(tmp_path: Path, exchange: list[tuple[Direction, bytes]], rule: str) -> None:
    assert rule in rules(smbdirect_session(tmp_path, exchange))


@pytest.mark.parametrize(
    ("position", "value"),
    [(4, 0x200), (8, 0), (10, 0), (20, 1365 << 0), (24, 127), (28, 131071)],
    ids=["version", "requested", "granted", "preferred send size", "receive size", "fragmented size"],
)
def test_negotiate_response_out_of_bounds(tmp_path: Path, position: int, value: int) -> None:
    response = bytearray(RESPONSE)
    struct.pack_into("<H" if position < 12 else "<I", response, position, value)
    assert rules(smbdirect_session(tmp_path, [], bytes(response))) == ["MS-SMBD 3.1.5.7"]


def test_crc_is_checked(tmp_path: Path) -> None:
    request = Peer().send(REQUEST)
    wire = [(UP, mpa(b"MPA ID Req Frame", 0x10)), (DOWN, mpa(b"MPA ID Rep Frame", 0x50))]
    assert rules(session_of(tmp_path, [*wire, (UP, request)])) == []
    assert rules(session_of(tmp_path, [*wire, (UP, request[:-1] + bytes([request[-1] ^ 1]))])) == ["RFC 5044 4.4"]
    wire[1] = (DOWN, mpa(b"MPA ID Rep Frame", 0x10))  # off: zeros are right, anything else must still match
    assert rules(session_of(tmp_path, [*wire, (UP, request[:-4] + bytes(4))])) == []


def test_message_sequence_number_is_checked(tmp_path: Path) -> None:
    wire = [(UP, mpa(b"MPA ID Req Frame", 0x10)), (DOWN, mpa(b"MPA ID Rep Frame", 0x50))]
    assert rules(session_of(tmp_path, [*wire, (UP, Peer().send(REQUEST, skip=1))])) == ["RFC 5041 5.2"]


def read_request(message_id: int, descriptor: tuple[int, int, int], channel: int = 2) -> bytes:
    body = struct.pack("<HBBIQ16sIIIHH", 49, 0, 0, descriptor[2], 0, b"", 0, channel, 0, 112, 16)
    return smb2(8, message_id, False, body + struct.pack("<QII", *descriptor))


READ_DONE = smb2(8, 7, True, struct.pack("<HBBIII", 17, 80, 0, 0, 64, 0))


def transfer(tmp_path: Path, token: int, address: int, length: int, invalidates: int | None) -> Session:
    """A READ of 64 bytes into token 0xAB at 0x1000, answered with one Write and a Send."""
    client, server = Peer(), Peer()
    wire = [
        (UP, mpa(b"MPA ID Req Frame", 0x10)),
        (DOWN, mpa(b"MPA ID Rep Frame", 0x50)),
        (UP, client.send(REQUEST)),
        (DOWN, server.send(RESPONSE)),
        (UP, client.send(data(read_request(7, (0x1000, 0xAB, 64)), granted=9))),
        (DOWN, server.write(token, address, bytes(length))),
        (
            DOWN,
            server.send(data(READ_DONE)) if invalidates is None else server.send(data(READ_DONE), 4, invalidates),
        ),
    ]
    return session_of(tmp_path, wire)


def test_rdma_write_inside_its_descriptor(tmp_path: Path) -> None:
    session = transfer(tmp_path, 0xAB, 0x1000, 64, 0xAB)
    assert rules(session) == []
    assert session.smbdirect is not None
    assert session.smbdirect.counters.rdma_write_bytes == 64
    assert session.smbdirect.counters.invalidations == 1


@pytest.mark.parametrize(
    ("write", "invalidates", "rule"),
    [
        ((0xAC, 0x1000, 64), 0xAB, "MS-SMBD 3.1.4.3"),
        ((0xAB, 0x0FFF, 64), 0xAB, "MS-SMBD 3.1.4.3"),
        ((0xAB, 0x1000, 65), 0xAB, "MS-SMBD 3.1.4.3"),
        ((0xAB, 0x1000, 64), None, "MS-SMB2 3.3.5.12"),
        ((0xAB, 0x1000, 64), 0xAC, "MS-SMB2 3.3.5.12"),
    ],
)
def test_rdma_write_that_breaks_a_rule(
    tmp_path: Path, write: tuple[int, int, int], invalidates: int | None, rule: str
) -> None:
    assert rules(transfer(tmp_path, *write, invalidates)) == [rule]


def test_changed_byte_breaks_the_icrc(tmp_path: Path) -> None:
    raw = bytearray((PCAPS / "linux612-rxe-cm-requests.pcap").read_bytes())
    raw[-20] ^= 1
    path = tmp_path / "x.pcap"
    path.write_bytes(raw)
    assert [problem.rule for problem in read_capture(path).all_problems] == ["RoCEv2 A17.3.3"]


def test_command_prints_and_judges(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(PCAPS / "linux612-siw-ksmbd-mtu1500.pcap")
    assert main([path]) == 0
    printed = capsys.readouterr().out
    assert "RDMA Read Request 300000 bytes" in printed
    assert "SESSION_SETUP response id=2 status=0x00000000" in printed
    assert main([path, "--verify"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("ok (931 frames)")
