"""Workstation Service: what a server says of itself as a workstation, which uses no shares of others. [MS-WKST]"""

from __future__ import annotations

from typing import Any

from impacket.dcerpc.v5 import wkst
from impacket.dcerpc.v5.dtypes import NULL, RPC_UNICODE_STRING, ULONG
from impacket.dcerpc.v5.ndr import NDRCALL

from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.ndr import (
    ERROR_ACCESS_DENIED,
    ERROR_INVALID_LEVEL,
    ERROR_INVALID_PARAMETER,
    ERROR_NOT_SUPPORTED,
    CallError,
    Calls,
    declare,
    operation,
    operations,
    text,
    wire_uuid,
)
from smb3server.rpc.srvsvc import PLATFORM_ID_NT, VERSION_MAJOR, VERSION_MINOR
from smb3server.state.objects import Session
from smb3server.state.server_state import ServerState

UUID = wire_uuid("6BFFD098-A112-3610-9833-46C3F87E345A")
VERSION = 1
LEVELS = (100, 101, 102)
_WORKGROUP_NAME, _DOMAIN_NAME = 2, 3
"""NETSETUP_JOIN_STATUS. [MS-WKST 2.2.3.1]"""
_PRIMARY, _ALTERNATE, _ALL = 0, 1, 2
"""NET_COMPUTER_NAME_TYPE. [MS-WKST 2.2.3.3]"""

UserEnumResponse = declare(
    NDRCALL,
    structure=tuple(
        (name, wkst.LPULONG if name == "ResumeHandle" else kind)
        for name, kind in wkst.NetrWkstaUserEnumResponse.structure
    ),
)
"""The answer with the pointer. impacket's has a number. [MS-WKST 3.2.4.3]"""
Status = declare(NDRCALL, structure=(("ErrorCode", ULONG),))


class _Service(Calls):
    @property
    def _group(self) -> str:
        """The domain that the server is a member of, or the workgroup."""
        home = self._server.settings.home
        return home.workgroup if home is not None else "WORKGROUP"

    def get_info(self, request: Any) -> Any:
        """Serve NetrWkstaGetInfo. [MS-WKST 3.2.4.1]"""
        level = request["Level"]
        answer = wkst.NetrWkstaGetInfoResponse()
        if level not in LEVELS:
            answer["WkstaInfo"]["tag"] = 100
            answer["WkstaInfo"]["WkstaInfo100"] = NULL
            answer["ErrorCode"] = ERROR_INVALID_LEVEL
            return answer
        answer["WkstaInfo"]["tag"] = level
        info = answer["WkstaInfo"][f"WkstaInfo{level}"]
        prefix = f"wki{level}_"
        info[prefix + "platform_id"] = PLATFORM_ID_NT
        info[prefix + "computername"] = text(self._server.settings.server_name)
        info[prefix + "langroup"] = text(self._group)
        info[prefix + "ver_major"] = VERSION_MAJOR
        info[prefix + "ver_minor"] = VERSION_MINOR
        if level >= 101:
            info[prefix + "lanroot"] = text("")
        if level == 102:
            info[prefix + "logged_on_users"] = 1
        return answer

    def _nothing(self, request: Any, answer: Any, struct: str, union: str, levels: int) -> None:
        """Answer an administrator with an empty list."""
        level = int(request[struct]["Level"])
        known = 0 <= level < levels
        answer["ResumeHandle"] = NULL
        info = answer[struct]
        info["Level"] = info[union]["tag"] = level if known else 0
        if not (known and self._is_administrator):
            info[union][f"Level{level if known else 0}"] = NULL
            raise CallError(ERROR_ACCESS_DENIED if known else ERROR_INVALID_LEVEL)
        info[union][f"Level{level}"]["EntriesRead"] = 0
        info[union][f"Level{level}"]["Buffer"] = NULL

    def users(self, request: Any, answer: Any) -> None:
        """Serve NetrWkstaUserEnum: nobody is logged on at this machine over SMB. [MS-WKST 3.2.4.3]"""
        self._nothing(request, answer, "UserInfo", "WkstaUserInfo", 2)

    def uses(self, request: Any, answer: Any) -> None:
        """Serve NetrUseEnum: this machine uses no shares of others. [MS-WKST 3.2.4.9]"""
        self._nothing(request, answer, "InfoStruct", "UseInfo", 3)

    def joined(self, request: Any, answer: Any) -> None:
        """Serve NetrGetJoinInformation. [MS-WKST 3.2.4.12]"""
        answer["NameBuffer"] = text(self._group)
        answer["BufferType"] = _WORKGROUP_NAME if self._server.settings.home is None else _DOMAIN_NAME

    def names(self, request: Any, answer: Any) -> None:
        """Serve NetrEnumerateComputerNames: the server has one name. [MS-WKST 3.2.4.21]"""
        kind = int(request["NameType"])
        if kind not in (_PRIMARY, _ALTERNATE, _ALL) or int(request["Reserved"]):
            answer["ComputerNames"] = NULL
            raise CallError(ERROR_INVALID_PARAMETER)
        names = [] if kind == _ALTERNATE else [self._server.settings.server_name]
        answer["ComputerNames"]["EntriesRead"] = len(names)
        answer["ComputerNames"]["ComputerNames"] = []
        for name in names:
            one = RPC_UNICODE_STRING()
            one["Data"] = name
            answer["ComputerNames"]["ComputerNames"].append(one)

    def refuse(self, request: Any, answer: Any) -> None:
        """Refuse to join or leave a domain, and to change names: the host's administrators do so.
        [MS-WKST 3.2.4.13 to 3.2.4.15, 3.2.4.18 to 3.2.4.20]"""
        raise CallError(ERROR_NOT_SUPPORTED if self._is_administrator else ERROR_ACCESS_DENIED)


def interface(server: ServerState, session: Session) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    service = _Service(server, session)
    served = operations(
        (wkst.NetrWkstaUserEnum, UserEnumResponse, service.users),
        (wkst.NetrUseEnum, service.uses),
        (wkst.NetrGetJoinInformation, service.joined),
        (wkst.NetrEnumerateComputerNames, service.names),
        *(
            (declare(NDRCALL, opnum=number, structure=()), Status, service.refuse)
            for number in (22, 23, 24, 27, 28, 29)
        ),
    )
    return Interface(UUID, VERSION, {0: operation(wkst.NetrWkstaGetInfo, service.get_info), **served})
