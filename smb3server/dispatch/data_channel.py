"""The data channel of READ and WRITE: in the message, or by RDMA to and from buffers that the request describes.

Both commands parse and check the descriptors here. Only this module asks whether the connection has RDMA. What protects
the data on its way is a matter of ``rdma_transforms``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from smb3server.dispatch import waiting
from smb3server.dispatch.request import Pending, Request, Response
from smb3server.dispatch.waiting import failure
from smb3server.state.objects import Connection
from smb3server.wire.negotiate import Dialect
from smb3server.wire.rdma_transform import CryptoTransform, transformed_buffers
from smb3server.wire.read_write import Channel, WriteRequest, descriptors
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.message_transport import RdmaOperations, RemoteBuffer

ERROR_BODY = struct.pack("<HBBIB", 9, 0, 0, 0, 0)
"""SMB2 ERROR Response without data. [MS-SMB2 2.2.2]"""


_NONE, RDMA_V1, RDMA_V1_INVALIDATE = map(int, (Channel.NONE, Channel.RDMA_V1, Channel.RDMA_V1_INVALIDATE))
_RDMA_TRANSFORM = int(Channel.RDMA_TRANSFORM)
SMB_3_0, SMB_3_0_2 = int(Dialect.SMB_3_0), int(Dialect.SMB_3_0_2)
ADDRESS_SPACE = 1 << 64
"""Number of bytes that Offset and Length of a descriptor can address. [MS-SMBD 2.2.3.1]"""


class RemoteMemory(NamedTuple):
    """Buffers of the peer, and the token to invalidate with the response."""

    rdma: RdmaOperations
    buffers: Sequence[RemoteBuffer]
    invalidate: int | None
    crypto: CryptoTransform | None = None
    """What the request says of the protection of its data. None: nothing."""

    def failure(self, request: Request, error: BaseException) -> Response:
        """Return an error response that still invalidates the token of the peer. A client that requested remote
        invalidation does not invalidate the token itself, and fails later if it stays valid."""
        return Response([ERROR_BODY], status=failure(request, error).status, invalidate=self.invalidate)


def fail(pending: Pending, error: BaseException, remote: RemoteMemory | None) -> None:
    """Fail a pending READ or WRITE with the status for ``error``."""
    if remote is None:
        waiting.fail(pending, error)
    else:
        pending.complete(remote.failure(pending.request, error))


def cancel(pending: Pending, remote: RemoteMemory | None) -> None:
    """Fail a pending READ or WRITE that is cancelled."""
    fail(pending, StatusError(pending.refused_with or NtStatus.CANCELLED), remote)


def memory_for_write(request: Request, body: WriteRequest) -> RemoteMemory | None:
    """Return the client's memory that a WRITE fetches data from, or None for data in the message. [MS-SMB2 3.3.5.13]

    Raises ``StatusError`` and ``DecodeError`` as ``described`` does."""
    connection, length = request.connection, body.remaining_bytes
    where = body.channel_info_offset, body.channel_info_length
    rdma = connection.transport.rdma
    if body.channel != _RDMA_TRANSFORM or rdma is None or not connection.rdma_transform_ids:
        return described(connection, request.message, body.channel, *where, length)
    channel, crypto, buffers = transformed_buffers(request.message, *where)
    _check_covered(buffers, length)
    return RemoteMemory(rdma, buffers, buffers[0].token if channel == RDMA_V1_INVALIDATE else None, crypto)


def described(
    connection: Connection, message: memoryview, channel: int, info_offset: int, info_length: int, length: int
) -> RemoteMemory | None:
    """Return the buffers that a request describes, or None if it describes none. [MS-SMB2 3.3.5.12, 3.3.5.13]

    Channel is valid from dialect 3.0 on. Raises ``StatusError``, INVALID_PARAMETER, for an unknown Channel, for one
    that needs RDMA on a connection without it, for no data, and for descriptors that leave the address space or cover
    less than ``length`` bytes, and ``DecodeError`` for malformed ones."""
    if channel == _NONE or connection.dialect < SMB_3_0:
        return None
    rdma = connection.transport.rdma
    invalidate = channel == RDMA_V1_INVALIDATE and connection.dialect >= SMB_3_0_2
    if rdma is None or (channel != RDMA_V1 and not invalidate):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    buffers = descriptors(message, info_offset, info_length)
    _check_covered(buffers, length)
    return RemoteMemory(rdma, buffers, buffers[0].token if invalidate else None)


def _check_covered(buffers: Sequence[RemoteBuffer], length: int) -> None:
    """Check that descriptors are within the address space and cover ``length`` bytes, and that these are any. Raises
    ``StatusError``: INVALID_PARAMETER."""
    covered = 0
    for buffer in buffers:
        if buffer.offset + buffer.length > ADDRESS_SPACE:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        covered += buffer.length
    if not 0 < length <= covered:
        raise StatusError(NtStatus.INVALID_PARAMETER)
