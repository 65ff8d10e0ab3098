"""Sessions, tree connects and open files for the Server Service: lists of them, and their ends.
[MS-SRVS 3.1.4.1 to 3.1.4.6]

Administrators see all, and may end them. Other users see their own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from impacket.dcerpc.v5 import srvs
from impacket.dcerpc.v5.dtypes import NULL

from smb3server.process.turns import call_in_own_turn
from smb3server.rpc.ndr import (
    ERROR_ACCESS_DENIED,
    ERROR_FILE_NOT_FOUND,
    ERROR_INVALID_LEVEL,
    ERROR_INVALID_PARAMETER,
    NERR_CLIENT_NAME_NOT_FOUND,
    NERR_NET_NAME_NOT_FOUND,
    Calls,
    text,
)
from smb3server.state.endings import end_session
from smb3server.wire.create import Access

if TYPE_CHECKING:
    from smb3server.state.objects import Open, Session, TreeConnect
    from smb3server.state.server_state import ServerState

log = logging.getLogger(__name__)

_SESSION_INFO = {
    0: srvs.SESSION_INFO_0,
    1: srvs.SESSION_INFO_1,
    2: srvs.SESSION_INFO_2,
    10: srvs.SESSION_INFO_10,
    502: srvs.SESSION_INFO_502,
}
_FILE_INFO = {2: srvs.FILE_INFO_2, 3: srvs.FILE_INFO_3}
_CONNECTION_INFO = {0: srvs.CONNECTION_INFO_0, 1: srvs.CONNECTION_INFO_1}
_STYPE_IPC = 3
_MAX_QUALIFIER = 1023
"""Characters of a name by which a list is restricted."""
_GUEST = 1
_SHARED_DISK = "SharedVirtualDisk"
"""What the name of a shared virtual disk ends in when it is opened as one. [MS-RSVD 3.2.5.1]"""
_READ, _WRITE, _CREATE = 1, 2, 4
"""PERM_FILE_*. [MS-SRVS 2.2.2.3]"""


def _client(session: Session) -> str:
    return session.connection.client_name.rsplit(":", 1)[0].strip("[]")


def _user(session: Session) -> str:
    """Return the name of the user: ``DOMAIN\\name`` if it is not an account of this server."""
    identity = session.identity
    return "" if identity is None or identity.anonymous else str(identity)


def _transport(session: Session) -> str:
    """Return what carries the session's connections, each kind once. [MS-SMB2 3.3.1.7, Connection.TransportName]"""
    names: dict[str, None] = {}
    for connection in session.connections:
        transport = connection.transport
        fabric = f" ({transport.fabric})" if connection.is_smb_direct else ""
        names[transport.kind.value + fabric] = None
    return ", ".join(names)


def _asked(value: Any) -> str:
    """Return an optional string argument, or '' if it was not given."""
    return str(value).rstrip("\0").lstrip("\\").casefold() if isinstance(value, str) else ""


class Lists(Calls):
    """The lists of the server, as the user of one session sees them."""

    def __init__(self, server: ServerState, session: Session) -> None:
        """Make the lists for the user of ``session``."""
        super().__init__(server, session)
        self._sessions = server.sessions.by_id

    def _may_ask(self) -> bool:
        return not (self._session.is_guest or self._session.is_anonymous)

    def _own_sessions(self) -> Iterator[Session]:
        """Return the sessions that the user may see."""
        if self._is_administrator:
            yield from (session for session in self._sessions.values() if session.identity is not None)
            return
        own = self._session.identity.owner if self._session.identity is not None else None
        for session in self._sessions.values():
            if session.identity is not None and session.identity.owner == own:
                yield session

    def session_enum(self, request: Any) -> Any:
        """Serve NetrSessionEnum. [MS-SRVS 3.1.4.5]"""
        level = int(request["InfoStruct"]["Level"])
        answer = srvs.NetrSessionEnumResponse()
        kind = _SESSION_INFO.get(level)
        if kind is None or not self._may_ask():
            return refused(answer, "SessionInfo", 10, ERROR_INVALID_LEVEL if kind is None else ERROR_ACCESS_DENIED)
        found = self._sessions_of(_asked(request["ClientName"]), _asked(request["UserName"]))
        entries = [self._session_info(kind(), f"sesi{level}_", level, session) for session in found]
        return listed(answer, "SessionInfo", level, entries)

    @staticmethod
    def _session_info(info: Any, prefix: str, level: int, session: Session) -> Any:
        info[prefix + "cname"] = text(_client(session))
        if level == 0:
            return info
        info[prefix + "username"] = text(_user(session))
        info[prefix + "time"] = int(max(0.0, time.time() - session.creation_time))
        info[prefix + "idle_time"] = int(max(0.0, time.time() - session.idle_time))
        if level == 10:
            return info
        info[prefix + "num_opens"] = len(session.open_table)
        info[prefix + "user_flags"] = _GUEST if session.is_guest else 0
        if level >= 2:
            info[prefix + "cltype_name"] = text("")
        if level == 502:
            info[prefix + "transport"] = text(_transport(session))
        return info

    def file_enum(self, request: Any) -> Any:
        """Serve NetrFileEnum. [MS-SRVS 3.1.4.2]"""
        level = int(request["InfoStruct"]["Level"])
        answer = srvs.NetrFileEnumResponse()
        kind = _FILE_INFO.get(level)
        if kind is None or not self._may_ask():
            return refused(answer, "FileInfo", 3, ERROR_INVALID_LEVEL if kind is None else ERROR_ACCESS_DENIED)
        base, user = _asked(request["BasePath"]), _asked(request["UserName"])
        entries = []
        for opened in self._own_opens():
            path = self._path(opened)
            if (base and not path.casefold().startswith(base)) or (user and _user(opened.session).casefold() != user):
                continue
            entries.append(_file_info(kind(), level, opened, path))
        return listed(answer, "FileInfo", level, entries)

    def _own_opens(self) -> Iterator[Open]:
        """Return the opens that the user may see. Those whose client is away belong to no session."""
        if self._is_administrator:
            yield from self._server.opens.by_id.values()
            return
        for session in self._own_sessions():
            yield from session.open_table.values()

    def _path(self, opened: Open) -> str:
        """Return the path of an open as on a Windows server, or the name of a pipe.

        Administrators see where it is on this machine, others as if the shares were in C:\\."""
        if opened.handle is None:
            return "\\PIPE\\" + "\\".join(opened.path)
        share = opened.tree.share
        root = shown_path(share.path) if self._is_administrator else f"C:\\{share.name}"
        stream = _SHARED_DISK if opened.virtual_disk is not None else opened.file.stream if opened.file else ""
        return "\\".join((root, *opened.path)) + (f":{stream}" if stream else "")

    def file_get_info(self, request: Any) -> Any:
        """Serve NetrFileGetInfo. [MS-SRVS 3.1.4.3]"""
        level = int(request["Level"])
        answer = srvs.NetrFileGetInfoResponse()
        found = self._with_id(int(request["FileId"])) if self._is_administrator else []
        kind = _FILE_INFO.get(level)
        if kind is None or len(found) != 1:
            # Clients decode the union by the level that they have asked for.
            tag = 3 if kind is None else level
            answer["InfoStruct"]["tag"] = tag
            answer["InfoStruct"][f"FileInfo{tag}"] = NULL
            denied = ERROR_FILE_NOT_FOUND if self._is_administrator else ERROR_ACCESS_DENIED
            answer["ErrorCode"] = ERROR_INVALID_LEVEL if kind is None else denied
            return answer
        answer["InfoStruct"]["tag"] = level
        _file_info(answer["InfoStruct"][f"FileInfo{level}"], level, found[0], self._path(found[0]))
        return answer

    def file_close(self, request: Any) -> Any:
        """Serve NetrFileClose. [MS-SRVS 3.1.4.4]"""
        answer = srvs.NetrFileCloseResponse()
        answer["ErrorCode"] = ERROR_ACCESS_DENIED
        if self._is_administrator:
            found = self._with_id(int(request["FileId"]))
            # Ids have 31 bits here. If two opens have the same one, it is not known which is meant.
            answer["ErrorCode"] = 0 if len(found) == 1 else ERROR_FILE_NOT_FOUND
            for opened in found if len(found) == 1 else ():
                log.info("%s closed by %s", "/".join(opened.path) or "/", self._session.identity)
                # The answer comes first: the open may be the pipe that this call came through.
                call_in_own_turn(partial(self._server.opens.close, opened))
        return answer

    def _with_id(self, number: int) -> list[Open]:
        return [opened for opened in self._server.opens.by_id.values() if _number(opened) == number]

    def session_delete(self, request: Any) -> Any:
        """Serve NetrSessionDel. [MS-SRVS 3.1.4.6]"""
        answer = srvs.NetrSessionDelResponse()
        client, user = _asked(request["ClientName"]), _asked(request["UserName"])
        given = str(request["ClientName"]) if isinstance(request["ClientName"], str) else ""
        if not self._is_administrator:
            answer["ErrorCode"] = ERROR_ACCESS_DENIED
            return answer
        if not (client or user) or max(len(client), len(user)) > _MAX_QUALIFIER:
            answer["ErrorCode"] = ERROR_INVALID_PARAMETER
            return answer
        found = self._sessions_of(client, user) if not client or given.startswith("\\\\") else []
        for session in found:
            log.info("%s: session of %s ended by %s", _client(session), session.identity, self._session.identity)
            # The answer comes first: the session may be that of this call.
            call_in_own_turn(partial(end_session, self._server, session))
        answer["ErrorCode"] = 0 if found else NERR_CLIENT_NAME_NOT_FOUND
        return answer

    def _sessions_of(self, client: str, user: str) -> list[Session]:
        return [
            session
            for session in self._own_sessions()
            if (not client or _client(session).casefold() == client) and (not user or _user(session).casefold() == user)
        ]

    def connection_enum(self, request: Any) -> Any:
        """Serve NetrConnectionEnum: the tree connects to a share, or those of a client. [MS-SRVS 3.1.4.1]"""
        level = int(request["InfoStruct"]["Level"])
        qualifier = str(request["Qualifier"]).rstrip("\0") if isinstance(request["Qualifier"], str) else ""
        answer = srvs.NetrConnectionEnumResponse()
        wrong = 0 if self._is_administrator else ERROR_ACCESS_DENIED
        if level not in _CONNECTION_INFO:
            wrong = ERROR_INVALID_LEVEL
        elif not qualifier or len(qualifier) > _MAX_QUALIFIER:
            wrong = wrong or ERROR_INVALID_PARAMETER
        elif not wrong and not qualifier.startswith("\\") and qualifier.casefold() not in self._server.share_list:
            wrong = NERR_NET_NAME_NOT_FOUND
        if wrong:
            return refused(answer, "ConnectInfo", 1, wrong)
        found = [tree for tree in self._trees() if _qualifies(tree, qualifier)]
        kind = _CONNECTION_INFO[level]
        entries = [_connection_info(kind(), level, at, tree, qualifier) for at, tree in enumerate(found, 1)]
        return listed(answer, "ConnectInfo", level, entries)

    def _trees(self) -> Iterator[TreeConnect]:
        for session in self._own_sessions():
            yield from session.tree_connect_table.values()


def refused(answer: Any, union: str, level: int, error: int) -> Any:
    """Fill in an answer without a list. Its union must have some ``level`` all the same."""
    info = answer["InfoStruct"]
    info["Level"] = info[union]["tag"] = level
    info[union][f"Level{level}"] = answer["ResumeHandle"] = NULL
    answer["TotalEntries"], answer["ErrorCode"] = 0, error
    return answer


def listed(answer: Any, union: str, level: int, entries: list[Any]) -> Any:
    """Fill in an answer with all entries at once."""
    info = answer["InfoStruct"]
    info["Level"] = info[union]["tag"] = level
    answer["ResumeHandle"] = NULL
    container = info[union][f"Level{level}"]
    container["Buffer"] = []
    for entry in entries:
        container["Buffer"].append(entry)
    container["EntriesRead"] = answer["TotalEntries"] = len(entries)
    return answer


def shown_path(path: str) -> str:
    """Return a path of this machine as Windows writes paths."""
    return "C:" + path.replace("/", "\\")


def _qualifies(tree: TreeConnect, qualifier: str) -> bool:
    if qualifier.startswith("\\"):
        return _client(tree.session).casefold() == qualifier.lstrip("\\").casefold()
    return tree.share.name.casefold() == qualifier.casefold()


def _connection_info(info: Any, level: int, number: int, tree: TreeConnect, qualifier: str) -> Any:
    info[f"coni{level}_id"] = number
    if level == 1:
        info["coni1_type"] = _STYPE_IPC if tree.share.backend is None else 0
        info["coni1_num_opens"] = tree.open_count
        info["coni1_num_users"] = 1
        info["coni1_time"] = int(max(0.0, time.time() - tree.creation_time))
        info["coni1_username"] = text(_user(tree.session))
        other = tree.share.name if qualifier.startswith("\\") else _client(tree.session)
        info["coni1_netname"] = text(other)
    return info


def _number(opened: Open) -> int:
    """Return the id of an open in these lists. Some clients show it as a signed number."""
    return opened.file_id[0] & 0x7FFFFFFF


def _file_info(info: Any, level: int, opened: Open, path: str) -> Any:
    prefix = f"fi{level}_"
    info[prefix + "id"] = _number(opened)
    if level == 2:
        return info
    granted = opened.granted_access
    permissions = _READ if granted & (Access.READ_DATA | Access.EXECUTE) else 0
    if granted & (Access.WRITE_DATA | Access.APPEND_DATA):
        permissions |= _WRITE | (_CREATE if opened.is_directory else 0)
    info[prefix + "permissions"] = permissions
    info[prefix + "num_locks"] = len(opened.file.locks.locks_of(opened)) if opened.file is not None else 0
    info[prefix + "path_name"] = text(path)
    info[prefix + "username"] = text(_user(opened.session))
    return info
