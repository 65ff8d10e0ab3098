"""Sessions (MS-SMB2 3.3.1.8) and their channels (3.3.1.14)."""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from smb3server.access.check import Token
    from smb3server.access.identity import Identity
    from smb3server.backends.base import User
    from smb3server.crypto.encryption import SessionCipher
    from smb3server.crypto.signing import Signer
    from smb3server.server.server import Server
    from smb3server.state.ceilings import Usage
    from smb3server.state.connection import Connection
    from smb3server.state.open import Open
    from smb3server.state.tree import TreeConnect


class SessionState(enum.Enum):
    IN_PROGRESS = "in progress"
    VALID = "valid"
    EXPIRED = "expired"


CHANNEL_SILENCE = 15.0
"""Seconds after which a channel is given up whose client neither acknowledges nor answers, while the session has
others: it costs the client nothing, and what waits for the dead channel (breaks, 3.3.4.6) goes on."""


class Channel:
    """One session on one connection (3.3.1.14)."""

    __slots__ = ("connection", "signer", "signing_key")

    def __init__(self, connection: Connection, signing_key: bytes, signer: Signer | None) -> None:
        self.connection = connection
        self.signing_key = signing_key
        self.signer = signer
        """None for guest and anonymous sessions, which have no key to sign with."""


class Session:
    """3.3.1.8. ``open_table`` is keyed by the volatile half of the FileId, ``tree_connect_table`` by TreeId."""

    def __init__(self, server: Server, session_id: int, connection: Connection) -> None:
        self.server = server
        self.session_id = session_id
        self.state = SessionState.IN_PROGRESS
        self.connection = connection
        """The connection it was made on; commands come on any of ``channel_list``."""
        self.identity: Identity | None = None
        self.token: tuple[Identity, User | None, Token] | None = None
        """The latest of ``caller.token_of``, with what it was made of."""
        self.session_key = b""
        self.full_session_key = b""
        """The authentication protocol's whole key: 256-bit ciphers derive from it."""
        self.signing_required = False
        self.encrypt_data = False
        self.cipher: SessionCipher | None = None
        """None where the dialect, the client or a missing key rule encryption out."""
        self.open_table: dict[int, Open] = {}
        self.tree_connect_table: dict[int, TreeConnect] = {}
        self.channel_list: dict[Connection, Channel] = {}
        self.application_key = b""
        self.signer: Signer | None = None
        """Session.SigningKey's; channels bound later have their own."""
        self.signing_algorithm_id = 0
        """``signer``'s; a channel bound later may use another."""
        self.expiration_time: float | None = None
        """When the credentials expire, monotonic seconds; None: never."""
        self.deadline: asyncio.TimerHandle | None = None
        """By which it must be authenticated."""
        self.usage: Usage | None = None
        """What its user has; None before the logon."""
        self.watchers = 0
        """Opens with a CHANGE_NOTIFY watcher."""
        self.creation_time = time.time()
        self.idle_time = time.time()
        self._next_tree_id = 0

    @property
    def is_guest(self) -> bool:
        return self.identity is not None and self.identity.guest

    @property
    def is_anonymous(self) -> bool:
        return self.identity is not None and self.identity.anonymous

    @property
    def uses_disks(self) -> bool:
        """Whether it has a tree connect to a share with files."""
        return any(tree.share.backend is not None for tree in self.tree_connect_table.values())

    @property
    def encrypts(self) -> bool:
        """Whether its data is encrypted, or was."""
        if self.encrypt_data or (self.cipher is not None and self.cipher.used):
            return True
        return any(tree.encrypt_data for tree in self.tree_connect_table.values())

    def limit_credits(self) -> None:
        """See ``Connection.limit_credits``; on all channels."""
        for connection in self.channel_list:
            connection.limit_credits()

    @property
    def user(self) -> User | None:
        """POSIX credentials for backends."""
        return self.identity.user if self.identity is not None else None

    def channels_changed(self) -> None:
        """Connections that others stand in for are given up soon, and a lone one may lose its network for long."""
        for connection in self.channel_list:
            shared = any(len(session.channel_list) > 1 for session in connection.session_table.values())
            connection.transport.limit_silence(CHANNEL_SILENCE if shared else None)

    def new_tree_id(self) -> int:
        """An unused TreeId, never 0 or 0xFFFFFFFF."""
        while True:
            self._next_tree_id = self._next_tree_id % 0xFFFFFFFE + 1
            if self._next_tree_id not in self.tree_connect_table:
                return self._next_tree_id
