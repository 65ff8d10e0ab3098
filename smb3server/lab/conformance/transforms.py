"""RDMA transforms of any shape, and the protection of payloads. [MS-SMB2 2.2.43, 2.2.43.1, 3.2.4.7]"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from smb3server.client.protocol.session import ClientSession
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.lab.conformance.verdict import Inconclusive, Violation
from smb3server.wire.rdma_transform import (
    RDMA_CRYPTO_TRANSFORM,
    RDMA_TRANSFORM,
    RDMA_TRANSFORM_CAPABILITIES,
    RdmaCryptoTransform,
    RdmaTransform,
    RdmaTransformCapabilities,
    RdmaTransformId,
)
from smb3server.wire.read_write import Channel
from smbdirect.errors import DecodeError

ENCRYPTION, SIGNING = RdmaTransformId.ENCRYPTION, RdmaTransformId.SIGNING
NONCE_SIZES = {Cipher.AES_128_CCM: 11, Cipher.AES_256_CCM: 11, Cipher.AES_128_GCM: 12, Cipher.AES_256_GCM: 12}
"""Bytes of the nonce of an encrypted payload. [MS-SMB2 3.3.5.12]"""


@dataclass(frozen=True, slots=True)
class Crypto:
    """An SMB2_RDMA_CRYPTO_TRANSFORM. [MS-SMB2 2.2.43.1]"""

    kind: int
    signature: bytes
    nonce: bytes

    def pack(self) -> bytes:
        """Encode it without padding."""
        fixed = RdmaCryptoTransform(self.kind, len(self.signature), len(self.nonce))
        return RDMA_CRYPTO_TRANSFORM.pack(fixed) + self.signature + self.nonce


def pack_chain(
    transforms: Sequence[Crypto],
    descriptors: bytes,
    *,
    channel: int = Channel.RDMA_V1,
    count: int | None = None,
    descriptor_offset: int | None = None,
    descriptor_length: int | None = None,
    aligned: bool = True,
) -> bytes:
    """Encode the channel information of a WRITE. [MS-SMB2 2.2.43, 3.2.4.7]

    Fields tell the truth unless an argument says otherwise. Without ``aligned`` there is no padding.
    """
    middle = b""
    for one in transforms:
        packed = one.pack()
        middle += packed + bytes(-len(packed) % 8 if aligned else 0)
    begin = RDMA_TRANSFORM.size + len(middle)
    head = RdmaTransform(
        begin if descriptor_offset is None else descriptor_offset,
        len(descriptors) if descriptor_length is None else descriptor_length,
        channel,
        len(transforms) if count is None else count,
    )
    return RDMA_TRANSFORM.pack(head) + middle + descriptors


def pack_capabilities(ids: Sequence[int], count: int | None = None) -> bytes:
    """Encode the data of SMB2_RDMA_TRANSFORM_CAPABILITIES. [MS-SMB2 2.2.3.1.6]"""
    fixed = RdmaTransformCapabilities(len(ids) if count is None else count)
    return RDMA_TRANSFORM_CAPABILITIES.pack(fixed) + struct.pack(f"<{len(ids)}H", *ids)


def nonce_size(session: ClientSession, kind: int) -> int:
    """Return how long the nonce of a payload must be. [MS-SMB2 3.2.4.7, 3.3.5.12]"""
    negotiated = session.client.negotiated
    if kind == ENCRYPTION:
        return NONCE_SIZES[Cipher(negotiated.cipher)]
    return 12 if negotiated.signing_algorithm == SigningAlgorithm.AES_GMAC else 0


def protect(session: ClientSession, kind: int, payload: bytes) -> tuple[bytes, Crypto]:
    """Return what goes into the exposed memory for a WRITE of ``payload``, and its transform. [MS-SMB2 3.2.4.7]"""
    if kind == ENCRYPTION:
        if session.cipher is None:
            raise Inconclusive("the session has no cipher")
        nonce = session.cipher.new_nonce()
        sealed = bytearray(payload)
        tag = session.cipher.encrypt_payload(memoryview(sealed), nonce)
        return bytes(sealed), Crypto(kind, tag, nonce)
    if session.signer is None:
        raise Inconclusive("the session has no signing key")
    # The nonce of a payload is the sender's choice, and must be new under the key.
    nonce = session.signer.payload_nonce(int.from_bytes(os.urandom(8), "little"), from_server=False)
    return payload, Crypto(kind, session.signer.sign_payload(memoryview(payload), nonce), nonce)


def payload_nonce(chain: bytes) -> bytes:
    """Return the nonce in the chain of a READ response, which ``unprotect`` has checked. [MS-SMB2 2.2.43.1]"""
    crypto = RDMA_CRYPTO_TRANSFORM.unpack(chain, RDMA_TRANSFORM.size)
    begin = RDMA_TRANSFORM.size + RDMA_CRYPTO_TRANSFORM.size + crypto.signature_length
    return chain[begin : begin + crypto.nonce_length]


def unprotect(session: ClientSession, kind: int, chain: bytes, received: bytes) -> bytes:
    """Check the chain of a READ response and return the data that it protects. [MS-SMB2 2.2.20, 3.2.5.11, 3.3.5.12]

    ``received`` is what the server wrote by RDMA. Raises ``Violation``.
    """
    try:
        head = RDMA_TRANSFORM.unpack(chain)
        crypto = RDMA_CRYPTO_TRANSFORM.unpack(chain, RDMA_TRANSFORM.size)
    except DecodeError as error:
        raise Violation(f"the response has {len(chain)} bytes of Buffer, too few for its transforms") from error
    if (head.rdma_descriptor_offset, head.rdma_descriptor_length, head.channel) != (0, 0, Channel.NONE):
        raise Violation(f"SMB2_RDMA_TRANSFORM of the response names descriptors: {head}")
    if head.transform_count != 1 or crypto.transform_type != kind:
        raise Violation(f"{head.transform_count} transforms, the first of type {crypto.transform_type}, not one {kind}")
    begin = RDMA_TRANSFORM.size + RDMA_CRYPTO_TRANSFORM.size
    middle = begin + crypto.signature_length
    end = middle + crypto.nonce_length
    # The padding is part of the structure, and nothing else follows. DataLength is the sum of the structures.
    if not end <= len(chain) <= end + -end % 8:
        raise Violation(f"transforms of {end} bytes in a Buffer of {len(chain)}")
    signature, nonce = chain[begin:middle], chain[middle:end]
    if len(nonce) != nonce_size(session, kind):
        raise Violation(f"a nonce of {len(nonce)} bytes, not {nonce_size(session, kind)}")
    if kind == ENCRYPTION:
        if session.cipher is None:
            raise Inconclusive("the session has no cipher")
        opened = bytearray(received)
        if not session.cipher.decrypt_payload(memoryview(opened), nonce, signature):
            raise Violation(f"the tag of the payload is wrong (nonce of {len(nonce)} bytes, tag of {len(signature)})")
        return bytes(opened)
    if session.signer is None:
        raise Inconclusive("the session has no signing key")
    if not session.signer.verify_payload(memoryview(received), nonce, signature):
        raise Violation(f"the payload's signature is wrong (nonce of {len(nonce)} bytes)")
    return received
