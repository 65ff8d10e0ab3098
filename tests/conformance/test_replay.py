"""The project's codecs and both MS-SMBD state machines, driven by every capture under pcaps/."""

from __future__ import annotations

from functools import cache

import pytest

from smb3server.lab.pcap.connection import Connection
from smb3server.lab.pcap.judge import judge_capture
from smb3server.lab.pcap.replay import replay_iwarp, replay_machines, replay_sends, replay_smb2
from smb3server.lab.pcap.smbdirect import SmbDirectReader
from smb3server.lab.pcap.tcp import Direction
from tests.lab.captures import CAPTURES, FOLDER


@cache
def sessions_of(name: str) -> list[Connection]:
    judged = judge_capture(str(FOLDER / f"{name}.pcap"), record=True)
    return [connection for connection in judged.connections if connection.upper]


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
    messages = sessions_of(name)[index].upper
    machines = replay_machines(reader_of(name, index), messages)
    assert machines.found == []
    assert machines.delivered == len(messages) > 0


@pytest.mark.parametrize(("name", "index"), SESSIONS)
def test_every_smb2_message_encodes_to_the_same_bytes(name: str, index: int) -> None:
    assert replay_smb2(sessions_of(name)[index]) == []


def change(reader: SmbDirectReader, position: int, value: int) -> None:
    """Change one byte of the client's first message that carries data."""
    sends = enumerate(reader.transfers)
    at = next(n for n, (m, _) in sends if m.direction is Direction.TO_SERVER and len(m.payload) > 100)
    message, transfer = reader.transfers[at]
    payload = bytearray(message.payload)
    payload[position] = value
    reader.transfers[at] = message._replace(payload=bytes(payload)), transfer


@pytest.mark.parametrize(("position", "value"), [(0, 0), (12, 1), (8, 1)], ids=["credits", "offset", "remaining"])
def test_replay_notices_a_broken_message(position: int, value: int) -> None:
    """A replay that could not fail would prove nothing."""
    (connection,) = judge_capture(str(FOLDER / "linux612-siw-ksmbd-mtu1500.pcap"), record=True).connections
    assert connection.smbdirect is not None
    change(connection.smbdirect, position, value)
    assert replay_machines(connection.smbdirect, connection.upper).found != []
