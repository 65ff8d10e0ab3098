"""Layouts of structures and methods: NDR with impacket, notification buffers with codecs. [MS-SWN 2.2, 3.1.4]"""

import enum
import ipaddress
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from impacket.dcerpc.v5.dtypes import DWORD, LPWSTR, NULL, ULONG, USHORT
from impacket.dcerpc.v5.ndr import NDRCALL, NDRPOINTER, NDRSTRUCT, NDRUniConformantArray

from smb3server.rpc.ndr import declare, wire_uuid
from smb3server.wire.address import Address
from smbdirect.codec import Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Bytes, Int32ul

UUID_TEXT = "CCD8C074-D0E5-4A40-92B4-D074FAA6BA28"
UUID = wire_uuid(UUID_TEXT)
MAJOR, MINOR = 1, 1
"""Version of the RPC interface, in both versions of the protocol. [MS-SWN 1.9]"""
V1, V2 = 0x00010001, 0x00020000
"""Versions of the protocol, as registrations name them. [MS-SWN 3.1.4.2, 3.1.4.5]"""

GROUP_NAME_SIZE = 260
"""Characters of InterfaceGroupName, including the terminator."""
HANDLE_SIZE = 20
"""Bytes of a context handle."""


class Win32(enum.IntEnum):
    """Return values. [MS-ERREF 2.2]"""

    SUCCESS = 0
    ACCESS_DENIED = 5
    INVALID_PARAMETER = 87
    NO_MORE_ITEMS = 259
    NOT_FOUND = 1168
    REVISION_MISMATCH = 1306
    NO_SYSTEM_RESOURCES = 1450
    TIMEOUT = 1460
    INVALID_STATE = 5023


class InterfaceState(enum.IntEnum):
    """WITNESS_INTERFACE_INFO.State. [MS-SWN 2.2.2.5]"""

    UNKNOWN = 0
    AVAILABLE = 1
    UNAVAILABLE = 0xFF


class InterfaceFlags(enum.IntFlag):
    """WITNESS_INTERFACE_INFO.Flags. [MS-SWN 2.2.2.5]"""

    IPV4 = 1
    IPV6 = 2
    WITNESS = 4
    """Clients can register here."""


class MessageType(enum.IntEnum):
    """RESP_ASYNC_NOTIFY.MessageType. The last two need version 2. [MS-SWN 2.2.2.4]"""

    RESOURCE_CHANGE = 1
    CLIENT_MOVE = 2
    SHARE_MOVE = 3
    IP_CHANGE = 4


class AddressFlags(enum.IntFlag):
    """IPADDR_INFO.Flags. [MS-SWN 2.2.2.1]"""

    IPV4 = 0x01
    IPV6 = 0x02
    ONLINE = 0x08
    OFFLINE = 0x10


class RegisterFlags(enum.IntFlag):
    """Flags of WitnessrRegisterEx. [MS-SWN 3.1.4.5]"""

    NONE = 0
    IP_NOTIFICATION = 1


class InterfaceInfo(NamedTuple):
    """WITNESS_INTERFACE_INFO: an interface of a node. [MS-SWN 2.2.2.5]"""

    group_name: str
    """The node's name."""
    version: int
    state: int
    ipv4: ipaddress.IPv4Address | None
    ipv6: ipaddress.IPv6Address | None
    witness: bool
    """Whether clients can register here."""


class AddressInfo(NamedTuple):
    """An address of an IPADDR_INFO, which may hold one of each family."""

    address: Address
    online: bool = True


class ResourceChangeHeader(NamedTuple):
    """RESOURCE_CHANGE up to its name, which follows. [MS-SWN 2.2.2.3]"""

    length: Annotated[int, Int32ul] = 0
    change_type: Annotated[int, Int32ul] = 0


class AddressListHeader(NamedTuple):
    """IPADDR_INFO_LIST up to its records. [MS-SWN 2.2.2.2]"""

    length: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0
    instances: Annotated[int, Int32ul] = 0


class AddressRecord(NamedTuple):
    """IPADDR_INFO on the wire. Addresses are in network order. [MS-SWN 2.2.2.1]"""

    flags: Annotated[int, Int32ul] = 0
    ipv4: Annotated[bytes, Bytes(4)] = bytes(4)
    ipv6: Annotated[bytes, Bytes(16)] = bytes(16)


RESOURCE_CHANGE_HEADER = Codec(ResourceChangeHeader)
ADDRESS_LIST_HEADER = Codec(AddressListHeader)
ADDRESS_RECORD = Codec(AddressRecord)


def pack_resource_change(name: str, state: int) -> bytes:
    """Pack one RESOURCE_CHANGE."""
    text = (name + "\0").encode("utf-16-le", "replace")
    return RESOURCE_CHANGE_HEADER.pack(ResourceChangeHeader(RESOURCE_CHANGE_HEADER.size + len(text), state)) + text


def unpack_resource_changes(data: bytes, count: int) -> list[tuple[str, int]]:
    """Return the (name, state) of each RESOURCE_CHANGE. Raises ``DecodeError``."""
    found = []
    position = 0
    for _ in range(count):
        header = RESOURCE_CHANGE_HEADER.unpack(data, position)
        end = position + header.length
        if header.length < RESOURCE_CHANGE_HEADER.size + 2 or end > len(data):
            raise DecodeError("RESOURCE_CHANGE of a wrong length")
        text = data[position + RESOURCE_CHANGE_HEADER.size : end].decode("utf-16-le", "replace")
        found.append((text.rstrip("\0"), header.change_type))
        position = end
    return found


def pack_address_list(addresses: Sequence[AddressInfo]) -> bytes:
    """Pack an IPADDR_INFO_LIST."""
    records = []
    for entry in addresses:
        flags = AddressFlags.ONLINE if entry.online else AddressFlags.OFFLINE
        if isinstance(entry.address, ipaddress.IPv4Address):
            records.append(ADDRESS_RECORD.pack(AddressRecord(flags | AddressFlags.IPV4, ipv4=entry.address.packed)))
        else:
            records.append(ADDRESS_RECORD.pack(AddressRecord(flags | AddressFlags.IPV6, ipv6=entry.address.packed)))
    length = ADDRESS_LIST_HEADER.size + ADDRESS_RECORD.size * len(records)
    return ADDRESS_LIST_HEADER.pack(AddressListHeader(length, 0, len(records))) + b"".join(records)


def unpack_address_list(data: bytes) -> list[AddressInfo]:
    """Return the addresses of an IPADDR_INFO_LIST. Raises ``DecodeError``."""
    header = ADDRESS_LIST_HEADER.unpack(data)
    needed = ADDRESS_LIST_HEADER.size + ADDRESS_RECORD.size * header.instances
    if needed > len(data) or header.length > len(data):
        raise DecodeError("IPADDR_INFO_LIST longer than its message")
    found: list[AddressInfo] = []
    for position in range(ADDRESS_LIST_HEADER.size, needed, ADDRESS_RECORD.size):
        record = ADDRESS_RECORD.unpack(data, position)
        online = not record.flags & AddressFlags.OFFLINE
        if record.flags & AddressFlags.IPV4:
            found.append(AddressInfo(ipaddress.IPv4Address(record.ipv4), online))
        if record.flags & AddressFlags.IPV6:
            found.append(AddressInfo(ipaddress.IPv6Address(record.ipv6), online))
    return found


# NDR. impacket requires its classes in this form. They are untyped.


class ContextHandle(NDRSTRUCT):  # type: ignore[misc]
    """PCONTEXT_HANDLE: attributes, which are always 0, and a UUID. [MS-SWN 2.2.1.1]"""

    align = 4
    structure = (("Data", "20s=b''"),)

    def getAlignment(self) -> int:
        return 4


class WideName(NDRSTRUCT):  # type: ignore[misc]
    """WCHAR[260]."""

    structure = (("Data", f"{2 * GROUP_NAME_SIZE}s=b''"),)

    def getAlignment(self) -> int:
        return 2


class Packed4(NDRSTRUCT):  # type: ignore[misc]
    structure = (("Data", "4s=b''"),)

    def getAlignment(self) -> int:
        return 4


class Packed16(NDRSTRUCT):  # type: ignore[misc]
    """USHORT[8]."""

    structure = (("Data", "16s=b''"),)

    def getAlignment(self) -> int:
        return 2


WitnessInterfaceInfo = declare(
    NDRSTRUCT,
    structure=(
        ("InterfaceGroupName", WideName),
        ("Version", ULONG),
        ("State", USHORT),
        ("IPV4", Packed4),
        ("IPV6", Packed16),
        ("Flags", ULONG),
    ),
)
WitnessInterfaceInfoArray = declare(NDRUniConformantArray, item=WitnessInterfaceInfo)
PWitnessInterfaceInfo = declare(NDRPOINTER, referent=(("Data", WitnessInterfaceInfoArray),))
WitnessInterfaceList = declare(
    NDRSTRUCT, structure=(("NumberOfInterfaces", ULONG), ("InterfaceInfo", PWitnessInterfaceInfo))
)
PWitnessInterfaceList = declare(NDRPOINTER, referent=(("Data", WitnessInterfaceList),))
ByteArray = declare(NDRUniConformantArray, item="c")
PByteArray = declare(NDRPOINTER, referent=(("Data", ByteArray),))
RespAsyncNotify = declare(
    NDRSTRUCT,
    structure=(("MessageType", ULONG), ("Length", ULONG), ("NumberOfMessages", ULONG), ("MessageBuffer", PByteArray)),
)
PRespAsyncNotify = declare(NDRPOINTER, referent=(("Data", RespAsyncNotify),))


class GetInterfaceList(NDRCALL):  # type: ignore[misc]
    opnum = 0
    structure = ()


class GetInterfaceListResponse(NDRCALL):  # type: ignore[misc]
    structure = (("InterfaceList", PWitnessInterfaceList), ("ErrorCode", DWORD))


class Register(NDRCALL):  # type: ignore[misc]
    opnum = 1
    structure = (("Version", ULONG), ("NetName", LPWSTR), ("IpAddress", LPWSTR), ("ClientComputerName", LPWSTR))


class RegisterResponse(NDRCALL):  # type: ignore[misc]
    structure = (("ppContext", ContextHandle), ("ErrorCode", DWORD))


class UnRegister(NDRCALL):  # type: ignore[misc]
    opnum = 2
    structure = (("pContext", ContextHandle),)


class UnRegisterResponse(NDRCALL):  # type: ignore[misc]
    structure = (("ErrorCode", DWORD),)


class AsyncNotify(NDRCALL):  # type: ignore[misc]
    opnum = 3
    structure = (("pContext", ContextHandle),)


class AsyncNotifyResponse(NDRCALL):  # type: ignore[misc]
    structure = (("pResp", PRespAsyncNotify), ("ErrorCode", DWORD))


class RegisterEx(NDRCALL):  # type: ignore[misc]
    opnum = 4
    structure = (
        ("Version", ULONG),
        ("NetName", LPWSTR),
        ("ShareName", LPWSTR),
        ("IpAddress", LPWSTR),
        ("ClientComputerName", LPWSTR),
        ("Flags", ULONG),
        ("KeepAliveTimeout", ULONG),
    )


class RegisterExResponse(NDRCALL):  # type: ignore[misc]
    structure = (("ppContext", ContextHandle), ("ErrorCode", DWORD))


class UnRegisterEx(NDRCALL):  # type: ignore[misc]
    opnum = 5
    structure = (("ppContext", ContextHandle),)


class UnRegisterExResponse(NDRCALL):  # type: ignore[misc]
    structure = (("ppContext", ContextHandle), ("ErrorCode", DWORD))


def interface_list_response(interfaces: Sequence[InterfaceInfo]) -> Any:
    """Return the answer to WitnessrGetInterfaceList: ERROR_NO_MORE_ITEMS without interfaces. [MS-SWN 3.1.4.1]"""
    response = GetInterfaceListResponse()
    if not interfaces:
        response["InterfaceList"] = NULL
        response["ErrorCode"] = Win32.NO_MORE_ITEMS
        return response
    response["InterfaceList"]["NumberOfInterfaces"] = len(interfaces)
    for entry in interfaces:
        item = WitnessInterfaceInfo()
        name = entry.group_name[: GROUP_NAME_SIZE - 1].encode("utf-16-le", "replace")[: 2 * GROUP_NAME_SIZE - 2]
        flags = InterfaceFlags.WITNESS if entry.witness else InterfaceFlags(0)
        flags |= InterfaceFlags.IPV4 if entry.ipv4 is not None else InterfaceFlags(0)
        flags |= InterfaceFlags.IPV6 if entry.ipv6 is not None else InterfaceFlags(0)
        item["InterfaceGroupName"] = name.ljust(2 * GROUP_NAME_SIZE, b"\0")
        item["Version"] = entry.version
        item["State"] = entry.state
        item["IPV4"] = entry.ipv4.packed if entry.ipv4 is not None else bytes(4)
        item["IPV6"] = entry.ipv6.packed if entry.ipv6 is not None else bytes(16)
        item["Flags"] = int(flags)
        response["InterfaceList"]["InterfaceInfo"].append(item)
    response["ErrorCode"] = Win32.SUCCESS
    return response


def parse_interface_list(response: Any) -> list[InterfaceInfo]:
    """Return the interfaces in a server's answer. An error has none, because its list is a null pointer."""
    found: list[InterfaceInfo] = []
    if response["ErrorCode"]:
        return found
    listing = response["InterfaceList"]
    for item in listing["InterfaceInfo"] if listing["NumberOfInterfaces"] else ():
        flags = item["Flags"]
        name = item["InterfaceGroupName"].decode("utf-16-le", "replace").partition("\0")[0]
        ipv4 = ipaddress.IPv4Address(item["IPV4"]) if flags & InterfaceFlags.IPV4 else None
        ipv6 = ipaddress.IPv6Address(item["IPV6"]) if flags & InterfaceFlags.IPV6 else None
        witness = bool(flags & InterfaceFlags.WITNESS)
        found.append(InterfaceInfo(name, item["Version"], item["State"], ipv4, ipv6, witness))
    return found


def notification_stub(kind: MessageType, messages: bytes, count: int) -> bytes:
    """Return the answer to WitnessrAsyncNotify with a notification. All clients get the same bytes."""
    response = AsyncNotifyResponse()
    response["pResp"]["MessageType"] = int(kind)
    response["pResp"]["Length"] = len(messages)
    response["pResp"]["NumberOfMessages"] = count
    response["pResp"]["MessageBuffer"] = [messages[at : at + 1] for at in range(len(messages))]
    response["ErrorCode"] = Win32.SUCCESS
    return bytes(response.getData())


def notification_error_stub(status: int) -> bytes:
    """Return the answer to WitnessrAsyncNotify without a notification."""
    response = AsyncNotifyResponse()
    response["pResp"] = NULL
    response["ErrorCode"] = status
    return bytes(response.getData())


def optional_text(value: Any) -> str | None:
    """Return a unique string of a request without its terminator, None for a null pointer."""
    if isinstance(value, bytes):
        # impacket reads a null pointer as bytes.
        return None
    return str(value).partition("\0")[0]
