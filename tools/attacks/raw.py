"""Hand-made messages for clients without a session, and a client that is not bound to the protocol's rules."""

from __future__ import annotations

import asyncio
import hmac
import os
import struct
from typing import Any

_HEADER = struct.Struct("<4sHHIHHIIQIIQ16s")
NEGOTIATE, SESSION_SETUP, ECHO = 0, 1, 13
SUCCESS, MORE_PROCESSING, LOGON_FAILURE = 0, 0xC0000016, 0xC000006D
NTLM_NEGOTIATE = b"NTLMSSP\0\1\0\0\0" + struct.pack("<I", 0xE2088297 & ~0x40000000) + bytes(24)
_NTLM_FLAGS = 0xA2088205


def der(tag: int, content: bytes) -> bytes:
    """Return a DER element. [X.690 8.1]"""
    size = len(content)
    head = bytes((tag, size)) if size < 128 else bytes((tag, 0x82)) + size.to_bytes(2, "big")
    return head + content


def spnego(mechanisms: bytes) -> bytes:
    """Return a NegTokenInit with this list of mechanisms. [RFC 4178 4.2.1]"""
    inner = der(0x30, der(0xA0, der(0x30, mechanisms)))
    return der(0x60, bytes.fromhex("06062b0601050502") + der(0xA0, inner))


def header(command: int, message_id: int, session_id: int = 0, credits: int = 16) -> bytes:
    """Return an SMB2 header."""
    return _HEADER.pack(b"\xfeSMB", 64, 1, 0, command, credits, 0, 0, message_id, 0, 0, session_id, bytes(16))


def frame(message: bytes) -> bytes:
    """Return the message with its length in front. [MS-SMB2 2.1]"""
    return len(message).to_bytes(4, "big") + message


def negotiate(dialect: int = 0x0210) -> bytes:
    """Return a complete NEGOTIATE message in its frame."""
    body = struct.pack("<HHHHI16sQH", 36, 1, 1, 0, 0, os.urandom(16), 0, dialect)
    return frame(header(NEGOTIATE, 0) + body)


def session_setup(message_id: int, token: bytes, session_id: int = 0) -> bytes:
    """Return a complete SESSION_SETUP message in its frame."""
    body = struct.pack("<HBBIIHHQ", 25, 0, 1, 0, 0, 88, len(token), 0) + token
    return frame(header(SESSION_SETUP, message_id, session_id) + body)


def ntlm_authenticate(user: str, response: bytes) -> bytes:
    """Return an AUTHENTICATE_MESSAGE with this NTLM response. [MS-NLMP 2.2.1.3]"""
    body, fields = b"", b""
    for part in (b"", response, b"", user.encode("utf-16-le"), b"", b""):
        fields += struct.pack("<HHI", len(part), len(part), 64 + len(body))
        body += part
    return b"NTLMSSP\0\3\0\0\0" + fields + struct.pack("<I", _NTLM_FLAGS) + body


def wrong_password(user: str, challenge: bytes) -> bytes:
    """Return a well-formed AUTHENTICATE_MESSAGE with the proof of a random password. [MS-NLMP 3.3.2]"""
    at = challenge.index(b"NTLMSSP\0")
    message = challenge[at:]
    length, _, offset = struct.unpack_from("<HHI", message, 40)
    blob = b"\1\1" + bytes(14) + os.urandom(8) + bytes(4) + message[offset : offset + length] + bytes(4)
    proof = hmac.digest(os.urandom(16), message[24:32] + blob, "md5")
    return ntlm_authenticate(user, proof + blob)


class Stranger:
    """A TCP connection of an unauthenticated peer. ``connect`` makes one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.message_id = 0

    @classmethod
    async def connect(cls, port: int, address: str = "127.0.0.1", *, negotiated: bool = True) -> Stranger:
        """Connect from ``address``. Raises ``OSError``."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        made = cls(reader, writer)
        if negotiated:
            await made.ask(negotiate())
        return made

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        self._writer.write(data)

    async def receive(self) -> bytes:
        """Return the next message. Raises ``OSError`` or ``EOFError`` when the connection has ended."""
        length = int.from_bytes(await self._reader.readexactly(4), "big")
        return await self._reader.readexactly(length)

    async def ask(self, data: bytes) -> bytes:
        """Send a message and return its final answer."""
        self.message_id += 1
        self.send(data)
        while True:
            message = await self.receive()
            if status(message) != 0x103:
                return message

    async def setup(self, token: bytes, session_id: int = 0) -> bytes:
        """Do one SESSION_SETUP and return the answer."""
        return await self.ask(session_setup(self.message_id, token, session_id))

    async def guess(self, user: str) -> int:
        """Log on with a wrong password and return the final status."""
        challenge = await self.setup(NTLM_NEGOTIATE)
        if status(challenge) != MORE_PROCESSING:
            return status(challenge)
        answer = await self.setup(wrong_password(user, challenge), session_of(challenge))
        return status(answer)

    def alive(self) -> bool:
        """Return whether the server has not closed the connection, as far as is known."""
        return not self._reader.at_eof() and self._reader.exception() is None

    def close(self) -> None:
        """End the connection immediately."""
        transport: Any = self._writer.transport
        transport.abort()


def status(message: bytes) -> int:
    """Return an answer's status."""
    return int.from_bytes(message[8:12], "little")


def session_of(message: bytes) -> int:
    """Return an answer's SessionId."""
    return int.from_bytes(message[40:48], "little")
