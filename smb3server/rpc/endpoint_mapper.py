"""The endpoint mapper: returns the port on which an interface is served. [C706 appendix O, MS-RPCE 3.3.3.2]"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from impacket.dcerpc.v5 import epm
from impacket.dcerpc.v5.ndr import NDRCALL

from smb3server.rpc.association import Association
from smb3server.rpc.dcerpc import FAULT_BAD_STUB_DATA, NDR, Fault, Interface
from smb3server.rpc.ndr import operation, wire_uuid

UUID = wire_uuid("E1AF8308-5D1F-11C9-91A4-08002B14A0FA")
VERSION = 3
PORT = 135

STATUS_OK = 0
STATUS_NOT_REGISTERED = 0x16C9A0D6
"""ept_s_not_registered."""
STATUS_INVALID_CONTEXT = 0x16C9A0D3
"""ept_s_cant_perform_op. No lookup spans several calls here, so no handle to continue one is valid."""

_FLOOR_UUID, _FLOOR_RPC, _FLOOR_TCP, _FLOOR_IP = 0x0D, 0x0B, 0x07, 0x09
_INQUIRE_ALL, _INQUIRE_INTERFACE = 0, 1
_MAX_TOWER = 1024


class Mapping(NamedTuple):
    """An interface and its port."""

    uuid: bytes
    """The UUID as encoded in messages."""
    version: int
    minor: int
    port: int
    annotation: str


def _floor(protocol: bytes, related: bytes) -> bytes:
    return struct.pack("<H", len(protocol)) + protocol + struct.pack("<H", len(related)) + related


def tower(mapping: Mapping, host: str) -> bytes:
    """Return the protocol tower of an interface over TCP. [C706 appendix L]

    IPv6 has no floor of its own: the client uses the address at which it reached the mapper (MS-RPCE 2.1.1.1).
    """
    address = ipaddress.ip_address(host.partition("%")[0] or "0.0.0.0")
    packed = address.packed if address.version == 4 else bytes(4)
    floors = (
        _floor(
            bytes((_FLOOR_UUID,)) + mapping.uuid + struct.pack("<H", mapping.version), struct.pack("<H", mapping.minor)
        ),
        _floor(bytes((_FLOOR_UUID,)) + NDR[:18], NDR[18:]),
        _floor(bytes((_FLOOR_RPC,)), bytes(2)),
        _floor(bytes((_FLOOR_TCP,)), struct.pack(">H", mapping.port)),
        _floor(bytes((_FLOOR_IP,)), packed),
    )
    return struct.pack("<H", len(floors)) + b"".join(floors)


def _floors(data: bytes) -> Iterator[bytes]:
    """Iterate over the left-hand sides of a tower. Raises ``ValueError`` for a malformed tower."""
    if len(data) < 2:
        raise ValueError("tower too short")
    position = 2
    for _ in range(int.from_bytes(data[:2], "little")):
        for side in range(2):
            if position + 2 > len(data):
                raise ValueError("floor exceeds its tower")
            size = int.from_bytes(data[position : position + 2], "little")
            if position + 2 + size > len(data):
                raise ValueError("floor exceeds its tower")
            if side == 0:
                yield data[position + 2 : position + 2 + size]
            position += 2 + size


def wanted(data: bytes) -> tuple[bytes, int] | None:
    """Return (UUID, version) that a tower asks for, or None if it does not ask for NDR over TCP.

    Raises ``ValueError`` for a malformed tower.
    """
    sides = list(_floors(data))
    if len(sides) < 4 or len(sides[0]) != 19 or len(sides[1]) != 19:
        return None
    if sides[0][0] != _FLOOR_UUID or sides[1] != bytes((_FLOOR_UUID,)) + NDR[:18]:
        return None
    if sides[2][:1] != bytes((_FLOOR_RPC,)) or sides[3][:1] != bytes((_FLOOR_TCP,)):
        return None
    return sides[0][1:17], int.from_bytes(sides[0][17:19], "little")


class LookupHandleFree(NDRCALL):  # type: ignore[misc]
    """Request of ept_lookup_handle_free."""

    opnum = 4
    structure = (("entry_handle", epm.ept_lookup_handle_t),)


class LookupHandleFreeResponse(NDRCALL):  # type: ignore[misc]
    """Response of ept_lookup_handle_free."""

    structure = (("entry_handle", epm.ept_lookup_handle_t), ("status", epm.error_status))


class _Sized:
    """A response with an array whose declared size is the client's maximum, whatever number of elements is used.

    impacket declares the number of used elements.
    """

    _OFFSET = 24
    """Offset of the declared size, behind the lookup handle and the number of elements."""

    def __init__(self, response: Any, size: int) -> None:
        self._response = response
        self._size = size

    def getData(self) -> bytes:
        """Return the encoded response with the declared size replaced."""
        data = bytearray(self._response.getData())
        data[self._OFFSET : self._OFFSET + 4] = self._size.to_bytes(4, "little")
        return bytes(data)


class EndpointMapper:
    """The mappings of one server. ``mappings`` may change at any time.

    Calls need no authentication, and change nothing for other clients.
    """

    def __init__(self) -> None:
        self.mappings: list[Mapping] = []

    def interface(self, association: Association) -> Interface:
        """Return the operations for one association."""
        return Interface(
            UUID,
            VERSION,
            {
                2: operation(epm.ept_lookup, lambda request: self._lookup(association, request)),
                3: operation(epm.ept_map, lambda request: self._map(association, request)),
                4: operation(LookupHandleFree, self._free),
            },
        )

    def _map(self, association: Association, request: Any) -> Any:
        if isinstance(request["map_tower"], bytes):
            # A null pointer, which impacket represents as bytes. Without a tower there is no interface to look up.
            raise Fault(FAULT_BAD_STUB_DATA)
        response = epm.ept_mapResponse()
        found: list[Mapping] = []
        data = b"".join(request["map_tower"]["tower_octet_string"])
        try:
            asked = wanted(data) if len(data) <= _MAX_TOWER else None
        except ValueError:
            asked = None
        if asked is not None:
            found = [entry for entry in self.mappings if (entry.uuid, entry.version) == asked]
        found = found[: request["max_towers"]]
        for entry in found:
            item = epm.twr_p_t()
            _fill(item, tower(entry, association.local_host))
            response["ITowers"].append(item)
        response["num_towers"] = len(found)
        response["status"] = STATUS_OK if found else STATUS_NOT_REGISTERED
        return _Sized(response, request["max_towers"])

    def _lookup(self, association: Association, request: Any) -> Any:
        response = epm.ept_lookupResponse()
        found = []
        if request["entry_handle"].isNull():
            found = self.mappings
            if request["inquiry_type"] == _INQUIRE_INTERFACE and not isinstance(request["Ifid"], bytes):
                found = [entry for entry in found if entry.uuid == request["Ifid"]["Uuid"]]
            elif request["inquiry_type"] != _INQUIRE_ALL:
                found = []
        found = found[: request["max_ents"]]
        for entry in found:
            item = epm.ept_entry_t()
            item["object"] = bytes(16)
            _fill(item["tower"], tower(entry, association.local_host))
            item["annotation"] = entry.annotation.encode("ascii")[:63] + b"\0"
            response["entries"].append(item)
        response["num_ents"] = len(found)
        response["status"] = STATUS_OK if found else STATUS_NOT_REGISTERED
        return _Sized(response, request["max_ents"])

    def _free(self, request: Any) -> Any:
        response = LookupHandleFreeResponse()
        response["status"] = STATUS_OK if request["entry_handle"].isNull() else STATUS_INVALID_CONTEXT
        return response


def _fill(item: Any, data: bytes) -> None:
    item["tower_length"] = len(data)
    item["tower_octet_string"] = data
