"""NEGOTIATE. [MS-SMB2 3.3.5.3, 3.3.5.4]"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from functools import partial

from smb3server.compression.transform import agree
from smb3server.crypto import preauth
from smb3server.crypto.algorithms import PREAUTH_SHA_512, Cipher, SigningAlgorithm
from smb3server.dispatch.read_size import fits_message, inline_limit, read_offer, sealed_credits
from smb3server.dispatch.request import SMB1_NEGOTIATE, Request, Response, handles
from smb3server.settings.server import Settings
from smb3server.state.life import ConnectionLife
from smb3server.state.objects import Connection
from smb3server.wire import filetime, posix
from smb3server.wire.compression import CHAINED, COMPRESSION_CAPABILITIES, CompressionAlgorithm, pack_compression
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.negotiate import (
    ACCEPT_TRANSPORT_LEVEL_SECURITY,
    NEGOTIATE_REQUEST,
    NEGOTIATE_RESPONSE,
    Capability,
    ContextType,
    Dialect,
    NegotiateRequest,
    NegotiateResponse,
    SecurityMode,
    accepts_transport_security,
    contexts_of,
    dialects_of,
    numbers_of,
    pack_contexts,
    smb1_dialects,
)
from smb3server.wire.rdma_transform import RDMA_TRANSFORM_CAPABILITIES, RdmaTransformId, pack_capabilities
from smb3server.wire.status import Disconnect, NtStatus, StatusError
from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError
from smbdirect.message_transport import TransportKind

_SALT_SIZE = 32
_CONTEXT_TYPES = frozenset(ContextType)
_OFFERED = (Dialect.SMB_3_1_1, Dialect.SMB_3_0_2, Dialect.SMB_3_0, Dialect.SMB_2_1, Dialect.SMB_2_0_2)


def select_dialect(connection: Connection, settings: Settings, dialects: Sequence[int]) -> Dialect | None:
    """Return the highest dialect that both sides support, or None."""
    lowest = settings.min_dialect if connection.transport.rdma is None else settings.rdma_min_dialect
    return next((d for d in _OFFERED if d in dialects and lowest <= d <= settings.max_dialect), None)


@handles(Command.NEGOTIATE, Request)
def negotiate(request: Request) -> Response:
    """Negotiate dialect, capabilities, sizes and algorithms of a connection. [MS-SMB2 3.3.5.4]"""
    connection = request.connection
    if connection.life is not ConnectionLife.NEW and connection.life is not ConnectionLife.INVITED:
        raise Disconnect("second NEGOTIATE")
    try:
        body = NEGOTIATE_REQUEST.unpack(request.message, HEADER_SIZE)
        dialects = dialects_of(request.message, body)
    except DecodeError:
        raise StatusError(NtStatus.INVALID_PARAMETER) from None
    if body.structure_size != 36 or not dialects:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    dialect = select_dialect(connection, request.server.settings, dialects)
    if dialect is None:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    contexts: list[tuple[int, bytes]] = []
    if dialect is Dialect.SMB_3_1_1:
        offered = contexts_of(request.message, body)
        contexts = _negotiate_contexts(connection, request.server.settings, offered, request.server.has_posix)
        start = preauth.extend(preauth.INITIAL_HASH, (request.message,))
        request.on_encoded = partial(_hash_reply, connection, start)
    _apply(request, body, dialects, dialect)
    return _response(request, dialect, contexts)


def _hash_reply(connection: Connection, start: bytes, segments: Sequence[Buffer]) -> None:
    connection.preauth_integrity_hash = preauth.extend(start, segments)


def _negotiate_contexts(
    connection: Connection, settings: Settings, contexts: list[tuple[int, memoryview]], has_posix: bool
) -> list[tuple[int, bytes]]:
    """Choose hash, cipher, signing algorithm, compression and RDMA transforms. Return the contexts of the response.

    ``has_posix``: whether some share has POSIX extensions to agree on. Raises ``StatusError`` and ``DecodeError``.

    Unknown types are ignored, as the specification requires. A type that comes twice is an error."""
    offered: dict[int, memoryview] = {}
    for kind, data in contexts:
        if kind in offered and kind in _CONTEXT_TYPES:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        offered[kind] = data
    hashes = offered.get(ContextType.PREAUTH_INTEGRITY)
    if hashes is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    hash_ids = numbers_of(hashes, 4)
    if not hash_ids:
        # 2.2.3.1.1: HashAlgorithmCount is greater than zero.
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if PREAUTH_SHA_512 not in hash_ids:
        raise StatusError(NtStatus.SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP)
    answers = [
        (
            int(ContextType.PREAUTH_INTEGRITY),
            struct.pack("<HHH", 1, _SALT_SIZE, PREAUTH_SHA_512) + os.urandom(_SALT_SIZE),
        )
    ]
    cipher, algorithm = Cipher.NONE, SigningAlgorithm.AES_CMAC
    if ContextType.ENCRYPTION in offered:
        ciphers = numbers_of(offered[ContextType.ENCRYPTION])
        if not ciphers:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        cipher = Cipher(next((c for c in ciphers if c in settings.ciphers), Cipher.NONE))
        answers.append((ContextType.ENCRYPTION, struct.pack("<HH", 1, cipher)))
    if ContextType.SIGNING in offered:
        algorithms = numbers_of(offered[ContextType.SIGNING])
        if not algorithms:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        common = next((a for a in algorithms if a in settings.signing_algorithms), None)
        if common is not None:
            algorithm = SigningAlgorithm(common)
            answers.append((ContextType.SIGNING, struct.pack("<HH", 1, algorithm)))
    if ContextType.COMPRESSION in offered:
        answers += _negotiate_compression(connection, settings, offered[ContextType.COMPRESSION])
    if settings.rdma_transforms and ContextType.RDMA_TRANSFORM in offered:
        answers.append((ContextType.RDMA_TRANSFORM, _negotiate_transforms(connection, settings, offered)))
    if connection.transport.kind is TransportKind.QUIC and ContextType.TRANSPORT in offered:
        # Over TCP the context means nothing (3.3.5.4).
        connection.accepts_transport_security = accepts_transport_security(offered[ContextType.TRANSPORT])
        if connection.accepts_transport_security:
            answers.append((ContextType.TRANSPORT, struct.pack("<I", ACCEPT_TRANSPORT_LEVEL_SECURITY)))
    connection.cipher_id = cipher
    connection.signing_algorithm_id = algorithm
    connection.client_knows_posix = posix.EXTENSIONS_AVAILABLE in offered
    if connection.client_knows_posix and has_posix and posix.names_version(offered[posix.EXTENSIONS_AVAILABLE]):
        connection.posix_extensions = True
        answers.append((posix.EXTENSIONS_AVAILABLE, posix.VERSION))
    return answers


def _negotiate_compression(connection: Connection, settings: Settings, offered: memoryview) -> list[tuple[int, bytes]]:
    """Choose how messages may be compressed, and return the negotiate context of the response, if there is one. Raises
    ``StatusError`` and ``DecodeError``. [MS-SMB2 3.3.5.4]"""
    ids = numbers_of(offered, COMPRESSION_CAPABILITIES.size)
    if not ids:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if not settings.compression:
        return []
    _, _, flags = COMPRESSION_CAPABILITIES.fields_from(offered)
    agreed = connection.compression = agree(ids, settings.compression, bool(flags & CHAINED))
    if agreed is None:
        return [(ContextType.COMPRESSION, pack_compression((CompressionAlgorithm.NONE,), False))]
    return [(ContextType.COMPRESSION, pack_compression(agreed.algorithms, agreed.chained))]


def _negotiate_transforms(connection: Connection, settings: Settings, offered: dict[int, memoryview]) -> bytes:
    """Choose the RDMA transforms, and return the data of the context in the response. Raises ``StatusError`` and
    ``DecodeError``. [MS-SMB2 3.3.5.4]

    This is done over TCP, too: a client offers on RDMA connections what it agreed upon on its first connection
    (3.2.4.2.2.2)."""
    ids = numbers_of(offered[ContextType.RDMA_TRANSFORM], RDMA_TRANSFORM_CAPABILITIES.size)
    if not ids:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    connection.rdma_transform_ids = tuple(kind for kind in dict.fromkeys(ids) if kind in settings.rdma_transforms)
    return pack_capabilities(connection.rdma_transform_ids or (RdmaTransformId.NONE,))


def _apply(request: Request, body: NegotiateRequest, dialects: tuple[int, ...], dialect: int) -> None:
    """Set the properties of the connection that follow from the request and the dialect."""
    connection, server = request.connection, request.server
    settings = server.settings
    connection.enter(ConnectionLife.NEGOTIATED)
    connection.dialect = dialect
    connection.client_dialects = dialects
    connection.client_guid = body.client_guid
    connection.client_capabilities = body.capabilities
    connection.client_security_mode = body.security_mode
    connection.server_security_mode = _security_mode(settings)
    capabilities = 0
    if dialect >= Dialect.SMB_2_1:
        capabilities |= Capability.LARGE_MTU
        if settings.leases:
            capabilities |= Capability.LEASING
        connection.supports_multi_credit = True
        connection.max_transact_size = min(server.max_transact_size, inline_limit(connection.transport))
        connection.max_read_size = read_offer(connection.transport, settings, _reads_inline(request))
        connection.max_write_size = server.max_write_size
    if dialect >= Dialect.SMB_3_0:
        # Only for clients that ask for it. impacket: every CREATE fails if a server offers directory leases.
        if settings.multichannel and body.capabilities & Capability.MULTI_CHANNEL:
            capabilities |= Capability.MULTI_CHANNEL
        if settings.directory_leases and body.capabilities & Capability.DIRECTORY_LEASING:
            capabilities |= Capability.DIRECTORY_LEASING
        if server.has_continuous_availability and body.capabilities & Capability.PERSISTENT_HANDLES:
            capabilities |= Capability.PERSISTENT_HANDLES
        if dialect == Dialect.SMB_3_1_1 and body.capabilities & Capability.NOTIFICATIONS:
            capabilities |= Capability.NOTIFICATIONS
        if dialect < Dialect.SMB_3_1_1:
            connection.signing_algorithm_id = SigningAlgorithm.AES_CMAC
            if body.capabilities & Capability.ENCRYPTION and Cipher.AES_128_CCM in settings.ciphers:
                connection.cipher_id = Cipher.AES_128_CCM
                capabilities |= Capability.ENCRYPTION
    if server.serves_dfs:
        capabilities |= Capability.DFS
    connection.server_capabilities = capabilities
    if (
        connection.cipher_id
        and RdmaTransformId.ENCRYPTION not in connection.rdma_transform_ids
        and not fits_message(connection.transport, connection.max_read_size, encrypted=True)
    ):
        connection.hold_credits(sealed_credits(connection.transport))


def _security_mode(settings: Settings) -> int:
    """Return SecurityMode of a response. [MS-SMB2 3.3.5.3.1, 3.3.5.4]"""
    required = SecurityMode.SIGNING_REQUIRED if settings.require_signing else 0
    return int(SecurityMode.SIGNING_ENABLED | required)


def _reads_inline(request: Request) -> bool:
    """Return whether it is known already that no READ of the client will use RDMA.

    Without the transforms of 2.2.3.1.6, encrypted data is never sent by RDMA (``rdma_transforms``), and clients that
    sign do not use RDMA either (Linux: ``smb3_use_rdma_offload``). They sign if either side requires it (3.3.5.4,
    Connection.ShouldSign). The field Channel exists from dialect 3.0 on (2.2.19).
    """
    connection = request.connection
    mode = connection.client_security_mode | connection.server_security_mode
    ids = connection.rdma_transform_ids
    return (
        connection.dialect < Dialect.SMB_3_0
        or (request.server.wants_encryption and RdmaTransformId.ENCRYPTION not in ids)
        or (bool(mode & SecurityMode.SIGNING_REQUIRED) and RdmaTransformId.SIGNING not in ids)
    )


def _response(request: Request, dialect: int, contexts: list[tuple[int, bytes]]) -> Response:
    connection, server = request.connection, request.server
    token = server.hint_token
    offset = HEADER_SIZE + NEGOTIATE_RESPONSE.size
    contexts_at = offset + len(token)
    contexts_at += -contexts_at & 7
    fixed = NEGOTIATE_RESPONSE.pack(
        NegotiateResponse(
            security_mode=connection.server_security_mode,
            dialect=dialect,
            context_count=len(contexts),
            server_guid=server.guid_for(connection),
            capabilities=connection.server_capabilities,
            max_transact_size=connection.max_transact_size,
            max_read_size=connection.max_read_size,
            max_write_size=connection.max_write_size,
            system_time=filetime.from_ns(time.time_ns()),
            # 2.2.4: a server need not reveal its start time, and Windows does not.
            server_start_time=0,
            security_buffer_offset=offset,
            security_buffer_length=len(token),
            context_offset=contexts_at if contexts else 0,
        )
    )
    body = fixed + token
    if contexts:
        body += bytes(contexts_at - HEADER_SIZE - len(body)) + pack_contexts(contexts)
    return Response((body,))


@handles(SMB1_NEGOTIATE, Request)
def smb1_negotiate(request: Request) -> Response:
    """Answer a client that begins with SMB1, so that it continues with SMB2. Raises ``Disconnect`` if it does not
    support that. [MS-SMB2 3.3.5.3]"""
    connection = request.connection
    names = smb1_dialects(request.message)
    settings = request.server.settings
    if connection.life is not ConnectionLife.NEW:
        raise Disconnect("SMB1 message after the negotiation")
    if names is None:
        raise Disconnect("SMB1 message other than a negotiation")
    if b"SMB 2.???" in names and settings.max_dialect > Dialect.SMB_2_0_2:
        connection.enter(ConnectionLife.INVITED)
        connection.dialect = Dialect.WILDCARD
        connection.server_security_mode = _security_mode(settings)
        connection.server_capabilities = int(Capability.LARGE_MTU | (Capability.LEASING if settings.leases else 0))
        return _response(request, Dialect.WILDCARD, [])
    if b"SMB 2.002" in names and settings.min_dialect <= Dialect.SMB_2_0_2:
        _apply(request, NegotiateRequest(), (), Dialect.SMB_2_0_2)
        return _response(request, Dialect.SMB_2_0_2, [])
    if b"SMB 2.002" in names:
        raise Disconnect('client that knows SMB 2.0.2 only; remedy: min_dialect = "2.0.2" lets it in')
    raise Disconnect("SMB1 client that does not know SMB2", "smb1")
