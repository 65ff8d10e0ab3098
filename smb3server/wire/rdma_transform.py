"""RDMA transforms: what protects data that moves by RDMA. [MS-SMB2 2.2.3.1.6, 2.2.43, 2.2.43.1]

A WRITE request carries a chain: SMB2_RDMA_TRANSFORM, one SMB2_RDMA_CRYPTO_TRANSFORM, and buffer descriptors. A READ
response carries the first two only.
"""

import enum
import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

from smb3server.wire.fields import record_at
from smb3server.wire.read_write import TAIL, Channel, descriptors, pack_descriptors
from smbdirect.codec import Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Int16ul, Int32ul
from smbdirect.message_transport import RemoteBuffer


class RdmaTransformId(enum.IntEnum):
    """SMB2_RDMA_TRANSFORM_*, and the types of a crypto transform, which have the same numbers. [MS-SMB2 2.2.3.1.6,
    2.2.43.1]"""

    NONE = 0
    """In a negotiate response only: nothing that was offered is supported."""
    ENCRYPTION = 1
    SIGNING = 2


class RdmaTransformCapabilities(NamedTuple):
    """The fixed part of SMB2_RDMA_TRANSFORM_CAPABILITIES. A list of 16-bit RDMATransformIds follows. [MS-SMB2
    2.2.3.1.6]"""

    transform_count: Annotated[int, Int16ul] = 0
    reserved_1: Annotated[int, Int16ul] = 0
    reserved_2: Annotated[int, Int32ul] = 0


class RdmaTransform(NamedTuple):
    """SMB2_RDMA_TRANSFORM. [MS-SMB2 2.2.43]"""

    rdma_descriptor_offset: Annotated[int, Int16ul] = 0
    """Offset of the descriptors, counted from the beginning of this structure."""
    rdma_descriptor_length: Annotated[int, Int16ul] = 0
    channel: Annotated[int, Int32ul] = 0
    """How the descriptors are used: a ``Channel`` other than RDMA_TRANSFORM. NONE: there are no descriptors."""
    transform_count: Annotated[int, Int16ul] = 0
    reserved_1: Annotated[int, Int16ul] = 0
    reserved_2: Annotated[int, Int32ul] = 0


class RdmaCryptoTransform(NamedTuple):
    """The fixed part of SMB2_RDMA_CRYPTO_TRANSFORM. Signature, nonce and padding follow. [MS-SMB2 2.2.43.1]"""

    transform_type: Annotated[int, Int16ul] = 0
    signature_length: Annotated[int, Int16ul] = 0
    nonce_length: Annotated[int, Int16ul] = 0
    reserved: Annotated[int, Int16ul] = 0


RDMA_TRANSFORM_CAPABILITIES = Codec(RdmaTransformCapabilities)
RDMA_TRANSFORM = Codec(RdmaTransform)
RDMA_CRYPTO_TRANSFORM = Codec(RdmaCryptoTransform)

_BEFORE_SIGNATURE = RDMA_TRANSFORM.size + RDMA_CRYPTO_TRANSFORM.size
_TYPES = (RdmaTransformId.ENCRYPTION, RdmaTransformId.SIGNING)


class CryptoTransform(NamedTuple):
    """What protects one payload: the content of an SMB2_RDMA_CRYPTO_TRANSFORM."""

    transform_type: RdmaTransformId
    signature: bytes
    """Signature or authentication tag of the payload. A peer's may have any length, also a wrong one."""
    nonce: bytes
    """As ``signature``."""


class TransformedBuffers(NamedTuple):
    """What a request says of data that moves by RDMA and is protected."""

    channel: int
    """RDMA_V1 or RDMA_V1_INVALIDATE."""
    crypto: CryptoTransform
    buffers: Sequence[RemoteBuffer]


def pack_capabilities(ids: Sequence[int]) -> bytes:
    """Encode the data of a negotiate context. [MS-SMB2 2.2.3.1.6]"""
    return RDMA_TRANSFORM_CAPABILITIES.pack_fields(len(ids), 0, 0) + struct.pack(f"<{len(ids)}H", *ids)


def pack_transforms(
    crypto: CryptoTransform, channel: int = Channel.NONE, buffers: Iterable[RemoteBuffer] = ()
) -> bytes:
    """Encode a chain. It must begin at a multiple of 8 bytes of the message.

    Padding is there without descriptors, too: so the chain's length is always the sum of its structures' sizes."""
    kind, signature, nonce = crypto
    size = _BEFORE_SIGNATURE + len(signature) + len(nonce)
    padding = -size & 7
    remote = pack_descriptors(list(buffers))
    return b"".join(
        (
            RDMA_TRANSFORM.pack_fields(size + padding if remote else 0, len(remote), channel, 1, 0, 0),
            RDMA_CRYPTO_TRANSFORM.pack_fields(kind, len(signature), len(nonce), 0),
            signature,
            nonce,
            bytes(padding),
            remote,
        )
    )


def parse_transforms(data: memoryview) -> tuple[RdmaTransform, CryptoTransform, int]:
    """Decode the transforms at the beginning of ``data``. Return them and the offset of what follows, without padding.

    Raises ``DecodeError`` unless there is exactly one crypto transform, of a known type. More than one are an error
    whatever their types, and so is none (3.3.5.13, 3.2.5.11)."""
    head = record_at(RDMA_TRANSFORM, data)
    if head.transform_count != 1:
        raise DecodeError(f"{head.transform_count} RDMA transforms, not 1")
    kind, signature_length, nonce_length, _ = record_at(RDMA_CRYPTO_TRANSFORM, data, RDMA_TRANSFORM.size)
    if kind not in _TYPES:
        raise DecodeError(f"RDMA transform of type {kind}")
    nonce_at = _BEFORE_SIGNATURE + signature_length
    end = nonce_at + nonce_length
    if end > len(data):
        raise DecodeError(f"RDMA crypto transform of {end} bytes in {len(data)}")
    signature, nonce = bytes(data[_BEFORE_SIGNATURE:nonce_at]), bytes(data[nonce_at:end])
    return head, CryptoTransform(RdmaTransformId(kind), signature, nonce), end


def transformed_buffers(message: memoryview, offset: int, length: int) -> TransformedBuffers:
    """Decode the chain of a request, ``length`` bytes at ``offset`` of its message. [MS-SMB2 3.3.5.13]

    Raises ``DecodeError`` as ``parse_transforms`` and ``descriptors`` do, if the chain names no descriptors, or if they
    do not begin at the first multiple of 8 bytes behind the transforms."""
    if offset < TAIL or offset + length > len(message):
        raise DecodeError(f"{length} bytes of RDMA transforms at {offset} in a message of {len(message)}")
    head, crypto, end = parse_transforms(message[offset : offset + length])
    if head.channel not in (Channel.RDMA_V1, Channel.RDMA_V1_INVALIDATE):
        raise DecodeError(f"channel {head.channel} in an RDMA transform")
    # The variable part begins at a multiple of 8 bytes of the message, so offsets in the message show the alignment.
    begin = offset + head.rdma_descriptor_offset
    if begin != (offset + end + 7 & -8) or head.rdma_descriptor_offset + head.rdma_descriptor_length > length:
        raise DecodeError(f"descriptors at {head.rdma_descriptor_offset} behind RDMA transforms of {end} bytes")
    return TransformedBuffers(head.channel, crypto, descriptors(message, begin, head.rdma_descriptor_length))
