"""Fields and lists that no capture under pcaps/ has: locks, oplocks, attributes, streams, changes, grants of async."""

from __future__ import annotations

import struct

import pytest

from smb3server.lab.pcap.answers import Grants
from smb3server.lab.pcap.effects import Pending
from smb3server.lab.pcap.entries import ATTRIBUTES, fault_of, judge_answer, layout_of_answer
from smb3server.lab.pcap.fields import judge_fields
from smb3server.lab.pcap.records import CommandRecord
from smb3server.lab.pcap.sessions import Session
from smb3server.lab.pcap.smb2 import CHANGE_NOTIFY, LOCK, OPLOCK_BREAK, QUERY_INFO, Smb2Message, split
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Breach, Gap, Verdicts

UNASKED_FOR = (1 << 64) - 1


def message(
    command: int, body: bytes, flags: int = 0, status: int = 0, number: int = 1, granted: int = 1
) -> Smb2Message:
    """A message by itself."""
    fields = (b"\xfeSMB", 64, 1, status, command, granted, flags, 0, number, 0, 0, 0, bytes(16))
    (part,) = split(struct.pack("<4sHHIHHIIQIIQ16s", *fields) + body)
    return part


def broken_by(part: Smb2Message) -> list[str]:
    """The rules that the fields of a message break."""
    found: list[Breach | Gap] = []
    verdicts = Verdicts(1, found.append)
    judge_fields(part, 1, Direction(int(part.is_response)), verdicts)
    return [one.rule.id for one in found if isinstance(one, Breach)]


@pytest.mark.parametrize(
    ("flags", "reserved", "rules"),
    [
        (0x11, 0, []),
        (0x04, 0, []),
        (0x14, 0, ["smb2.value"]),
        (0x03, 0, ["smb2.value"]),
        (0x02, 1, ["smb2.reserved"]),
    ],
)
def test_locks(flags: int, reserved: int, rules: list[str]) -> None:
    good, other = struct.pack("<QQII", 0, 1, 2, 0), struct.pack("<QQII", 0, 1, flags, reserved)
    assert broken_by(message(LOCK, struct.pack("<HHI16s", 48, 2, 0, b"") + good + other)) == rules


@pytest.mark.parametrize(
    ("level", "number", "flags", "rules"),
    [
        (1, UNASKED_FOR, 1, []),
        (8, UNASKED_FOR, 1, ["smb2.value"]),
        (8, 5, 1, []),
        (9, 5, 0, ["smb2.value"]),
    ],
)
def test_oplock_breaks(level: int, number: int, flags: int, rules: list[str]) -> None:
    body = struct.pack("<HBBI16s", 24, level, 0, 0, b"f")
    assert broken_by(message(OPLOCK_BREAK, body, flags, number=number)) == rules
    body = struct.pack("<HBBI16s", 24, 0, 1, 1, b"f")
    assert broken_by(message(OPLOCK_BREAK, body, flags, number=number)) == ["smb2.reserved", "smb2.reserved"]


def test_lists_of_attributes() -> None:
    last = struct.pack("<IBBH", 0, 0, 1, 2) + b"a\0vv"
    entry = struct.pack("<IBBH", 12, 0, 1, 2) + b"a\0vv"
    assert fault_of(last, ATTRIBUTES) == fault_of(entry + last, ATTRIBUTES) == ""
    for data in (
        entry,
        last[:-1],
        last[:7],
        struct.pack("<I", 10) + entry[4:] + last,
        struct.pack("<I", 8) + entry[4:] + last,
    ):
        assert fault_of(data, ATTRIBUTES), data


@pytest.mark.parametrize(
    ("command", "request_body", "size", "length_at"),
    [
        (QUERY_INFO, struct.pack("<HBB", 41, 1, 22), 24, 4),
        (QUERY_INFO, struct.pack("<HBB", 41, 4, 0), 40, 4),
        (CHANGE_NOTIFY, struct.pack("<HH", 32, 0), 12, 8),
    ],
)
def test_lists_in_answers(command: int, request_body: bytes, size: int, length_at: int) -> None:
    layout = layout_of_answer(message(command, request_body))
    for length, status, kept in ((4, 0, True), (5, 0, False), (5, 0x80000005, True)):
        entry = bytearray(size + 4)
        struct.pack_into("<I", entry, length_at, length)
        found: list[Breach | Gap] = []
        verdicts = Verdicts(1, found.append)
        part = message(command, struct.pack("<HHI", 9, 72, len(entry)) + bytes(entry), 1, status)
        judge_answer(layout, part, 1, Direction.TO_CLIENT, verdicts)
        verdicts.finish()
        assert [one.rule.id for one in found if isinstance(one, Breach)] == ([] if kept else ["smb2.entries"])


def test_the_final_response_of_an_asynchronous_request_grants_nothing() -> None:
    request = message(CHANGE_NOTIFY, b"", granted=600)
    pending = Pending(CommandRecord(1, 1, 0.0, CHANGE_NOTIFY), request, Session(1), 0, False, False)
    found: list[Breach | Gap] = []
    verdicts = Verdicts(1, found.append)
    for status, async_id, granted, count in ((0x103, 0, 601, 0), (0x103, 0, 602, 1), (0, 7, 0, 1), (0, 7, 1, 2)):
        pending.async_id = async_id
        grants = Grants()
        grants.add(message(CHANGE_NOTIFY, b"", 3, status, granted=granted), pending)
        grants.judge(1, verdicts)
        assert verdicts.checked["smb2.credits-granted"]
        verdicts.finish()
        assert len(found) == count
