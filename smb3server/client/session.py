"""A client's session: logon by NTLM, more channels, tree connects, FSCTLs (MS-SMB2 3.2.4.2.3, 3.2.5.3)."""

from __future__ import annotations

import ipaddress
import struct
from typing import Any, NamedTuple

import spnego

from smb3server.client.connection import RequestFailed, SmbConnection
from smb3server.multichannel import FAMILY_IPV4, FAMILY_IPV6, RDMA_CAPABLE, RSS_CAPABLE, Address
from smb3server.security import preauth
from smb3server.security.kdf import derive_signing_key
from smb3server.security.signing import Signer, make_signer
from smb3server.status import NtStatus
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.ioctl import IOCTL_IS_FSCTL, Fsctl, IoctlRequest, build_ioctl_request, parse_ioctl_response
from smb3server.wire.session import (
    BINDING,
    EMPTY,
    SESSION_SETUP_REQUEST,
    SESSION_SETUP_RESPONSE,
    TREE_CONNECT_REQUEST,
    TREE_CONNECT_RESPONSE,
    Empty,
    SessionFlags,
    SessionSetupRequest,
    TreeConnectRequest,
    part,
)
from smbdirect.errors import DecodeError

NO_FILE = 0xFFFFFFFFFFFFFFFF
_INTERFACE = struct.Struct("<IIIIQ")
INTERFACE_SIZE = 152
"""NETWORK_INTERFACE_INFO with its 128-byte address (2.2.32.5)."""


class ServerInterface(NamedTuple):
    """One entry of the interface list."""

    number: int
    """IfIndex."""
    address: Address
    speed: int
    """Bits per second."""
    rdma: bool
    rss: bool


class ClientSession:
    """A logged-on user on one connection, and the channels bound later."""

    def __init__(self, connection: SmbConnection, user: str, password: str) -> None:
        self.connection = connection
        self.user = user
        self._password = password
        self.session_id = 0
        self.flags = 0
        self.signer: Signer | None = None
        """None for guests."""
        self._signers: dict[SmbConnection, Signer | None] = {}

    @property
    def encrypted(self) -> bool:
        """The server wants all messages of this session encrypted, which this client cannot do."""
        return bool(self.flags & SessionFlags.ENCRYPT_DATA)

    @property
    def guest(self) -> bool:
        return bool(self.flags & (SessionFlags.IS_GUEST | SessionFlags.IS_NULL))

    async def logon(self) -> None:
        """Raises ``RequestFailed`` (LOGON_FAILURE and so on), ``DecodeError``, ``ConnectionLost``."""
        key, hashed = await self._authenticate(self.connection, 0)
        if not self.guest:
            self.signer = self._signers[self.connection] = self._make_signer(self.connection, key, hashed)

    async def bind(self, connection: SmbConnection) -> None:
        """One more channel (3.2.4.2.3.1 with binding). Raises as ``logon``."""
        key, hashed = await self._authenticate(connection, BINDING)
        self._signers[connection] = self._make_signer(connection, key, hashed)

    @staticmethod
    def _make_signer(connection: SmbConnection, key: bytes, hashed: bytes) -> Signer:
        signing = derive_signing_key(connection.dialect, key[:16].ljust(16, b"\0"), hashed)
        return make_signer(connection.signing_algorithm_id, signing)

    async def _authenticate(self, connection: SmbConnection, flags: int) -> tuple[bytes, bytes]:
        """Session key and preauthentication hash of the exchange."""
        context: Any = spnego.client(
            self.user,
            self._password,
            hostname=connection.transport.peer_address[0],
            service="cifs",
            protocol="negotiate",
            options=spnego.NegotiateOptions.use_ntlm,
        )
        hashed = connection.preauth_hash
        token: bytes | None = context.step()
        while True:
            body = SESSION_SETUP_REQUEST.pack(
                SessionSetupRequest(
                    flags=flags,
                    security_mode=connection.offer.security_mode,
                    security_buffer_offset=HEADER_SIZE + SESSION_SETUP_REQUEST.size,
                    security_buffer_length=len(token or b""),
                )
            )
            sent: list[bytes] = []
            signer = self.signer if flags & BINDING else None
            reply = await connection.request(
                Command.SESSION_SETUP, body + (token or b""), self.session_id, signer=signer, on_message=sent
            )
            status = reply.header.status
            if status not in (NtStatus.SUCCESS, NtStatus.MORE_PROCESSING_REQUIRED):
                raise RequestFailed(Command.SESSION_SETUP, status)
            hashed = preauth.extend(hashed, sent)
            response = SESSION_SETUP_RESPONSE.unpack(reply.message, HEADER_SIZE)
            answer = part(
                reply.message,
                response.security_buffer_offset,
                response.security_buffer_length,
                SESSION_SETUP_RESPONSE.size,
            )
            if not self.session_id:
                self.session_id = reply.header.session_id
            if not context.complete:
                token = context.step(bytes(answer))
            if status == NtStatus.SUCCESS:
                if not flags & BINDING:
                    self.flags = response.session_flags
                return bytes(context.session_key), hashed
            hashed = preauth.extend(hashed, (reply.message,))

    def _signer_for(self, connection: SmbConnection) -> Signer | None:
        return self._signers.get(connection)

    async def tree_connect(self, share: str, connection: SmbConnection | None = None) -> tuple[int, int]:
        """(TreeId, ShareFlags). Raises ``RequestFailed``."""
        connection = connection or self.connection
        host = connection.transport.peer_address[0]
        path = f"\\\\{host}\\{share}".encode("utf-16-le")
        record = TreeConnectRequest(path_offset=HEADER_SIZE + TREE_CONNECT_REQUEST.size, path_length=len(path))
        body = TREE_CONNECT_REQUEST.pack(record) + path
        # 3.2.4.1.1: 3.1.1 wants every TREE_CONNECT signed.
        reply = await connection.call(Command.TREE_CONNECT, body, self.session_id, signer=self._signer_for(connection))
        response = TREE_CONNECT_RESPONSE.unpack(reply.message, HEADER_SIZE)
        return reply.header.tree_id, response.share_flags

    async def call(
        self, command: int, body: bytes, tree_id: int, connection: SmbConnection | None = None, payload: int = 0
    ) -> memoryview:
        """A signed request of this session; the whole reply. Raises ``RequestFailed``."""
        connection = connection or self.connection
        signer = self._signer_for(connection)
        reply = await connection.call(command, body, self.session_id, tree_id, signer, payload)
        return reply.message

    async def query_interfaces(self, tree_id: int) -> list[ServerInterface]:
        """FSCTL_QUERY_NETWORK_INTERFACE_INFO (3.2.4.20.10). Raises ``RequestFailed``."""
        record = IoctlRequest(
            ctl_code=Fsctl.QUERY_NETWORK_INTERFACE_INFO,
            persistent=NO_FILE,
            volatile=NO_FILE,
            max_output_response=65536,
            flags=IOCTL_IS_FSCTL,
        )
        reply = await self.call(Command.IOCTL, build_ioctl_request(record), tree_id, payload=65536)
        return parse_interfaces(parse_ioctl_response(reply)[1])

    async def logoff(self) -> None:
        await self.call(Command.LOGOFF, EMPTY.pack(Empty()), 0)


def parse_interfaces(data: memoryview) -> list[ServerInterface]:
    """The interface list (2.2.32.5); entries of unknown address families are left out. Raises ``DecodeError``."""
    found: list[ServerInterface] = []
    offset = 0
    while offset + INTERFACE_SIZE <= len(data):
        step, number, capability, _reserved, speed = _INTERFACE.unpack_from(data, offset)
        family, _port = struct.unpack_from("<HH", data, offset + _INTERFACE.size)
        at = offset + _INTERFACE.size + 4
        address: Address | None = None
        if family == FAMILY_IPV4:
            address = ipaddress.IPv4Address(bytes(data[at : at + 4]))
        elif family == FAMILY_IPV6:
            address = ipaddress.IPv6Address(bytes(data[at + 4 : at + 20]))
        if address is not None:
            rdma, rss = bool(capability & RDMA_CAPABLE), bool(capability & RSS_CAPABLE)
            found.append(ServerInterface(number, address, speed, rdma, rss))
        if not step:
            return found
        if step < INTERFACE_SIZE:
            raise DecodeError("interface entries overlap")
        offset += step
    raise DecodeError("the interface list is cut off")


__all__ = ["ClientSession", "ServerInterface", "parse_interfaces"]
