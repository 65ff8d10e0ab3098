"""The data channel of READ and WRITE: in the message, or by RDMA to and from buffers that the request describes.

Both commands parse and check the descriptors with ``remote_buffers``. Only this module asks whether the connection has
RDMA.
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
from smb3server.wire.read_write import Channel, ReadRequest, WriteRequest, descriptors
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.message_transport import RdmaOperations, RemoteBuffer

ERROR_BODY = struct.pack("<HBBIB", 9, 0, 0, 0, 0)
"""SMB2 ERROR Response without data. [MS-SMB2 2.2.2]"""


_NONE, _RDMA_V1, _RDMA_V1_INVALIDATE = map(int, (Channel.NONE, Channel.RDMA_V1, Channel.RDMA_V1_INVALIDATE))
_SMB_3_0, _SMB_3_0_2 = int(Dialect.SMB_3_0), int(Dialect.SMB_3_0_2)
ADDRESS_SPACE = 1 << 64
"""Number of bytes that Offset and Length of a descriptor can address. [MS-SMBD 2.2.3.1]"""


class RemoteMemory(NamedTuple):
    """Buffers of the peer, and the token to invalidate with the response."""

    rdma: RdmaOperations
    buffers: Sequence[RemoteBuffer]
    invalidate: int | None

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


def remote_buffers(request: Request, body: ReadRequest | WriteRequest, length: int) -> RemoteMemory | None:
    """Return the buffers for data by RDMA, or None for data in the message. [MS-SMB2 3.3.5.12, 3.3.5.13]

    Raises ``StatusError``, INVALID_PARAMETER, as ``described`` does, and where data is to be encrypted. Without the
    transforms of 2.2.43, which this server does not negotiate, data by RDMA would not be encrypted. Clients do not
    request it there (3.2.4.6, 3.2.4.7)."""
    where = body.channel_info_offset, body.channel_info_length
    remote = described(request.connection, request.message, body.channel, *where, length)
    if remote is not None:
        session, tree = request.session, request.tree
        by_session = session is not None and session.encrypt_data
        if request.encrypted or by_session or (tree is not None and tree.encrypt_data):
            raise StatusError(NtStatus.INVALID_PARAMETER)
    return remote


def described(
    connection: Connection, message: memoryview, channel: int, info_offset: int, info_length: int, length: int
) -> RemoteMemory | None:
    """Return the buffers that a request describes, or None if it describes none. [MS-SMB2 3.3.5.12, 3.3.5.13]

    Channel is valid from dialect 3.0 on. Raises ``StatusError``, INVALID_PARAMETER, for an unknown Channel, for one
    that needs RDMA on a connection without it, and for descriptors that leave the address space or cover less than
    ``length`` bytes, and ``DecodeError`` for malformed ones."""
    if channel == _NONE or connection.dialect < _SMB_3_0:
        return None
    rdma = connection.transport.rdma
    invalidate = channel == _RDMA_V1_INVALIDATE and connection.dialect >= _SMB_3_0_2
    if rdma is None or (channel != _RDMA_V1 and not invalidate):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    buffers = descriptors(message, info_offset, info_length)
    covered = 0
    for buffer in buffers:
        if buffer.offset + buffer.length > ADDRESS_SPACE:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        covered += buffer.length
    if covered < length:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return RemoteMemory(rdma, buffers, buffers[0].token if invalidate else None)
