"""One simulated client: a socket, the response that it waits for, and a write in progress.

It negotiates 3.1.1 with AES-GMAC, logs on with NTLMv2 (MIC and key exchange, as Windows does), connects to a share,
opens a file with a persistent handle and a lease, locks a range, and writes block after block. When its connection is
lost it reconnects (MS-SMB2 3.2.4.4) and repeats the requests that were not answered. Requests that are alike are packed
once.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from smb3server.client.protocol import negotiation
from smb3server.crypto.algorithms import SigningAlgorithm
from smb3server.wire import create as create_wire
from smb3server.wire import create_contexts as contexts
from smb3server.wire.create import Access, CreateDisposition, ShareAccess
from smb3server.wire.header import HEADER_SIZE, Command, HeaderFlags
from smb3server.wire.lock import LockElement, LockFlags, LockRequest
from smb3server.wire.lock import pack_request as pack_lock
from smb3server.wire.negotiate import Dialect
from smb3server.wire.oplock_break import LeaseState, OplockLevel
from smb3server.wire.read_write import WRITE_REQUEST, WriteRequest
from smb3server.wire.session import (
    SESSION_SETUP_REQUEST,
    TREE_CONNECT_REQUEST,
    SessionSetupRequest,
    TreeConnectRequest,
)
from tools.failover import logon

BLOCK = 4096
_HEADER = struct.Struct("<4sHHIHHIIQIIQ16x")
_RESPONSE = struct.Struct("<4sHHIHHIIQIIQ")
_SIGNED = int(HeaderFlags.SIGNED)
_REPLAY = int(HeaderFlags.REPLAY_OPERATION)
_NONCE = struct.Struct("<QI")
_PENDING, _MORE = 0x103, 0xC0000016
_CREDITS = 8
_RWH = int(LeaseState.READ | LeaseState.HANDLE | LeaseState.WRITE)
_ACCESS = int(Access.GENERIC_READ | Access.GENERIC_WRITE | Access.DELETE)
_TIMEOUT = 300_000
"""Milliseconds that the server keeps the open without a client."""
_LOCK = LockElement(1 << 40, 1, int(LockFlags.EXCLUSIVE_LOCK | LockFlags.FAIL_IMMEDIATELY))
_OFFER = negotiation.Offer(signing_algorithms=(SigningAlgorithm.AES_GMAC,))


class Step(enum.IntEnum):
    """The response that the client waits for."""

    AWAY = 0
    CONNECT = 1
    NEGOTIATE = 2
    CHALLENGE = 3
    LOGON = 4
    TREE = 5
    OPEN = 6
    LOCK = 7
    WRITE = 8
    IDLE = 9


class Refused(Exception):
    """The server's answer is an error, or invalid: the client tries again on a new connection."""


def _setup(token: bytes) -> Callable[[int], bytes]:
    fixed = SessionSetupRequest(
        security_mode=1,
        security_buffer_offset=HEADER_SIZE + SESSION_SETUP_REQUEST.size,
        security_buffer_length=len(token),
    )
    return lambda previous: SESSION_SETUP_REQUEST.pack(fixed._replace(previous_session_id=previous)) + token


class Profile:
    """The common data of all clients."""

    def __init__(self, share: str, user: str, password: str, delays: tuple[float, float] = (0.05, 0.5)) -> None:
        self.account = logon.Account(user, password)
        name = f"\\\\server\\{share}".encode("utf-16-le")
        self.tree = (
            TREE_CONNECT_REQUEST.pack(
                TreeConnectRequest(path_offset=HEADER_SIZE + TREE_CONNECT_REQUEST.size, path_length=len(name))
            )
            + name
        )
        self.first_setup = _setup(logon.FIRST_TOKEN)
        self.delays = delays
        """Seconds before the first and the last retry of a connection."""


class SimulatedClient:
    """A client without I/O of its own.

    ``attach`` it to a connected socket, and pass the received bytes to ``received``. Methods return the bytes to send.
    """

    def __init__(self, number: int, profile: Profile) -> None:
        self.number = number
        self.profile = profile
        self.step = Step.AWAY
        self.sock: socket.socket | None = None
        self.acknowledged = 0
        """Number of blocks."""
        self.connections = 0
        self.resumed_at = 0.0
        """CLOCK_MONOTONIC seconds of the first write that the server of a later connection acknowledged."""
        self.attempts = 0
        self.due = 0.0
        """Time of the next write or connection attempt."""
        guid = os.urandom(16)
        self._create_guid, self._lease_key = os.urandom(16), os.urandom(16)
        body = negotiation.build((Dialect.SMB_3_1_1,), guid, _OFFER)
        self._negotiate = _HEADER.pack(b"\xfeSMB", 64, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + body
        self._negotiate_hash = hashlib.sha512(bytes(64) + self._negotiate).digest()
        self._file_id: tuple[int, int] | None = None
        self._locked = False
        self._session_id = 0
        self._previous = 0
        self._tree_id = 0
        self._message_id = 0
        self._hash = b""
        self._key = b""
        self._signer: AESGCM | None = None
        self._input = b""

    # Life of a connection

    def attach(self, sock: socket.socket) -> None:
        """Use a connected socket from now on."""
        self.sock = sock
        self.step = Step.CONNECT

    def lost(self) -> None:
        """Forget everything except the open when the connection has ended."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        self.step = Step.AWAY
        self._previous, self._session_id = self._session_id or self._previous, 0
        self._tree_id = 0
        self._signer = None
        self._input = b""

    def connected(self) -> bytes:
        """Return the first message of a connection."""
        self.connections += 1
        self._message_id = 1
        self.step = Step.NEGOTIATE
        return len(self._negotiate).to_bytes(4, "big") + self._negotiate

    def received(self, data: bytes) -> bytes:
        """Process received bytes and return those to send. Raises ``Refused``."""
        data = self._input + data
        answer = b""
        while len(data) >= 4:
            end = 4 + int.from_bytes(data[:4], "big")
            if len(data) < end:
                break
            answer += self._take(data[4:end])
            data = data[end:]
        self._input = data
        return answer

    def write(self) -> bytes:
        """Write the next block, or repeat the one that was not acknowledged."""
        if self._file_id is None:
            raise Refused("no file")
        self.step = Step.WRITE
        fixed = WriteRequest(
            data_offset=HEADER_SIZE + WRITE_REQUEST.size,
            length=BLOCK,
            offset=self.acknowledged * BLOCK,
            persistent=self._file_id[0],
            volatile=self._file_id[1],
        )
        return self._request(Command.WRITE, WRITE_REQUEST.pack(fixed) + block(self.number, self.acknowledged))

    # Messages

    def _request(self, command: int, body: bytes, flags: int = 0, sign: bool = False) -> bytes:
        number = self._message_id
        self._message_id += 1
        flags |= _SIGNED if sign else 0
        head = _HEADER.pack(
            b"\xfeSMB", 64, 1, 0, command, _CREDITS, flags, 0, number, 0, self._tree_id, self._session_id
        )
        message = head + body
        if sign and self._signer is not None:
            tag = self._signer.encrypt(_NONCE.pack(number, 0), b"", message)
            message = message[:48] + tag + body
        return len(message).to_bytes(4, "big") + message

    def _take(self, message: bytes) -> bytes:
        if len(message) < HEADER_SIZE:
            raise Refused("short message")
        _, _, _, status, command, _, flags, _, number, _, tree_id, session_id = _RESPONSE.unpack_from(message)
        if number == 0xFFFFFFFFFFFFFFFF or status == _PENDING:
            return b""
        if status and not (status == _MORE and self.step is Step.CHALLENGE):
            raise Refused(f"{self.step.name}: {status:#x}")
        if flags & _SIGNED and self._signer is not None:
            self._verify(message, number)
        handler = _HANDLERS.get(self.step)
        if handler is None:
            raise Refused(f"unexpected answer to command {command}")
        return handler(self, message, tree_id, session_id)

    def _verify(self, message: bytes, number: int) -> None:
        if self._signer is None:
            raise Refused("signed without a key")
        plain = message[:48] + bytes(16) + message[64:]
        if self._signer.encrypt(_NONCE.pack(number, 1), b"", plain) != message[48:64]:
            raise Refused("wrong signature")

    # Steps

    def _negotiated(self, message: bytes, tree_id: int, session_id: int) -> bytes:
        self._hash = hashlib.sha512(self._negotiate_hash + message).digest()
        self.step = Step.CHALLENGE
        return self._hashed(self._request(Command.SESSION_SETUP, self.profile.first_setup(self._previous)))

    def _hashed(self, framed: bytes) -> bytes:
        self._hash = hashlib.sha512(self._hash + framed[4:]).digest()
        return framed

    def _challenged(self, message: bytes, tree_id: int, session_id: int) -> bytes:
        self._hash = hashlib.sha512(self._hash + message).digest()
        self._session_id = session_id
        try:
            token, self._key = self.profile.account.answer(message)
        except (ValueError, struct.error) as error:
            raise Refused(str(error)) from error
        self.step = Step.LOGON
        return self._hashed(self._request(Command.SESSION_SETUP, _setup(token)(self._previous)))

    def _logged_on(self, message: bytes, tree_id: int, session_id: int) -> bytes:
        """Derive the signing key, and check the server's proof that it has it. [MS-SMB2 3.1.4.2: SP 800-108 with
        HMAC-SHA256]
        """
        fixed = b"\0\0\0\1SMBSigningKey\0\0" + self._hash + b"\0\0\0\x80"
        self._signer = AESGCM(hmac.digest(self._key, fixed, "sha256")[:16])
        self._verify(message, 2)
        self.step = Step.TREE
        return self._request(Command.TREE_CONNECT, self.profile.tree, sign=True)

    def _tree_connected(self, message: bytes, tree_id: int, session_id: int) -> bytes:
        self._tree_id = tree_id
        self.step = Step.OPEN
        lease = contexts.LEASE_V2_CODEC.pack(contexts.LeaseV2(self._lease_key, _RWH))
        asked = [contexts.RawContext(contexts.REQUEST_LEASE, lease)]
        if self._file_id is None:
            wanted = contexts.DurableRequestV2(_TIMEOUT, contexts.PERSISTENT, 0, self._create_guid)
            data = contexts.DURABLE_REQUEST_V2_CODEC.pack(wanted)
            asked.insert(0, contexts.RawContext(contexts.DURABLE_REQUEST_V2, data))
        else:
            again = contexts.DurableReconnectV2(*self._file_id, self._create_guid, contexts.PERSISTENT)
            data = contexts.DURABLE_RECONNECT_V2_CODEC.pack(again)
            asked.insert(0, contexts.RawContext(contexts.DURABLE_RECONNECT_V2, data))
        record = create_wire.CreateRequest(
            requested_oplock_level=OplockLevel.LEASE,
            desired_access=_ACCESS,
            share_access=int(ShareAccess.READ),
            create_disposition=CreateDisposition.OPEN_IF,
        )
        # If a CREATE is repeated, the server finds the open that an earlier one made (3.2.5.7).
        flags = _REPLAY if self._file_id is None and self.connections > 1 else 0
        return self._request(Command.CREATE, create_wire.pack_request(record, name_of(self.number), asked), flags)

    def _opened(self, message: bytes, tree_id: int, session_id: int) -> bytes:
        persistent, volatile = struct.unpack_from("<QQ", message, HEADER_SIZE + 64)
        self._file_id = persistent, volatile
        if self._locked:
            return self.write()
        self.step = Step.LOCK
        record = LockRequest(lock_sequence=1 << 4 | 1, persistent=persistent, volatile=volatile)
        return self._request(Command.LOCK, pack_lock(record, [_LOCK]))

    def _lock_granted(self, message: bytes, tree_id: int, session_id: int) -> bytes:
        self._locked = True
        self.step = Step.IDLE
        return b""

    def _written(self, message: bytes, tree_id: int, session_id: int) -> bytes:
        self.acknowledged += 1
        self.step = Step.IDLE
        self.attempts = 0
        if self.connections > 1 and not self.resumed_at:
            self.resumed_at = time.monotonic()
        return b""


_HANDLERS: dict[Step, Callable[[SimulatedClient, bytes, int, int], bytes]] = {
    Step.NEGOTIATE: SimulatedClient._negotiated,
    Step.CHALLENGE: SimulatedClient._challenged,
    Step.LOGON: SimulatedClient._logged_on,
    Step.TREE: SimulatedClient._tree_connected,
    Step.OPEN: SimulatedClient._opened,
    Step.LOCK: SimulatedClient._lock_granted,
    Step.WRITE: SimulatedClient._written,
}


def name_of(number: int) -> str:
    """Return the name of a client's file."""
    return f"c{number}"


def block(client: int, number: int) -> bytes:
    """Return a client's block: eight bytes that occur in no other block, repeated."""
    return (client << 32 | number).to_bytes(8, "little") * (BLOCK // 8)


def check(content: bytes, client: int, acknowledged: int) -> str:
    """Return what is wrong with a file; empty if acknowledged blocks are there, and all others whole or absent."""
    if len(content) < acknowledged * BLOCK or len(content) % BLOCK:
        return f"client {client}: {len(content)} bytes, {acknowledged} blocks acknowledged"
    for number in range(len(content) // BLOCK):
        if content[number * BLOCK : (number + 1) * BLOCK] != block(client, number):
            return f"client {client}: block {number} is not what was written"
    return ""


def percentiles(times: Sequence[float]) -> list[float]:
    """Return the 50th, 90th, 99th and 100th percentile of ``times``, which need not be sorted."""
    ordered = sorted(times)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.9, 0.99, 1.0)]
