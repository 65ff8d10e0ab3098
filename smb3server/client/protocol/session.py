"""A client's session: logon through SPNEGO, keys, tree connects. [MS-SMB2 3.2.1.3]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import spnego

from smb3server.client.protocol.anonymous import AnonymousLogon
from smb3server.client.protocol.messages import Caller, Reply, UnprovenServer
from smb3server.client.protocol.tree import Tree
from smb3server.client.protocol.validation import validate_negotiation
from smb3server.crypto import preauth
from smb3server.crypto.encryption import SessionCipher
from smb3server.crypto.envelope import is_from_server
from smb3server.crypto.kdf import derive_session_keys
from smb3server.crypto.signing import Signer, make_signer
from smb3server.wire.fields import tail
from smb3server.wire.header import HEADER_SIZE, Command, HeaderFlags
from smb3server.wire.negotiate import Dialect, SecurityMode
from smb3server.wire.session import (
    SESSION_SETUP_REQUEST,
    SESSION_SETUP_RESPONSE,
    TREE_CONNECT_REQUEST,
    TREE_CONNECT_RESPONSE,
    SessionFlags,
    SessionSetupRequest,
    TreeConnectRequest,
)
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer
from smbdirect.errors import ProtocolError

_MAX_ROUNDS = 10
_SHARE_ENCRYPT_DATA = 0x00008000
_SIGNED = int(HeaderFlags.SIGNED)


class ClientSession:
    """A session of this client; ``log_on`` makes one."""

    def __init__(self, client: Caller) -> None:
        self.client = client
        self.session_id = 0
        self.previous_session_id = 0
        self.flags = 0
        self.sign = False
        """Whether every request is signed."""
        self.encrypt = False
        self.require_signing = False
        """Whether the server is told to sign everything, too."""
        self.signer: Signer | None = None
        self.cipher: SessionCipher | None = None
        self.session_key = b""
        """The key that applications get. [MS-SMB2 3.2.4.25]"""
        self._encrypted_trees: set[int] = set()
        self._preauth_hash = client.preauth_hash
        self._validated = False
        self._named = ""
        """Who was named for the logon; empty for an anonymous one."""
        self._guest = False
        """Whether the server may make a guest of who was named."""

    @classmethod
    async def log_on(
        cls,
        client: Caller,
        user: str = "",
        password: str = "",
        domain: str = "",
        *,
        sign: bool = False,
        encrypt: bool = False,
        previous_session_id: int = 0,
        kerberos_host: str = "",
        guest: bool = False,
    ) -> ClientSession:
        """Log on; without ``user`` and ``kerberos_host``, log on anonymously. [MS-SMB2 3.2.4.2.3]

        ``kerberos_host`` is the server's name in Kerberos: the logon uses a ticket for ``cifs/kerberos_host`` and,
        without a password, the credentials cache.

        ``previous_session_id`` is a session whose connection was lost; the server ends it if it has not noticed the
        loss. ``sign`` or ``encrypt`` every request even if the server does not require it. ``guest`` lets the server
        make a guest of the user. Raises ``ServerError``, ``UnprovenServer`` if the server takes the user for nobody or,
        unasked, for a guest, and ``ProtocolError`` if it cannot prove that it knows the keys.
        """
        session = cls(client)
        session.previous_session_id = previous_session_id
        session.require_signing = sign
        session._guest = guest
        await session._authenticate(user, password, domain, kerberos_host)
        session.sign = sign or (session.signer is not None and client.negotiated.signing_required)
        if session.sign and session.signer is None:
            client.sessions.pop(session.session_id, None)
            raise UnprovenServer("signing is asked for, and guests and anonymous users have no key")
        session.encrypt = encrypt or bool(session.flags & SessionFlags.ENCRYPT_DATA)
        if session.encrypt and session.cipher is None:
            raise UnprovenServer(session._why_no_cipher())
        return session

    def _why_no_cipher(self) -> str:
        if self.signer is None:
            return "encryption is asked for, and guests and anonymous users have no key"
        dialect = self.client.dialect
        if dialect < Dialect.SMB_3_0:
            name = f"SMB {dialect >> 8}.{dialect >> 4 & 15}{f'.{dialect & 15}' if dialect & 15 else ''}"
            return f"encryption is asked for, and the server speaks {name}; encryption begins with SMB 3.0"
        return "encryption is asked for, and the server offers none"

    async def _authenticate(self, user: str, password: str, domain: str, kerberos_host: str = "") -> None:
        client = self.client
        name = f"{domain}\\{user}" if domain else user
        self._named = name or (f"the user with a ticket for cifs/{kerberos_host}" if kerberos_host else "")
        context: Any = AnonymousLogon()
        if self._named:
            context = spnego.client(
                name or None,
                password or None if kerberos_host else password,
                hostname=kerberos_host or client.transport.peer_address[0],
                service="cifs",
                protocol="negotiate",
            )

        async def step(token: bytes | None) -> bytes | None:
            # Kerberos may ask its servers for tickets here; other connections must not wait for that.
            made: bytes | None = await asyncio.to_thread(context.step, token) if kerberos_host else context.step(token)
            return made

        token = await step((client.negotiated.token if self._named else b"") or None)
        if kerberos_host and context.negotiated_protocol != "kerberos":
            raise ProtocolError(f"no Kerberos ticket for cifs/{kerberos_host}", "MS-SMB2 3.2.4.2.3")
        for _ in range(_MAX_ROUNDS):
            reply = await self._exchange(token or b"")
            try:
                response = SESSION_SETUP_RESPONSE.parse(reply.message)
                minimum = HEADER_SIZE + SESSION_SETUP_RESPONSE.size
                answer = bytes(
                    tail(
                        reply.message,
                        response.security_buffer_offset,
                        response.security_buffer_length,
                        minimum,
                        "SecurityBuffer",
                    )
                )
                self.session_id = reply.header.session_id
                if reply.status == NtStatus.SUCCESS:
                    self.flags = response.session_flags
                    if answer and not context.complete:
                        await step(answer)
                    self._finish(context, reply)
                    return
                self._preauth_hash = preauth.extend(self._preauth_hash, [reply.message])
            finally:
                reply.release()
            token = await step(answer)
        raise ProtocolError("logon does not come to an end", "MS-SMB2 3.2.5.3")

    async def _exchange(self, token: bytes) -> Reply:
        mode = SecurityMode.SIGNING_REQUIRED if self.require_signing else SecurityMode.SIGNING_ENABLED
        record = SessionSetupRequest(
            security_mode=int(mode),
            security_buffer_offset=HEADER_SIZE + SESSION_SETUP_REQUEST.size,
            security_buffer_length=len(token),
            previous_session_id=self.previous_session_id,
        )

        def hash_message(message: Sequence[Buffer]) -> None:
            self._preauth_hash = preauth.extend(self._preauth_hash, message)

        return await self.client.call(
            Command.SESSION_SETUP,
            [SESSION_SETUP_REQUEST.pack(record), token],
            self,
            accept=(NtStatus.SUCCESS, NtStatus.MORE_PROCESSING_REQUIRED),
            on_encoded=hash_message,
        )

    def _finish(self, context: Any, reply: Reply) -> None:
        """Derive the keys and check the signature of the last response, which proves that the server has them. [MS-SMB2
        3.2.5.3.1]
        """
        client = self.client
        if not self._named or self.flags & (SessionFlags.IS_GUEST | SessionFlags.IS_NULL):
            self._check_unprotected()
            client.sessions[self.session_id] = self
            return
        if not context.complete:
            raise UnprovenServer("the server ended the logon before it proved anything")
        client.sessions[self.session_id] = self
        full_key = bytes(context.session_key)
        key = full_key[:16].ljust(16, b"\0")
        negotiated = client.negotiated
        keys = derive_session_keys(client.dialect, key, full_key, negotiated.cipher, self._preauth_hash)
        self.session_key = keys.application
        self.signer = make_signer(negotiated.signing_algorithm, keys.signing)
        if negotiated.cipher:
            self.cipher = SessionCipher(negotiated.cipher, self.session_id, keys.decryption, keys.encryption)
        if client.dialect >= Dialect.SMB_3_1_1 and not reply.header.flags & _SIGNED:
            raise ProtocolError("last response of the logon is not signed", "MS-SMB2 3.2.5.3.1")
        if reply.header.flags & _SIGNED:
            message = memoryview(bytearray(reply.message))
            if not is_from_server(message, self.signer, reply.header.message_id):
                raise ProtocolError("last response of the logon has a wrong signature", "MS-SMB2 3.2.5.3.1")

    def _check_unprotected(self) -> None:
        """Refuse a session without a key that nobody asked for: whoever answers it need not know the password.

        A server on the path of a connection could take any logon for that of nobody or of a guest, and would get and
        give data that nobody signs. [MS-SMB2 3.2.5.3.1]
        """
        if not self._named or (self._guest and not self.flags & SessionFlags.IS_NULL):
            return
        made = "an anonymous user" if self.flags & SessionFlags.IS_NULL else "a guest"
        raise UnprovenServer(
            f"the server made {made} of {self._named}: it need not know the password, and nobody would protect data;"
            " ask for guest or anonymous if that is right"
        )

    def encrypts(self, tree_id: int) -> bool:
        """Return whether requests on this tree are encrypted; 0 means no tree."""
        return self.encrypt or tree_id in self._encrypted_trees

    async def tree_connect(self, share: str) -> Tree:
        """Connect to a share: a bare name or a full ``\\\\server\\share``. [MS-SMB2 3.2.4.2.4, 3.2.5.5]

        The first time it is also checked that nobody changed the negotiation. Raises ``ServerError`` and
        ``ProtocolError``.
        """
        path = share if share.startswith("\\\\") else f"\\\\{self.client.transport.peer_address[0]}\\{share}"
        name = path.encode("utf-16-le", "surrogatepass")
        record = TreeConnectRequest(path_offset=HEADER_SIZE + TREE_CONNECT_REQUEST.size, path_length=len(name))
        # Dialect 3.1.1 binds the negotiation to the session here: the request must be signed or encrypted (3.2.4.1.1).
        reply = await self.client.call(Command.TREE_CONNECT, [TREE_CONNECT_REQUEST.pack(record), name], self, sign=True)
        response = TREE_CONNECT_RESPONSE.parse(reply.message)
        tree_id = reply.header.tree_id
        reply.release()
        if response.share_flags & _SHARE_ENCRYPT_DATA:
            if self.cipher is None:
                raise StatusError(NtStatus.ACCESS_DENIED)
            self._encrypted_trees.add(tree_id)
        tree = Tree(self, tree_id, path, response.maximal_access, response.capabilities, response.share_type)
        await self.validate(tree)
        return tree

    async def validate(self, tree: Tree) -> None:
        """Check once, on a tree connect, that nobody changed the negotiation of this session's connection.

        Dialect 3.1.1 protects the negotiation itself. Guests and anonymous users, who have no key to ask with, were
        asked for. [MS-SMB2 3.2.5.5]
        """
        if not self._validated and self.signer is not None and self.client.dialect < Dialect.SMB_3_1_1:
            await validate_negotiation(tree)
        self._validated = True

    async def log_off(self) -> None:
        """Log off. [MS-SMB2 3.2.4.23]"""
        (await self.client.call(Command.LOGOFF, [b"\4\0\0\0"], self)).release()
        self.client.sessions.pop(self.session_id, None)
