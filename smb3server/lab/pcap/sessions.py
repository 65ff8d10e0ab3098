"""The sessions of a capture with their tree connects, names of files and keys. Channels of a session share it."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from smb3server.crypto.encryption import SessionCipher
from smb3server.crypto.kdf import SessionKeys
from smb3server.lab.pcap.tcp import Direction

_FILES_KEPT = 65536
"""Names of open files that are remembered per session: files that are never closed must not fill the memory."""
_FILES_GIVEN = 1 << 20
"""FileIds after which requests of a session are not compared with them any more."""
_NONCES_KEPT = 65536
"""Nonces per session and direction that are compared."""


@dataclass
class TreeConnect:
    """One tree connect."""

    name: str
    encrypted: bool = False
    """Whether the share demands encryption."""


@dataclass
class Session:
    """One session."""

    session_id: int
    known: bool = False
    """Whether the capture has its beginning, and every message since could be read."""
    complete: bool = True
    """Whether it has one channel, none of whose messages is missing so far."""
    user: str = ""
    dialect: int = 0
    signing_required: bool = False
    encrypted: bool = False
    """Whether the session demands encryption."""
    unproven: bool = False
    """Whether the user is a guest or anonymous: there is no key to sign with."""
    keys: SessionKeys | None = None
    signing: int = 0
    """Algorithm of Session.SigningKey: that of the connection on which the session began."""
    ciphers: dict[Direction, SessionCipher] = field(default_factory=dict)
    """What decrypts the messages of each direction."""
    trees: dict[int, TreeConnect] = field(default_factory=dict)
    files: OrderedDict[bytes, str] = field(default_factory=OrderedDict)
    """Names by FileId."""
    given: set[bytes] = field(default_factory=set)
    """FileIds that responses to CREATE gave, also those that are closed by now."""
    _nonces: dict[Direction, tuple[set[bytes], deque[bytes]]] = field(
        default_factory=lambda: {direction: (set(), deque()) for direction in Direction}
    )

    def opened(self, file_id: bytes, name: str) -> None:
        """Remember the name of an open."""
        self.files[file_id] = name
        self.given.add(file_id)
        if len(self.given) > _FILES_GIVEN:
            self.given.clear()
            self.complete = False
        if len(self.files) > _FILES_KEPT:
            self.files.popitem(last=False)

    def fresh_nonce(self, direction: Direction, nonce: bytes) -> bool:
        """Return whether a nonce was not used before."""
        seen, order = self._nonces[direction]
        if nonce in seen:
            return False
        seen.add(nonce)
        order.append(nonce)
        if len(order) > _NONCES_KEPT:
            seen.discard(order.popleft())
        return True


class SessionTable:
    """All sessions, by server and SessionId. A server is its ServerGuid, or its address if that was not captured."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, int], Session] = {}

    def get(self, server: str, session_id: int) -> Session:
        """Return a session, with nothing known about it if it is new."""
        session = self._sessions.get((server, session_id))
        if session is None:
            session = self._sessions[server, session_id] = Session(session_id)
        return session

    def replace(self, server: str, session_id: int) -> Session:
        """Return a new session in the place of an older one with its SessionId."""
        session = self._sessions[server, session_id] = Session(session_id, known=True)
        return session
