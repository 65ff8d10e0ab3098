"""Workstation Service, limited to the calls that clients make before they browse. [MS-WKST]"""

from __future__ import annotations

from typing import Any

from impacket.dcerpc.v5 import wkst
from impacket.dcerpc.v5.dtypes import NULL

from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.ndr import ERROR_INVALID_LEVEL, operation, text, wire_uuid
from smb3server.rpc.srvsvc import PLATFORM_ID_NT, VERSION_MAJOR, VERSION_MINOR

UUID = wire_uuid("6BFFD098-A112-3610-9833-46C3F87E345A")
VERSION = 1
LEVELS = (100, 101, 102)


class _Service:
    def __init__(self, server_name: str) -> None:
        self._server_name = server_name

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
        info[prefix + "computername"] = text(self._server_name)
        info[prefix + "langroup"] = text("WORKGROUP")
        info[prefix + "ver_major"] = VERSION_MAJOR
        info[prefix + "ver_minor"] = VERSION_MINOR
        if level >= 101:
            info[prefix + "lanroot"] = text("")
        if level == 102:
            info[prefix + "logged_on_users"] = 1
        return answer


def interface(server_name: str) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    return Interface(UUID, VERSION, {0: operation(wkst.NetrWkstaGetInfo, _Service(server_name).get_info)})
