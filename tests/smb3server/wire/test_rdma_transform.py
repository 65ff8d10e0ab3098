"""The chain of RDMA transforms (MS-SMB2 2.2.43, 2.2.43.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smb3server.wire.negotiate import numbers_of
from smb3server.wire.rdma_transform import (
    RDMA_TRANSFORM_CAPABILITIES,
    CryptoTransform,
    RdmaTransformId,
    TransformedBuffers,
    pack_capabilities,
    pack_transforms,
    parse_transforms,
    transformed_buffers,
)
from smb3server.wire.read_write import TAIL, Channel
from smbdirect.errors import DecodeError
from smbdirect.message_transport import RemoteBuffer

GCM = CryptoTransform(RdmaTransformId.ENCRYPTION, b"T" * 16, b"N" * 12)
BUFFERS = [RemoteBuffer(0x1000, 7, 4096), RemoteBuffer(0x9000, 8, 100)]


def test_layout() -> None:
    packed = pack_transforms(GCM, Channel.RDMA_V1_INVALIDATE, BUFFERS[:1])
    assert packed == (
        b"\x38\0" + b"\x10\0" + b"\2\0\0\0" + b"\1\0" + bytes(6)  # offset 56, length 16, channel, count
        + b"\1\0" + b"\x10\0" + b"\x0c\0" + bytes(2)  # type, signature, nonce
        + b"T" * 16 + b"N" * 12 + bytes(4)
        + (0x1000).to_bytes(8, "little") + b"\7\0\0\0" + b"\0\x10\0\0"
    )  # fmt: skip


@pytest.mark.parametrize(("nonce", "size"), [(0, 40), (11, 56), (12, 56)])
def test_chain_without_descriptors_is_padded_too(nonce: int, size: int) -> None:
    """3.3.5.12: no channel, no offset, no length."""
    packed = pack_transforms(CryptoTransform(RdmaTransformId.SIGNING, bytes(16), bytes(nonce)))
    assert len(packed) == size
    assert packed[:10] == bytes(8) + b"\1\0"


def test_capabilities() -> None:
    packed = pack_capabilities([RdmaTransformId.ENCRYPTION, RdmaTransformId.SIGNING])
    assert packed == b"\2\0" + bytes(6) + b"\1\0\2\0"
    assert numbers_of(packed, RDMA_TRANSFORM_CAPABILITIES.size) == (1, 2)


@given(
    st.sampled_from([RdmaTransformId.ENCRYPTION, RdmaTransformId.SIGNING]),
    st.binary(max_size=20),
    st.binary(max_size=20),
    st.lists(st.builds(RemoteBuffer, *[st.integers(0, 2**32 - 1)] * 3), min_size=1, max_size=4),
    st.sampled_from([Channel.RDMA_V1, Channel.RDMA_V1_INVALIDATE]),
)
def test_chain_there_and_back(
    kind: RdmaTransformId, signature: bytes, nonce: bytes, buffers: list[RemoteBuffer], channel: Channel
) -> None:
    crypto = CryptoTransform(kind, signature, nonce)
    packed = pack_transforms(crypto, channel, buffers)
    message = memoryview(bytes(TAIL) + packed)
    assert transformed_buffers(message, TAIL, len(packed)) == TransformedBuffers(channel, crypto, buffers)
    assert parse_transforms(memoryview(packed))[1] == crypto


@given(st.binary(max_size=120), st.integers(TAIL - 1, TAIL + 8), st.integers(0, 130))
def test_anything_else_is_a_decode_error(data: bytes, offset: int, length: int) -> None:
    try:
        found = transformed_buffers(memoryview(bytes(TAIL) + data), offset, length)
    except DecodeError:
        return
    assert found.buffers


def changed(packed: bytes, at: int, value: bytes) -> memoryview:
    return memoryview(bytes(TAIL) + packed[:at] + value + packed[at + len(value) :])


@pytest.mark.parametrize(
    ("at", "value"),
    [
        pytest.param(0, b"\x30\0", id="descriptors inside the transforms"),
        pytest.param(0, b"\x40\0", id="descriptors behind the first aligned offset"),
        pytest.param(0, b"\x39\0", id="descriptors not aligned"),
        pytest.param(2, b"\0\0", id="no descriptors"),
        pytest.param(2, b"\x08\0", id="half a descriptor"),
        pytest.param(2, b"\x30\0", id="descriptors exceed the chain"),
        pytest.param(4, b"\0\0\0\0", id="channel none"),
        pytest.param(4, b"\3\0\0\0", id="channel transform"),
        pytest.param(8, b"\0\0", id="no transform"),
        pytest.param(8, b"\2\0", id="two transforms"),
        pytest.param(16, b"\0\0", id="type none"),
        pytest.param(16, b"\3\0", id="unknown type"),
        pytest.param(18, b"\xff\0", id="signature exceeds the chain"),
        pytest.param(20, b"\xff\xff", id="nonce exceeds the chain"),
    ],
)
def test_malformed_chain(at: int, value: bytes) -> None:
    packed = pack_transforms(GCM, Channel.RDMA_V1, BUFFERS)
    assert transformed_buffers(changed(packed, 0, b""), TAIL, len(packed))
    with pytest.raises(DecodeError):
        transformed_buffers(changed(packed, at, value), TAIL, len(packed))


def test_chain_must_lie_within_the_message() -> None:
    packed = pack_transforms(GCM, Channel.RDMA_V1, BUFFERS)
    message = changed(packed, 0, b"")
    for offset, length in ((TAIL - 8, len(packed)), (TAIL, len(packed) + 1), (TAIL, 15), (TAIL, 0)):
        with pytest.raises(DecodeError):
            transformed_buffers(message, offset, length)
