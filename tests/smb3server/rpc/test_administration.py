"""Services, registry and event log: sizes of buffers, resumed lists, who may, and how much a client can hold."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from impacket.dcerpc.v5 import even, rrp, scmr
from impacket.dcerpc.v5.dtypes import MAXIMUM_ALLOWED, NULL

from smb3server.rpc import eventlog, svcctl, winreg
from smb3server.rpc.dcerpc import FAULT_BAD_STUB_DATA, Fault
from smb3server.rpc.ndr import CONTEXT_MISMATCH, MAX_HANDLES
from smb3server.rpc.srvsvc_names import name_error
from smb3server.state.recent_events import SERVER_SOURCE, WARNING
from smb3server.wire.status import NtStatus
from tools.fuzz.in_memory import USER
from tools.fuzz.mutation import mutate
from tools.fuzz.pipes import stubs_of
from tools.fuzz.services import Services, trusted

ACCESS_DENIED, INSUFFICIENT_BUFFER, MORE_DATA, NO_MORE_ITEMS, INVALID_LEVEL = 5, 122, 234, 259, 124


class Calls:
    """The interfaces, for an administrator or for another user."""

    def __init__(self, administrator: bool) -> None:
        self.services = Services()
        self.server = self.services.server
        self.server.settings.admins = frozenset({USER} if administrator else ())
        self._found = self.services.interfaces(trusted(self.services.association()))

    def call(self, uuid: bytes, request: Any) -> bytes:
        return self.run(uuid, request.opnum, request.getData())

    def run(self, uuid: bytes, number: int, stub: bytes) -> bytes:
        (interface,) = [found for found in self._found if found.uuid == uuid]
        answer = interface.operations[number](stub)
        assert isinstance(answer, bytes)
        return answer

    def manager(self) -> bytes:
        request = scmr.ROpenSCManagerW()
        request["lpMachineName"] = request["lpDatabaseName"] = NULL
        request["dwDesiredAccess"] = MAXIMUM_ALLOWED
        return self.call(svcctl.UUID, request)

    def root(self) -> bytes:
        request = rrp.OpenLocalMachine()
        request["ServerName"] = NULL
        request["samDesired"] = MAXIMUM_ALLOWED
        return self.call(winreg.UUID, request)

    def log(self, name: str = "System") -> bytes:
        request = even.ElfrOpenELW()
        request["UNCServerName"] = NULL
        request["ModuleName"], request["RegModuleName"] = name, ""
        request["MajorVersion"] = request["MinorVersion"] = 1
        return self.call(eventlog.UUID, request)


@pytest.fixture
def calls() -> Iterator[Calls]:
    yield Calls(True)


def error_of(answer: bytes) -> int:
    return int.from_bytes(answer[-4:], "little")


def fault_of(calls: Calls, uuid: bytes, request: Any) -> int:
    with pytest.raises(Fault) as caught:
        calls.call(uuid, request)
    return caught.value.status


def enumerate_services(handle: bytes, size: int, resume: int = 0) -> Any:
    request = scmr.REnumServicesStatusW()
    request["hSCManager"] = handle
    request["dwServiceType"], request["dwServiceState"] = 0x30, 3
    request["cbBufSize"], request["lpResumeIndex"] = size, resume
    return request


def test_a_list_of_services_goes_on_where_it_ended(calls: Calls) -> None:
    """ERROR_MORE_DATA, bytes needed for the rest, and the index of the next service. [MS-SCMR 3.1.4.14]"""
    manager = calls.manager()[:20]
    found, resume = 0, 0
    for _ in range(3):
        answer = calls.call(svcctl.UUID, enumerate_services(manager, 128, resume))
        assert len(answer) == 4 + 128 + 20
        needed, count, pointer, resume, error = struct.unpack_from("<5I", answer, 132)
        assert count == 1 and pointer
        found += count
        assert (error, needed > 0) == ((0, False) if found == 3 else (MORE_DATA, True))
        name = struct.unpack_from("<I", answer, 4)[0]
        assert answer[4 + name : 4 + 128].decode("utf-16-le").count("\0") == 2
    answer = calls.call(svcctl.UUID, enumerate_services(manager, 0))
    assert error_of(answer) == MORE_DATA
    needed = struct.unpack_from("<I", answer, 4)[0]
    assert error_of(calls.call(svcctl.UUID, enumerate_services(manager, needed))) == 0


def test_buffers_have_a_range(calls: Calls) -> None:
    """Before anything is allocated. [MS-SCMR 2.2.9, MS-EVEN 2.2.9]"""
    manager, log = calls.manager()[:20], calls.log()[:20]
    assert fault_of(calls, svcctl.UUID, enumerate_services(manager, 0x40001)) == FAULT_BAD_STUB_DATA
    read = even.ElfrReadELW()
    read["LogHandle"], read["ReadFlags"], read["RecordOffset"] = log, 5, 0
    read["NumberOfBytesToRead"] = 0x80000
    assert fault_of(calls, eventlog.UUID, read) == FAULT_BAD_STUB_DATA


def test_only_administrators_see_anything() -> None:
    """Other users may connect to the service manager, as on Windows from afar."""
    calls = Calls(False)
    manager = calls.manager()
    assert error_of(manager) == 0
    assert error_of(calls.call(svcctl.UUID, enumerate_services(manager[:20], 0))) == ACCESS_DENIED
    request = scmr.ROpenServiceW()
    request["hSCManager"], request["lpServiceName"], request["dwDesiredAccess"] = manager[:20], "EventLog\0", 4
    assert error_of(calls.call(svcctl.UUID, request)) == ACCESS_DENIED
    assert (error_of(calls.root()), calls.root()[:20]) == (ACCESS_DENIED, bytes(20))
    assert error_of(calls.log("Security")) == NtStatus.ACCESS_DENIED


@pytest.mark.parametrize("what", ["manager", "root", "log"])
def test_handles_are_limited_and_belong_to_their_interface(calls: Calls, what: str) -> None:
    opened = getattr(calls, what)
    for _ in range(MAX_HANDLES):
        assert error_of(opened()) == 0
    with pytest.raises(Fault):
        opened()
    request = scmr.RQueryServiceStatus()
    request["hService"] = calls.root()[:20] if what != "root" else bytes(20)
    assert fault_of(calls, svcctl.UUID, request) == CONTEXT_MISMATCH


def test_a_handle_of_the_manager_is_none_of_a_service(calls: Calls) -> None:
    request = scmr.RQueryServiceStatus()
    request["hService"] = calls.manager()[:20]
    assert error_of(calls.call(svcctl.UUID, request)) == 6


def test_services_are_those_that_run(calls: Calls) -> None:
    assert "SmbWitness" not in [one.name for one in svcctl.running(calls.server)]
    calls.server.serves_witness = True
    assert [one.name for one in svcctl.running(calls.server)][-1] == "SmbWitness"


def test_a_short_buffer_for_a_value(calls: Calls) -> None:
    """ERROR_MORE_DATA with the size that is needed; the size alone without a buffer. [MS-RRP 3.1.5.17]"""
    path = "SYSTEM\\CurrentControlSet\\Control\\ProductOptions\0"
    request = rrp.BaseRegOpenKey()
    request["hKey"]["context_handle_uuid"], request["lpSubKey"] = calls.root()[4:20], path
    request["dwOptions"], request["samDesired"] = 0, MAXIMUM_ALLOWED
    key = calls.call(winreg.UUID, request)[4:20]
    query = rrp.BaseRegQueryValue()
    query["hKey"]["context_handle_uuid"], query["lpValueName"] = key, "producttype\0"
    query["lpType"], query["lpData"], query["lpcbData"], query["lpcbLen"] = 0, b"xx", 2, 0
    short = rrp.BaseRegQueryValueResponse(calls.call(winreg.UUID, query))
    assert (short["ErrorCode"], short["lpcbData"], short["lpType"]) == (MORE_DATA, 18, 1)
    query = rrp.BaseRegQueryValue()
    query["hKey"]["context_handle_uuid"], query["lpValueName"] = key, "ProductType\0"
    query["lpType"], query["lpData"], query["lpcbData"], query["lpcbLen"] = 0, NULL, 0, 0
    size = rrp.BaseRegQueryValueResponse(calls.call(winreg.UUID, query))
    assert (size["ErrorCode"], size["lpcbData"]) == (0, 18)


def read(calls: Calls, log: bytes, flags: int, offset: int, size: int) -> tuple[list[int], int, int]:
    """Return the numbers of the records that are read, the bytes that are needed, and the status."""
    request = even.ElfrReadELW()
    request["LogHandle"], request["ReadFlags"], request["RecordOffset"] = log, flags, offset
    request["NumberOfBytesToRead"] = size
    answer = calls.call(eventlog.UUID, request)
    count, needed, status = struct.unpack("<III", answer[-12:])
    records, at = [], 4
    while at < 4 + count:
        length, signature, record = struct.unpack_from("<III", answer, at)
        assert signature == 0x654C664C and answer[at + length - 4 : at + length] == answer[at : at + 4]
        records.append(record)
        at += length
    return records, needed, status


def test_reading_forwards_backwards_and_from_a_record(calls: Calls) -> None:
    """[MS-EVEN 3.1.4.7]"""
    for number in range(3):
        calls.server.events.recent.add(551, WARNING, SERVER_SOURCE, f"text {number}")
    sequential, seek, forwards, backwards = 1, 2, 4, 8
    log = calls.log()[:20]
    records, needed, status = read(calls, log, sequential | forwards, 0, 0)
    assert (records, status) == ([], NtStatus.BUFFER_TOO_SMALL)
    assert read(calls, log, sequential | forwards, 0, needed) == ([1], 0, 0)
    assert read(calls, log, sequential | forwards, 0, 4096) == ([2, 3], 0, 0)
    assert read(calls, log, sequential | forwards, 0, 4096) == ([], 0, NtStatus.END_OF_FILE)
    assert read(calls, calls.log()[:20], sequential | backwards, 0, 4096) == ([3, 2, 1], 0, 0)
    assert read(calls, log, seek | forwards, 2, 4096) == ([2, 3], 0, 0)
    assert read(calls, log, seek | backwards, 2, 4096) == ([2, 1], 0, 0)
    assert read(calls, log, seek | forwards, 4, 4096)[2] == NtStatus.INVALID_PARAMETER
    for flags in (0, sequential, forwards, sequential | seek | forwards, sequential | forwards | backwards):
        assert read(calls, log, flags, 0, 4096)[2] == NtStatus.INVALID_PARAMETER


@pytest.mark.parametrize(
    ("name", "kind", "flags", "expected"),
    [
        ("data", 9, 0, 0),
        ("x" * 80, 9, 0, 0),
        ("x" * 81, 9, 0, 123),
        ("", 9, 0, 123),
        ("a|b", 9, 0, 123),
        ("a\x01", 1, 0, 123),
        (" ..", 1, 0, 123),
        ("", 2, 0, 0),
        ("a|b", 12, 0, 0),
        ("A B", 6, 0, 123),
        ("srv ", 4, 0, 123),
        ("pc*", 11, 0, 0),
        ("p*c", 11, 0, 123),
        ("x" * 260, 11, 0, 123),
        ("data", 14, 0, 87),
        ("data", 9, 1, 87),
    ],
)
def test_names(name: str, kind: int, flags: int, expected: int) -> None:
    """[MS-SRVS 2.2.2.8, 3.1.4.32]"""
    assert name_error(name, kind, flags) == expected


def several(calls: Calls, room: int, buffer: bytes) -> Any:
    """Ask for ProductType by BaseRegQueryMultipleValues2."""
    opened = rrp.BaseRegOpenKey()
    opened["hKey"]["context_handle_uuid"] = calls.root()[4:20]
    opened["lpSubKey"] = "SYSTEM\\CurrentControlSet\\Control\\ProductOptions\0"
    opened["dwOptions"], opened["samDesired"] = 0, MAXIMUM_ALLOWED
    wanted = rrp.RVALENT()
    wanted["ve_valuename"] = "ProductType\0"
    wanted["ve_valuelen"], wanted["ve_valueptr"], wanted["ve_type"] = 12, 0, 1
    request = rrp.BaseRegQueryMultipleValues2()
    request["hKey"]["context_handle_uuid"] = calls.call(winreg.UUID, opened)[4:20]
    request["val_listIn"].append(wanted)
    request["num_vals"], request["ldwTotsize"] = 1, room
    request["lpvalueBuf"] = buffer
    return rrp.BaseRegQueryMultipleValues2Response(calls.call(winreg.UUID, request))


def test_an_answer_is_never_longer_than_the_buffer_that_came(calls: Calls) -> None:
    """A size of 4 GiB with a buffer of some bytes. [MS-RRP 3.1.5.30]"""
    assert several(calls, 0xFFFFFFF0, b"x" * 32)["ErrorCode"] == 87
    found = several(calls, 32, b"x" * 32)
    assert (found["ErrorCode"], found["ldwRequiredSize"], len(found["lpvalueBuf"])) == (0, 20, 32)
    short = several(calls, 8, b"x" * 8)
    assert (short["ErrorCode"], short["ldwRequiredSize"]) == (MORE_DATA, 20)


def test_calls_that_are_no_calls(calls: Calls) -> None:
    """Damaged arguments of every operation, with handles that are open: an answer or a fault, and nothing else."""
    chance = random.Random(7)
    handles = {
        "svcctl": (svcctl.UUID, calls.manager()[:20]),
        "winreg": (winreg.UUID, calls.root()[:20]),
        "eventlog": (eventlog.UUID, calls.log()[:20]),
    }
    closing = {"svcctl": 0, "winreg": 5, "eventlog": 2}
    for _ in range(600):
        name = chance.choice(list(handles))
        uuid, handle = handles[name]
        number, stub = chance.choice([call for call in stubs_of(name) if call[0] != closing[name]])
        if stub[:20] == bytes(20):
            stub = handle + mutate(chance, stub[20:] or bytes(4), 6)
        try:
            assert len(calls.run(uuid, number, stub)) < 1 << 20
        except Fault:
            continue
