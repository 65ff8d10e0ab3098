"""Windows Remote Registry: settings of this server where Windows has them. For administrators, read only. [MS-RRP]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from impacket.dcerpc.v5 import rrp
from impacket.dcerpc.v5.dtypes import NULL
from impacket.dcerpc.v5.ndr import NDRCALL
from impacket.dcerpc.v5.scmr import SC_RPC_HANDLE

from smb3server.rpc import registry
from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.ndr import (
    ERROR_ACCESS_DENIED,
    ERROR_FILE_NOT_FOUND,
    ERROR_INSUFFICIENT_BUFFER,
    ERROR_INVALID_PARAMETER,
    ERROR_MORE_DATA,
    ERROR_NO_MORE_ITEMS,
    NULL_HANDLE,
    CallError,
    Calls,
    ServerName,
    declare,
    operations,
    text,
    wire_uuid,
)
from smb3server.rpc.registry import Key, Value
from smb3server.rpc.rights import DACL_SECURITY, GROUP_SECURITY, OWNER_SECURITY, SACL_SECURITY, ObjectRights
from smb3server.state.objects import Session
from smb3server.state.server_state import ServerState
from smb3server.wire.filetime import from_ns

UUID = wire_uuid("338CD001-2244-31F1-AAAA-900038001003")
VERSION = 1

_QUERY, _ENUMERATE, _READ_CONTROL = 0x0001, 0x0008, 0x20000
RIGHTS = ObjectRights(0x20019, 0x20006, 0x20019, 0x20019, 0)
"""KEY_*: all that there is for administrators is KEY_READ. [MS-RRP 2.2.4]"""
_NAMESPACES = 0x300
"""KEY_WOW64_64KEY and KEY_WOW64_32KEY: there is one namespace for both. [MS-RRP 3.1.1.4]"""
_REGISTRY_VERSION = 5
"""6 would say that there are two namespaces. [MS-RRP 3.1.5.24]"""
MAX_VALUES = 64
"""Values of one query."""


def _answer(response: Any) -> Any:
    """Return an answer of impacket, with its handle as plain bytes."""
    fields = ((name, SC_RPC_HANDLE if kind is rrp.RPC_HKEY else kind) for name, kind in response.structure)
    return declare(NDRCALL, structure=tuple(fields))


def _named(request: Any) -> Any:
    """Return a request of impacket, with the server named by one character."""
    fields = ((name, ServerName if name == "ServerName" else kind) for name, kind in request.structure)
    return declare(NDRCALL, opnum=request.opnum, structure=tuple(fields))


class _Open(NamedTuple):
    """What a handle stands for."""

    key: Key
    granted: int


def _given(request: Any, name: str) -> bool:
    """Return whether an argument that is a pointer was given."""
    return bool(request.fields[name]["ReferentID"])


def _nth(entries: Sequence[Key | Value], index: int, buffer: Any) -> str:
    """Return the name of an entry with its NUL. Raises ``CallError`` if there is none, or no room in the buffer."""
    if index >= len(entries):
        raise CallError(ERROR_NO_MORE_ITEMS)
    name = text(entries[index].name)
    if len(name.encode("utf-16-le")) > int(buffer["MaximumLength"]):
        raise CallError(ERROR_MORE_DATA)
    return name


def _asked(value: Any) -> str:
    """Return a string argument without its terminator, or '' if there is none."""
    return str(value).rstrip("\0") if isinstance(value, str) else ""


class _Registry(Calls):
    def _open(self, key: Key | None, desired: int) -> bytes:
        """Return a handle of a key."""
        granted = RIGHTS.granted(desired & ~_NAMESPACES, self._server, self._session)
        if granted is None:
            raise CallError(ERROR_ACCESS_DENIED)
        if key is None:
            raise CallError(ERROR_FILE_NOT_FOUND)
        return self._handles.add(_Open(key, granted))

    def _key(self, handle: Any, right: int) -> Key:
        found: _Open = self._handles.find(handle, _Open)
        if not found.granted & right:
            raise CallError(ERROR_ACCESS_DENIED)
        return found.key

    # Handles

    def open_local_machine(self, request: Any, answer: Any) -> None:
        """Serve OpenLocalMachine. [MS-RRP 3.1.5.3]"""
        answer["phKey"] = NULL_HANDLE
        answer["phKey"] = self._open(registry.local_machine(self._server), int(request["samDesired"]))

    def open_empty(self, request: Any, answer: Any) -> None:
        """Serve the other predefined keys: this server has no settings there. [MS-RRP 3.1.5.1, 3.1.5.2, 3.1.5.5,
        3.1.5.25]"""
        answer["phKey"] = NULL_HANDLE
        answer["phKey"] = self._open(Key(""), int(request["samDesired"]))

    def open(self, request: Any, answer: Any) -> None:
        """Serve BaseRegOpenKey. [MS-RRP 3.1.5.15]"""
        answer["phkResult"] = NULL_HANDLE
        parent: _Open = self._handles.find(request["hKey"], _Open)
        found = parent.key.find(_asked(request["lpSubKey"]).strip("\\"))
        answer["phkResult"] = self._open(found, int(request["samDesired"]))

    def close(self, request: Any, answer: Any) -> None:
        """Serve BaseRegCloseKey. [MS-RRP 3.1.5.6]"""
        self._handles.close(request["hKey"])
        answer["hKey"] = NULL_HANDLE

    # Keys

    def enumerate_keys(self, request: Any, answer: Any) -> None:
        """Serve BaseRegEnumKey. Sizes are in bytes and count the NUL. [MS-RRP 3.1.5.10]"""
        try:
            keys = self._key(request["hKey"], _ENUMERATE).below()
            name = _nth(keys, request["dwIndex"], request.fields["lpNameIn"])
        except CallError:
            answer["lpNameOut"] = answer["lplpClassOut"] = answer["lpftLastWriteTime"] = NULL
            raise
        answer["lpNameOut"] = name
        answer["lplpClassOut"] = text("") if _given(request, "lpClassIn") else NULL
        if _given(request, "lpftLastWriteTime"):
            self._put_time(answer["lpftLastWriteTime"])
        else:
            answer["lpftLastWriteTime"] = NULL

    def _put_time(self, field: Any) -> None:
        """Set the time of the last change: the start of the server."""
        ticks = from_ns(int(self._server.server_start_time * 1e9))
        field["dwLowDateTime"], field["dwHighDateTime"] = ticks & 0xFFFFFFFF, ticks >> 32

    def information(self, request: Any, answer: Any) -> None:
        """Serve BaseRegQueryInfoKey. [MS-RRP 3.1.5.16]"""
        answer["lpClassOut"] = NULL
        key = self._key(request["hKey"], _QUERY)
        keys, values = key.below(), key.values()
        answer["lpcSubKeys"], answer["lpcValues"] = len(keys), len(values)
        answer["lpcbMaxSubKeyLen"] = 2 * max((len(one.name) for one in keys), default=0)
        answer["lpcbMaxValueNameLen"] = 2 * max((len(one.name) for one in values), default=0)
        answer["lpcbMaxValueLen"] = max((len(one.data) for one in values), default=0)
        answer["lpcbSecurityDescriptor"] = len(RIGHTS.descriptor(OWNER_SECURITY | GROUP_SECURITY | DACL_SECURITY))
        self._put_time(answer["lpftLastWriteTime"])

    def version(self, request: Any, answer: Any) -> None:
        """Serve BaseRegGetVersion. [MS-RRP 3.1.5.24]"""
        self._handles.find(request["hKey"], _Open)
        answer["lpdwVersion"] = _REGISTRY_VERSION

    def flush(self, request: Any, answer: Any) -> None:
        """Serve BaseRegFlushKey: nothing waits to be written. [MS-RRP 3.1.5.12]"""
        self._handles.find(request["hKey"], _Open)

    def security(self, request: Any, answer: Any) -> None:
        """Serve BaseRegGetKeySecurity. [MS-RRP 3.1.5.13]"""
        told = answer["pRpcSecurityDescriptorOut"]
        room = int(request["pRpcSecurityDescriptorIn"]["cbInSecurityDescriptor"])
        parts = int(request["SecurityInformation"])
        try:
            self._key(request["hKey"], _READ_CONTROL)
            if parts & SACL_SECURITY:
                raise CallError(ERROR_ACCESS_DENIED)
            data = RIGHTS.descriptor(parts)
            told["cbInSecurityDescriptor"] = told["cbOutSecurityDescriptor"] = len(data)
            if room < len(data):
                raise CallError(ERROR_INSUFFICIENT_BUFFER)
        except CallError:
            told["lpSecurityDescriptor"] = NULL
            raise
        told["lpSecurityDescriptor"] = data

    # Values

    def enumerate_values(self, request: Any, answer: Any) -> None:
        """Serve BaseRegEnumValue. [MS-RRP 3.1.5.11]"""
        try:
            values = self._key(request["hKey"], _QUERY).values()
            name = _nth(values, request["dwIndex"], request.fields["lpValueNameIn"])
        except CallError:
            answer["lpValueNameOut"] = NULL
            self._no_value(answer)
            raise
        answer["lpValueNameOut"] = name
        self._put(request, answer, values[int(request["dwIndex"])])

    def query(self, request: Any, answer: Any) -> None:
        """Serve BaseRegQueryValue. [MS-RRP 3.1.5.17]"""
        try:
            found = self._key(request["hKey"], _QUERY).value(_asked(request["lpValueName"]))
            if found is None:
                raise CallError(ERROR_FILE_NOT_FOUND)
        except CallError:
            self._no_value(answer)
            raise
        self._put(request, answer, found)

    @staticmethod
    def _no_value(answer: Any) -> None:
        answer["lpType"] = answer["lpData"] = answer["lpcbData"] = answer["lpcbLen"] = NULL

    @staticmethod
    def _put(request: Any, answer: Any, value: Value) -> None:
        """Answer with what the client has asked for: type, size, and the data if it fits."""
        wants, room = _given(request, "lpData"), _given(request, "lpcbData")
        answer["lpType"] = value.type if _given(request, "lpType") else NULL
        answer["lpcbData"] = len(value.data) if room else NULL
        fits = room and len(value.data) <= int(request["lpcbData"])
        sent = wants and fits
        answer["lpcbLen"] = (len(value.data) if sent else 0) if _given(request, "lpcbLen") else NULL
        answer["lpData"] = value.data if sent else NULL
        if wants and not room:
            raise CallError(ERROR_INVALID_PARAMETER)
        if wants and not fits:
            raise CallError(ERROR_MORE_DATA)

    def query_several(self, request: Any, answer: Any) -> None:
        """Serve BaseRegQueryMultipleValues and BaseRegQueryMultipleValues2. [MS-RRP 3.1.5.26, 3.1.5.30]"""
        size = "ldwRequiredSize" if isinstance(request, rrp.BaseRegQueryMultipleValues2) else "ldwTotsize"
        answer["lpvalueBuf"] = NULL
        wanted = request["val_listIn"]
        room, buffer = int(request["ldwTotsize"]), _given(request, "lpvalueBuf")
        if len(wanted) > MAX_VALUES or len(wanted) != int(request["num_vals"]):
            raise CallError(ERROR_INVALID_PARAMETER)
        # The answer is as long as the buffer that has come, never as a number alone says.
        if buffer and room != len(request["lpvalueBuf"]):
            raise CallError(ERROR_INVALID_PARAMETER)
        key = self._key(request["hKey"], _QUERY)
        data = b""
        found = []
        for one in wanted:
            value = key.value(_asked(one["ve_valuename"]))
            if value is None:
                raise CallError(ERROR_FILE_NOT_FOUND)
            told = rrp.RVALENT()
            told["ve_valuename"] = text(value.name)
            told["ve_valuelen"], told["ve_valueptr"], told["ve_type"] = len(value.data), len(data), value.type
            data += value.data + bytes(-len(value.data) % 4)
            found.append(told)
        answer[size] = len(data)
        for told in found:
            answer["val_listOut"].append(told)
        if room < len(data):
            raise CallError(ERROR_MORE_DATA)
        if buffer:
            answer.fields["lpvalueBuf"] = rrp.PBYTE_ARRAY()
            answer["lpvalueBuf"] = data.ljust(room, b"\0") if size == "ldwRequiredSize" else data

    # What nobody can do here

    def refuse(self, request: Any, answer: Any) -> None:
        """Refuse a call that would change the registry, or write it to a file. [MS-RRP 3.1.5.7 to 3.1.5.9, 3.1.5.14,
        3.1.5.18 to 3.1.5.23, 3.1.5.27, 3.1.5.31]"""
        for name, kind in answer.structure:
            if kind is SC_RPC_HANDLE:
                answer[name] = NULL_HANDLE
            elif kind is rrp.LPULONG:
                answer[name] = NULL
        self._handles.find(request["hKey"], _Open)
        raise CallError(ERROR_ACCESS_DENIED)


def interface(server: ServerState, session: Session) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    calls = _Registry(server, session)
    served = operations(
        (_named(rrp.OpenClassesRoot), _answer(rrp.OpenClassesRootResponse), calls.open_empty),
        (_named(rrp.OpenCurrentUser), _answer(rrp.OpenCurrentUserResponse), calls.open_empty),
        (_named(rrp.OpenLocalMachine), _answer(rrp.OpenLocalMachineResponse), calls.open_local_machine),
        (_named(rrp.OpenUsers), _answer(rrp.OpenUsersResponse), calls.open_empty),
        (rrp.BaseRegCloseKey, _answer(rrp.BaseRegCloseKeyResponse), calls.close),
        (rrp.BaseRegCreateKey, _answer(rrp.BaseRegCreateKeyResponse), calls.refuse),
        (rrp.BaseRegDeleteKey, _answer(rrp.BaseRegDeleteKeyResponse), calls.refuse),
        (rrp.BaseRegDeleteValue, _answer(rrp.BaseRegDeleteValueResponse), calls.refuse),
        (rrp.BaseRegEnumKey, _answer(rrp.BaseRegEnumKeyResponse), calls.enumerate_keys),
        (rrp.BaseRegEnumValue, _answer(rrp.BaseRegEnumValueResponse), calls.enumerate_values),
        (rrp.BaseRegFlushKey, _answer(rrp.BaseRegFlushKeyResponse), calls.flush),
        (rrp.BaseRegGetKeySecurity, _answer(rrp.BaseRegGetKeySecurityResponse), calls.security),
        (rrp.BaseRegLoadKey, _answer(rrp.BaseRegLoadKeyResponse), calls.refuse),
        (rrp.BaseRegOpenKey, _answer(rrp.BaseRegOpenKeyResponse), calls.open),
        (rrp.BaseRegQueryInfoKey, _answer(rrp.BaseRegQueryInfoKeyResponse), calls.information),
        (rrp.BaseRegQueryValue, _answer(rrp.BaseRegQueryValueResponse), calls.query),
        (rrp.BaseRegReplaceKey, _answer(rrp.BaseRegReplaceKeyResponse), calls.refuse),
        (rrp.BaseRegRestoreKey, _answer(rrp.BaseRegRestoreKeyResponse), calls.refuse),
        (rrp.BaseRegSaveKey, _answer(rrp.BaseRegSaveKeyResponse), calls.refuse),
        (rrp.BaseRegSetKeySecurity, _answer(rrp.BaseRegSetKeySecurityResponse), calls.refuse),
        (rrp.BaseRegSetValue, _answer(rrp.BaseRegSetValueResponse), calls.refuse),
        (rrp.BaseRegUnLoadKey, _answer(rrp.BaseRegUnLoadKeyResponse), calls.refuse),
        (rrp.BaseRegGetVersion, _answer(rrp.BaseRegGetVersionResponse), calls.version),
        (_named(rrp.OpenCurrentConfig), _answer(rrp.OpenCurrentConfigResponse), calls.open_empty),
        (rrp.BaseRegQueryMultipleValues, _answer(rrp.BaseRegQueryMultipleValuesResponse), calls.query_several),
        (rrp.BaseRegSaveKeyEx, _answer(rrp.BaseRegSaveKeyExResponse), calls.refuse),
        (rrp.BaseRegQueryMultipleValues2, _answer(rrp.BaseRegQueryMultipleValues2Response), calls.query_several),
        (rrp.BaseRegDeleteKeyEx, _answer(rrp.BaseRegDeleteKeyExResponse), calls.refuse),
    )
    return Interface(UUID, VERSION, served)
