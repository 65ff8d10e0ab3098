"""Lists of sessions and open files for the Server Service. Users see only their own. [MS-SRVS 3.1.4.5, 3.1.4.2]"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from impacket.dcerpc.v5 import srvs
from impacket.dcerpc.v5.dtypes import NULL

from smb3server.rpc.ndr import ERROR_ACCESS_DENIED, ERROR_INVALID_LEVEL, text
from smb3server.wire.create import Access

if TYPE_CHECKING:
    from smb3server.state.objects import Open, Session

_SESSION_INFO = {
    0: srvs.SESSION_INFO_0,
    1: srvs.SESSION_INFO_1,
    2: srvs.SESSION_INFO_2,
    10: srvs.SESSION_INFO_10,
    502: srvs.SESSION_INFO_502,
}
_FILE_INFO = {2: srvs.FILE_INFO_2, 3: srvs.FILE_INFO_3}
_GUEST, _NO_ENCRYPTION = 1, 2
_READ, _WRITE, _CREATE = 1, 2, 4
"""PERM_FILE_*. [MS-SRVS 2.2.2.3]"""


def _client(session: Session) -> str:
    return session.connection.client_name.rsplit(":", 1)[0].strip("[]")


def _user(session: Session) -> str:
    return session.identity.name if session.identity is not None else ""


def _asked(value: Any) -> str:
    """Return an optional string argument, or '' if it was not given."""
    return str(value).rstrip("\0").lstrip("\\").casefold() if isinstance(value, str) else ""


class Lists:
    """The lists of the server, as the user of one session sees them."""

    def __init__(self, sessions: Mapping[int, Session], session: Session) -> None:
        """Make the lists for the user of ``session``. ``sessions`` are all sessions of the server."""
        self._sessions = sessions
        self._session = session

    def _may_ask(self) -> bool:
        return not (self._session.is_guest or self._session.is_anonymous)

    def _own_sessions(self) -> Iterator[Session]:
        own = self._session.identity.owner if self._session.identity is not None else None
        for session in self._sessions.values():
            if session.identity is not None and session.identity.owner == own:
                yield session

    def session_enum(self, request: Any) -> Any:
        """Serve NetrSessionEnum. [MS-SRVS 3.1.4.5]"""
        level = int(request["InfoStruct"]["Level"])
        answer = srvs.NetrSessionEnumResponse()
        answer["InfoStruct"]["Level"] = level
        answer["ResumeHandle"] = NULL
        kind = _SESSION_INFO.get(level)
        if kind is None or not self._may_ask():
            answer["InfoStruct"]["Level"] = 10
            answer["InfoStruct"]["SessionInfo"]["tag"] = 10
            answer["InfoStruct"]["SessionInfo"]["Level10"] = NULL
            answer["TotalEntries"] = 0
            answer["ErrorCode"] = ERROR_INVALID_LEVEL if kind is None else ERROR_ACCESS_DENIED
            return answer
        client, user = _asked(request["ClientName"]), _asked(request["UserName"])
        answer["InfoStruct"]["SessionInfo"]["tag"] = level
        container = answer["InfoStruct"]["SessionInfo"][f"Level{level}"]
        container["Buffer"] = []
        found = [
            session
            for session in self._own_sessions()
            if (not client or _client(session).casefold() == client) and (not user or _user(session).casefold() == user)
        ]
        for session in found:
            container["Buffer"].append(self._session_info(kind(), f"sesi{level}_", level, session))
        container["EntriesRead"] = answer["TotalEntries"] = len(found)
        answer["ErrorCode"] = 0
        return answer

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
            info[prefix + "transport"] = text("")
        return info

    def file_enum(self, request: Any) -> Any:
        """Serve NetrFileEnum. [MS-SRVS 3.1.4.2]"""
        level = int(request["InfoStruct"]["Level"])
        answer = srvs.NetrFileEnumResponse()
        answer["InfoStruct"]["Level"] = level
        answer["ResumeHandle"] = NULL
        kind = _FILE_INFO.get(level)
        if kind is None or not self._may_ask():
            answer["InfoStruct"]["Level"] = 3
            answer["InfoStruct"]["FileInfo"]["tag"] = 3
            answer["InfoStruct"]["FileInfo"]["Level3"] = NULL
            answer["TotalEntries"] = 0
            answer["ErrorCode"] = ERROR_INVALID_LEVEL if kind is None else ERROR_ACCESS_DENIED
            return answer
        base, user = _asked(request["BasePath"]), _asked(request["UserName"])
        answer["InfoStruct"]["FileInfo"]["tag"] = level
        container = answer["InfoStruct"]["FileInfo"][f"Level{level}"]
        container["Buffer"] = []
        count = 0
        for entry in self._own_opens():
            path = _path(entry)
            if (base and not path.casefold().startswith(base)) or (user and _user(entry.session).casefold() != user):
                continue
            count += 1
            container["Buffer"].append(_file_info(kind(), level, entry, path))
        container["EntriesRead"] = answer["TotalEntries"] = count
        answer["ErrorCode"] = 0
        return answer

    def _own_opens(self) -> Iterator[Open]:
        for session in self._own_sessions():
            yield from session.open_table.values()


def _path(entry: Open) -> str:
    """Return the path of an open as on a Windows server with its shares in C:\\, or the name of a pipe."""
    if entry.handle is None:
        return "\\PIPE\\" + "\\".join(entry.path)
    return "\\".join((f"C:\\{entry.tree.share.name}", *entry.path))


def _file_info(info: Any, level: int, entry: Open, path: str) -> Any:
    prefix = f"fi{level}_"
    info[prefix + "id"] = entry.file_id[0] & 0xFFFFFFFF
    if level == 2:
        return info
    granted = entry.granted_access
    permissions = _READ if granted & (Access.READ_DATA | Access.EXECUTE) else 0
    if granted & (Access.WRITE_DATA | Access.APPEND_DATA):
        permissions |= _WRITE | (_CREATE if entry.is_directory else 0)
    info[prefix + "permissions"] = permissions
    info[prefix + "num_locks"] = len(entry.file.locks.locks_of(entry)) if entry.file is not None else 0
    info[prefix + "path_name"] = text(path)
    info[prefix + "username"] = text(_user(entry.session))
    return info
