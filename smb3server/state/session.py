"""Sessions (MS-SMB2 3.3.1.8) and their channels (3.3.1.14)."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from smb3server.access.check import Token
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


_MAX_SHOWN = 256
"""Characters: more than names of accounts and domains have (MS-SAMR 3.1.1.6)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a session acts for."""

    name: str
    domain: str = ""
    """Kerberos realm of a principal that has no account here; empty: the server's own account, whatever domain its
    client named. Of a guest, what its client said."""
    guest: bool = False
    anonymous: bool = False
    user: User | None = None
    """POSIX credentials for file access; None: those that the share has for such users."""

    def same_user(self, other: Identity) -> bool:
        """Whether what belongs to one belongs to the other."""
        return self.owner == other.owner

    @property
    def owner(self) -> str:
        """What a durable open is stored with (Open.DurableOwner). A guest chooses its name, so a guest's never equals
        that of a user who proved theirs; nor does that of a principal of another realm."""
        if self.guest or self.anonymous:
            return f"\0{'guest' if self.guest else 'anonymous'}\0{self.domain}\0{self.name}".casefold()
        # Realms and the names in them are told apart by case (RFC 4120 6.1, 6.2), names of accounts are not.
        return f"\0realm\0{self.domain}\0{self.name}" if self.domain else self.name.casefold()

    @property
    def listed_name(self) -> str:
        """What lists of users have it by, case-folded: an account's name, or ``name@REALM`` of a principal that has no
        account. Guests are on no list."""
        return (f"{self.name}@{self.domain}" if self.domain else self.name).casefold()

    def __str__(self) -> str:
        """For people: logs and status. Guests call themselves what they like, be it a line of a log or the codes of a
        terminal, as long as they like."""
        text = f"{self.domain}\\{self.name}" if self.domain else self.name or "ANONYMOUS"
        shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[:_MAX_SHOWN])
        return shown if len(text) <= _MAX_SHOWN else f"{shown}..."


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
        """The latest of ``tokens.token_of``, with what it was made of."""
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
            connection.transport.set_peer_timeout(CHANNEL_SILENCE if shared else None)

    def new_tree_id(self) -> int:
        """An unused TreeId, never 0 or 0xFFFFFFFF."""
        while True:
            self._next_tree_id = self._next_tree_id % 0xFFFFFFFE + 1
            if self._next_tree_id not in self.tree_connect_table:
                return self._next_tree_id
