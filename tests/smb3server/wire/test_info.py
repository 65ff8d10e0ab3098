"""Codecs of the information commands: round trips, and nothing but DecodeError for garbage."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smb3server.backends.base import FileInfo, FileKey, Kind
from smb3server.wire import (
    change_notify,
    directory_info,
    file_info,
    fs_info,
    fsctl,
    ioctl,
    query_directory,
    query_info,
    set_info,
)
from smb3server.wire.fields import decode_name
from smb3server.wire.header import HEADER_SIZE
from smbdirect.codec import Codec
from smbdirect.errors import DecodeError
from tests.lab.examples import examples

NAMES = st.text(st.characters(exclude_characters="\0"), max_size=20)
U63 = st.integers(0, 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)
EA_NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: 0 not in name)


def message(body: bytes) -> memoryview:
    return memoryview(bytes(HEADER_SIZE) + body)


def test_requests_round_trip() -> None:
    query, data = query_info.parse_query_info_request(
        message(query_info.build_query_info_request(query_info.QueryInfoRequest(info_class=5, persistent=7), b"abc"))
    )
    assert (query.info_class, query.file_id, bytes(data)) == (5, (7, 0), b"abc")
    wanted, data = set_info.parse_set_info_request(
        message(set_info.build_set_info_request(set_info.SetInfoRequest(info_class=4, volatile=9), b"xy"))
    )
    assert (wanted.info_class, wanted.file_id, bytes(data)) == (4, (0, 9), b"xy")
    listing, pattern = query_directory.parse_query_directory_request(
        message(query_directory.build_query_directory_request(query_directory.QueryDirectoryRequest(flags=2), "*.ü"))
    )
    assert (listing.flags, pattern) == (2, "*.ü")
    call, data = ioctl.parse_ioctl_request(
        message(ioctl.build_ioctl_request(ioctl.IoctlRequest(ctl_code=1, max_output_response=3), b"in"))
    )
    assert (call.ctl_code, call.max_output_response, bytes(data)) == (1, 3, b"in")
    answer, data = ioctl.parse_ioctl_response(message(ioctl.build_ioctl_response(8, (1, 2), 3) + b"out"))
    assert (answer.ctl_code, answer.file_id, bytes(data)) == (8, (1, 2), b"out")
    assert bytes(query_info.parse_output_response(message(query_info.build_output_response(2) + b"ok"))) == b"ok"


PARSERS: list[Callable[[memoryview], Any]] = [
    query_info.parse_query_info_request,
    query_info.parse_output_response,
    set_info.parse_set_info_request,
    query_directory.parse_query_directory_request,
    change_notify.parse_change_notify_request,
    ioctl.parse_ioctl_request,
    ioctl.parse_ioctl_response,
]
DECODERS: list[Callable[[bytes], Any]] = [
    change_notify.decode_notifications,
    file_info.decode_all,
    file_info.decode_eas,
    file_info.decode_get_eas,
    file_info.decode_name_information,
    file_info.decode_rename,
    lambda data: fsctl.decode_copy_chunks(data, 256),
    *(lambda data, level=level: directory_info.decode_directory(level, data) for level in directory_info.LEVELS),
]


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200), st.sampled_from(PARSERS))
def test_parsers_refuse_garbage(body: bytes, parse: Callable[[memoryview], Any]) -> None:
    sizes = (9, 32, 33, 41, 49, 57)
    for size in sizes:
        try:
            parse(message(size.to_bytes(2, "little") + body))
        except DecodeError:
            continue


@settings(max_examples=examples(500), deadline=None)
@given(st.binary(max_size=200), st.sampled_from(DECODERS))
def test_decoders_refuse_garbage(data: bytes, decode: Callable[[bytes], Any]) -> None:
    try:
        decode(data)
    except DecodeError:
        return


def test_tail_must_lie_behind_the_fixed_part_and_inside_the_message() -> None:
    body = bytearray(set_info.build_set_info_request(set_info.SetInfoRequest(), b"12345678"))
    for offset in (0, HEADER_SIZE, 95, 97, 0xFFFF):
        body[8:10] = offset.to_bytes(2, "little")
        with pytest.raises(DecodeError):
            set_info.parse_set_info_request(message(bytes(body)))


@given(st.lists(st.tuples(st.integers(1, 9), NAMES), max_size=6))
def test_notifications_round_trip(entries: list[tuple[int, str]]) -> None:
    notifications = [change_notify.Notification(*entry) for entry in entries]
    encoded = change_notify.encode_notifications(notifications)
    assert change_notify.decode_notifications(encoded) == notifications
    assert len(encoded) == sum(change_notify.encoded_notification_size(name) for _, name in entries)


def decode_streams(data: bytes) -> list[file_info.StreamEntry]:
    """FileStreamInformation (MS-FSCC 2.4.43), as a client reads it."""
    found = []
    for start, end in file_info.chain(memoryview(data), 24):
        _, length, size, allocation = struct.unpack_from("<IIqq", data, start)
        assert start + 24 + length <= end
        found.append(file_info.StreamEntry(decode_name(data[start + 24 : start + 24 + length]), size, allocation))
    return found


def encode_get_eas(names: list[bytes]) -> bytes:
    """FileGetEaInformation (MS-FSCC 2.4.15.1), a query's list of names."""
    parts = []
    for number, name in enumerate(names, 1):
        entry = struct.pack("<B", len(name)) + name + b"\0"
        entry += bytes(-len(entry) % 4) if number < len(names) else b""
        parts.append(struct.pack("<I", 4 + len(entry) if number < len(names) else 0) + entry)
    return b"".join(parts)


@given(st.lists(st.tuples(NAMES, U63, U63), min_size=1, max_size=5))
def test_streams_round_trip(entries: list[tuple[str, int, int]]) -> None:
    streams = [file_info.StreamEntry(*entry) for entry in entries]
    assert decode_streams(b"".join(file_info.encode_streams(streams))) == streams


@given(st.lists(st.tuples(EA_NAMES, st.binary(max_size=30)), min_size=1, max_size=5))
def test_eas_round_trip(entries: list[tuple[bytes, bytes]]) -> None:
    eas = [file_info.EaEntry(*entry) for entry in entries]
    assert file_info.decode_eas(b"".join(file_info.encode_eas(eas))) == eas
    names = [name for name, _ in entries]
    assert file_info.decode_get_eas(encode_get_eas(names)) == names


@given(st.booleans(), NAMES)
def test_rename_round_trips(replace: bool, name: str) -> None:
    record = file_info.RenameInformation(int(replace), 0, name)
    assert file_info.decode_rename(file_info.encode_rename(record)) == record


@given(U63, U63, U32, NAMES)
def test_all_round_trips(index_number: int, end_of_file: int, attributes: int, name: str) -> None:
    record = file_info.AllFixed(index_number=index_number, end_of_file=end_of_file, attributes=attributes)
    assert file_info.decode_all(file_info.ALL_FIXED.pack(record) + file_info.encode_name_information(name)) == (
        record,
        name,
    )


@given(U63, U32, NAMES)
def test_volume_levels_round_trip(created: int, serial: int, name: str) -> None:
    data = fs_info.encode_volume(created, serial, name)
    volume, label = fs_info.VOLUME_FIXED.unpack(data), data[fs_info.VOLUME_FIXED.size :]
    assert (volume.creation_time, volume.serial_number, volume.label_length) == (created, serial, len(label))
    assert decode_name(label) == name
    data = fs_info.encode_attribute(serial, 255, name)
    attribute, system = fs_info.ATTRIBUTE_FIXED.unpack(data), data[fs_info.ATTRIBUTE_FIXED.size :]
    assert (attribute.attributes, attribute.name_length, decode_name(system)) == (serial, len(system), name)


CODECS: list[Codec[Any]] = [
    *(value for module in (fs_info, fsctl, file_info) for value in vars(module).values() if isinstance(value, Codec)),
    query_info.QUERY_INFO_REQUEST,
    set_info.SET_INFO_REQUEST,
    query_directory.QUERY_DIRECTORY_REQUEST,
    change_notify.CHANGE_NOTIFY_REQUEST,
    ioctl.IOCTL_REQUEST,
    ioctl.IOCTL_RESPONSE,
]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.record.__name__)
def test_fast_codec_agrees_with_construct(codec: Codec[Any]) -> None:
    data = bytes((index * 37 + 11) & 0x7F for index in range(codec.size))
    record = codec.unpack(data)
    parsed = codec.layout.parse(data)
    assert {name: parsed[name] for name in record._fields} == record._asdict()
    assert codec.pack(record) == data


def info(**changes: Any) -> FileInfo:
    return FileInfo(FileKey(1, 42), Kind.FILE, 0x20, 1, 2, 3, 4, 5, 4096, 1, 7, 0, 0o644, 0, 0)._replace(**changes)


def packer(level: int, limit: int) -> directory_info.Packer:
    return directory_info.Packer(level, limit, lambda name: f"{name[0].upper()}~1" if len(name) > 12 else "")


@pytest.mark.parametrize("level", directory_info.LEVELS)
@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_directory_levels_round_trip(level: int, at_once: int) -> None:
    names = ["a", "longer name.txt", "ü" * 200, "\U0001f600", "\ud800"]
    found = packer(level, 10000)
    for index in range(0, len(names), at_once):
        some = names[index : index + at_once]
        assert found.add([(name, info()) for name in some]) == len(some)
        # What is there is complete after each call.
        assert len(directory_info.decode_directory(level, found.buffer)) == found.count == index + len(some)
    entries = directory_info.decode_directory(level, found.buffer)
    assert [entry.name for entry in entries] == names
    if level != file_info.FileInfoClass.NAMES:
        assert {entry[1:8] for entry in entries} == {(1, 2, 3, 4, 5, 4096, 0x20)}
    if "short_name" in directory_info.LEVELS[level].fields:
        assert [entry.short_name for entry in entries] == ["", "L~1", "Ü~1", "", ""]


@pytest.mark.parametrize("level", directory_info.LEVELS)
def test_entries_of_a_response_are_aligned(level: int) -> None:
    """[MS-FSCC 2.4.8]: NextEntryOffset is 0 in the last entry, which has no padding."""
    names = ["x" * length for length in range(1, 20)]
    found = packer(level, 10000)
    found.add([(name, info()) for name in names[:7]])
    found.add([(name, info()) for name in names[7:]])
    at = 0
    for name in names:
        (following,) = struct.unpack_from("<I", found.buffer, at)
        size = directory_info.LEVELS[level].layout.size + 2 * len(name)
        if name is names[-1]:
            assert following == 0
            assert at + size == len(found.buffer)
        else:
            assert following == (size + 7) // 8 * 8
        assert at % 8 == 0
        at += following


@pytest.mark.parametrize("level", directory_info.LEVELS)
@pytest.mark.parametrize("at_once", [1, 2])
def test_directory_packer_keeps_its_limit_to_the_byte(level: int, at_once: int) -> None:
    both = [("a", info()), ("bc", info())]
    full = packer(level, 10000)
    assert full.add(both) == 2
    exact = packer(level, len(full.buffer))
    assert sum(exact.add(both[index : index + at_once]) for index in range(0, 2, at_once)) == 2
    assert exact.buffer == full.buffer
    short = packer(level, len(full.buffer) - 1)
    assert sum(short.add(both[index : index + at_once]) for index in range(0, 2, at_once)) == 1
    alone = packer(level, 10000)
    alone.add(both[:1])
    assert short.buffer == alone.buffer
    none = packer(level, len(alone.buffer) - 1)
    assert none.add(both) == 0
    assert (none.buffer, none.count) == (b"", 0)


def test_reparse_tag_takes_the_place_of_ea_size() -> None:
    """Of reparse points, in levels without a field for the tag. [MS-FSCC 2.4.8]"""
    link, plain = info(attributes=0x400, reparse_tag=0xA000000C), info()
    for level in [number for number, level in directory_info.LEVELS.items() if "ea_size" in level.fields]:
        found = packer(level, 1000)
        assert found.add([("l", link), ("f", plain)]) == 2
        entries = directory_info.decode_directory(level, found.buffer)
        in_place = "reparse_tag" not in directory_info.LEVELS[level].fields
        assert [(entry.ea_size, entry.reparse_tag) for entry in entries] == [(0 if in_place else 7, 0xA000000C), (7, 0)]
        if "file_id" in directory_info.LEVELS[level].fields:
            assert {entry.file_id for entry in entries} == {42}
