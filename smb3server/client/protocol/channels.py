"""Further channels of one session. [MS-SMB2 3.2.4.2.3.1 with SMB2_SESSION_FLAG_BINDING, 3.2.5.3.3]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smb3server.client.protocol.messages import Caller, Reply, UnprovenServer
from smb3server.client.protocol.session import ClientSession
from smb3server.crypto import preauth
from smb3server.crypto.envelope import is_from_server
from smb3server.crypto.kdf import derive_signing_key
from smb3server.crypto.signing import make_signer
from smb3server.wire.header import HEADER_SIZE, Command, HeaderFlags
from smb3server.wire.negotiate import SecurityMode
from smb3server.wire.session import BINDING, SESSION_SETUP_REQUEST, SessionSetupRequest
from smb3server.wire.status import NtStatus
from smbdirect.codec import Buffer
from smbdirect.errors import ProtocolError


class BoundSession(ClientSession):
    """A session on a further connection; ``bind`` makes one. Trees and opens of the session are valid on it."""

    @classmethod
    async def bind(
        cls,
        session: ClientSession,
        client: Caller,
        user: str,
        password: str,
        domain: str = "",
        *,
        kerberos_host: str = "",
    ) -> BoundSession:
        """Bind ``session`` to ``client`` and return the session as seen from that connection.

        ``client`` must have negotiated with the ClientGuid and the dialect of the session's first connection. Raises
        ``ServerError``, ``ConnectionLost`` and ``ProtocolError``.
        """
        if session.signer is None:
            raise ProtocolError("guests and anonymous users have no key for another channel", "MS-SMB2 3.2.4.2.3.1")
        bound = cls(client)
        bound.session_id = session.session_id
        bound.flags = session.flags
        bound.signer = session.signer
        bound.cipher = session.cipher
        await bound._authenticate(user, password, domain, kerberos_host)
        bound.flags = session.flags
        bound.sign, bound.encrypt = session.sign, session.encrypt
        bound._encrypted_trees = session._encrypted_trees
        return bound

    async def _exchange(self, token: bytes) -> Reply:
        record = SessionSetupRequest(
            flags=BINDING,
            security_mode=int(SecurityMode.SIGNING_ENABLED),
            security_buffer_offset=HEADER_SIZE + SESSION_SETUP_REQUEST.size,
            security_buffer_length=len(token),
        )

        def hash_message(message: Sequence[Buffer]) -> None:
            self._preauth_hash = preauth.extend(self._preauth_hash, message)

        body = [SESSION_SETUP_REQUEST.pack(record), token]
        started = await self.client.start(Command.SESSION_SETUP, body, self, sign=True, on_encoded=hash_message)
        # Requests are signed with the session's key, the last response with the channel's, which is not known yet.
        started.session = None
        reply = await self.client.finish(started)
        return self.client.check(reply, (NtStatus.SUCCESS, NtStatus.MORE_PROCESSING_REQUIRED))

    def _finish(self, context: Any, reply: Reply) -> None:
        client = self.client
        if not context.complete:
            raise UnprovenServer("the server ended the logon before it proved anything")
        key = bytes(context.session_key)[:16].ljust(16, b"\0")
        signing = derive_signing_key(client.dialect, key, self._preauth_hash)
        self.signer = make_signer(client.negotiated.signing_algorithm, signing)
        client.sessions[self.session_id] = self
        message = memoryview(bytearray(reply.message))
        signed = reply.header.flags & HeaderFlags.SIGNED
        if not signed or not is_from_server(message, self.signer, reply.header.message_id):
            raise ProtocolError("last response of the binding has no right signature", "MS-SMB2 3.2.5.3.3")
