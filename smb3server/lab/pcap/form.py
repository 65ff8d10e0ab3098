"""What one SMB2 message shows by itself: its direction, its body, where its buffers lie, and its fields."""

from __future__ import annotations

from smb3server.lab.pcap import entries, rules
from smb3server.lab.pcap.direct_tcp import UpperMessage
from smb3server.lab.pcap.fields import judge_fields
from smb3server.lab.pcap.smb2 import HEADER_SIZE, NOTIFICATION, Smb2Message, expected_sizes
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Verdicts


def judge_form(message: UpperMessage, part: Smb2Message, verdicts: Verdicts) -> None:
    """Judge one part of a compound. [MS-SMB2 2.2]"""
    check, number, way = verdicts.check, message.number, message.direction
    if part.next_command:
        check(rules.SMB2_NEXT, True, number, way, "")
    kept = part.is_response == (way is Direction.TO_CLIENT) or part.command == NOTIFICATION
    check(rules.SMB2_DIRECTION, kept, number, way, "{} with flags {:#x}", part.name, part.flags)
    if part.known < HEADER_SIZE + 2:
        return
    right = part.body_size in expected_sizes(part)
    right = check(rules.SMB2_BODY, right, number, way, "StructureSize {} of {}", part.body_size, part.name)
    for start, size in part.buffer_places():
        if size:
            inside = start >= HEADER_SIZE and start + size <= len(part.data)
            text = "{} with {} bytes at {} in {}"
            check(rules.SMB2_BUFFER, inside, number, way, text, part.name, size, start, len(part.data))
    if right and kept:
        judge_fields(part, number, way, verdicts)
        entries.judge_message(part, number, way, verdicts)
