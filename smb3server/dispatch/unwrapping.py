"""Messages as they were before they were encrypted and compressed. [MS-SMB2 3.3.5.2.1]"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from smb3server.compression.transform import ON_THREAD_FROM, CompressionError, largest_plain
from smb3server.crypto.envelope import EnvelopeError, unseal
from smb3server.dispatch.chain import Chain, Expanded
from smb3server.wire.compression import COMPRESSION_TRANSFORM
from smb3server.wire.header import PROTOCOL_ID
from smb3server.wire.status import Disconnect
from smbdirect.message_transport import room_of

if TYPE_CHECKING:
    import asyncio

    from smb3server.dispatch.parking import Parking
    from smb3server.state.ceilings import Usage
    from smb3server.state.objects import Connection, Session
    from smb3server.state.server_state import ServerState
    from smbdirect.message_transport import InboundMessage


def _check_session(plain: memoryview, session: Session) -> None:
    """Raise ``Disconnect`` if a decrypted message does not name the session whose key it was encrypted with. [MS-SMB2
    3.3.5.2.1.1]"""
    if int.from_bytes(plain[40:48], "little") != session.session_id:
        raise Disconnect("encrypted message of another session")


class Unwrapping:
    """Decrypts and decompresses the messages of one connection."""

    __slots__ = ("_connection", "_parking", "_server")

    def __init__(self, server: ServerState, connection: Connection, parking: Parking) -> None:
        self._server = server
        self._connection = connection
        self._parking = parking

    def decrypt(self, inbound: InboundMessage) -> tuple[memoryview, Session]:
        """Return the decrypted message, and the session whose key it was encrypted with. Raises ``Disconnect``.
        [MS-SMB2 3.3.5.2.1.1]"""
        try:
            plain, session = unseal(inbound.view, self._connection.session_table.get, room_of(inbound))
        except EnvelopeError as error:
            raise Disconnect(str(error), "decryption") from error
        if session.keys_are_public and self._connection.constrained:
            # After a logon of somebody else, Windows serves it (3.3.5.2.1.1 note 259).
            raise Disconnect("encrypted by an anonymous user, and nobody else has logged on")
        if plain[:4] == PROTOCOL_ID:
            _check_session(plain, session)
        return plain, session

    def expand(self, chain: Chain) -> bool:
        """Decompress the message of a chain whose turn it is, if that is quick. Return whether it is done: otherwise
        the chain is parked until it is. Raises ``Disconnect``. [MS-SMB2 3.3.5.2.1.2]"""
        connection, view = self._connection, chain.view
        assert connection.compression is not None
        limit = largest_plain((connection.max_read_size, connection.max_write_size, connection.max_transact_size))
        if not connection.is_authenticated:
            limit = min(limit, self._server.settings.max_message_before_authentication)
        declared = COMPRESSION_TRANSFORM.fields_from(view)[1] if len(view) >= COMPRESSION_TRANSFORM.size else 0
        if not ON_THREAD_FROM <= declared <= limit:
            try:
                plain = connection.compression.unpack(view, limit)
            except CompressionError as error:
                raise Disconnect(str(error)) from error
            size = len(view)
            chain.inbound.release()
            self._take_expanded(chain, Expanded(plain), size)
            return True
        chain.expanding = True
        self._parking.expand(chain)
        self._expand_on_thread(chain, self._usage(), declared, limit)
        return False

    def _expand_on_thread(self, chain: Chain, usage: Usage, declared: int, limit: int) -> None:
        """Have a worker thread decompress a message, as soon as its user, whose ``usage`` it is, may have so much
        memory."""
        connection, agreed = self._connection, self._connection.compression
        if connection.closed or agreed is None:
            usage.call_next()
            return
        if not usage.may_expand(declared):
            usage.waiting.append(partial(self._expand_on_thread, chain, usage, declared, limit))
            return
        # Counted for the user until the chain ends.
        usage.expand(declared)
        inbound, chain.inbound = chain.inbound, Expanded(chain.view)
        future = connection.loop.run_in_executor(None, agreed.unpack, chain.view, limit)
        future.add_done_callback(partial(self._was_expanded, chain, inbound, usage, declared))

    def _usage(self) -> Usage:
        """Return the usage of the connection's user; of guests if there is none yet."""
        sessions = self._connection.session_table.values()
        return self._server.ceilings.of(next((one.identity for one in sessions if one.identity is not None), None))

    def _take_expanded(self, chain: Chain, expanded: Expanded, size: int) -> None:
        """Let ``chain`` have its message, which had ``size`` bytes compressed. Raises ``Disconnect``."""
        chain.inbound, chain.view = expanded, expanded.view
        chain.compressed = chain.expanding = False
        if chain.cipher_session is not None:
            _check_session(expanded.view, chain.cipher_session)
        self._connection.compressed.receives(len(expanded.view), size)

    def _was_expanded(
        self, chain: Chain, inbound: InboundMessage, usage: Usage, declared: int, future: asyncio.Future[memoryview]
    ) -> None:
        """Continue with a message that a worker thread has decompressed. Disconnect if it was malformed."""
        size = len(chain.view)
        inbound.release()
        usage.expand(-declared)
        try:
            if self._connection.closed:
                future.exception()
                return
            plain = future.result()
            usage.expand(len(plain))
            self._take_expanded(chain, Expanded(plain, usage), size)
        except (CompressionError, Disconnect) as error:
            self._connection.disconnect(str(error), broke_protocol=True)
        else:
            self._parking.expanded()
