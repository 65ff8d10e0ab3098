"""What clients have, for the operator: lists of sessions and of open files, and their ends.

An id is a number that the operator has seen in such a list. Its first digits are enough if they name one entry.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, TypeVar

from smb3server.admin.socket import RefusedError
from smb3server.files.caching import Lease
from smb3server.server.server import Server
from smb3server.state import endings
from smb3server.state.objects import Open, Session
from smb3server.status.report import dialect_name
from smb3server.wire.create import Access

log = logging.getLogger(__name__)

Json = dict[str, Any]
_Entry = TypeVar("_Entry")
_READS, _WRITES = int(Access.READ_DATA | Access.EXECUTE), int(Access.WRITE_DATA | Access.APPEND_DATA)


def session_id(session: Session) -> str:
    """Return the id of a session as the operator sees it."""
    return f"{session.session_id:08x}"


def file_id(opened: Open) -> str:
    """Return the id of an open as the operator sees it."""
    return f"{opened.file_id[0]:016x}"


class ClientAdmin:
    """The sessions and opens of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    # Sessions

    def sessions(self, user: str = "", share: str = "") -> list[Json]:
        """Return the sessions of a user, in a share, or all."""
        return [_show_session(session) for session in self._find_sessions(user, share)]

    def _find_sessions(self, user: str, share: str) -> list[Session]:
        return [
            session
            for session in self._server.sessions.by_id.values()
            if session.identity is not None
            and (not user or user.casefold() in (session.identity.name.casefold(), session.identity.listed_name))
            and (not share or any(_is_called(tree.share.name, share) for tree in session.tree_connect_table.values()))
        ]

    def choose_sessions(self, ids: Iterable[str], user: str = "", share: str = "") -> list[Session]:
        """Return the sessions with these ids, and those of a user or in a share. Raises ``RefusedError``."""
        known = {session_id(session): session for session in self._server.sessions.by_id.values()}
        chosen = [choose("session", known, given) for given in ids]
        if not chosen and not (user or share):
            raise RefusedError("name sessions by their ids, or a user or a share")
        if user or share:
            chosen += self._find_sessions(user, share)
        return list(dict.fromkeys(chosen))

    def close_session(self, session: Session) -> Json:
        """End a session, unless it has ended meanwhile, and return what it was."""
        shown = _show_session(session)
        log.info("%s: session of %s closed by the operator", session.connection.client_name, session.identity)
        endings.end_session(self._server, session)
        return shown

    def close_waiting(self, user: str) -> int:
        """Close the opens of a user that wait for their client to come back, and return how many."""
        waiting = [
            opened
            for opened in self._find_opens(user, "", "")
            if opened.durable is not None and opened.durable.disconnected
        ]
        for opened in waiting:
            self._server.opens.close(opened)
        return len(waiting)

    # Files

    def files(self, user: str = "", share: str = "", path: str = "") -> list[Json]:
        """Return the opens of a user, in a share, or below a path in it, or all."""
        return [_show_open(opened) for opened in self._find_opens(user, share, path)]

    def _find_opens(self, user: str, share: str, path: str) -> list[Open]:
        parts = [part for part in path.casefold().replace("\\", "/").split("/") if part]
        return [
            opened
            for opened in self._server.opens.by_id.values()
            if (not user or user.casefold() == _user_of(opened).casefold())
            and (not share or _is_called(opened.tree.share.name, share))
            and [part.casefold() for part in opened.path[: len(parts)]] == parts
        ]

    def close_files(self, ids: Iterable[str]) -> list[Json]:
        """Close opens, and return what they were. Raises ``RefusedError``, and then closes none."""
        known = {file_id(opened): opened for opened in self._server.opens.by_id.values()}
        chosen = [choose("file", known, given) for given in ids]
        shown = []
        for opened in dict.fromkeys(chosen):
            shown.append(_show_open(opened))
            log.info("%s in %s closed by the operator", "/".join(opened.path) or "/", opened.tree.share.name)
            self._server.opens.close(opened)
        return shown


def choose(what: str, known: dict[str, _Entry], given: str) -> _Entry:
    """Return the entry that an id, or the beginning of one, names. Raises ``RefusedError``."""
    wanted = given.lower().removeprefix("0x")
    found = [name for name in known if wanted and name.startswith(wanted)]
    # Reports print all digits of an id, zeros in front included.
    if exact := [name for name in known if wanted and name.lstrip("0") == wanted.lstrip("0")]:
        found = exact
    if not found:
        raise RefusedError(f"there is no {what} {given}; `smb3server {what} list` shows them")
    if len(found) > 1:
        raise RefusedError(f"{what} {given}: {len(found)} begin like this; give more digits")
    return known[found[0]]


def _is_called(name: str, given: str) -> bool:
    return name.casefold() == given.casefold()


def _user_of(opened: Open) -> str:
    identity = opened.session.identity
    return identity.name if identity is not None else ""


def _show_session(session: Session) -> Json:
    now = time.time()
    return {
        "id": session_id(session),
        "user": str(session.identity),
        "client": session.connection.client_name,
        "dialect": dialect_name(session.connection.dialect),
        "channels": len(session.channel_list),
        "rdma_channels": sum(connection.is_smb_direct for connection in session.channel_list),
        "shares": sorted({tree.share.name for tree in session.tree_connect_table.values()}),
        "files": len(session.open_table),
        "since": session.creation_time,
        "age": max(0.0, now - session.creation_time),
    }


def _show_open(opened: Open) -> Json:
    granted, durable, caching = opened.granted_access, opened.durable, opened.caching
    access = ("r" if granted & _READS else "") + ("w" if granted & _WRITES else "")
    return {
        "id": file_id(opened),
        "user": _user_of(opened),
        "share": opened.tree.share.name,
        "path": "/".join(opened.path),
        "directory": opened.is_directory,
        "pipe": opened.pipe is not None,
        "access": access,
        "locks": len(opened.file.locks.locks_of(opened)) if opened.file is not None else 0,
        "caching": "" if caching is None else "lease" if isinstance(caching, Lease) else "oplock",
        "durable": durable.kind if durable is not None else "",
        "away": durable is not None and durable.disconnected,
        "session": "" if durable is not None and durable.disconnected else session_id(opened.session),
    }
