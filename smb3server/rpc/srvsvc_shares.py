"""Shares for the Server Service: looking at them, and for administrators adding, changing and removing them.
[MS-SRVS 3.1.4.7 to 3.1.4.16]

A share that clients have added is kept as one that ``smb3server share add`` has added. Shares of the configuration file
stay as they are, except for their permissions.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

from impacket.dcerpc.v5 import srvs
from impacket.dcerpc.v5.dtypes import DWORD, LPBYTE, NULL, ULONG
from impacket.dcerpc.v5.ndr import NDRCALL, NDRPOINTER, NDRSTRUCT

from smb3server.access.descriptor import EVERYONE, Acl, Control, SecurityDescriptor, allow, unpack
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.rpc.ndr import (
    ERROR_ACCESS_DENIED,
    ERROR_INVALID_LEVEL,
    ERROR_INVALID_NAME,
    ERROR_INVALID_PARAMETER,
    ERROR_WRITE_FAULT,
    NERR_DEVICE_NOT_SHARED,
    NERR_DUPLICATE_SHARE,
    NERR_NET_NAME_NOT_FOUND,
    NERR_UNKNOWN_DEVICE,
    NULL_HANDLE,
    Calls,
    declare,
    text,
)
from smb3server.rpc.srvsvc_lists import shown_path
from smb3server.state.ports import ShareAdministration, ShareChangeError, ShareProblem
from smb3server.state.share import OFFLINE_FILES, Share, ShareCapabilities, ShareFlags, ShareType

STYPE_DISKTREE, STYPE_IPC, STYPE_TEMPORARY, STYPE_SPECIAL = 0x00000000, 0x00000003, 0x40000000, 0x80000000
_STYPE_KIND = 0x000000FF
UNLIMITED = 0xFFFFFFFF
MAX_NAME, MAX_REMARK = 80, 48
_BAD_NAME = re.compile(r'[\x00-\x1f"/\\\[\]:|<>+=;,*?]')
_NETNAME, _TYPE, _REMARK, _PATH, _SECURITY = 1, 3, 4, 8, 501
"""SHARE_*_PARMNUM. [MS-SRVS 2.2.2.11]"""
_ENABLE_CA, _ENCRYPT = 0x4000, 0x8000
"""SHI1005_FLAGS_*, besides those that are flags of a share in SMB2 as well. [MS-SRVS 2.2.4.29]"""
_MODES = {bits: mode for mode, bits in OFFLINE_FILES.items()}
_EVERYBODY = SecurityDescriptor(dacl=Acl((allow(EVERYONE, FILE_ALL_ACCESS),)), control=Control.DACL_PRESENT)

_ERRORS = {
    ShareProblem.DUPLICATE: NERR_DUPLICATE_SHARE,
    ShareProblem.UNKNOWN: NERR_NET_NAME_NOT_FOUND,
    ShareProblem.FIXED: ERROR_ACCESS_DENIED,
    ShareProblem.FORBIDDEN: ERROR_ACCESS_DENIED,
    ShareProblem.NO_FOLDER: NERR_UNKNOWN_DEVICE,
    ShareProblem.INVALID: ERROR_INVALID_PARAMETER,
    ShareProblem.NOT_STORED: ERROR_WRITE_FAULT,
}
_SHARE_INFO = {
    0: srvs.SHARE_INFO_0,
    1: srvs.SHARE_INFO_1,
    2: srvs.SHARE_INFO_2,
    501: srvs.SHARE_INFO_501,
    502: srvs.SHARE_INFO_502,
    503: srvs.SHARE_INFO_503,
    1005: srvs.SHARE_INFO_1005,
}


ShareInfo1501 = declare(NDRSTRUCT, structure=(("shi1501_reserved", DWORD), ("shi1501_security_descriptor", LPBYTE)))
"""SHARE_INFO_1501_I. impacket's has no pointer. [MS-SRVS 2.2.4.31]"""
_Pointer1501 = declare(NDRPOINTER, referent=(("Data", ShareInfo1501),))


class ShareInfo(srvs.SHARE_INFO):  # type: ignore[misc]
    """SHARE_INFO with that structure. [MS-SRVS 2.2.3.6]"""

    union = srvs.SHARE_INFO.union | {1501: ("ShareInfo1501", _Pointer1501)}


class NetrShareSetInfo(srvs.NetrShareSetInfo):  # type: ignore[misc]
    """The request with that structure."""

    structure = tuple(
        (name, ShareInfo if name == "ShareInfo" else kind) for name, kind in srvs.NetrShareSetInfo.structure
    )


class NetrShareDelCommitResponse(NDRCALL):  # type: ignore[misc]
    """The answer with the handle. impacket's has none. [MS-SRVS 3.1.4.15]"""

    structure = (("ContextHandle", srvs.SHARE_DEL_HANDLE), ("ErrorCode", ULONG))


class _WrongError(Exception):
    """Ends a call with an error, and with the number of the member that caused it, if one did."""

    def __init__(self, error: int, member: int = 0) -> None:
        super().__init__(f"error {error}, member {member}")
        self.error = error
        self.member = member


def share_type(share: Share) -> int:
    """Return the type of a share. [MS-SRVS 2.2.2.4]"""
    if share.type is ShareType.PIPE:
        return STYPE_IPC | STYPE_SPECIAL
    return STYPE_DISKTREE | (STYPE_SPECIAL if share.hidden else 0)


def unix_path(path: str) -> str:
    """Return the path on this machine that a client writes as on Windows, with or without a drive."""
    path = path.replace("\\", "/")
    return path[2:] if re.match(r"[A-Za-z]:/", path) else path


class Shares(Calls):
    """The shares, as the user of one session may see and change them. Handles are of shares whose removal has begun.
    [MS-SRVS 3.1.4.14]"""

    # Looking

    def _fill(self, info: Any, level: int, share: Share) -> None:
        prefix = f"shi{level}_"
        if level == 1005:
            info[prefix + "flags"] = _flags(share)
            return
        info[prefix + "netname"] = text(share.name)
        if level == 0:
            return
        info[prefix + "type"] = share_type(share)
        info[prefix + "remark"] = text(share.rules.comment)
        if level == 501:
            info[prefix + "flags"] = _flags(share)
        elif level in (2, 502, 503):
            info[prefix + "permissions"] = 0
            info[prefix + "max_uses"] = share.rules.max_connections or UNLIMITED
            info[prefix + "current_uses"] = len(self._server.trees_of(share))
            info[prefix + "path"] = text(self._path(share))
            info[prefix + "passwd"] = NULL
            if level == 503:
                info[prefix + "servername"] = text("*")
            if level in (502, 503):
                self._fill_security(info, prefix, share)

    def _path(self, share: Share) -> str:
        """Return the path of a share. Only administrators need know where it is, for others it is made up."""
        if share.type is ShareType.PIPE:
            return ""
        return shown_path(share.path) if self._is_administrator else f"C:\\{share.name}"

    def _fill_security(self, info: Any, prefix: str, share: Share) -> None:
        shown = self._is_administrator and share.type is not ShareType.PIPE
        packed = (share.permissions or _EVERYBODY).pack() if shown else b""
        info[prefix + "reserved"] = len(packed)
        # Once it was null, impacket takes no other value.
        info[prefix + "security_descriptor"] = packed or NULL

    def _admitted(self, share: Share) -> bool:
        identity = self._session.identity
        if share.type is ShareType.PIPE or self._is_administrator:
            return True
        return identity is not None and share.admits(identity, self._session.connection.client_name)

    def enum(self, request: Any) -> Any:
        """Serve NetrShareEnum and NetrShareEnumSticky. One answer has all shares, so no resume handle is needed.
        [MS-SRVS 3.1.4.8]"""
        level = request["InfoStruct"]["Level"]
        answer = srvs.NetrShareEnumResponse()
        answer["InfoStruct"]["Level"] = level
        answer["ResumeHandle"] = NULL
        if level not in _SHARE_INFO or level == 1005:
            answer["InfoStruct"]["Level"] = 1
            answer["InfoStruct"]["ShareInfo"]["tag"] = 1
            answer["InfoStruct"]["ShareInfo"]["Level1"] = NULL
            answer["TotalEntries"] = 0
            answer["ErrorCode"] = ERROR_INVALID_LEVEL
            return answer
        answer["InfoStruct"]["ShareInfo"]["tag"] = level
        # IPC$ is well known. Other hidden shares are listed for administrators: clients must know their names.
        shares = [
            share
            for share in self._server.share_list.values()
            if share.type is ShareType.PIPE or not share.hidden or self._is_administrator
        ]
        container = answer["InfoStruct"]["ShareInfo"][f"Level{level}"]
        container["EntriesRead"] = len(shares)
        for share in shares:
            info = _SHARE_INFO[level]()
            self._fill(info, level, share)
            container["Buffer"].append(info)
        answer["TotalEntries"] = len(shares)
        return answer

    def get_info(self, request: Any) -> Any:
        """Serve NetrShareGetInfo. A hidden share is visible to users who may use it. [MS-SRVS 3.1.4.10]"""
        level = request["Level"]
        answer = srvs.NetrShareGetInfoResponse()
        share = self._server.share_list.get(_name(request["NetName"]).casefold())
        if share is not None and share.hidden and not self._admitted(share):
            share = None
        if level not in _SHARE_INFO or share is None:
            # Clients decode the union by the level that they have asked for.
            tag = level if level in _SHARE_INFO else 1
            answer["InfoStruct"]["tag"] = tag
            answer["InfoStruct"][f"ShareInfo{tag}"] = NULL
            answer["ErrorCode"] = NERR_NET_NAME_NOT_FOUND if share is None else ERROR_INVALID_LEVEL
            return answer
        answer["InfoStruct"]["tag"] = level
        self._fill(answer["InfoStruct"][f"ShareInfo{level}"], level, share)
        return answer

    def check(self, request: Any) -> Any:
        """Serve NetrShareCheck: whether a directory is shared. [MS-SRVS 3.1.4.16]"""
        path = os.path.normpath(unix_path(_name(request["Device"])))
        answer = srvs.NetrShareCheckResponse()
        shared = any(
            share.type is ShareType.DISK and os.path.normpath(share.path) == path
            for share in self._server.share_list.values()
        )
        answer["Type"] = STYPE_DISKTREE
        denied = 0 if shared else NERR_DEVICE_NOT_SHARED
        answer["ErrorCode"] = denied if self._is_administrator else ERROR_ACCESS_DENIED
        return answer

    # Changing

    def _administration(self) -> ShareAdministration:
        """Return what changes shares. Raises ``_WrongError`` for users who are no administrators."""
        administration = self._server.share_administration
        if not self._is_administrator or administration is None:
            raise _WrongError(ERROR_ACCESS_DENIED)
        return administration

    async def add(self, request: Any) -> Any:
        """Serve NetrShareAdd. [MS-SRVS 3.1.4.7]"""
        answer = srvs.NetrShareAddResponse()
        with _finishing(answer, request):
            await self._add(int(request["Level"]), request["InfoStruct"])
        return answer

    async def _add(self, level: int, union: Any) -> None:
        shares = self._administration()
        if level not in (2, 502, 503):
            raise _WrongError(ERROR_INVALID_LEVEL)
        info, prefix = union[f"ShareInfo{level}"], f"shi{level}_"
        name, remark = _name(info[prefix + "netname"]), _name(info[prefix + "remark"])
        self._check_name(name)
        kind = int(info[prefix + "type"])
        if kind & _STYPE_KIND != STYPE_DISKTREE:
            raise _WrongError(ERROR_INVALID_PARAMETER, _TYPE)
        _check_remark(remark)
        path = unix_path(_name(info[prefix + "path"]))
        if not path.startswith("/") or {".", ".."} & set(path.split("/")):
            raise _WrongError(ERROR_INVALID_PARAMETER, _PATH)
        security = None if level == 2 else _descriptor_of(info, prefix)
        if not shares.allows_folder(path):
            raise _WrongError(ERROR_ACCESS_DENIED)
        options: dict[str, object] = {"remark": remark} if remark else {}
        if _uses(info, prefix):
            options["max_connections"] = _uses(info, prefix)
        await shares.add(name, path, options, not kind & STYPE_TEMPORARY)
        if security is None:
            return
        try:
            await shares.permit(name, security)
        except ShareChangeError:
            await shares.remove(name)
            raise

    def _check_name(self, name: str) -> None:
        if not name or len(name) > MAX_NAME:
            raise _WrongError(ERROR_INVALID_PARAMETER, _NETNAME)
        if name.casefold() in ("pipe", "mailslot"):
            raise _WrongError(ERROR_ACCESS_DENIED)
        if name.casefold() in self._server.share_list:
            raise _WrongError(NERR_DUPLICATE_SHARE)
        if _BAD_NAME.search(name) or name != name.strip() or name in (".", ".."):
            raise _WrongError(ERROR_INVALID_NAME, _NETNAME)

    async def set_info(self, request: Any) -> Any:
        """Serve NetrShareSetInfo. [MS-SRVS 3.1.4.11]"""
        answer = srvs.NetrShareSetInfoResponse()
        with _finishing(answer, request):
            await self._set_info(_name(request["NetName"]), int(request["Level"]), request["ShareInfo"])
        return answer

    async def _set_info(self, name: str, level: int, union: Any) -> None:
        shares = self._administration()
        if not name:
            raise _WrongError(ERROR_INVALID_PARAMETER, _NETNAME)
        if level not in (1, 2, 502, 503, 1004, 1005, 1006, 1501):
            raise _WrongError(ERROR_INVALID_LEVEL)
        share = self._server.share_list.get(name.casefold())
        if share is None:
            raise _WrongError(NERR_NET_NAME_NOT_FOUND)
        if share.type is ShareType.PIPE:
            raise _WrongError(ERROR_ACCESS_DENIED)
        info, prefix = union[f"ShareInfo{level}"], f"shi{level}_"
        options: dict[str, object | None] = {}
        if level in (1, 2, 502, 503, 1004):
            remark = _name(info[prefix + "remark"])
            _check_remark(remark)
            if remark != share.rules.comment:
                options["remark"] = remark
        if level in (2, 502, 503, 1006) and _uses(info, prefix) != share.rules.max_connections:
            options["max_connections"] = _uses(info, prefix) or None
        if level == 1005:
            options |= _options_of(int(info[prefix + "flags"]), share)
        security = _descriptor_of(info, prefix) if level in (502, 503, 1501) else None
        if options:
            await shares.change(name, options)
        if security is not None and security != share.permissions:
            await shares.permit(name, security)

    async def delete(self, request: Any) -> Any:
        """Serve NetrShareDel. [MS-SRVS 3.1.4.12]"""
        answer = srvs.NetrShareDelResponse()
        answer["ErrorCode"] = await self._delete(_name(request["NetName"]))
        return answer

    async def delete_extended(self, request: Any) -> Any:
        """Serve NetrShareDelEx. [MS-SRVS 3.1.4.47]"""
        answer = srvs.NetrShareDelExResponse()
        if int(request["Level"]) != 503:
            answer["ErrorCode"] = ERROR_INVALID_LEVEL
        else:
            answer["ErrorCode"] = await self._delete(_name(request["ShareInfo"]["ShareInfo503"]["shi503_netname"]))
        return answer

    async def _delete(self, name: str) -> int:
        try:
            await self._administration().remove(name)
        except _WrongError as error:
            return error.error
        except ShareChangeError as error:
            return _ERRORS[error.problem] if name else ERROR_INVALID_PARAMETER
        return 0

    async def delete_sticky(self, request: Any) -> Any:
        """Serve NetrShareDelSticky: the share is gone after a restart. [MS-SRVS 3.1.4.13]"""
        answer = srvs.NetrShareDelStickyResponse()
        try:
            await self._administration().make_temporary(_name(request["NetName"]))
        except _WrongError as error:
            answer["ErrorCode"] = error.error
        except ShareChangeError as error:
            answer["ErrorCode"] = _ERRORS[error.problem]
        return answer

    def delete_start(self, request: Any) -> Any:
        """Serve NetrShareDelStart: the first of two phases. [MS-SRVS 3.1.4.14]"""
        answer = srvs.NetrShareDelStartResponse()
        answer["ContextHandle"] = NULL_HANDLE
        name = _name(request["NetName"])
        share = self._server.share_list.get(name.casefold())
        if not self._is_administrator:
            answer["ErrorCode"] = ERROR_ACCESS_DENIED
        elif share is None or share.type is ShareType.PIPE:
            answer["ErrorCode"] = NERR_NET_NAME_NOT_FOUND
        else:
            answer["ContextHandle"] = self._handles.add(name)
        return answer

    async def delete_commit(self, request: Any) -> Any:
        """Serve NetrShareDelCommit: the second phase. [MS-SRVS 3.1.4.15]"""
        answer = NetrShareDelCommitResponse()
        name = self._handles.find(request["ContextHandle"], str)
        self._handles.close(request["ContextHandle"])
        answer["ContextHandle"] = NULL_HANDLE
        answer["ErrorCode"] = await self._delete(name)
        return answer


def _name(value: Any) -> str:
    """Return a string argument without its terminator; empty if it was not given."""
    return str(value).split("\0", 1)[0] if isinstance(value, str) else ""


def _uses(info: Any, prefix: str) -> int:
    """Return shi*_max_uses; 0 means any number, as for ``Share.max_uses``."""
    given = int(info[prefix + "max_uses"])
    return 0 if given == UNLIMITED else given


def _check_remark(remark: str) -> None:
    if len(remark) > MAX_REMARK:
        raise _WrongError(ERROR_INVALID_PARAMETER, _REMARK)


def _descriptor_of(info: Any, prefix: str) -> SecurityDescriptor | None:
    """Return the security descriptor that a structure has, without its owner. Raises ``_WrongError``."""
    given = info[prefix + "security_descriptor"]
    data = given if isinstance(given, bytes) else b"".join(given) if isinstance(given, list) else b""
    if not data:
        return None
    try:
        found = unpack(data)
    except ValueError:
        raise _WrongError(ERROR_INVALID_PARAMETER, _SECURITY) from None
    # Who has set the permissions of a share must not have rights by that alone.
    return SecurityDescriptor(dacl=found.dacl, control=Control.DACL_PRESENT)


def _flags(share: Share) -> int:
    """Return SHI1005_FLAGS_*. [MS-SRVS 2.2.4.29]"""
    flags = share.flags & (ShareFlags.ACCESS_BASED_DIRECTORY_ENUM | ShareFlags.DFS | ShareFlags.DFS_ROOT)
    flags |= share.caching_flags
    flags |= _ENCRYPT if share.rules.encrypt else 0
    flags |= ShareFlags.COMPRESS_DATA if share.rules.compress else 0
    flags |= ShareFlags.FORCE_LEVELII_OPLOCK if share.rules.force_level2_oplocks else 0
    return flags | (_ENABLE_CA if share.capabilities & ShareCapabilities.CONTINUOUS_AVAILABILITY else 0)


def _options_of(flags: int, share: Share) -> dict[str, object | None]:
    """Return the options that flags would change. Those that this server does not have are ignored."""
    before = _flags(share)
    names = {
        int(ShareFlags.ACCESS_BASED_DIRECTORY_ENUM): "access_based_enumeration",
        int(ShareFlags.FORCE_LEVELII_OPLOCK): "force_level2_oplocks",
        _ENCRYPT: "encrypt",
        int(ShareFlags.COMPRESS_DATA): "compress",
        _ENABLE_CA: "continuous_availability",
    }
    options: dict[str, object | None] = {
        name: bool(flags & bit) for bit, name in names.items() if (flags ^ before) & bit
    }
    if (flags ^ before) & ShareFlags.NO_CACHING:
        options["offline_files"] = _MODES[flags & ShareFlags.NO_CACHING]
    return options


@contextlib.contextmanager
def _finishing(answer: Any, request: Any) -> Iterator[None]:
    """Fill in the end of an answer afterwards. ParmErr is there if the client has asked for it. [MS-SRVS 2.2.2.11]"""
    wrong = _WrongError(0)
    try:
        yield
    except _WrongError as error:
        wrong = error
    except ShareChangeError as error:
        wrong = _WrongError(_ERRORS[error.problem])
    answer["ParmErr"] = wrong.member if isinstance(request["ParmErr"], int) else NULL
    answer["ErrorCode"] = wrong.error
