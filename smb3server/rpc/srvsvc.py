"""Server Service, which clients browse with. [MS-SRVS]"""

from __future__ import annotations

import time
from typing import Any

from impacket.dcerpc.v5 import srvs
from impacket.dcerpc.v5.dtypes import NULL, ULONG
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
    operation_later,
    operations,
    text,
    wire_uuid,
)
from smb3server.rpc.srvsvc_lists import Lists, listed, refused
from smb3server.rpc.srvsvc_names import name_error
from smb3server.rpc.srvsvc_shares import NetrShareSetInfo, Shares
from smb3server.state.objects import Session
from smb3server.state.server_state import ServerState

UUID = wire_uuid("4B324FC8-1670-01D3-1278-5A47BF6EE188")
VERSION = 3
SERVER_LEVELS = (100, 101, 102, 103)
SERVER_SET_LEVELS = (101, 102, 502, 503, 599, 1005, 1107, 1010, 1016, 1017, 1018, *range(1501, 1557))
_TRANSPORT_INFO = {0: srvs.SERVER_TRANSPORT_INFO_0, 1: srvs.SERVER_TRANSPORT_INFO_1, 2: srvs.SERVER_TRANSPORT_INFO_2}
_DIRECT_TCP = "\\Device\\NetbiosSmb"
"""What Windows calls SMB over TCP without NetBIOS."""
_REFUSED = (25, 27, 41, 44, 45, 46, 49, 50, 53, 54, 56)
"""Calls that change what cannot be changed here. Their answers are an error alone."""
Status = declare(NDRCALL, structure=(("ErrorCode", ULONG),))
_U32 = 0xFFFFFFFF
_STATISTICS = [name.removeprefix("sts0_") for name, _ in srvs.STAT_SERVER_0.structure]
PLATFORM_ID_NT = 500
SERVER_TYPE = 0x00009003
"""Workstation, server, NT, NT server. [MS-SRVS 2.2.2.7]"""
VERSION_MAJOR, VERSION_MINOR = 10, 0
UNLIMITED = 0xFFFFFFFF


class _Service(Calls):
    def server_get_info(self, request: Any) -> Any:
        """Serve NetrServerGetInfo. [MS-SRVS 3.1.4.17]"""
        level = request["Level"]
        answer = srvs.NetrServerGetInfoResponse()
        if level not in SERVER_LEVELS:
            answer["InfoStruct"]["tag"] = 100
            answer["InfoStruct"]["ServerInfo100"] = NULL
            answer["ErrorCode"] = ERROR_INVALID_LEVEL
            return answer
        settings = self._server.settings
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
        if level >= 102:
            info[prefix + "users"] = UNLIMITED
            info[prefix + "disc"] = UNLIMITED
            info[prefix + "hidden"] = 0
            info[prefix + "announce"] = 240
            info[prefix + "anndelta"] = 3000
            info[prefix + "licenses"] = 0
            info[prefix + "userpath"] = text("C:\\")
        if level == 103:
            # No hashes for BranchCache.
            info[prefix + "capabilities"] = 0
        return answer

    def server_set_info(self, request: Any) -> Any:
        """Serve NetrServerSetInfo. The configuration file has what it would set. [MS-SRVS 3.1.4.18]"""
        answer = srvs.NetrServerSetInfoResponse()
        answer["ParmErr"] = NULL
        known = int(request["Level"]) in SERVER_SET_LEVELS
        denied = ERROR_NOT_SUPPORTED if self._is_administrator else ERROR_ACCESS_DENIED
        answer["ErrorCode"] = denied if known else ERROR_INVALID_LEVEL
        return answer

    def disk_enum(self, request: Any) -> Any:
        """Serve NetrServerDiskEnum: all shares lie on C:, as their paths are shown. [MS-SRVS 3.1.4.19]"""
        answer = srvs.NetrServerDiskEnumResponse()
        answer["ResumeHandle"] = NULL
        wrong = ERROR_INVALID_LEVEL if request["Level"] != 0 else 0
        wrong = wrong or (0 if self._is_administrator else ERROR_ACCESS_DENIED)
        names = [] if wrong else ["C:", ""]
        answer["DiskInfoStruct"]["EntriesRead"] = len(names)
        answer["DiskInfoStruct"]["Buffer"] = []
        for name in names:
            disk = srvs.DISK_INFO()
            disk["Disk"] = text(name)
            answer["DiskInfoStruct"]["Buffer"].append(disk)
        answer["TotalEntries"] = max(0, len(names) - 1)
        answer["ErrorCode"] = wrong
        return answer

    def transports(self, request: Any) -> Any:
        """Serve NetrServerTransportEnum: direct TCP, whose address is the server's NetBIOS name. [MS-SRVS 3.1.4.24]"""
        level = int(request["InfoStruct"]["Level"])
        answer = srvs.NetrServerTransportEnumResponse()
        kind = _TRANSPORT_INFO.get(level)
        if kind is None or not self._is_administrator:
            return refused(answer, "XportInfo", 0, ERROR_INVALID_LEVEL if kind is None else ERROR_ACCESS_DENIED)
        settings, info, prefix = self._server.settings, kind(), f"svti{level}_"
        address = settings.server_name.encode("ascii", "replace")[:15].ljust(16)
        info[prefix + "numberofvcs"] = len(self._server.connection_list)
        info[prefix + "transportname"] = text(_DIRECT_TCP)
        info[prefix + "transportaddress"] = address
        info[prefix + "transportaddresslength"] = len(address)
        info[prefix + "networkaddress"] = text("000000000000")
        if level >= 1:
            info[prefix + "domain"] = text(settings.home.workgroup if settings.home is not None else "WORKGROUP")
        return listed(answer, "XportInfo", level, [info])

    def aliases(self, request: Any) -> Any:
        """Serve NetrServerAliasEnum: there are none. [MS-SRVS 3.1.4.45]"""
        level = int(request["InfoStruct"]["Level"])
        answer = srvs.NetrServerAliasEnumResponse()
        if level != 0 or not self._is_administrator:
            return refused(answer, "ServerAliasInfo", 0, ERROR_INVALID_LEVEL if level else ERROR_ACCESS_DENIED)
        return listed(answer, "ServerAliasInfo", 0, [])

    def validate_name(self, request: Any, answer: Any) -> None:
        """Serve NetprNameValidate. [MS-SRVS 3.1.4.32]"""
        answer["ErrorCode"] = name_error(
            str(request["Name"]).rstrip("\0"), int(request["NameType"]), int(request["Flags"])
        )

    def refuse(self, request: Any, answer: Any) -> None:
        """Refuse to change transports and aliases, and the parts of DFS that no client of this server uses.
        [MS-SRVS 3.1.4.22, 3.1.4.23, 3.1.4.25, 3.1.4.26, 3.1.4.36 to 3.1.4.38, 3.1.4.40, 3.1.4.41, 3.1.4.44,
        3.1.4.46]"""
        raise CallError(ERROR_NOT_SUPPORTED if self._is_administrator else ERROR_ACCESS_DENIED)

    def dfs_version(self, request: Any, answer: Any) -> None:
        """Refuse NetrDfsGetVersion: the old DFS of domains is not served. [MS-SRVS 3.1.4.35]"""
        raise CallError(ERROR_NOT_SUPPORTED)

    def statistics(self, request: Any) -> Any:
        """Serve NetrServerStatisticsGet. [MS-SRVS 3.1.4.20; MS-SMB2 3.3.4.24]

        Bytes, timeouts and errors count since the server's start. Opens and sessions are those that there are now."""
        answer = srvs.NetrServerStatisticsGetResponse()
        wrong = ERROR_INVALID_LEVEL if request["Level"] != 0 else 0
        wrong = wrong or (ERROR_INVALID_PARAMETER if request["Options"] != 0 else 0)
        wrong = wrong or (0 if self._is_administrator else ERROR_ACCESS_DENIED)
        answer["ErrorCode"] = wrong
        if wrong:
            answer["InfoStruct"] = NULL
            return answer
        server, info, counts = self._server, answer["InfoStruct"], self._server.events.counts
        traffic = [connection.transport.traffic for connection in server.connection_list]
        ended = counts.carried.values()
        sent = sum(entry.inline_bytes_sent + entry.rdma_write_bytes for entry in traffic)
        sent += sum(entry.sent + entry.rdma_sent for entry in ended)
        received = sum(entry.inline_bytes_received + entry.rdma_read_bytes for entry in traffic)
        received += sum(entry.received + entry.rdma_received for entry in ended)
        values = {
            "start": int(server.server_start_time) & _U32,
            "fopens": len(server.opens.by_id) & _U32,
            "sopens": len(server.sessions.by_id) & _U32,
            "stimedout": counts.idle_sessions & _U32,
            "pwerrors": sum(counts.refused_logons.values()) & _U32,
            "permerrors": counts.denied & _U32,
            "bytessent_low": sent & _U32,
            "bytessent_high": sent >> 32 & _U32,
            "bytesrcvd_low": received & _U32,
            "bytesrcvd_high": received >> 32 & _U32,
        }
        for name in _STATISTICS:
            info[f"sts0_{name}"] = values.get(name, 0)
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
        return answer


def interface(server: ServerState, session: Session) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    service, shares, lists = _Service(server, session), Shares(server, session), Lists(server, session)
    more = operations(
        (srvs.NetprNameValidate, Status, service.validate_name),
        (srvs.NetrDfsGetVersion, service.dfs_version),
        *((declare(NDRCALL, opnum=number, structure=()), Status, service.refuse) for number in _REFUSED),
    )
    return Interface(
        UUID,
        VERSION,
        {
            **more,
            26: operation(srvs.NetrServerTransportEnum, service.transports),
            55: operation(srvs.NetrServerAliasEnum, service.aliases),
            8: operation(srvs.NetrConnectionEnum, lists.connection_enum),
            9: operation(srvs.NetrFileEnum, lists.file_enum),
            10: operation(srvs.NetrFileGetInfo, lists.file_get_info),
            11: operation(srvs.NetrFileClose, lists.file_close),
            12: operation(srvs.NetrSessionEnum, lists.session_enum),
            13: operation(srvs.NetrSessionDel, lists.session_delete),
            14: operation_later(srvs.NetrShareAdd, shares.add),
            15: operation(srvs.NetrShareEnum, shares.enum),
            16: operation(srvs.NetrShareGetInfo, shares.get_info),
            17: operation_later(NetrShareSetInfo, shares.set_info),
            18: operation_later(srvs.NetrShareDel, shares.delete),
            19: operation_later(srvs.NetrShareDelSticky, shares.delete_sticky),
            20: operation(srvs.NetrShareCheck, shares.check),
            21: operation(srvs.NetrServerGetInfo, service.server_get_info),
            22: operation(srvs.NetrServerSetInfo, service.server_set_info),
            23: operation(srvs.NetrServerDiskEnum, service.disk_enum),
            24: operation(srvs.NetrServerStatisticsGet, service.statistics),
            28: operation(srvs.NetrRemoteTOD, service.remote_time_of_day),
            36: operation(srvs.NetrShareEnumSticky, shares.enum),
            37: operation(srvs.NetrShareDelStart, shares.delete_start),
            38: operation_later(srvs.NetrShareDelCommit, shares.delete_commit),
            57: operation_later(srvs.NetrShareDelEx, shares.delete_extended),
        },
    )
