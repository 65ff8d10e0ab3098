"""NEGOTIATE from the client's side. [MS-SMB2 3.2.4.2.2.2, 3.2.5.2]"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.wire.compression import CHAINED, COMPRESSION_CAPABILITIES, CompressionAlgorithm, pack_compression
from smb3server.wire.header import HEADER_SIZE
from smb3server.wire.negotiate import (
    ACCEPT_TRANSPORT_LEVEL_SECURITY,
    NEGOTIATE_REQUEST,
    NEGOTIATE_RESPONSE,
    Capability,
    ContextType,
    Dialect,
    NegotiateRequest,
    SecurityMode,
    contexts_at,
    numbers_of,
    pack_contexts,
)
from smb3server.wire.rdma_transform import RDMA_TRANSFORM_CAPABILITIES, RdmaTransformId, pack_capabilities
from smbdirect.errors import ProtocolError

if TYPE_CHECKING:
    # Who compresses nothing does not pay for the import.
    from smb3server.compression.transform import Agreement

DIALECTS = tuple(int(dialect) for dialect in Dialect if dialect != Dialect.WILDCARD)
"""All dialects that the client speaks."""
_SHA_512 = 1
_ONCE = frozenset(ContextType) - {ContextType.NETNAME}
"""Types of which a response has one context at most. [MS-SMB2 3.2.5.2]"""


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """The algorithms and capabilities that the client offers, in order of preference."""

    ciphers: tuple[int, ...] = (Cipher.AES_128_GCM, Cipher.AES_128_CCM, Cipher.AES_256_GCM, Cipher.AES_256_CCM)
    signing_algorithms: tuple[int, ...] = (
        SigningAlgorithm.AES_GMAC,
        SigningAlgorithm.AES_CMAC,
        SigningAlgorithm.HMAC_SHA256,
    )
    rdma_transforms: tuple[int, ...] = (RdmaTransformId.ENCRYPTION, RdmaTransformId.SIGNING)
    compression: tuple[int, ...] = ()
    """Empty: no message is compressed. Servers compress the data of READs that ask for it."""
    chained: bool = True
    """Whether compressed messages may be chains: patterns need that."""
    require_signing: bool = False
    transport_security: bool = False
    """Whether QUIC alone may encrypt the messages. [MS-SMB2 3.2.4.2.2.2]"""
    capabilities: int = int(
        Capability.LEASING
        | Capability.LARGE_MTU
        | Capability.MULTI_CHANNEL
        | Capability.DIRECTORY_LEASING
        | Capability.PERSISTENT_HANDLES
    )


@dataclass(slots=True, eq=False, repr=False)
class Negotiated:
    """The result of a negotiation. Sizes are in bytes."""

    dialect: int = 0
    capabilities: int = 0
    security_mode: int = 0
    server_guid: bytes = bytes(16)
    max_transact_size: int = 65536
    max_read_size: int = 65536
    max_write_size: int = 65536
    cipher: int = 0
    signing_algorithm: int = SigningAlgorithm.HMAC_SHA256
    rdma_transforms: frozenset[int] = frozenset()
    """How data that moves by RDMA may be protected on this connection."""
    compression: Agreement | None = None
    """How messages may be compressed. None: not at all. (Connection.CompressionIds, SupportsChainedCompression.)"""
    token: bytes = b""
    """The server's SPNEGO hint."""

    @property
    def signing_required(self) -> bool:
        """Whether the server requires signing."""
        return bool(self.security_mode & SecurityMode.SIGNING_REQUIRED)


def security_mode(offer: Offer) -> int:
    """Return Connection.ClientSecurityMode. [MS-SMB2 3.2.1.2]"""
    return int(SecurityMode.SIGNING_REQUIRED if offer.require_signing else SecurityMode.SIGNING_ENABLED)


def capabilities(dialects: Sequence[int], offer: Offer) -> int:
    """Return Connection.ClientCapabilities. [MS-SMB2 3.2.1.2]"""
    newest = max(dialects)
    found = offer.capabilities if newest >= Dialect.SMB_2_1 else 0
    return found | (int(Capability.ENCRYPTION) if newest >= Dialect.SMB_3_0 and offer.ciphers else 0)


def build(dialects: Sequence[int], client_guid: bytes, offer: Offer) -> bytes:
    """Build the body of a NEGOTIATE request."""
    newest = max(dialects)
    record = NegotiateRequest(
        dialect_count=len(dialects),
        security_mode=security_mode(offer),
        capabilities=capabilities(dialects, offer),
        client_guid=client_guid if newest >= Dialect.SMB_2_1 else bytes(16),
    )
    offered = struct.pack(f"<{len(dialects)}H", *dialects)
    if newest < Dialect.SMB_3_1_1:
        return NEGOTIATE_REQUEST.pack(record) + offered
    contexts = [(ContextType.PREAUTH_INTEGRITY, struct.pack("<HHH", 1, 32, _SHA_512) + os.urandom(32))]
    if offer.ciphers:
        contexts.append((ContextType.ENCRYPTION, _numbers(offer.ciphers)))
    if offer.signing_algorithms:
        contexts.append((ContextType.SIGNING, _numbers(offer.signing_algorithms)))
    if offer.compression:
        contexts.append((ContextType.COMPRESSION, pack_compression(offer.compression, offer.chained)))
    if offer.rdma_transforms:
        contexts.append((ContextType.RDMA_TRANSFORM, pack_capabilities(offer.rdma_transforms)))
    if offer.transport_security:
        contexts.append((ContextType.TRANSPORT, struct.pack("<I", ACCEPT_TRANSPORT_LEVEL_SECURITY)))
    start = HEADER_SIZE + NEGOTIATE_REQUEST.size + len(offered)
    padding = -start % 8
    record = record._replace(context_offset=start + padding, context_count=len(contexts))
    return NEGOTIATE_REQUEST.pack(record) + offered + bytes(padding) + pack_contexts(contexts)


def _numbers(values: Sequence[int]) -> bytes:
    return struct.pack(f"<H{len(values)}H", len(values), *values)


def parse(message: memoryview, dialects: Sequence[int], offer: Offer) -> Negotiated:
    """Parse the response. Raises ``DecodeError``, and ``ProtocolError`` for a choice that was not offered."""
    record, token = NEGOTIATE_RESPONSE.parse_both(message)
    if record.dialect not in dialects:
        raise ProtocolError(f"server chose dialect {record.dialect:#x}", "MS-SMB2 3.2.5.2")
    result = Negotiated(
        record.dialect,
        record.capabilities,
        record.security_mode,
        record.server_guid,
        record.max_transact_size,
        record.max_read_size,
        record.max_write_size,
        token=bytes(token),
    )
    if record.dialect < Dialect.SMB_3_1_1:
        if record.dialect >= Dialect.SMB_3_0:
            result.signing_algorithm = SigningAlgorithm.AES_CMAC
            if record.capabilities & Capability.ENCRYPTION:
                result.cipher = Cipher.AES_128_CCM
        return result
    result.signing_algorithm = SigningAlgorithm.AES_CMAC
    seen: set[int] = set()
    least = HEADER_SIZE + NEGOTIATE_RESPONSE.size
    for kind, data in contexts_at(message, record.context_offset, record.context_count, least):
        if kind in seen & _ONCE:
            raise ProtocolError(f"two negotiate contexts of type {kind}", "MS-SMB2 3.2.5.2")
        seen.add(kind)
        if kind == ContextType.ENCRYPTION:
            result.cipher = _chosen(data, (*offer.ciphers, 0))
        elif kind == ContextType.SIGNING:
            result.signing_algorithm = _chosen(data, offer.signing_algorithms)
        elif kind == ContextType.RDMA_TRANSFORM:
            result.rdma_transforms = _transforms(data, offer.rdma_transforms)
        elif kind == ContextType.COMPRESSION:
            result.compression = _compression(data, offer)
    return result


def _chosen(data: memoryview, offered: Sequence[int]) -> int:
    values = numbers_of(data)
    if len(values) != 1 or values[0] not in offered:
        raise ProtocolError(f"server chose {values} of {tuple(offered)}", "MS-SMB2 3.2.5.2")
    return values[0]


def _transforms(data: memoryview, offered: Sequence[int]) -> frozenset[int]:
    """Return the RDMA transforms of a response. [MS-SMB2 3.2.5.2]

    NONE alone says that the server has none of those offered (3.3.5.4). By the letter of 3.2.5.2 a client would have to
    refuse it, because it did not offer it.
    """
    values = numbers_of(data, RDMA_TRANSFORM_CAPABILITIES.size)
    if values == (RdmaTransformId.NONE,) and offered:
        return frozenset()
    if not values or len(values) > len(offered) or not set(values) <= set(offered):
        raise ProtocolError(f"server chose RDMA transforms {values} of {tuple(offered)}", "MS-SMB2 3.2.5.2")
    return frozenset(values)


def _compression(data: memoryview, offer: Offer) -> Agreement | None:
    """Return how messages may be compressed. NONE alone says that nothing of what was offered is there. [MS-SMB2
    3.2.5.2]
    """
    from smb3server.compression.transform import Agreement

    values, offered = numbers_of(data, COMPRESSION_CAPABILITIES.size), offer.compression
    _, _, flags = COMPRESSION_CAPABILITIES.fields_from(data)
    if values == (CompressionAlgorithm.NONE,) and offered:
        return None
    if not values or len(set(values)) < len(values) or not set(values) <= set(offered):
        raise ProtocolError(f"server chose compression {values} of {tuple(offered)}", "MS-SMB2 3.2.5.2")
    return Agreement(values, chained=offer.chained and bool(flags & CHAINED))
