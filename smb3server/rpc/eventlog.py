"""EventLog Remoting, for administrators and read only: the latest events of this server. [MS-EVEN]

System has the server's own events that Windows has a number for, Security the audit, and Application is empty.
"""

from __future__ import annotations

import struct
from typing import Any

from impacket.dcerpc.v5 import even
from impacket.dcerpc.v5.dtypes import NULL, ULONG
from impacket.dcerpc.v5.ndr import NDRCALL

from smb3server.rpc.dcerpc import FAULT_BAD_STUB_DATA, Fault, Interface
from smb3server.rpc.ndr import (
    NULL_HANDLE,
    ByteAnswer,
    CallError,
    Calls,
    ServerName,
    declare,
    operations,
    wire_uuid,
)
from smb3server.state.objects import Session
from smb3server.state.recent_events import Recent, RecentEvents
from smb3server.state.server_state import ServerState
from smb3server.wire.status import NtStatus

UUID = wire_uuid("82273FDC-E32A-18C3-3F78-827929DC23EA")
VERSION = 0

_SEQUENTIAL, _SEEK, _FORWARDS, _BACKWARDS = 1, 2, 4, 8
"""Flags of a read. [MS-EVEN 3.1.4.7]"""
MAX_BATCH = 0x7FFFF
"""Bytes of one read. [MS-EVEN 2.2.9]"""
_MAX_INFORMATION = 1024
_SIGNATURE = 0x654C664C
_HEADER = struct.Struct("<6I4H6I")
"""EVENTLOGRECORD up to its names. [MS-EVEN 2.2.3]"""

GetLogInformation = declare(
    NDRCALL, opnum=22, structure=(("LogHandle", even.IELF_HANDLE), ("InfoLevel", ULONG), ("cbBufSize", ULONG))
)
"""ElfrGetLogInformation. impacket has none. [MS-EVEN 3.1.4.20]"""


def _with_name(request: Any) -> Any:
    """Return a request of impacket that names the server: by a pointer to one character. [MS-EVEN 2.2.7]"""
    fields = ((name, ServerName if name == "UNCServerName" else kind) for name, kind in request.structure)
    return declare(NDRCALL, opnum=request.opnum, structure=tuple(fields))


ReportEvent = declare(NDRCALL, opnum=even.ElfrReportEventW.opnum, structure=(("LogHandle", even.IELF_HANDLE),))
"""What a refusal of ElfrReportEventW has to know of it. [MS-EVEN 3.1.4.13]"""
Status = declare(NDRCALL, structure=(("ErrorCode", ULONG),))
HandleAndStatus = declare(NDRCALL, structure=(("LogHandle", even.IELF_HANDLE), ("ErrorCode", ULONG)))


class _OpenLog:
    """What a handle stands for. ``at``: the record after which a sequential read goes on; None at first."""

    def __init__(self, log: RecentEvents) -> None:
        self.log = log
        self.at: int | None = None

    def begins(self, flags: int, record: int) -> int:
        """Return the number of the record that a read begins with."""
        if flags & _SEEK:
            return record
        if self.at is None:
            return self.log.oldest if flags & _FORWARDS else self.log.newest
        # Records that the ring has lost meanwhile are passed over.
        return max(self.at + 1, self.log.oldest) if flags & _FORWARDS else self.at - 1


def pack(event: Recent, computer: str) -> bytes:
    """Return EVENTLOGRECORD. [MS-EVEN 2.2.3]"""
    names = "".join(f"{name}\0" for name in (event.source, computer)).encode("utf-16-le")
    strings = "".join(f"{text}\0" for text in event.strings).encode("utf-16-le", "replace")
    strings_at = _HEADER.size + len(names)
    # Samba reads a string from the padding, so there always is some.
    strings += bytes(4 - (strings_at + len(strings)) % 4)
    length = strings_at + len(strings) + 4
    seconds = int(event.time) & 0xFFFFFFFF
    head = (length, _SIGNATURE, event.record & 0xFFFFFFFF, seconds, seconds, event.number)
    # There is no SID, so nothing before the strings is padded. Offsets of what is empty say where it would be.
    rest = (0, strings_at, 0, strings_at, 0, length - 4)
    kinds = (event.type, len(event.strings), 0, 0)
    return b"".join((_HEADER.pack(*head, *kinds, *rest), names, strings, length.to_bytes(4, "little")))


class _EventLog(Calls):
    def _check(self) -> None:
        if not self._is_administrator:
            raise CallError(NtStatus.ACCESS_DENIED)

    def _log(self, handle: Any) -> _OpenLog:
        found: _OpenLog = self._handles.find(handle, _OpenLog)
        return found

    def open(self, request: Any, answer: Any) -> None:
        """Serve ElfrOpenELW. Names that are not known stand for Application. [MS-EVEN 3.1.4.3]"""
        answer["LogHandle"] = NULL_HANDLE
        self._check()
        name = str(request["ModuleName"]).rstrip("\0").casefold() if isinstance(request["ModuleName"], str) else ""
        events = self._server.events
        log = {"system": events.recent, "security": events.recent_audit}.get(name, RecentEvents())
        answer["LogHandle"] = self._handles.add(_OpenLog(log))

    def close(self, request: Any, answer: Any) -> None:
        """Serve ElfrCloseEL. [MS-EVEN 3.1.4.21]"""
        self._handles.close(request["LogHandle"])
        answer["LogHandle"] = NULL_HANDLE

    def count(self, request: Any, answer: Any) -> None:
        """Serve ElfrNumberOfRecords. [MS-EVEN 3.1.4.18]"""
        answer["NumberOfRecords"] = len(self._log(request["LogHandle"]).log)

    def oldest(self, request: Any, answer: Any) -> None:
        """Serve ElfrOldestRecord. [MS-EVEN 3.1.4.19]"""
        answer["OldestRecordNumber"] = self._log(request["LogHandle"]).log.oldest

    def information(self, request: Any, answer: Any) -> None:
        """Serve ElfrGetLogInformation: a ring is never full. [MS-EVEN 3.1.4.20]"""
        size = int(request["cbBufSize"])
        if size > _MAX_INFORMATION:
            raise Fault(FAULT_BAD_STUB_DATA)
        self._log(request["LogHandle"])
        answer["lpBuffer"] = bytes(size)
        if int(request["InfoLevel"]) != 0:
            raise CallError(NtStatus.INVALID_LEVEL)
        answer["pcbBytesNeeded"] = 4
        if size < 4:
            raise CallError(NtStatus.BUFFER_TOO_SMALL)

    def read(self, request: Any, answer: Any) -> None:
        """Serve ElfrReadELW: as many records as fit. [MS-EVEN 3.1.4.7]"""
        size, flags = int(request["NumberOfBytesToRead"]), int(request["ReadFlags"])
        if size > MAX_BATCH:
            raise Fault(FAULT_BAD_STUB_DATA)
        opened = self._log(request["LogHandle"])
        answer["Buffer"] = bytes(size)
        if flags & (_SEQUENTIAL | _SEEK) not in (_SEQUENTIAL, _SEEK):
            raise CallError(NtStatus.INVALID_PARAMETER)
        if flags & (_FORWARDS | _BACKWARDS) not in (_FORWARDS, _BACKWARDS):
            raise CallError(NtStatus.INVALID_PARAMETER)
        record = opened.begins(flags, int(request["RecordOffset"]))
        event = opened.log.get(record)
        if event is None:
            raise CallError(NtStatus.INVALID_PARAMETER if flags & _SEEK else NtStatus.END_OF_FILE)
        data, step = b"", 1 if flags & _FORWARDS else -1
        while event is not None:
            packed = pack(event, self._server.settings.server_name)
            if len(data) + len(packed) > size:
                break
            data, opened.at = data + packed, event.record
            event = opened.log.get(event.record + step)
        if not data:
            answer["MinNumberOfBytesNeeded"] = len(packed)
            raise CallError(NtStatus.BUFFER_TOO_SMALL)
        answer["Buffer"], answer["NumberOfBytesRead"] = data.ljust(size, b"\0"), len(data)

    def open_backup(self, request: Any, answer: Any) -> None:
        """Serve ElfrOpenBELW: there are no backups. [MS-EVEN 3.1.4.1]"""
        answer["LogHandle"] = NULL_HANDLE
        self._check()
        raise CallError(NtStatus.OBJECT_NAME_NOT_FOUND)

    def refuse_source(self, request: Any, answer: Any) -> None:
        """Refuse ElfrRegisterEventSourceW: no client may write. [MS-EVEN 3.1.4.5]"""
        answer["LogHandle"] = NULL_HANDLE
        raise CallError(NtStatus.ACCESS_DENIED)

    def refuse_report(self, request: Any, answer: Any) -> None:
        """Refuse ElfrReportEventW. [MS-EVEN 3.1.4.13]"""
        answer["RecordNumber"] = answer["TimeWritten"] = NULL
        self.refuse(request, answer)

    def refuse(self, request: Any, answer: Any) -> None:
        """Refuse to clear a log and to save it to a file. [MS-EVEN 3.1.4.9, 3.1.4.11]"""
        self._log(request["LogHandle"])
        raise CallError(NtStatus.ACCESS_DENIED)


def interface(server: ServerState, session: Session) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    calls = _EventLog(server, session)
    served = operations(
        (even.ElfrClearELFW, Status, calls.refuse),
        (even.ElfrBackupELFW, Status, calls.refuse),
        (even.ElfrCloseEL, calls.close),
        (even.ElfrNumberOfRecords, calls.count),
        (even.ElfrOldestRecord, calls.oldest),
        (_with_name(even.ElfrOpenELW), HandleAndStatus, calls.open),
        (_with_name(even.ElfrRegisterEventSourceW), HandleAndStatus, calls.refuse_source),
        (_with_name(even.ElfrOpenBELW), HandleAndStatus, calls.open_backup),
        (even.ElfrReadELW, lambda: ByteAnswer("Buffer", "NumberOfBytesRead", "MinNumberOfBytesNeeded"), calls.read),
        (ReportEvent, even.ElfrReportEventWResponse, calls.refuse_report),
        (GetLogInformation, lambda: ByteAnswer("lpBuffer", "pcbBytesNeeded"), calls.information),
    )
    return Interface(UUID, VERSION, served)
