"""Looking at namespaces for management programs: rpcclient's dfsenum and dfsgetinfo. [MS-DFSNM]

Links are changed on the server: the calls that change them are not there. A user sees the namespaces that the user may
connect to.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from impacket.dcerpc.v5.dtypes import DWORD, GUID, LPDWORD, LPWSTR, NULL, ULONG, WSTR
from impacket.dcerpc.v5.ndr import NDRCALL, NDRPOINTER, NDRSTRUCT, NDRUNION, NDRUniConformantArray

from smb3server.dfs.namespace import Link, Namespace, Target
from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.ndr import ERROR_INVALID_PARAMETER, declare, operation, text, wire_uuid
from smb3server.state.caller import may_use
from smb3server.state.objects import Session
from smb3server.state.server_state import ServerState

UUID = wire_uuid("4FC742E0-4A10-11CF-8273-00AA004AE673")
VERSION = 3
_SERVER_VERSION = 1
"""DFS_MANAGER_VERSION of a server of stand-alone namespaces. [MS-DFSNM 2.2.2.15]"""
ERROR_NO_MORE_ITEMS = 259
NERR_DFS_NO_SUCH_VOLUME = 2662
_OK, _STANDALONE, _ONLINE = 0x1, 0x100, 0x2
"""DFS_VOLUME_STATE_OK, DFS_VOLUME_FLAVOR_STANDALONE, DFS_STORAGE_STATE_ONLINE. [MS-DFSNM 2.2.2.1, 2.2.2.3, 2.2.2.4]"""
AT_ONCE = 64
"""Entries of one answer. A client goes on with the ResumeHandle."""


def _pointer(kind: Any) -> Any:
    return declare(NDRPOINTER, referent=(("Data", kind),))


def _array(kind: Any) -> Any:
    return _pointer(declare(NDRUniConformantArray, item=kind))


_Storage = declare(NDRSTRUCT, structure=(("State", ULONG), ("ServerName", LPWSTR), ("ShareName", LPWSTR)))
_NAME = (("EntryPath", LPWSTR),)
_STATE = (*_NAME, ("Comment", LPWSTR), ("State", DWORD))
_STORAGES = (("NumberOfStorages", DWORD), ("Storage", _array(_Storage)))
_INFO = {
    1: declare(NDRSTRUCT, structure=_NAME),
    2: declare(NDRSTRUCT, structure=(*_STATE, ("NumberOfStorages", DWORD))),
    3: declare(NDRSTRUCT, structure=(*_STATE, *_STORAGES)),
    4: declare(NDRSTRUCT, structure=(*_STATE, ("Timeout", ULONG), ("Guid", GUID), *_STORAGES)),
}
"""DFS_INFO_1 to DFS_INFO_4, by level. [MS-DFSNM 2.2.3.1 to 2.2.3.4]"""
_CONTAINER = {
    level: declare(NDRSTRUCT, structure=(("EntriesRead", DWORD), ("Buffer", _array(kind))))
    for level, kind in _INFO.items()
}
_OTHERS = (5, 6, 7, 8, 9, 50, *range(100, 108), 150, 200, 300)
"""Levels that are refused. What a client sends for them has no entries. [MS-DFSNM 2.2.3]"""


def _union(kinds: dict[int, Any]) -> Any:
    arms = {**dict.fromkeys(_OTHERS, kinds[1]), **kinds}
    return declare(
        NDRUNION, commonHdr=(("tag", DWORD),), union={level: ("Info", _pointer(kind)) for level, kind in arms.items()}
    )


_InfoUnion, _EnumUnion = _union(_INFO), _union(_CONTAINER)
_EnumStruct = declare(NDRSTRUCT, structure=(("Level", DWORD), ("DfsInfoContainer", _EnumUnion)))
_VersionRequest = declare(NDRCALL, opnum=0, structure=())
_VersionAnswer = declare(NDRCALL, structure=(("Version", DWORD),))
_GetInfoRequest = declare(
    NDRCALL,
    opnum=4,
    structure=(("DfsEntryPath", WSTR), ("ServerName", LPWSTR), ("ShareName", LPWSTR), ("Level", DWORD)),
)
_GetInfoAnswer = declare(NDRCALL, structure=(("DfsInfo", _InfoUnion), ("ErrorCode", ULONG)))
_EnumRequest = declare(
    NDRCALL,
    opnum=5,
    structure=(("Level", DWORD), ("PrefMaxLen", DWORD), ("DfsEnum", _pointer(_EnumStruct)), ("ResumeHandle", LPDWORD)),
)
_EnumAnswer = declare(
    NDRCALL, structure=(("DfsEnum", _pointer(_EnumStruct)), ("ResumeHandle", LPDWORD), ("ErrorCode", ULONG))
)


class _Entry(NamedTuple):
    """A root or a link."""

    namespace: Namespace
    link: Link | None

    @property
    def targets(self) -> tuple[Target, ...]:
        if self.link is not None:
            return self.link.targets
        return self.namespace.targets or (Target("", (self.namespace.name,)),)


class _Service:
    def __init__(self, server: ServerState, session: Session) -> None:
        self._server = server
        self._session = session

    def _namespaces(self) -> Iterator[Namespace]:
        for share in self._server.share_list.values():
            if share.namespace is not None and may_use(self._session, share, self._server.accounts):
                yield share.namespace

    def _entries(self) -> Iterator[_Entry]:
        for namespace in self._namespaces():
            yield _Entry(namespace, None)
            yield from (_Entry(namespace, link) for link in namespace.links)

    def _fill(self, info: Any, level: int, entry: _Entry) -> None:
        namespace, link = entry
        name = self._server.settings.server_name
        below = "\\".join(("", *link.path)) if link is not None else ""
        info["EntryPath"] = text(f"\\\\{name}\\{namespace.name}{below}")
        if level == 1:
            return
        info["Comment"] = text(link.comment if link is not None else "")
        info["State"] = _OK if link is not None else _OK | _STANDALONE
        info["NumberOfStorages"] = len(entry.targets)
        if level == 2:
            return
        if level == 4:
            info["Timeout"] = link.ttl if link is not None and link.ttl is not None else namespace.ttl
            info["Guid"] = uuid.uuid5(uuid.NAMESPACE_OID, f"{name}\\{namespace.name}{below}".casefold()).bytes_le
        storages = []
        for target in entry.targets:
            storage = _Storage()
            storage["State"] = _ONLINE
            storage["ServerName"] = text(target.server or name)
            storage["ShareName"] = text("\\".join(target.path))
            storages.append(storage)
        info["Storage"] = storages

    def version(self, _: Any) -> Any:
        """Serve NetrDfsManagerGetVersion. [MS-DFSNM 3.1.4.2.1]"""
        answer = _VersionAnswer()
        answer["Version"] = _SERVER_VERSION
        return answer

    def get_info(self, request: Any) -> Any:
        """Serve NetrDfsGetInfo. [MS-DFSNM 3.1.4.1.6]"""
        level, answer = int(request["Level"]), _GetInfoAnswer()
        answer["DfsInfo"]["tag"] = level if level in _INFO or level in _OTHERS else 1
        wrong = 0 if level in _INFO else ERROR_INVALID_PARAMETER
        found = None if wrong else self._find(request["DfsEntryPath"].rstrip("\0"))
        if found is None:
            answer["DfsInfo"]["Info"] = NULL
            answer["ErrorCode"] = wrong or NERR_DFS_NO_SUCH_VOLUME
            return answer
        self._fill(answer["DfsInfo"]["Info"], level, found)
        answer["ErrorCode"] = 0
        return answer

    def _find(self, path: str) -> _Entry | None:
        """Return the root or link of ``\\\\server\\namespace\\link``."""
        parts = [part for part in path.split("\\") if part]
        for namespace in self._namespaces():
            if len(parts) < 2 or namespace.name.casefold() != parts[1].casefold():
                continue
            if len(parts) == 2:
                return _Entry(namespace, None)
            link = namespace.covering(tuple(parts[2:]))
            if link is not None and len(link.path) == len(parts) - 2:
                return _Entry(namespace, link)
        return None

    def enum(self, request: Any) -> Any:
        """Serve NetrDfsEnum. [MS-DFSNM 3.1.4.1.7]"""
        level, answer = int(request["Level"]), _EnumAnswer()
        resume = request["ResumeHandle"]
        start = int(resume) if isinstance(resume, int) else 0
        entries = list(self._entries()) if level in _INFO else []
        chosen = entries[start : start + AT_ONCE]
        if not chosen:
            answer["DfsEnum"] = NULL
            answer["ErrorCode"] = ERROR_NO_MORE_ITEMS if level in _INFO else ERROR_INVALID_PARAMETER
        else:
            answer["DfsEnum"]["Level"] = level
            answer["DfsEnum"]["DfsInfoContainer"]["tag"] = level
            container = answer["DfsEnum"]["DfsInfoContainer"]["Info"]
            container["EntriesRead"] = len(chosen)
            buffer = []
            for entry in chosen:
                info = _INFO[level]()
                self._fill(info, level, entry)
                buffer.append(info)
            container["Buffer"] = buffer
            answer["ErrorCode"] = 0
        answer["ResumeHandle"] = NULL if resume == NULL else start + len(chosen)
        return answer


def interface(server: ServerState, session: Session) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    service = _Service(server, session)
    return Interface(
        UUID,
        VERSION,
        {
            0: operation(_VersionRequest, service.version),
            4: operation(_GetInfoRequest, service.get_info),
            5: operation(_EnumRequest, service.enum),
        },
    )
