"""Lists whose entries name the place of the next one: directories, attributes, streams, changes, and contexts."""

from __future__ import annotations

import struct
from typing import NamedTuple

from smb3server.lab.pcap import rules
from smb3server.lab.pcap.smb2 import (
    CHANGE_NOTIFY,
    CREATE,
    HEADER_SIZE,
    IOCTL,
    NEGOTIATE,
    QUERY_DIRECTORY,
    QUERY_INFO,
    SET_INFO,
    STATUS_SUCCESS,
    Smb2Message,
)
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Verdicts


class Layout(NamedTuple):
    """One kind of entry. The first four bytes say how far the next one is; 0: there is none."""

    section: str
    alignment: int
    size: int
    """Bytes of the fixed part."""
    lengths: tuple[tuple[str, int], ...] = ()
    """Fields that count the bytes behind it."""


def _listed(section: str, size: int) -> Layout:
    """Return the layout of an entry of a directory, whose name is at ``size``."""
    return Layout(f"MS-FSCC {section}", 8, size, (("<I", 60),))


_DIRECTORY = {
    1: _listed("2.4.10", 64),
    2: _listed("2.4.14", 68),
    3: _listed("2.4.8", 94),
    12: Layout("MS-FSCC 2.4.28", 8, 12, (("<I", 8),)),
    37: _listed("2.4.17", 104),
    38: _listed("2.4.18", 80),
    60: _listed("2.4", 88),
    63: _listed("2.4", 114),
}
"""Entries of QUERY_DIRECTORY by FileInformationClass."""
ATTRIBUTES = Layout("MS-FSCC 2.4.15", 4, 9, (("<B", 5), ("<H", 6)))
"""FILE_FULL_EA_INFORMATION: a name, its zero byte, a value."""
_WANTED_ATTRIBUTES = Layout("MS-FSCC 2.4.15.1", 4, 6, (("<B", 4),))
_STREAMS = Layout("MS-FSCC 2.4.43", 8, 24, (("<I", 4),))
_QUOTAS = Layout("MS-FSCC 2.4.33", 8, 40, (("<I", 4),))
_CHANGES = Layout("MS-FSCC 2.4.42", 4, 12, (("<I", 8),))
_INTERFACES = Layout("MS-SMB2 2.2.32.5", 8, 152)
_INFO_FILE, _INFO_QUOTA = 1, 4
_CLASS_ATTRIBUTES, _CLASS_STREAMS = 15, 22
_QUERY_NETWORK_INTERFACE_INFO = 0x001401FC
_CONTEXT = struct.Struct("<IHHHHI")
"""Next, NameOffset, NameLength, Reserved, DataOffset, DataLength. [MS-SMB2 2.2.13.2]"""
_EA_CONTEXT = b"ExtA"
_CONTEXTS_AT = {False: 48, True: 80}
"""Place of CreateContextsOffset in the body of a CREATE, and of its response."""
_SMB_3_1_1 = 0x0311


def fault_of(data: bytes, layout: Layout) -> str:
    """Return what is wrong with a list; empty if nothing is."""
    at = 0
    while True:
        left = len(data) - at
        if left < layout.size:
            return f"{left} bytes for an entry of {layout.size} at {at}"
        (following,) = struct.unpack_from("<I", data, at)
        if following % layout.alignment or following > left:
            return f"NextEntryOffset {following} of the entry at {at} in {len(data)} bytes"
        size = layout.size + sum(struct.unpack_from(one, data, at + place)[0] for one, place in layout.lengths)
        if size > (following or left):
            return f"the entry at {at} has {size} bytes, {following or left} are there"
        if not following:
            return ""
        at += following


def layout_of_answer(request: Smb2Message) -> Layout | None:
    """Return what the response to a request is a list of; None if it is none."""
    if request.command == QUERY_DIRECTORY:
        (kind,) = request.fields("<B", 2) or (0,)
        return _DIRECTORY.get(kind)
    if request.command == QUERY_INFO:
        return _layout_of_info(request.fields("<BB", 2))
    if request.command == CHANGE_NOTIFY:
        return _CHANGES
    code = request.fields("<I", 4)
    return _INTERFACES if request.command == IOCTL and code == (_QUERY_NETWORK_INTERFACE_INFO,) else None


def _layout_of_info(asked: tuple[int, ...] | None) -> Layout | None:
    """Return the layout that InfoType and FileInfoClass name."""
    kinds = {(_INFO_FILE, _CLASS_ATTRIBUTES): ATTRIBUTES, (_INFO_FILE, _CLASS_STREAMS): _STREAMS}
    if asked is None:
        return None
    return _QUOTAS if asked[0] == _INFO_QUOTA else kinds.get((asked[0], asked[1]))


def judge_answer(layout: Layout | None, part: Smb2Message, number: int, way: Direction, verdicts: Verdicts) -> None:
    """Judge the list in a response whose request asks for ``layout``. One that was cut off is not judged."""
    if layout is not None and part.status == STATUS_SUCCESS:
        _judge(layout, part.buffer(), part, number, way, verdicts)


def judge_message(part: Smb2Message, number: int, way: Direction, verdicts: Verdicts) -> None:
    """Judge the lists that a message shows by itself: contexts, and attributes that are set or asked for."""
    if part.known < len(part.data) or part.failed:
        return
    if part.command == CREATE:
        _judge_create_contexts(part, number, way, verdicts)
    elif part.command == NEGOTIATE:
        _judge_negotiate_contexts(part, number, way, verdicts)
    elif part.command == SET_INFO and not part.is_response:
        layout = _layout_of_info(part.fields("<BB", 2))
        if layout is not None:
            _judge(layout, part.buffer(), part, number, way, verdicts)
    elif part.command == QUERY_INFO and not part.is_response:
        kind, (start, size) = part.fields("<BB", 2), part.fields("<HxxI", 8) or (0, 0)
        if kind == (_INFO_FILE, _CLASS_ATTRIBUTES):
            _judge(_WANTED_ATTRIBUTES, part.data[start : start + size], part, number, way, verdicts)


def _judge(layout: Layout, data: bytes, part: Smb2Message, number: int, way: Direction, verdicts: Verdicts) -> None:
    if data and part.known == len(part.data):
        fault = fault_of(data, layout)
        verdicts.check(rules.SMB2_ENTRIES, not fault, number, way, "{}: {} [{}]", part.name, fault, layout.section)


def _judge_create_contexts(part: Smb2Message, number: int, way: Direction, verdicts: Verdicts) -> None:
    """Judge the contexts of a CREATE or its response. [MS-SMB2 2.2.13.2, 2.2.14.2]"""
    start, size = part.fields("<II", _CONTEXTS_AT[part.is_response]) or (0, 0)
    if not size or start + size > len(part.data):
        return  # That breaks another rule.
    data, at = part.data[start : start + size], 0
    check, text = verdicts.check, "{} context at {}: {}"
    while True:
        left = len(data) - at
        fields = _CONTEXT.unpack_from(data, at) if left >= _CONTEXT.size else (0,) * 6
        following, name_at, name_size, reserved, data_at, data_size = fields
        end = following or left
        whole = (
            left >= _CONTEXT.size
            and following % 8 == 0
            and max(following, name_at + name_size, data_at + data_size) <= min(end, left)
            and name_at >= _CONTEXT.size
        )
        if not check(rules.SMB2_ENTRIES, whole, number, way, text, part.name, at, fields):
            return
        if not part.is_response:
            check(rules.SMB2_RESERVED, not reserved, number, way, text, part.name, at, "Reserved is not 0")
        if data[at + name_at : at + name_at + name_size] == _EA_CONTEXT and not part.is_response:
            values = data[at + data_at : at + data_at + data_size]
            _judge(ATTRIBUTES, values, part, number, way, verdicts)
        if not following:
            return
        at += following


def _judge_negotiate_contexts(part: Smb2Message, number: int, way: Direction, verdicts: Verdicts) -> None:
    """Judge that the negotiate contexts of 3.1.1 lie inside the message. [MS-SMB2 2.2.3.1, 2.2.4.1]"""
    if part.is_response:
        dialect, count = part.fields("<HH", 4) or (0, 0)
        (at,) = part.fields("<I", 60) or (0,)
        present = dialect == _SMB_3_1_1
    else:
        (dialects,) = part.fields("<H", 2) or (0,)
        at, count = part.fields("<IH", 28) or (0, 0)
        present = _SMB_3_1_1 in (part.fields(f"<{dialects}H", 36) or ())
    if not present:
        return
    text = "{} of {} negotiate contexts, at {} in {} bytes"
    for one in range(count):
        fields = part.fields("<HH", at - HEADER_SIZE) if at % 8 == 0 and at >= HEADER_SIZE + 36 else None
        whole = fields is not None and at + 8 + fields[1] <= len(part.data)
        if not verdicts.check(rules.SMB2_CONTEXTS, whole, number, way, text, one + 1, count, at, len(part.data)):
            return
        assert fields is not None
        at += 8 + (fields[1] + 7 & ~7)
