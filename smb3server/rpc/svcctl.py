"""Service Control Manager: which services run, and how. Nobody can start, stop or change them here. [MS-SCMR]

Administrators see the services; other users may connect, and see none, as on Windows from afar.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from impacket.dcerpc.v5 import scmr
from impacket.dcerpc.v5.dtypes import DWORD, NULL
from impacket.dcerpc.v5.ndr import NDRCALL

from smb3server.rpc.dcerpc import FAULT_BAD_STUB_DATA, Fault, Interface
from smb3server.rpc.ndr import (
    ERROR_ACCESS_DENIED,
    ERROR_INSUFFICIENT_BUFFER,
    ERROR_INVALID_HANDLE,
    ERROR_INVALID_LEVEL,
    ERROR_INVALID_PARAMETER,
    ERROR_MORE_DATA,
    NULL_HANDLE,
    ByteAnswer,
    CallError,
    Calls,
    declare,
    operations,
    text,
    wire_uuid,
)
from smb3server.rpc.rights import DACL_SECURITY, GROUP_SECURITY, OWNER_SECURITY, SACL_SECURITY, ObjectRights
from smb3server.rpc.services import (
    AUTO_START,
    ERROR_NORMAL,
    SHARE_PROCESS,
    Service,
    account,
    find,
    program,
    running,
)
from smb3server.state.objects import Session
from smb3server.state.server_state import ServerState

UUID = wire_uuid("367ABB81-9844-35F1-AD32-98F038001003")
VERSION = 2

ERROR_INVALID_SERVICE_CONTROL = 1052
ERROR_SERVICE_ALREADY_RUNNING = 1056
ERROR_SERVICE_DOES_NOT_EXIST = 1060
ERROR_DATABASE_DOES_NOT_EXIST = 1065

_CONNECT, _ENUMERATE, _QUERY_LOCK = 0x0001, 0x0004, 0x0010
MANAGER = ObjectRights(0x20014, 0x20022, 0x20009, 0xF003F, _CONNECT)
"""SC_MANAGER_*. [MS-SCMR 3.1.4]"""
_QUERY_CONFIG, _QUERY_STATUS, _DEPENDENTS, _START, _INTERROGATE = 0x0001, 0x0004, 0x0008, 0x0010, 0x0080
SERVICE = ObjectRights(0x2008D, 0x20002, 0x20170, 0xF01FF, 0)
"""SERVICE_*. [MS-SCMR 3.1.4]"""
_READ_CONTROL = 0x20000
_CONTROL_RIGHTS = {1: 0x20, 2: 0x40, 3: 0x40, 4: _INTERROGATE, 6: 0x40, 7: 0x40, 8: 0x40, 9: 0x40, 10: 0x40}
"""By control code: the right that the handle needs. [MS-SCMR 3.1.4.2]"""
_USER_CONTROL = 0x100
_INTERROGATE_CODE = 4

_WIN32 = 0x30
_DRIVERS = 0x0B
_RUNNING = 4
_ACTIVE, _INACTIVE = 1, 2
_MAX_BUFFER, _MAX_CONFIG = 256 * 1024, 8 * 1024
"""Ranges of the sizes of buffers. [MS-SCMR 2.2.9, 2.2.8]"""
_STATUS = struct.Struct("<7I")
_STATUS_PROCESS = struct.Struct("<9I")
_OFFSETS = struct.Struct("<II")


Status = declare(NDRCALL, structure=(("ErrorCode", DWORD),))
HandleAndStatus = declare(NDRCALL, structure=(("Handle", scmr.SC_RPC_HANDLE), ("ErrorCode", DWORD)))
TagAndStatus = declare(NDRCALL, structure=(("Tag", scmr.LPDWORD), ("ErrorCode", DWORD)))
TagHandleAndStatus = declare(
    NDRCALL, structure=(("Tag", scmr.LPDWORD), ("Handle", scmr.SC_RPC_HANDLE), ("ErrorCode", DWORD))
)


def _listed() -> ByteAnswer:
    return ByteAnswer("lpBuffer", "pcbBytesNeeded", "lpServicesReturned", "lpResumeIndex", optional="lpResumeIndex")


class _Manager(NamedTuple):
    """What a handle of the database stands for."""

    granted: int


class _Opened(NamedTuple):
    """What a handle of a service stands for."""

    service: Service
    granted: int


def _string(value: str) -> bytes:
    return text(value).encode("utf-16-le")


def _status() -> tuple[int, ...]:
    """Return SERVICE_STATUS of any service here: it runs, and accepts no controls. [MS-SCMR 2.2.47]"""
    return SHARE_PROCESS, _RUNNING, 0, 0, 0, 0, 0


def _status_process() -> tuple[int, ...]:
    """Return SERVICE_STATUS_PROCESS. [MS-SCMR 2.2.49]"""
    return *_status(), os.getpid(), 0


def _size(request: Any, most: int) -> int:
    """Return the size of the buffer that the answer must have. Raises ``Fault`` if it is out of range."""
    size = int(request["cbBufSize"])
    if size > most:
        raise Fault(FAULT_BAD_STUB_DATA)
    return size


def _fill_status(told: Any) -> None:
    for (name, _), value in zip(scmr.SERVICE_STATUS.structure, _status(), strict=True):
        told[name] = value


class _Listing(NamedTuple):
    """A part of a list of services, as it is encoded. [MS-SCMR 3.1.4.14, 3.1.4.41]"""

    buffer: bytes
    returned: int
    needed: int
    """Bytes for the services that are missing, or 0."""


def _listing(services: list[Service], status: bytes, size: int) -> _Listing:
    """Encode as many services as fit: fixed parts in front, and the names that they point to at the end."""
    entry = _OFFSETS.size + len(status)
    names = [(_string(one.name), _string(one.display_name)) for one in services]
    lengths = [entry + len(name) + len(display) for name, display in names]
    count, used = 0, 0
    while count < len(services) and used + lengths[count] <= size:
        used += lengths[count]
        count += 1
    fixed, strings, end = b"", b"", size
    for name, display in names[:count]:
        end -= len(name) + len(display)
        strings = name + display + strings
        fixed += _OFFSETS.pack(end, end + len(name)) + status
    return _Listing(fixed + bytes(size - len(fixed) - len(strings)) + strings, count, sum(lengths[count:]))


class _Control(Calls):
    def _manager(self, handle: Any, right: int) -> None:
        """Check a handle of the database. Raises ``Fault``, or ``CallError`` for a right that it has not."""
        found = self._handles.find(handle)
        if not isinstance(found, _Manager):
            raise CallError(ERROR_INVALID_HANDLE)
        if not found.granted & right:
            raise CallError(ERROR_ACCESS_DENIED)

    def _service(self, handle: Any, right: int) -> Service:
        """Return the service of a handle. Raises ``Fault``, or ``CallError`` for a right that it has not."""
        found = self._handles.find(handle)
        if not isinstance(found, _Opened):
            raise CallError(ERROR_INVALID_HANDLE)
        if not found.granted & right:
            raise CallError(ERROR_ACCESS_DENIED)
        return found.service

    def _named(self, value: Any) -> Service:
        found = find(self._server, str(value).rstrip("\0"))
        if found is None:
            raise CallError(ERROR_SERVICE_DOES_NOT_EXIST)
        return found

    # Handles

    def close(self, request: Any, answer: Any) -> None:
        """Serve RCloseServiceHandle. [MS-SCMR 3.1.4.1]"""
        self._handles.close(request["hSCObject"])
        answer["hSCObject"] = NULL_HANDLE

    def open_manager(self, request: Any, answer: Any) -> None:
        """Serve ROpenSCManagerW. SC_MANAGER_CONNECT is asked for by every client. [MS-SCMR 3.1.4.15]"""
        answer["lpScHandle"] = NULL_HANDLE
        database = request["lpDatabaseName"]
        if isinstance(database, str) and database.rstrip("\0").casefold() != "servicesactive":
            raise CallError(ERROR_DATABASE_DOES_NOT_EXIST)
        granted = MANAGER.granted(int(request["dwDesiredAccess"]) | _CONNECT, self._server, self._session)
        if granted is None:
            raise CallError(ERROR_ACCESS_DENIED)
        answer["lpScHandle"] = self._handles.add(_Manager(granted))

    def open_service(self, request: Any, answer: Any) -> None:
        """Serve ROpenServiceW. [MS-SCMR 3.1.4.16]"""
        answer["lpServiceHandle"] = NULL_HANDLE
        self._manager(request["hSCManager"], _CONNECT)
        service = self._named(request["lpServiceName"])
        granted = SERVICE.granted(int(request["dwDesiredAccess"]), self._server, self._session)
        if granted is None:
            raise CallError(ERROR_ACCESS_DENIED)
        answer["lpServiceHandle"] = self._handles.add(_Opened(service, granted))

    # Lists

    def enumerate(self, request: Any, answer: Any) -> None:
        """Serve REnumServicesStatusW and REnumServicesStatusExW. [MS-SCMR 3.1.4.14, 3.1.4.41]"""
        size = _size(request, _MAX_BUFFER)
        answer["lpBuffer"] = bytes(size)
        resume = request["lpResumeIndex"]
        given = (
            isinstance(resume, int) and not isinstance(resume, bool) and request.fields["lpResumeIndex"]["ReferentID"]
        )
        answer["lpResumeIndex"] = 0 if given else None
        self._manager(request["hSCManager"], _ENUMERATE)
        extended = isinstance(request, scmr.REnumServicesStatusExW)
        if extended and int(request["InfoLevel"]) != 0:
            raise CallError(ERROR_INVALID_LEVEL)
        kinds, states = int(request["dwServiceType"]), int(request["dwServiceState"])
        if not kinds & (_WIN32 | _DRIVERS) or not 1 <= states <= _ACTIVE | _INACTIVE:
            raise CallError(ERROR_INVALID_PARAMETER)
        group = request["pszGroupName"] if extended else NULL
        if isinstance(group, str) and group.rstrip("\0"):
            raise CallError(ERROR_SERVICE_DOES_NOT_EXIST)
        found = list(running(self._server)) if kinds & SHARE_PROCESS and states & _ACTIVE else []
        first = min(int(resume), len(found)) if given else 0
        status = _STATUS_PROCESS.pack(*_status_process()) if extended else _STATUS.pack(*_status())
        listing = _listing(found[first:], status, size)
        answer["lpBuffer"] = listing.buffer
        answer["lpServicesReturned"], answer["pcbBytesNeeded"] = listing.returned, listing.needed
        if listing.needed:
            if given:
                answer["lpResumeIndex"] = first + listing.returned
            raise CallError(ERROR_MORE_DATA)

    def dependents(self, request: Any, answer: Any) -> None:
        """Serve REnumDependentServicesW: no service needs another. [MS-SCMR 3.1.4.13]"""
        answer["lpServices"] = bytes(_size(request, _MAX_BUFFER))
        self._service(request["hService"], _DEPENDENTS)
        if not 1 <= int(request["dwServiceState"]) <= _ACTIVE | _INACTIVE:
            raise CallError(ERROR_INVALID_PARAMETER)

    def display_name(self, request: Any, answer: Any) -> None:
        """Serve RGetServiceDisplayNameW. [MS-SCMR 3.1.4.20]"""
        self._name(request, answer, lambda: self._named(request["lpServiceName"]).display_name)

    def key_name(self, request: Any, answer: Any) -> None:
        """Serve RGetServiceKeyNameW. [MS-SCMR 3.1.4.21]"""
        asked = str(request["lpDisplayName"]).rstrip("\0").casefold()

        def named() -> str:
            for one in running(self._server):
                if one.display_name.casefold() == asked:
                    return one.name
            raise CallError(ERROR_SERVICE_DOES_NOT_EXIST)

        self._name(request, answer, named)

    def _name(self, request: Any, answer: Any, named: Callable[[], str]) -> None:
        """Answer with a name, if the client's buffer has room for it. The sizes are characters without the NUL."""
        room = int(request["lpcchBuffer"])
        answer["lpDisplayName"], answer["lpcchBuffer"] = text(""), room
        self._manager(request["hSCManager"], _CONNECT)
        if not self._is_administrator:
            raise CallError(ERROR_ACCESS_DENIED)
        name = named()
        answer["lpcchBuffer"] = len(name)
        if len(name) > room:
            raise CallError(ERROR_INSUFFICIENT_BUFFER)
        answer["lpDisplayName"] = text(name)

    def lock_status(self, request: Any, answer: Any) -> None:
        """Serve RQueryServiceLockStatusW: nobody can lock the database. [MS-SCMR 3.1.4.18]"""
        told = answer["lpLockStatus"]
        try:
            self._manager(request["hSCManager"], _QUERY_LOCK)
            needed = 12 + len(_string(""))
            answer["pcbBytesNeeded"] = needed
            if int(request["cbBufSize"]) < needed:
                raise CallError(ERROR_INSUFFICIENT_BUFFER)
        except CallError:
            told["lpLockOwner"] = NULL
            raise
        told["lpLockOwner"] = text("")

    # One service

    def status(self, request: Any, answer: Any) -> None:
        """Serve RQueryServiceStatus. [MS-SCMR 3.1.4.6]"""
        self._service(request["hService"], _QUERY_STATUS)
        _fill_status(answer["lpServiceStatus"])

    def status_extended(self, request: Any, answer: Any) -> None:
        """Serve RQueryServiceStatusEx. [MS-SCMR 3.1.4.40]"""
        size = _size(request, _MAX_CONFIG)
        answer["lpBuffer"] = bytes(size)
        self._service(request["hService"], _QUERY_STATUS)
        if int(request["InfoLevel"]) != 0:
            raise CallError(ERROR_INVALID_LEVEL)
        self._put(answer, _STATUS_PROCESS.pack(*_status_process()), size)

    @staticmethod
    def _put(answer: Any, data: bytes, size: int) -> None:
        answer["pcbBytesNeeded"] = len(data)
        if size < len(data):
            raise CallError(ERROR_INSUFFICIENT_BUFFER)
        answer["lpBuffer"] = data.ljust(size, b"\0")

    def config(self, request: Any, answer: Any) -> None:
        """Serve RQueryServiceConfigW. [MS-SCMR 3.1.4.17]"""
        told = answer["lpServiceConfig"]
        size = _size(request, _MAX_CONFIG)
        names = ("lpBinaryPathName", "lpLoadOrderGroup", "lpDependencies", "lpServiceStartName", "lpDisplayName")
        try:
            service = self._service(request["hService"], _QUERY_CONFIG)
            values = (program(), "", "", account(), service.display_name)
            needed = 36 + sum(len(_string(value)) for value in values)
            answer["pcbBytesNeeded"] = needed
            if size < needed:
                raise CallError(ERROR_INSUFFICIENT_BUFFER)
        except CallError:
            # Once one was null, impacket takes no other value.
            for name in names:
                told[name] = NULL
            raise
        told["dwServiceType"], told["dwStartType"] = SHARE_PROCESS, AUTO_START
        told["dwErrorControl"], told["dwTagId"] = ERROR_NORMAL, 0
        for name, value in zip(names, values, strict=True):
            told[name] = text(value)

    def config_2(self, request: Any, answer: Any) -> None:
        """Serve RQueryServiceConfig2W: the description; no failure actions, no delay, no SID. [MS-SCMR 3.1.4.39]"""
        size = _size(request, _MAX_CONFIG)
        answer["lpBuffer"] = bytes(size)
        service = self._service(request["hService"], _QUERY_CONFIG)
        levels = {
            1: struct.pack("<I", 4) + _string(service.description),
            2: bytes(20),
            3: bytes(4),
            4: bytes(4),
            5: bytes(4),
            6: bytes(4),
        }
        data = levels.get(int(request["dwInfoLevel"]))
        if data is None:
            raise CallError(ERROR_INVALID_LEVEL)
        self._put(answer, data, size)

    def security(self, request: Any, answer: Any) -> None:
        """Serve RQueryServiceObjectSecurity, for a service or the database. [MS-SCMR 3.1.4.5]"""
        size = _size(request, _MAX_BUFFER)
        answer["lpSecurityDescriptor"] = bytes(size)
        found = self._handles.find(request["hService"])
        parts = int(request["dwSecurityInformation"])
        if not parts & (OWNER_SECURITY | GROUP_SECURITY | DACL_SECURITY | SACL_SECURITY):
            raise CallError(ERROR_INVALID_PARAMETER)
        if parts & SACL_SECURITY or not found.granted & _READ_CONTROL:
            raise CallError(ERROR_ACCESS_DENIED)
        data = (SERVICE if isinstance(found, _Opened) else MANAGER).descriptor(parts)
        answer["pcbBytesNeeded"] = len(data)
        if size < len(data):
            raise CallError(ERROR_INSUFFICIENT_BUFFER)
        answer["lpSecurityDescriptor"] = data.ljust(size, b"\0")

    # What nobody can do here

    def control(self, request: Any, answer: Any) -> None:
        """Serve RControlService. A service accepts no control but INTERROGATE. [MS-SCMR 3.1.4.2]"""
        code = int(request["dwControl"])
        right = _CONTROL_RIGHTS.get(code, _USER_CONTROL if 128 <= code <= 255 else 0)
        if not right:
            raise CallError(ERROR_INVALID_PARAMETER)
        self._service(request["hService"], right)
        _fill_status(answer["lpServiceStatus"])
        if code != _INTERROGATE_CODE:
            raise CallError(ERROR_INVALID_SERVICE_CONTROL)

    def start(self, request: Any, answer: Any) -> None:
        """Serve RStartServiceW: what is here runs. [MS-SCMR 3.1.4.19]"""
        self._service(request["hService"], _START)
        raise CallError(ERROR_SERVICE_ALREADY_RUNNING)

    def refuse(self, request: Any, answer: Any) -> None:
        """Refuse a call that would change the database or a service. The host decides about them.
        [MS-SCMR 3.1.4.3, 3.1.4.4, 3.1.4.6, 3.1.4.11, 3.1.4.12, 3.1.4.37]"""
        for name, kind in answer.structure:
            if kind is scmr.SC_RPC_HANDLE:
                answer[name] = NULL_HANDLE
            elif kind is scmr.LPDWORD:
                answer[name] = NULL
        handle, _ = request.structure[0]
        self._handles.find(request[handle])
        raise CallError(ERROR_ACCESS_DENIED)


def interface(server: ServerState, session: Session) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    control = _Control(server, session)
    served = operations(
        (scmr.RCloseServiceHandle, control.close),
        (scmr.RControlService, control.control),
        (scmr.RDeleteService, Status, control.refuse),
        (scmr.RLockServiceDatabase, HandleAndStatus, control.refuse),
        (
            scmr.RQueryServiceObjectSecurity,
            lambda: ByteAnswer("lpSecurityDescriptor", "pcbBytesNeeded"),
            control.security,
        ),
        (scmr.RSetServiceObjectSecurity, Status, control.refuse),
        (scmr.RQueryServiceStatus, control.status),
        (scmr.RChangeServiceConfigW, TagAndStatus, control.refuse),
        (scmr.RCreateServiceW, TagHandleAndStatus, control.refuse),
        (
            scmr.REnumDependentServicesW,
            lambda: ByteAnswer("lpServices", "pcbBytesNeeded", "lpServicesReturned"),
            control.dependents,
        ),
        (scmr.REnumServicesStatusW, _listed, control.enumerate),
        (scmr.ROpenSCManagerW, control.open_manager),
        (scmr.ROpenServiceW, control.open_service),
        (scmr.RQueryServiceConfigW, control.config),
        (scmr.RQueryServiceLockStatusW, control.lock_status),
        (scmr.RStartServiceW, Status, control.start),
        (scmr.RGetServiceDisplayNameW, control.display_name),
        (scmr.RGetServiceKeyNameW, control.key_name),
        (scmr.RChangeServiceConfig2W, Status, control.refuse),
        (scmr.RQueryServiceConfig2W, lambda: ByteAnswer("lpBuffer", "pcbBytesNeeded"), control.config_2),
        (scmr.RQueryServiceStatusEx, lambda: ByteAnswer("lpBuffer", "pcbBytesNeeded"), control.status_extended),
        (scmr.REnumServicesStatusExW, _listed, control.enumerate),
    )
    return Interface(UUID, VERSION, served)
