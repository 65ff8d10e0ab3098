"""The project's codecs and both MS-SMBD state machines, driven by every capture under pcaps/."""

from __future__ import annotations

from functools import cache

import pytest

from smb3server.tools.pcap.rdma import Kind
from smb3server.tools.pcap.replay import replay_iwarp, replay_machines, replay_sends, replay_smb2
from smb3server.tools.pcap.session import Session, read_capture
from smb3server.tools.pcap.smbdirect import SmbDirectReader
from smb3server.tools.pcap.tcp import Direction
from tests.lab.captures import CAPTURES, FOLDER


@cache
def sessions_of(name: str) -> list[Session]:
    return [session for session in read_capture(FOLDER / f"{name}.pcap").sessions if session.upper]


SESSIONS = [(name, index) for name in CAPTURES for index in range(len(sessions_of(name)))]
SMB_DIRECT = [(name, index) for name, index in SESSIONS if sessions_of(name)[index].smbdirect is not None]


def reader_of(name: str, index: int) -> SmbDirectReader:
    reader = sessions_of(name)[index].smbdirect
    assert reader is not None
    return reader


@pytest.mark.parametrize(("name", "index"), SMB_DIRECT)
def test_every_fpdu_encodes_to_the_same_bytes(name: str, index: int) -> None:
    assert replay_iwarp(reader_of(name, index).wire) == []


@pytest.mark.parametrize(("name", "index"), SMB_DIRECT)
def test_every_send_encodes_to_the_same_bytes(name: str, index: int) -> None:
    assert replay_sends(reader_of(name, index)) == []


@pytest.mark.parametrize(("name", "index"), SMB_DIRECT)
def test_both_state_machines_agree_with_the_wire(name: str, index: int) -> None:
    reader = reader_of(name, index)
    machines = replay_machines(reader)
    assert machines.found == []
    assert machines.delivered == len(reader.upper) > 0


@pytest.mark.parametrize(("name", "index"), SESSIONS)
def test_every_smb2_message_encodes_to_the_same_bytes(name: str, index: int) -> None:
    assert replay_smb2(sessions_of(name)[index]) == []


def changed(reader: SmbDirectReader, position: int, value: int) -> SmbDirectReader:
    """The session with one byte of the client's first message that carries data changed."""
    wire = reader.wire
    messages = list(wire.messages)
    carriers = (n for n, m in enumerate(messages) if m.kind is Kind.SEND and m.direction is Direction.TO_SERVER)
    at = next(number for number in carriers if len(messages[number].payload) > 100)
    payload = bytearray(messages[at].payload)
    payload[position] = value
    messages[at] = messages[at]._replace(payload=bytes(payload))
    wire.messages = messages
    return SmbDirectReader(wire)


@pytest.mark.parametrize(("position", "value"), [(0, 0), (12, 1), (8, 1)], ids=["credits", "offset", "remaining"])
def test_replay_notices_a_broken_message(position: int, value: int) -> None:
    """A replay that could not fail would prove nothing."""
    (session,) = read_capture(FOLDER / "linux612-siw-ksmbd-mtu1500.pcap").sessions
    assert session.smbdirect is not None
    assert replay_machines(changed(session.smbdirect, position, value)).found != []
