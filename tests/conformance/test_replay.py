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


def readers_of(name: str) -> list[tuple[SmbDirectReader, Connection]]:
    """Return the sessions over SMB Direct; a capture of TCP has none."""
    return [(session.smbdirect, session) for session in sessions_of(name) if session.smbdirect is not None]


def test_most_captures_are_of_smb_direct() -> None:
    """The tests below have something to do: a capture of the set-up of a connection alone has no session."""
    assert sum(bool(readers_of(name)) for name in CAPTURES) > len(CAPTURES) // 2


@pytest.mark.parametrize("name", CAPTURES)
def test_every_fpdu_encodes_to_the_same_bytes(name: str) -> None:
    for reader, _ in readers_of(name):
        assert replay_iwarp(reader.wire) == []


@pytest.mark.parametrize("name", CAPTURES)
def test_every_send_encodes_to_the_same_bytes(name: str) -> None:
    for reader, _ in readers_of(name):
        assert replay_sends(reader) == []


@pytest.mark.parametrize("name", CAPTURES)
def test_both_state_machines_agree_with_the_wire(name: str) -> None:
    for reader, session in readers_of(name):
        machines = replay_machines(reader, session.upper)
        assert machines.found == []
        assert machines.delivered == len(session.upper) > 0


@pytest.mark.parametrize("name", CAPTURES)
def test_every_smb2_message_encodes_to_the_same_bytes(name: str) -> None:
    for session in sessions_of(name):
        assert replay_smb2(session) == []


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
