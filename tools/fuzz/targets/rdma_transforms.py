"""RDMA transforms: the chain of a request, that of a response, and the negotiated list. [MS-SMB2 2.2.3.1.6, 2.2.43]"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from smb3server.wire import rdma_transform
from smb3server.wire.rdma_transform import CryptoTransform, RdmaTransformId
from smb3server.wire.read_write import TAIL, Channel
from smbdirect.errors import DecodeError
from smbdirect.message_transport import RemoteBuffer
from tools.fuzz.target import Target, Wrong, choice, each_choice


def _request(data: memoryview) -> None:
    """The first two bytes are the offset of the chain behind the fixed part of the message."""
    if len(data) < 2:
        return
    offset = TAIL + data[0]
    message = memoryview(bytes(offset) + bytes(data[2:]) + bytes(data[1] & 7))
    found = rdma_transform.transformed_buffers(message, offset, len(data) - 2)
    packed = rdma_transform.pack_transforms(found.crypto, found.channel, found.buffers)
    if offset % 8 == 0 and rdma_transform.parse_transforms(memoryview(packed))[1] != found.crypto:
        raise Wrong("what was decoded is encoded as something else")


SUBJECTS: tuple[Callable[[memoryview], object], ...] = (_request, rdma_transform.parse_transforms)


def _seeds() -> Iterator[bytes]:
    remote = [RemoteBuffer(0x1000, 7, 4096), RemoteBuffer(0x9000, 8, 100)]
    for crypto in (
        CryptoTransform(RdmaTransformId.ENCRYPTION, bytes(16), bytes(12)),
        CryptoTransform(RdmaTransformId.ENCRYPTION, bytes(16), bytes(11)),
        CryptoTransform(RdmaTransformId.SIGNING, bytes(16), bytes(12)),
        CryptoTransform(RdmaTransformId.SIGNING, bytes(16), b""),
    ):
        for channel in (Channel.RDMA_V1, Channel.RDMA_V1_INVALIDATE):
            chain = rdma_transform.pack_transforms(crypto, channel, remote)
            yield from each_choice(SUBJECTS, [b"\0\0" + chain, chain])
        yield from each_choice(SUBJECTS, [rdma_transform.pack_transforms(crypto)])


TARGET = Target(choice(SUBJECTS), _seeds, declared=(DecodeError,), max_input=1024)
