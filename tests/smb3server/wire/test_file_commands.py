"""Wire codecs of the file commands: both directions, against construct, and against garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smb3server.wire import close, create, create_contexts, flush, lock, oplock_break, read_write
from smb3server.wire.file_info import NEED_EA, EaEntry, encode_eas
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Codec
from smbdirect.errors import DecodeError
from smbdirect.message_transport import RemoteBuffer

CODECS = [
    value
    for module in (close, create, create_contexts, flush, lock, oplock_break, read_write)
    for value in vars(module).values()
    if isinstance(value, Codec)
]
PARSERS = [
    close.parse_request,
    close.parse_response,
    create.parse_request,
    create.parse_response,
    flush.parse_request,
    flush.parse_response,
    lock.parse_request,
    lock.parse_response,
    oplock_break.parse_acknowledgment,
    oplock_break.parse_notification,
    read_write.parse_read_request,
    read_write.parse_read_response,
    read_write.parse_write_request,
    read_write.parse_write_response,
]
HEADER = bytes(64)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.record.__name__)
def test_codec_agrees_with_its_layout(codec: Codec) -> None:
    data = bytes(range(7, 7 + codec.size))
    record = codec.unpack(data)
    parsed = codec.layout.parse(data)
    assert record == codec.record(**{name: parsed[name] for name in record._fields})
    assert codec.pack(record) == data == codec.layout.build(record._asdict())
    assert codec.size == codec.layout.sizeof()


def sizes() -> list[tuple[int, Codec]]:
    return [
        (56, create.CREATE_REQUEST),
        (88, create.CREATE_RESPONSE),
        (48, read_write.READ_REQUEST),
        (16, read_write.READ_RESPONSE),
        (48, read_write.WRITE_REQUEST),
        (16, read_write.WRITE_RESPONSE),
        (24, close.CLOSE_REQUEST),
        (60, close.CLOSE_RESPONSE),
        (24, lock.LOCK_REQUEST),
        (24, lock.LOCK_ELEMENT),
        (24, oplock_break.OPLOCK_BREAK),
        (44, oplock_break.LEASE_BREAK_NOTIFICATION),
        (36, oplock_break.LEASE_BREAK),
        (52, create_contexts.LEASE_V2_CODEC),
        (32, create_contexts.ON_DISK_ID_RESPONSE_CODEC),
        (16, read_write.BUFFER_DESCRIPTOR),
    ]


@pytest.mark.parametrize(("size", "codec"), sizes())
def test_sizes_of_the_specification(size: int, codec: Codec) -> None:
    assert codec.size == size


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: f"{parser.__module__}.{parser.__name__}")
@given(tail=st.binary(max_size=200), size=st.sampled_from([0, 4, 17, 24, 36, 44, 48, 49, 57, 60, 89]))
def test_garbage_ends_in_a_status(parser, tail: bytes, size: int) -> None:
    try:
        parser(memoryview(HEADER + size.to_bytes(2, "little") + tail))
    except DecodeError:
        pass


@given(st.binary(max_size=120))
def test_garbage_contexts_end_in_a_status(data: bytes) -> None:
    try:
        create_contexts.decode_requests(create_contexts.parse_contexts(memoryview(data)))
    except DecodeError:
        pass
    for decode in (*create_contexts.REQUESTS.values(), *create_contexts.RESPONSES.values()):
        try:
            decode(data)
        except (DecodeError, StatusError):
            pass


names = st.text(st.characters(codec="utf-16-le", exclude_characters="\\"), max_size=20)
contexts = st.lists(
    st.builds(create_contexts.RawContext, st.binary(min_size=4, max_size=16), st.binary(max_size=40)), max_size=5
)


@given(names, contexts)
def test_create_round_trip(name: str, contexts: list[create_contexts.RawContext]) -> None:
    record = create.CreateRequest(desired_access=0x12019F, create_disposition=1)
    parsed, parsed_name, parsed_contexts = create.parse_request(
        memoryview(HEADER + create.pack_request(record, name, contexts))
    )
    assert (parsed_name, parsed_contexts) == (name, contexts)
    assert parsed.desired_access == record.desired_access
    answer, answers = create.parse_response(
        memoryview(HEADER + create.pack_response(create.CreateResponse(persistent=5), contexts))
    )
    assert (answer.persistent, answers) == (5, contexts)


def test_name_beyond_the_message() -> None:
    body = create.pack_request(create.CreateRequest(), "abc")
    parsed, _, _ = create.parse_request(memoryview(HEADER + body))
    bad = create.CREATE_REQUEST.pack(parsed._replace(name_length=8)) + body[create.CREATE_REQUEST.size :]
    with pytest.raises(DecodeError):
        create.parse_request(memoryview(HEADER + bad))


@given(
    st.lists(
        st.builds(
            EaEntry,
            st.text("abcXYZ 019_.", min_size=1, max_size=20).map(str.encode),
            st.binary(max_size=20),
            st.sampled_from([0, NEED_EA]),
        ),
        min_size=1,
    )
)
def test_extended_attributes_round_trip(eas: list[EaEntry]) -> None:
    assert create_contexts.parse_eas(b"".join(encode_eas(eas))) == eas


@pytest.mark.parametrize(
    ("ea", "status"),
    [
        (EaEntry(b"", b"x"), NtStatus.INVALID_EA_NAME),
        (EaEntry(b"a*b", b"x"), NtStatus.INVALID_EA_NAME),
        (EaEntry(b"NAME", b"x", 1), NtStatus.INVALID_EA_NAME),
    ],
)
def test_extended_attributes_that_cannot_be(ea: EaEntry, status: NtStatus) -> None:
    with pytest.raises(StatusError) as caught:
        create_contexts.parse_eas(b"".join(encode_eas([ea])))
    assert caught.value.status == status


@pytest.mark.parametrize("cut", range(1, 12))
def test_extended_attributes_cut_short(cut: int) -> None:
    with pytest.raises(StatusError) as caught:
        create_contexts.parse_eas(b"".join(encode_eas([EaEntry(b"NAME", b"v")]))[:-cut])
    assert caught.value.status == NtStatus.EA_LIST_INCONSISTENT


def test_descriptors() -> None:
    remote = [RemoteBuffer(2**63, 7, 4096), RemoteBuffer(5, 8, 1)]
    message = memoryview(HEADER + bytes(48) + read_write.pack_descriptors(remote))
    assert read_write.descriptors(message, 112, 32) == remote
    for offset, length in [(112, 0), (112, 31), (112, 48), (111, 32), (113, 32), (64, 16)]:
        with pytest.raises(DecodeError):
            read_write.descriptors(message, offset, length)


def test_lock_count_beyond_the_message() -> None:
    body = lock.pack_request(lock.LockRequest(), [lock.LockElement(1, 2, 2)])
    assert lock.parse_request(memoryview(HEADER + body))[1] == [lock.LockElement(1, 2, 2)]
    with pytest.raises(DecodeError):
        lock.parse_request(memoryview(HEADER + body[:-1]))
    with pytest.raises(DecodeError):
        lock.parse_request(memoryview(HEADER + lock.pack_request(lock.LockRequest(), [])))
