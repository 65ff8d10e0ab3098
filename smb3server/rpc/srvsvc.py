"""Server Service, which clients browse with. [MS-SRVS]"""

from __future__ import annotations

import time
from typing import Any

from impacket.dcerpc.v5 import srvs
from impacket.dcerpc.v5.dtypes import NULL

from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.ndr import (
    ERROR_INVALID_LEVEL,
    NERR_NET_NAME_NOT_FOUND,
    operation,
    text,
    wire_uuid,
)
from smb3server.rpc.srvsvc_lists import Lists
from smb3server.state.objects import Session
from smb3server.state.server_state import ServerState
from smb3server.state.share import Share, ShareType

UUID = wire_uuid("4B324FC8-1670-01D3-1278-5A47BF6EE188")
VERSION = 3
SHARE_LEVELS = (0, 1, 2, 501, 502)
SERVER_LEVELS = (100, 101, 102)
STYPE_DISKTREE, STYPE_IPC, STYPE_SPECIAL = 0x00000000, 0x00000003, 0x80000000
PLATFORM_ID_NT = 500
SERVER_TYPE = 0x00009003
"""Workstation, server, NT, NT server. [MS-SRVS 2.2.2.7]"""
VERSION_MAJOR, VERSION_MINOR = 10, 0
UNLIMITED = 0xFFFFFFFF

_SHARE_INFO = {
    0: srvs.SHARE_INFO_0,
    1: srvs.SHARE_INFO_1,
    2: srvs.SHARE_INFO_2,
    501: srvs.SHARE_INFO_501,
    502: srvs.SHARE_INFO_502,
}


def share_type(share: Share) -> int:
    """Return the type of a share. [MS-SRVS 2.2.2.4]"""
    if share.type is ShareType.PIPE:
        return STYPE_IPC | STYPE_SPECIAL
    return STYPE_DISKTREE | (STYPE_SPECIAL if share.hidden else 0)


class _Service:
    def __init__(self, server: ServerState, session: Session) -> None:
        self.server = server
        self.session = session

    def _fill(self, info: Any, level: int, share: Share) -> None:
        prefix = f"shi{level}_"
        info[prefix + "netname"] = text(share.name)
        if level == 0:
            return
        info[prefix + "type"] = share_type(share)
        info[prefix + "remark"] = text(share.remark)
        if level == 501:
            info[prefix + "flags"] = share.flags
        elif level in (2, 502):
            info[prefix + "permissions"] = 0
            info[prefix + "max_uses"] = share.max_uses or UNLIMITED
            info[prefix + "current_uses"] = self._uses(share)
            # MS-SRVS requires a path. Clients need not know where a share is on this machine, so it is made up.
            info[prefix + "path"] = text("" if share.type is ShareType.PIPE else f"C:\\{share.name}")
            info[prefix + "passwd"] = NULL
            if level == 502:
                info[prefix + "reserved"] = 0
                info[prefix + "security_descriptor"] = NULL

    def _uses(self, share: Share) -> int:
        sessions = self.server.sessions.by_id.values()
        return sum(tree.share is share for session in sessions for tree in session.tree_connect_table.values())

    def _admitted(self, share: Share) -> bool:
        identity = self.session.identity
        if share.type is ShareType.PIPE:
            return True
        return identity is not None and share.admits(identity, self.session.connection.client_name)

    def share_enum(self, request: Any) -> Any:
        """Serve NetrShareEnum and NetrShareEnumSticky. One answer has all shares, so no resume handle is needed.
        [MS-SRVS 3.1.4.8]"""
        level = request["InfoStruct"]["Level"]
        answer = srvs.NetrShareEnumResponse()
        answer["InfoStruct"]["Level"] = level
        answer["ResumeHandle"] = NULL
        if level not in SHARE_LEVELS:
            answer["InfoStruct"]["Level"] = 1
            answer["InfoStruct"]["ShareInfo"]["tag"] = 1
            answer["InfoStruct"]["ShareInfo"]["Level1"] = NULL
            answer["TotalEntries"] = 0
            answer["ErrorCode"] = ERROR_INVALID_LEVEL
            return answer
        answer["InfoStruct"]["ShareInfo"]["tag"] = level
        # IPC$ is well known. Other hidden shares are not listed: clients must know their names.
        shares = [
            share for share in self.server.share_list.values() if share.type is ShareType.PIPE or not share.hidden
        ]
        container = answer["InfoStruct"]["ShareInfo"][f"Level{level}"]
        container["EntriesRead"] = len(shares)
        for share in shares:
            info = _SHARE_INFO[level]()
            self._fill(info, level, share)
            container["Buffer"].append(info)
        answer["TotalEntries"] = len(shares)
        answer["ErrorCode"] = 0
        return answer

    def share_get_info(self, request: Any) -> Any:
        """Serve NetrShareGetInfo. A hidden share is visible to users who may use it. [MS-SRVS 3.1.4.10]"""
        level = request["Level"]
        answer = srvs.NetrShareGetInfoResponse()
        share = self.server.share_list.get(str(request["NetName"]).rstrip("\0").casefold())
        if share is not None and share.hidden and not self._admitted(share):
            share = None
        if level not in (0, 1, 2, 501, 502) or share is None:
            answer["InfoStruct"]["tag"] = 1
            answer["InfoStruct"]["ShareInfo1"] = NULL
            answer["ErrorCode"] = NERR_NET_NAME_NOT_FOUND if share is None else ERROR_INVALID_LEVEL
            return answer
        answer["InfoStruct"]["tag"] = level
        self._fill(answer["InfoStruct"][f"ShareInfo{level}"], level, share)
        answer["ErrorCode"] = 0
        return answer

    def server_get_info(self, request: Any) -> Any:
        """Serve NetrServerGetInfo. [MS-SRVS 3.1.4.17]"""
        level = request["Level"]
        answer = srvs.NetrServerGetInfoResponse()
        if level not in SERVER_LEVELS:
            answer["InfoStruct"]["tag"] = 100
            answer["InfoStruct"]["ServerInfo100"] = NULL
            answer["ErrorCode"] = ERROR_INVALID_LEVEL
            return answer
        settings = self.server.settings
        answer["InfoStruct"]["tag"] = level
        info = answer["InfoStruct"][f"ServerInfo{level}"]
        prefix = f"sv{level}_"
        info[prefix + "platform_id"] = PLATFORM_ID_NT
        info[prefix + "name"] = text(settings.server_name)
        if level >= 101:
            info[prefix + "version_major"] = VERSION_MAJOR
            info[prefix + "version_minor"] = VERSION_MINOR
            info[prefix + "type"] = SERVER_TYPE
            info[prefix + "comment"] = text(settings.comment)
        if level == 102:
            info[prefix + "users"] = UNLIMITED
            info[prefix + "disc"] = UNLIMITED
            info[prefix + "hidden"] = 0
            info[prefix + "announce"] = 240
            info[prefix + "anndelta"] = 3000
            info[prefix + "licenses"] = 0
            info[prefix + "userpath"] = text("C:\\")
        answer["ErrorCode"] = 0
        return answer

    def remote_time_of_day(self, request: Any) -> Any:
        """Serve NetrRemoteTOD. [MS-SRVS 3.1.4.21]"""
        now = time.time()
        utc, local = time.gmtime(now), time.localtime(now)
        answer = srvs.NetrRemoteTODResponse()
        info = answer["BufferPtr"]
        info["tod_elapsedt"] = int(now) & 0xFFFFFFFF
        info["tod_msecs"] = int(time.monotonic() * 1000) & 0xFFFFFFFF
        info["tod_hours"] = utc.tm_hour
        info["tod_mins"] = utc.tm_min
        info["tod_secs"] = utc.tm_sec
        info["tod_hunds"] = int(now * 100) % 100
        info["tod_timezone"] = -local.tm_gmtoff // 60
        info["tod_tinterval"] = 310
        info["tod_day"] = utc.tm_mday
        info["tod_month"] = utc.tm_mon
        info["tod_year"] = utc.tm_year
        info["tod_weekday"] = (utc.tm_wday + 1) % 7
        answer["ErrorCode"] = 0
        return answer


def interface(server: ServerState, session: Session) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    service, lists = _Service(server, session), Lists(server.sessions.by_id, session)
    return Interface(
        UUID,
        VERSION,
        {
            9: operation(srvs.NetrFileEnum, lists.file_enum),
            12: operation(srvs.NetrSessionEnum, lists.session_enum),
            15: operation(srvs.NetrShareEnum, service.share_enum),
            16: operation(srvs.NetrShareGetInfo, service.share_get_info),
            21: operation(srvs.NetrServerGetInfo, service.server_get_info),
            28: operation(srvs.NetrRemoteTOD, service.remote_time_of_day),
            36: operation(srvs.NetrShareEnumSticky, service.share_enum),
        },
    )
