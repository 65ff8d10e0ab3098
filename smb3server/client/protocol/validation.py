"""Check that nobody between client and server changed the negotiation. [MS-SMB2 3.2.5.5, 3.2.5.14.12]"""

from __future__ import annotations

import struct

from smb3server.client.protocol import negotiation
from smb3server.client.protocol.tree import Tree
from smb3server.wire import ioctl as wire
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus
from smbdirect.errors import ProtocolError

_REQUEST = struct.Struct("<I16sHH")
"""Capabilities, Guid, SecurityMode and DialectCount. [MS-SMB2 2.2.31.4]"""
_RESPONSE = struct.Struct("<I16sHH")
"""Capabilities, Guid, SecurityMode and Dialect. [MS-SMB2 2.2.32.6]"""
_UNKNOWN = (NtStatus.FILE_CLOSED, NtStatus.INVALID_DEVICE_REQUEST, NtStatus.NOT_SUPPORTED)
"""Answers of servers from before this check. They are signed, so nobody else can have made them."""


async def validate_negotiation(tree: Tree) -> None:
    """Ask the server, in a signed message, what was negotiated. Raises ``ProtocolError`` if it is something else.

    The session must have a key to sign with.
    """
    client, session = tree.client, tree.session
    dialects, offer = client.offered
    guid = client.client_guid if max(dialects) >= Dialect.SMB_2_1 else bytes(16)
    asked = _REQUEST.pack(
        negotiation.capabilities(dialects, offer), guid, negotiation.security_mode(offer), len(dialects)
    ) + struct.pack(f"<{len(dialects)}H", *dialects)
    record = wire.IoctlRequest(
        ctl_code=Fsctl.VALIDATE_NEGOTIATE_INFO,
        persistent=0xFFFFFFFFFFFFFFFF,
        volatile=0xFFFFFFFFFFFFFFFF,
        max_output_response=_RESPONSE.size,
        flags=wire.IOCTL_IS_FSCTL,
    )
    body = [wire.build_ioctl_request(record, asked)]
    accept = (NtStatus.SUCCESS, *_UNKNOWN)
    reply = await client.call(Command.IOCTL, body, session, tree.tree_id, accept=accept, sign=True)
    try:
        if reply.status != NtStatus.SUCCESS:
            return
        output = bytes(wire.parse_ioctl_response(reply.message)[1])
    finally:
        reply.release()
    found = client.negotiated
    expected = (found.capabilities, found.server_guid, found.security_mode, found.dialect)
    if len(output) != _RESPONSE.size or _RESPONSE.unpack(output) != expected:
        client.transport.abort("the negotiation was changed on the way")
        raise ProtocolError("the negotiation was changed on the way", "MS-SMB2 3.2.5.14.12")
