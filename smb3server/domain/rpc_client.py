"""Calls a controller's RPC services over TCP, in the clear or sealed. [C706 chapter 12, MS-RPCE 3.3.1]

Whatever comes from the controller is checked before it is used: sizes, types, the number of the call, and the
protection that was agreed. A connection is used by one thread at a time.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
from typing import Any, NamedTuple, Protocol

from smb3server.rpc import dcerpc
from smb3server.rpc.dcerpc import BIND_BODY, COMMON, CONTEXT_ITEM, CONTEXT_RESULT, NDR, REQUEST_BODY
from smbdirect.errors import DecodeError

ENDPOINT_MAPPER_PORT = 135
PRIVACY = 6
"""RPC_C_AUTHN_LEVEL_PKT_PRIVACY. [MS-RPCE 2.2.1.1.8]"""
MAX_ANSWER = 1 << 20
"""Most bytes of one answer. A user in a thousand groups has 12 KiB."""
_TRAILER = struct.Struct("<BBBBI")
"""sec_trailer: type, level, padding, reserved, context. [MS-RPCE 2.2.2.11]"""
_AUTH_CONTEXT = 1
_ALIGNMENT = 16
"""Sealed stubs are padded to this. [MS-RPCE 2.2.2.11]"""


class RpcError(Exception):
    """The controller's answer is a fault, is malformed, or lacks the protection that it must have."""


class Fault(RpcError):
    """The controller has answered with a fault."""

    def __init__(self, status: int) -> None:
        super().__init__(f"fault 0x{status:08x}")
        self.status = status


class Interface(NamedTuple):
    """An RPC interface."""

    uuid: str
    version: int

    @property
    def wire(self) -> bytes:
        """The interface as encoded in messages."""
        return uuid.UUID(self.uuid).bytes_le + struct.pack("<HH", self.version, 0)


class Security(Protocol):
    """What protects the messages of one connection."""

    kind: int
    """auth_type. [MS-RPCE 2.2.1.1.7]"""
    token_size: int
    """Bytes that a message's token has."""

    def first_token(self) -> bytes: ...

    def check_answer(self, token: bytes) -> None:
        """Check the token of the bind_ack. Raises ``RpcError``."""
        ...

    def seal(self, stub: bytes) -> tuple[bytes, bytes]:
        """Return the sealed stub and its token."""
        ...

    def unseal(self, sealed: bytes, token: bytes) -> bytes:
        """Return the stub. Raises ``RpcError`` if it is not what the controller sent."""
        ...


class RpcConnection:
    """One connection to one interface. Close it after any exception but ``Fault``."""

    def __init__(self, address: str, port: int, deadline: float) -> None:
        """Connect. ``deadline``: a time of ``time.monotonic`` for this and the bind. Raises ``OSError``."""
        self.deadline = deadline
        """When the call that is in progress must be done."""
        self._call = 0
        self._security: Security | None = None
        self._max_transmit = dcerpc.MIN_FRAGMENT
        self._socket = socket.create_connection((address, port), timeout=self._left())
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        return left

    def bind(self, interface: Interface, security: Security | None = None) -> None:
        """Bind to the interface. Raises ``RpcError`` and ``OSError``."""
        body = BIND_BODY.pack(dcerpc.BindBody()) + struct.pack("<Bxxx", 1)
        wire = interface.wire
        body += CONTEXT_ITEM.pack(dcerpc.ContextItem(0, 1, 0, wire[:16], interface.version, 0)) + NDR
        token = security.first_token() if security is not None else b""
        self._send(dcerpc.BIND, body, token, security)
        kind, _, body, token = self._receive(security)
        if kind != dcerpc.BIND_ACK:
            raise RpcError("the controller refuses the interface or the protection of messages")
        self._max_transmit = self._check_ack(body)
        if security is not None:
            security.check_answer(token)
        self._security = security

    def _check_ack(self, body: bytes) -> int:
        """Check a bind_ack, and return the longest fragment that may be sent. [C706 12.6.4.4]"""
        try:
            sizes = BIND_BODY.unpack(body)
            (length,) = struct.unpack_from("<H", body, BIND_BODY.size)
            start = (BIND_BODY.size + 2 + length + 3) & ~3
            count = body[start]
            result = CONTEXT_RESULT.unpack(body[start + 4 :])
        except (DecodeError, struct.error, IndexError) as error:
            raise RpcError("a bind_ack that is too short") from error
        if count != 1 or result.result != dcerpc.ACCEPTANCE or result.transfer != NDR:
            raise RpcError(f"the controller does not have the interface (result {result.result})")
        if sizes.max_receive < dcerpc.MIN_FRAGMENT:
            raise RpcError(f"fragments of {sizes.max_receive} bytes")
        return min(sizes.max_receive, dcerpc.MAX_FRAGMENT)

    def call(self, opnum: int, stub: bytes) -> bytes:
        """Return the stub of the answer. Raises ``RpcError`` and ``OSError``."""
        self._call += 1
        # Room for header, padding and token.
        piece = (self._max_transmit - 128) // _ALIGNMENT * _ALIGNMENT
        for start in range(0, len(stub) or 1, piece):
            part = stub[start : start + piece]
            flags = dcerpc.FIRST_FRAGMENT if start == 0 else 0
            flags |= dcerpc.LAST_FRAGMENT if start + piece >= len(stub) else 0
            self._send_request(opnum, part, len(stub), flags)
        answer = bytearray()
        while True:
            kind, flags, body, token = self._receive(self._security)
            if kind != dcerpc.RESPONSE:
                raise RpcError(f"an answer of type {kind}")
            answer += self._stub(body, token)
            if len(answer) > MAX_ANSWER:
                raise RpcError(f"an answer of more than {MAX_ANSWER} bytes")
            if flags & dcerpc.LAST_FRAGMENT:
                return bytes(answer)

    def _send_request(self, opnum: int, stub: bytes, whole: int, flags: int) -> None:
        fixed = REQUEST_BODY.pack(dcerpc.RequestBody(whole, 0, opnum))
        security = self._security
        if security is None:
            self._send(dcerpc.REQUEST, fixed + stub, b"", None, flags)
            return
        padding = -len(stub) % _ALIGNMENT
        sealed, token = security.seal(stub + bytes(padding))
        self._send(dcerpc.REQUEST, fixed + sealed, token, security, flags, padding)

    def _stub(self, body: bytes, token: bytes) -> bytes:
        """Return the stub of one fragment of a response, without its protection."""
        if len(body) < REQUEST_BODY.size:
            raise RpcError("a response that is too short")
        stub = body[REQUEST_BODY.size :]
        if self._security is None:
            return stub
        padding, token = token[0], token[1:]
        plain = self._security.unseal(stub, token)
        if padding > len(plain):
            raise RpcError("more padding than message")
        return plain[: len(plain) - padding]

    def _send(
        self, kind: int, body: bytes, token: bytes, security: Security | None, flags: int = 3, padding: int = 0
    ) -> None:
        trailer = b""
        if security is not None:
            if kind == dcerpc.BIND:
                padding = -len(body) % 4
                body += bytes(padding)
            trailer = _TRAILER.pack(security.kind, PRIVACY, padding, 0, _AUTH_CONTEXT)
        length = COMMON.size + len(body) + len(trailer) + len(token)
        header = COMMON.pack(
            dcerpc.CommonHeader(
                type=kind, flags=flags, fragment_length=length, auth_length=len(token), call_id=self._call
            )
        )
        self._socket.settimeout(self._left())
        self._socket.sendall(header + body + trailer + token)

    def _receive(self, security: Security | None) -> tuple[int, int, bytes, bytes]:
        """Return type, flags, body and token of one PDU. Of a response, the token begins with the size of the padding.

        Raises ``Fault``, ``RpcError`` and ``OSError``."""
        header = COMMON.unpack(self._exactly(COMMON.size))
        if header.version != 5 or header.data_representation != dcerpc.LITTLE_ENDIAN:
            raise RpcError("not an RPC message")
        if header.call_id != self._call or header.fragment_length < COMMON.size:
            raise RpcError("not the answer to this call")
        body = self._exactly(header.fragment_length - COMMON.size)
        if header.type == dcerpc.FAULT:
            # Controllers send faults without protection. They end the call, and say nothing that is believed.
            raise Fault(int.from_bytes(body[8:12], "little"))
        if header.type == dcerpc.BIND_NAK:
            raise RpcError(f"bind refused, reason {int.from_bytes(body[:2], 'little')}")
        if security is None:
            return header.type, header.flags, body, b""
        size = header.auth_length
        start = len(body) - size - _TRAILER.size
        if not size or start < 0:
            raise RpcError("an answer without protection")
        kind, level, padding, _, context = _TRAILER.unpack_from(body, start)
        if (kind, level, context) != (security.kind, PRIVACY, _AUTH_CONTEXT):
            raise RpcError("an answer whose protection is not the one that was agreed")
        token = body[start + _TRAILER.size :]
        if header.type == dcerpc.RESPONSE:
            if size != security.token_size:
                raise RpcError(f"an answer with a token of {size} bytes")
            token = bytes((padding,)) + token
        return header.type, header.flags, body[:start], token

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(self._left())
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError("the controller has closed the connection")
            data += part
        return bytes(data)


def find_port(address: str, interface: Interface, deadline: float) -> int:
    """Ask a controller's endpoint mapper for a port. Raises ``RpcError`` and ``OSError``. [C706 appendix O]"""
    from impacket.dcerpc.v5 import epm

    mapper = RpcConnection(address, ENDPOINT_MAPPER_PORT, deadline)
    try:
        mapper.bind(Interface("e1af8308-5d1f-11c9-91a4-08002b14a0fa", 3))
        stub = mapper.call(epm.ept_map.opnum, _map_request(interface))
    finally:
        mapper.close()
    return _port_of(decode(epm.ept_mapResponse, stub))


_TCP = 7
"""Protocols of a tower's floors. [C706 appendix I]"""


def _floor(left: bytes, right: bytes) -> bytes:
    return struct.pack("<H", len(left)) + left + struct.pack("<H", len(right)) + right


def _map_request(interface: Interface) -> bytes:
    """Return the stub of ept_map for an interface over TCP."""
    from impacket.dcerpc.v5 import epm

    def syntax(wire: bytes) -> bytes:
        return _floor(b"\x0d" + wire[:18], wire[18:])

    floors = [syntax(interface.wire), syntax(NDR), _floor(b"\x0b", bytes(2)), _floor(b"\x07", bytes(2))]
    tower = struct.pack("<H", 5) + b"".join((*floors, _floor(b"\x09", bytes(4))))
    request = epm.ept_map()
    request["obj"] = bytes(16)
    request["max_towers"] = 1
    request["map_tower"]["tower_length"] = len(tower)
    request["map_tower"]["tower_octet_string"] = tower
    return bytes(request.getData())


def _port_of(answer: Any) -> int:
    """Return the TCP port of a tower. Raises ``RpcError``."""
    if answer["status"] or not answer["num_towers"]:
        raise RpcError("the endpoint mapper does not know the interface")
    tower = b"".join(answer["ITowers"][0]["Data"]["tower_octet_string"])
    at = 2
    for _ in range(int.from_bytes(tower[:2], "little")):
        left = int.from_bytes(tower[at : at + 2], "little")
        protocol = tower[at + 2 : at + 3]
        at += 2 + left
        right = int.from_bytes(tower[at : at + 2], "little")
        value = tower[at + 2 : at + 2 + right]
        at += 2 + right
        if at > len(tower):
            break
        if protocol == bytes((_TCP,)) and len(value) == 2:
            return int.from_bytes(value, "big")
    raise RpcError("the endpoint mapper names no TCP port")


def decode(kind: Any, stub: bytes) -> Any:
    """Return a stub as a structure of impacket. Raises ``RpcError`` for a malformed one."""
    try:
        return kind(stub)
    except Exception as error:
        # impacket's decoders may raise any exception for malformed input.
        raise RpcError(f"a malformed {kind.__name__}") from error
