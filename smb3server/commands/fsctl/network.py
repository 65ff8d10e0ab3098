"""FSCTLs about the connection: VALIDATE_NEGOTIATE_INFO, QUERY_NETWORK_INTERFACE_INFO, resiliency.
[MS-SMB2 3.3.5.15.12, 3.3.5.15.11, 3.3.5.15.9]"""

from __future__ import annotations

import struct

from smb3server.commands.create import durable
from smb3server.commands.fsctl.ioctl import NO_FILE, Control, fsctl
from smb3server.commands.negotiate import select_dialect
from smb3server.dispatch.request import Response
from smb3server.net.interfaces import pack_interfaces, rdma_capable
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import Disconnect, NtStatus, StatusError
from smbdirect.codec import Buffer
from smbdirect.message_transport import TransportKind

_RESILIENCY_REQUEST = struct.Struct("<I4x")
"""Timeout in milliseconds. [MS-SMB2 2.2.31.3]"""
_VALIDATE_REQUEST = struct.Struct("<I16sHH")
_VALIDATE_RESPONSE = struct.Struct("<I16sHH")


def _no_file(control: Control) -> None:
    if control.file_id != NO_FILE:
        raise StatusError(NtStatus.INVALID_PARAMETER)


@fsctl(Fsctl.VALIDATE_NEGOTIATE_INFO)
def validate_negotiate_info(control: Control) -> Buffer:
    """Confirm the negotiation. Raises ``Disconnect`` if the client reports a different one, as it was tampered with
    then. [MS-SMB2 3.3.5.15.12]

    The request is an error in dialect 3.1.1, where the preauthentication hash protects the negotiation."""
    _no_file(control)
    connection = control.request.connection
    if connection.dialect == Dialect.SMB_3_1_1:
        raise Disconnect("VALIDATE_NEGOTIATE_INFO in 3.1.1")
    data = control.data
    if len(data) < _VALIDATE_REQUEST.size or control.max_output < _VALIDATE_RESPONSE.size:
        raise Disconnect("VALIDATE_NEGOTIATE_INFO too short")
    capabilities, guid, mode, count = _VALIDATE_REQUEST.unpack_from(data)
    if _VALIDATE_REQUEST.size + 2 * count > len(data):
        raise Disconnect("VALIDATE_NEGOTIATE_INFO too short")
    dialects = struct.unpack_from(f"<{count}H", data, _VALIDATE_REQUEST.size)
    if (
        select_dialect(connection, control.request.server.settings, dialects) != connection.dialect
        or guid != connection.client_guid
        or mode != connection.client_security_mode
        or capabilities != connection.client_capabilities
    ):
        raise Disconnect("VALIDATE_NEGOTIATE_INFO does not match the negotiation", "negotiation")
    return _VALIDATE_RESPONSE.pack(
        connection.server_capabilities,
        control.request.server.guid_for(connection),
        connection.server_security_mode,
        connection.dialect,
    )


@fsctl(Fsctl.QUERY_NETWORK_INTERFACE_INFO)
def query_network_interface_info(control: Control) -> Buffer | Response:
    """Return the server's addresses, for more channels and to find the RDMA fabric. [MS-SMB2 3.3.5.15.11]"""
    _no_file(control)
    connection = control.request.connection
    server = control.request.server
    if not server.settings.multichannel:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    local = connection.transport.local_address[0]
    # All channels of a session must be to one ServerGuid (3.2.5.2): addresses that move with a service belong together.
    guid = server.guid_of_address(local)
    interfaces = [
        entry for entry in server.interfaces.visible_from(local) if server.guid_of_address(str(entry.address)) == guid
    ]
    # 2.2.32.5 has one entry per address. Only Linux needs two. It is recognized by the POSIX extensions in 3.1.1.
    plain_too = connection.transport.kind is TransportKind.TCP and connection.client_knows_posix
    output = pack_interfaces(
        interfaces, server.rdma_addresses, server.tcp_addresses, plain_too=plain_too, rss=server.settings.rss
    )
    connection.interfaces_asked = True
    connection.rdma_interfaces_told = rdma_capable(interfaces, server.rdma_addresses)
    if not output:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    return output


@fsctl(Fsctl.LMR_REQUEST_RESILIENCY)
def request_resiliency(control: Control) -> Buffer:
    """Make the open resilient: it survives its connection despite conflicting opens. [MS-SMB2 3.3.5.15.9]"""
    connection = control.request.connection
    if connection.dialect < Dialect.SMB_2_1:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    opened = control.open()
    if len(control.data) < _RESILIENCY_REQUEST.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    (timeout,) = _RESILIENCY_REQUEST.unpack_from(control.data)
    if timeout > durable.MAX_RESILIENCY_TIMEOUT * 1000 or opened.file is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    durable.make_resilient(opened, connection.client_guid, timeout / 1000)
    return b""
