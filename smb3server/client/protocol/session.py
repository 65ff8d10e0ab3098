"""A client's session: logon through SPNEGO, keys, tree connects, and further channels. [MS-SMB2 3.2.1.3]"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from smb3server.auth.ntlm_messages import (
    AUTHENTICATE_FIELDS,
    NEGOTIATE_FIELDS,
    AuthenticateFields,
    Flags,
    NegotiateFields,
)
from smb3server.client.protocol import negotiation
from smb3server.client.protocol.connection import Requests
from smb3server.client.protocol.messages import Reply, UnprovenServer
from smb3server.client.protocol.ntlm import NtlmLogon
from smb3server.client.protocol.tree import Tree
from smb3server.crypto import preauth
from smb3server.crypto.encryption import SessionCipher
from smb3server.crypto.envelope import is_from_server
from smb3server.crypto.kdf import derive_session_keys, derive_signing_key
from smb3server.crypto.signing import Signer, make_signer
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.negotiate import Dialect, SecurityMode
from smb3server.wire.session import (
    BINDING,
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
_GOES_ON = (NtStatus.SUCCESS, NtStatus.MORE_PROCESSING_REQUIRED)
_ANONYMOUS = int(Flags.UNICODE | Flags.REQUEST_TARGET | Flags.NTLM | Flags.EXTENDED_SESSION_SECURITY | Flags.KEY_128)
"""What an anonymous logon offers."""
_IS_ANONYMOUS = 0x00000800
"""NTLMSSP_NEGOTIATE_ANONYMOUS. [MS-NLMP 2.2.2.5]"""
_VALIDATE = struct.Struct("<I16sHH")
"""Capabilities, Guid, SecurityMode, and DialectCount or Dialect. [MS-SMB2 2.2.31.4, 2.2.32.6]"""
_UNKNOWN = (NtStatus.FILE_CLOSED, NtStatus.INVALID_DEVICE_REQUEST, NtStatus.NOT_SUPPORTED)
"""Answers to VALIDATE_NEGOTIATE_INFO of servers from before it. They are signed, so nobody else can have made them."""


class ClientSession:
    """A session of this client; ``Client.log_on`` makes one."""

    def __init__(self, client: Requests) -> None:
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
        self.encrypted_trees: set[int] = set()
        self._preauth_hash = client.preauth_hash
        self._validated = False
        self._named = ""
        """Who was named for the logon; empty for an anonymous one."""
        self._guest = False
        """Whether the server may make a guest of who was named."""

    async def log_on(
        self, user: str, password: str, domain: str, sign: bool, encrypt: bool, kerberos_host: str, guest: bool
    ) -> None:
        """Log on; see ``Client.log_on``."""
        client = self.client
        self.require_signing, self._guest = sign, guest
        await self._authenticate(user, password, domain, kerberos_host)
        self.sign = sign or (self.signer is not None and client.negotiated.signing_required)
        if self.sign and self.signer is None:
            client.sessions.pop(self.session_id, None)
            raise UnprovenServer("signing is asked for, and guests and anonymous users have no key")
        self.encrypt = encrypt or bool(self.flags & SessionFlags.ENCRYPT_DATA)
        if self.encrypt and self.cipher is None:
            raise UnprovenServer(f"encryption is asked for, and {self._why_no_cipher()}")

    def _why_no_cipher(self) -> str:
        if self.signer is None:
            return "guests and anonymous users have no key"
        dialect = self.client.dialect
        if dialect < Dialect.SMB_3_0:
            name = f"SMB {dialect >> 8}.{dialect >> 4 & 15}{f'.{dialect & 15}' if dialect & 15 else ''}"
            return f"the server speaks {name}; encryption begins with SMB 3.0"
        return "the server offers none"

    async def _authenticate(self, user: str, password: str, domain: str, kerberos_host: str) -> None:
        client = self.client
        name = f"{domain}\\{user}" if domain else user
        self._named = name or (f"the user with a ticket for cifs/{kerberos_host}" if kerberos_host else "")
        context: Any = AnonymousLogon()
        if self._named:
            if kerberos_host:
                # Who has no ticket does not pay for the import.
                from smb3server.client.protocol.kerberos import TicketLogon

                context = await asyncio.to_thread(TicketLogon, name, password, kerberos_host)
            else:
                context = NtlmLogon(user, password, domain, client.transport.peer_address[0])

        async def step(token: bytes | None) -> bytes | None:
            # Kerberos may ask its servers for tickets here; other connections must not wait for that.
            made: bytes | None = await asyncio.to_thread(context.step, token) if kerberos_host else context.step(token)
            return made

        token = await step((client.negotiated.token or None) if kerberos_host else None)
        for _ in range(_MAX_ROUNDS):
            reply = await self._exchange(token or b"")
            try:
                response, view = SESSION_SETUP_RESPONSE.parse_both(reply.message)
                answer = bytes(view)
                self.session_id = reply.header.session_id
                if reply.status == NtStatus.SUCCESS:
                    self.flags = response.session_flags
                    if answer and (not context.complete or not kerberos_host):
                        await step(answer)
                    self._finish(context, reply)
                    return
                self._preauth_hash = preauth.extend(self._preauth_hash, [reply.message])
            finally:
                reply.release()
            token = await step(answer)
        raise ProtocolError("logon does not come to an end", "MS-SMB2 3.2.5.3")

    def _hash(self, message: Sequence[Buffer]) -> None:
        self._preauth_hash = preauth.extend(self._preauth_hash, message)

    async def _exchange(self, token: bytes) -> Reply:
        mode = SecurityMode.SIGNING_REQUIRED if self.require_signing else SecurityMode.SIGNING_ENABLED
        record = SessionSetupRequest(security_mode=int(mode), previous_session_id=self.previous_session_id)
        body = [SESSION_SETUP_REQUEST.build(record, token)]
        return await self.client.call(Command.SESSION_SETUP, body, self, accept=_GOES_ON, on_encoded=self._hash)

    def _key(self, context: Any) -> bytes:
        """Return the whole key of a logon that has come to its end."""
        if not context.complete:
            raise UnprovenServer("the server ended the logon before it proved anything")
        return bytes(context.session_key)

    def _finish(self, context: Any, reply: Reply) -> None:
        """Derive the keys and check the signature of the last response, which proves that the server has them. [MS-SMB2
        3.2.5.3.1]
        """
        client = self.client
        if not self._named or self.flags & (SessionFlags.IS_GUEST | SessionFlags.IS_NULL):
            self._check_unprotected()
            client.sessions[self.session_id] = self
            return
        full_key = self._key(context)
        client.sessions[self.session_id] = self
        negotiated = client.negotiated
        keys = derive_session_keys(client.dialect, _short(full_key), full_key, negotiated.cipher, self._preauth_hash)
        self.session_key = keys.application
        self.signer = make_signer(negotiated.signing_algorithm, keys.signing)
        if negotiated.cipher:
            self.cipher = SessionCipher(negotiated.cipher, self.session_id, keys.decryption, keys.encryption)
        if reply.header.flags & _SIGNED:
            if not _is_signed(reply, self.signer):
                raise ProtocolError("last response of the logon has a wrong signature", "MS-SMB2 3.2.5.3.1")
        elif client.dialect >= Dialect.SMB_3_1_1:
            raise ProtocolError("last response of the logon is not signed", "MS-SMB2 3.2.5.3.1")

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
        return self.encrypt or tree_id in self.encrypted_trees

    async def tree_connect(self, share: str) -> Tree:
        """Connect to a share: a bare name or a full ``\\\\server\\share``. [MS-SMB2 3.2.4.2.4, 3.2.5.5]

        The first time it is also checked that nobody changed the negotiation. Raises ``ServerError`` and
        ``ProtocolError``.
        """
        path = share if share.startswith("\\\\") else f"\\\\{self.client.transport.peer_address[0]}\\{share}"
        body = [TREE_CONNECT_REQUEST.build(TreeConnectRequest(), path.encode("utf-16-le", "surrogatepass"))]
        # Dialect 3.1.1 binds the negotiation to the session here: the request must be signed or encrypted (3.2.4.1.1).
        reply = await self.client.call(Command.TREE_CONNECT, body, self, sign=True)
        response = TREE_CONNECT_RESPONSE.parse(reply.message)
        tree_id = reply.header.tree_id
        reply.release()
        if response.share_flags & _SHARE_ENCRYPT_DATA:
            if self.cipher is None:
                raise StatusError(NtStatus.ACCESS_DENIED)
            self.encrypted_trees.add(tree_id)
        tree = Tree(self, tree_id, path, response.maximal_access, response.capabilities, response.share_type)
        await self.validate(tree)
        return tree

    async def validate(self, tree: Tree) -> None:
        """Check once, on a tree connect, that nobody changed the negotiation of this session's connection.

        Dialect 3.1.1 protects the negotiation itself. Guests and anonymous users, who have no key to ask with, were
        asked for. [MS-SMB2 3.2.5.5]
        """
        if not self._validated and self.signer is not None and self.client.dialect < Dialect.SMB_3_1_1:
            await self._validate_negotiation(tree.tree_id)
        self._validated = True

    async def _validate_negotiation(self, tree_id: int) -> None:
        """Ask the server, in a signed message, what was negotiated. Raises ``ProtocolError`` if it is something else.
        [MS-SMB2 3.2.5.5, 3.2.5.14.12]
        """
        from smb3server.wire import ioctl

        client = self.client
        dialects, offer = client.offered
        guid = client.client_guid if max(dialects) >= Dialect.SMB_2_1 else bytes(16)
        capabilities, mode = negotiation.capabilities(dialects, offer), negotiation.security_mode(offer)
        asked = _VALIDATE.pack(capabilities, guid, mode, len(dialects)) + struct.pack(f"<{len(dialects)}H", *dialects)
        record = ioctl.IoctlRequest(
            ctl_code=ioctl.Fsctl.VALIDATE_NEGOTIATE_INFO,
            persistent=0xFFFFFFFFFFFFFFFF,
            volatile=0xFFFFFFFFFFFFFFFF,
            max_output_response=_VALIDATE.size,
            flags=ioctl.IOCTL_IS_FSCTL,
        )
        body = [ioctl.build_ioctl_request(record, asked)]
        accept = (NtStatus.SUCCESS, *_UNKNOWN)
        reply = await client.call(Command.IOCTL, body, self, tree_id, accept=accept, sign=True)
        try:
            if reply.status != NtStatus.SUCCESS:
                return
            output = bytes(ioctl.parse_ioctl_response(reply.message)[1])
        finally:
            reply.release()
        found = client.negotiated
        expected = (found.capabilities, found.server_guid, found.security_mode, found.dialect)
        if len(output) != _VALIDATE.size or _VALIDATE.unpack(output) != expected:
            client.transport.abort("the negotiation was changed on the way")
            raise ProtocolError("the negotiation was changed on the way", "MS-SMB2 3.2.5.14.12")

    async def log_off(self) -> None:
        """Log off. [MS-SMB2 3.2.4.23]"""
        (await self.client.call(Command.LOGOFF, [b"\4\0\0\0"], self)).release()
        self.client.sessions.pop(self.session_id, None)


class BoundSession(ClientSession):
    """A session on a further connection; ``bind`` makes one. Trees and opens of the session are valid on it."""

    @classmethod
    async def bind(
        cls,
        session: ClientSession,
        client: Requests,
        user: str,
        password: str,
        domain: str = "",
        *,
        kerberos_host: str = "",
    ) -> BoundSession:
        """Bind ``session`` to ``client`` and return the session as seen from that connection.

        ``client`` must have negotiated with the ClientGuid and the dialect of the session's first connection. Raises
        ``ServerError``, ``ConnectionLost`` and ``ProtocolError``. [MS-SMB2 3.2.4.2.3.1, 3.2.5.3.3]
        """
        if session.signer is None:
            raise ProtocolError("guests and anonymous users have no key for another channel", "MS-SMB2 3.2.4.2.3.1")
        bound = cls(client)
        bound.session_id = session.session_id
        bound.signer = session.signer
        bound.cipher = session.cipher
        await bound._authenticate(user, password, domain, kerberos_host)
        bound.flags = session.flags
        bound.sign, bound.encrypt = session.sign, session.encrypt
        bound.encrypted_trees = session.encrypted_trees
        return bound

    async def _exchange(self, token: bytes) -> Reply:
        record = SessionSetupRequest(flags=BINDING, security_mode=int(SecurityMode.SIGNING_ENABLED))
        body = [SESSION_SETUP_REQUEST.build(record, token)]
        started = await self.client.start(Command.SESSION_SETUP, body, self, sign=True, on_encoded=self._hash)
        # Requests are signed with the session's key, the last response with the channel's, which is not known yet.
        started.session = None
        return self.client.check(await self.client.finish(started), _GOES_ON)

    def _finish(self, context: Any, reply: Reply) -> None:
        client = self.client
        signing = derive_signing_key(client.dialect, _short(self._key(context)), self._preauth_hash)
        self.signer = make_signer(client.negotiated.signing_algorithm, signing)
        client.sessions[self.session_id] = self
        if not reply.header.flags & _SIGNED or not _is_signed(reply, self.signer):
            raise ProtocolError("last response of the binding has no right signature", "MS-SMB2 3.2.5.3.3")


class Client(Requests):
    """One connection, and its logon. Any number of requests may be in flight; it is not thread-safe."""

    async def log_on(
        self,
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
        """Log on and return the session; without ``user`` and ``kerberos_host``, log on anonymously.
        [MS-SMB2 3.2.4.2.3]

        ``kerberos_host`` is the server's name in Kerberos: the logon uses a ticket for ``cifs/kerberos_host`` and,
        without a password, the credentials cache.

        ``previous_session_id`` is a session whose connection was lost; the server ends it if it has not noticed the
        loss. ``sign`` or ``encrypt`` every request even if the server does not require it. ``guest`` lets the server
        make a guest of the user. Raises ``ServerError``, ``UnprovenServer`` if the server takes the user for nobody or,
        unasked, for a guest, and ``ProtocolError`` if it cannot prove that it knows the keys.
        """
        session = ClientSession(self)
        session.previous_session_id = previous_session_id
        await session.log_on(user, password, domain, sign, encrypt, kerberos_host, guest)
        return session


class AnonymousLogon:
    """What a session takes for a security context of nobody: an anonymous logon by NTLM, without name, password and
    key. [MS-NLMP 3.1.5.1.2]
    """

    session_key = b""
    complete = False

    def step(self, token: bytes | None) -> bytes:
        """Return the message that follows ``token``, the server's; the first one follows none.

        The last message has no user, no NT response, and an LM response of one zero byte. Domain and workstation of the
        first are empty. [MS-NLMP 2.2.1.1, 2.2.1.3]
        """
        if token is None:
            return NEGOTIATE_FIELDS.pack(NegotiateFields(flags=_ANONYMOUS)) + bytes(16)
        self.complete = True
        end = AUTHENTICATE_FIELDS.size
        fields = AuthenticateFields(
            lm_length=1,
            lm_max_length=1,
            lm_offset=end,
            nt_offset=end + 1,
            domain_offset=end + 1,
            user_offset=end + 1,
            workstation_offset=end + 1,
            key_offset=end + 1,
            flags=_ANONYMOUS | _IS_ANONYMOUS,
        )
        return AUTHENTICATE_FIELDS.pack(fields) + b"\0"


def _short(key: bytes) -> bytes:
    """Return Session.SessionKey. [MS-SMB2 3.2.5.3.1]"""
    return key[:16].ljust(16, b"\0")


def _is_signed(reply: Reply, signer: Signer) -> bool:
    """Return whether the signature of a response is right, and leave the response as it is."""
    return is_from_server(memoryview(bytearray(reply.message)), signer, reply.header.message_id)
