"""CREATE with a durable request."""

from __future__ import annotations

import struct

from smb3server.wire.create_contexts import DURABLE_REQUEST_V2
from tests.lab.wire_client import HEADER_SIZE, Reply, create_body

GUID = bytes(range(16))


BATCH = 9


def durable_create(name: str, guid: bytes = GUID, oplock: int = BATCH) -> bytes:
    """A CREATE with a durable request of version 2."""
    body = bytearray(create_body(name))
    body[3] = oplock
    body += bytes(-(HEADER_SIZE + len(body)) & 7)
    data = struct.pack("<II8x16s", 0, 0, guid)
    context = struct.pack("<IHHHHI4s4x", 0, 16, 4, 0, 24, len(data), DURABLE_REQUEST_V2) + data
    struct.pack_into("<II", body, 48, HEADER_SIZE + len(body), len(context))
    return bytes(body) + context


def file_id(reply: Reply) -> bytes:
    assert reply.status == 0
    return reply.body[64:80]
