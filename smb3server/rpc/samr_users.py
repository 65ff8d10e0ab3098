"""Accounts as clients look at them, and as administrators change them.
[MS-SAMR 3.1.5.4.4, 3.1.5.5.5, 3.1.5.6.4, 3.1.5.7.3]"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from impacket.dcerpc.v5 import samr
from impacket.dcerpc.v5.dtypes import NULL, UCHAR
from impacket.dcerpc.v5.ndr import NDRCALL, NDRSTRUCT

from smb3server.auth import sam_passwords
from smb3server.auth.accounts import DOMAIN_USERS
from smb3server.auth.directory import Use
from smb3server.auth.password_rules import EMPTY_HASH, PasswordRefused, check_new_password
from smb3server.auth.users import Account
from smb3server.auth.users_file import StoredUser, check_name
from smb3server.rpc import ndr
from smb3server.rpc.dcerpc import Operation
from smb3server.rpc.lsa_structures import string_of
from smb3server.rpc.ndr import NULL_HANDLE, declare
from smb3server.rpc.samr_context import Context, DomainObject, StatusResponse, UserObject, put_time
from smb3server.rpc.samr_passwords import EncryptedPasswordAes, aes_parts
from smb3server.wire.filetime import from_ns, to_ns
from smb3server.wire.status import NtStatus, StatusError

NORMAL_ACCOUNT, DISABLED, NEVER_EXPIRES, EXPIRED = 0x00000010, 0x00000001, 0x00000200, 0x00020000
"""Bits of UserAccountControl. [MS-SAMR 2.2.1.12]"""
_ALL_ACCESS = 0x000F07FF
"""USER_ALL_ACCESS. [MS-SAMR 2.2.1.6]"""
_FULL_NAME, _COMMENT, _USER_COMMENT, _EXPIRES, _CONTROL = 0x2, 0x10, 0x20, 0x4000, 0x100000
_NT_PRESENT, _LM_PRESENT, _PASSWORD_EXPIRED = 0x01000000, 0x02000000, 0x08000000
"""Bits of WhichFields. [MS-SAMR 2.2.1.8]"""
_NOT_KEPT = {0x1: "UserName", 0x40: "HomeDirectory", 0x80: "HomeDirectoryDrive", 0x100: "ScriptPath",
             0x200: "ProfilePath", 0x400: "WorkStations", 0x200000: "Parameters"}  # fmt: skip
"""Texts that cannot be changed, by their bits of WhichFields. An account has none of them but its name."""
_SHOWN = 0x00FFFFFF & ~(0x00080000 | 0x00200000 | 0x00400000 | 0x00800000)
_NEVER = 0x7FFFFFFFFFFFFFFF
"""A time that never comes. [MS-SAMR 2.2.2.2]"""

_GENERAL, _ACCOUNT, _NAME, _ACCOUNT_NAME, _FULL, _PRIMARY_GROUP = 1, 5, 6, 7, 8, 9
_ADMIN_COMMENT, _CONTROL_LEVEL, _EXPIRES_LEVEL, _HASH, _ALL = 13, 16, 17, 18, 21
_ALL_RC4, _RC4, _ALL_SALTED, _SALTED, _AES, _ALL_AES = 23, 24, 25, 26, 31, 32
"""Levels of information about an account. [MS-SAMR 2.2.6.28]"""
_WITH_ID = {_ACCOUNT: "Account", _ALL: "All"}
"""Levels that have the account's RID, and the members of the union that they fill."""


_Internal7 = declare(NDRSTRUCT, structure=(("UserPassword", EncryptedPasswordAes), ("PasswordExpired", UCHAR)))
_Internal8 = declare(
    NDRSTRUCT, structure=(("I1", samr.SAMPR_USER_ALL_INFORMATION), ("UserPassword", EncryptedPasswordAes))
)


class _Buffer(samr.SAMPR_USER_INFO_BUFFER):  # type: ignore[misc]
    """SAMPR_USER_INFO_BUFFER with the levels that impacket lacks. [MS-SAMR 2.2.6.29]"""

    union = samr.SAMPR_USER_INFO_BUFFER.union | {_AES: ("Internal7", _Internal7), _ALL_AES: ("Internal8", _Internal8)}


_SET_INFORMATION_USER = 37
"""The opnum of SamrSetInformationUser. [MS-SAMR 3.1.5.6.5]"""


class _SetInformation(NDRCALL):  # type: ignore[misc]
    """Request of SamrSetInformationUser and SamrSetInformationUser2. [MS-SAMR 3.1.5.6.4]"""

    opnum = 58
    structure = (
        ("UserHandle", samr.SAMPR_HANDLE),
        ("UserInformationClass", samr.USER_INFORMATION_CLASS),
        ("Buffer", _Buffer),
    )


class _Users:
    def __init__(self, context: Context) -> None:
        self._context = context

    def open(self, request: Any, answer: Any) -> None:
        """Serve SamrOpenUser. Any requested access is granted: each call checks what its caller may do.
        [MS-SAMR 3.1.5.1.9]"""
        domain = self._context.handles.find(request["DomainHandle"], DomainObject)
        number = int(request["UserId"])
        entries = self._context.entries(domain)
        name = next((name for own, name, use in entries if own == number and use is Use.USER), None)
        found = name is not None
        answer["UserHandle"] = self._context.handles.add(UserObject(number, name)) if name is not None else NULL_HANDLE
        answer["ErrorCode"] = NtStatus.SUCCESS if found else NtStatus.NO_SUCH_USER

    def groups(self, request: Any, answer: Any) -> None:
        """Serve SamrGetGroupsForUser: aliases do not count. [MS-SAMR 3.1.5.9.1]"""
        self._context.handles.find(request["UserHandle"], UserObject)
        entry = samr.GROUP_MEMBERSHIP()
        entry["RelativeId"] = DOMAIN_USERS
        entry["Attributes"] = 7
        answer["Groups"]["MembershipCount"] = 1
        answer["Groups"]["Groups"].append(entry)

    # Looking

    def query(self, request: Any, answer: Any) -> None:
        """Serve SamrQueryInformationUser and SamrQueryInformationUser2. [MS-SAMR 3.1.5.5.5]"""
        user: UserObject = self._context.handles.find(request["UserHandle"], UserObject)
        account = self._context.account(user)
        level = int(request["UserInformationClass"])
        fill = _FILL.get(level)
        if account is None or fill is None:
            answer["Buffer"] = NULL
            answer["ErrorCode"] = NtStatus.NO_SUCH_USER if account is None else NtStatus.INVALID_INFO_CLASS
            return
        answer["Buffer"]["tag"] = level
        fill(answer["Buffer"], account)
        if level in _WITH_ID:
            answer["Buffer"][_WITH_ID[level]]["UserId"] = user.rid

    # Changing

    def create(self, request: Any, answer: Any) -> None:
        """Serve SamrCreateUser2InDomain and SamrCreateUserInDomain. [MS-SAMR 3.1.5.4.4]

        The account is disabled until it has a password.
        """
        context = self._context
        context.handles.find(request["DomainHandle"], DomainObject)
        name = string_of(request["Name"])
        status = self._create(name)
        created = status == NtStatus.SUCCESS
        number = context.rid_of(name) if created else 0
        answer["UserHandle"] = context.handles.add(UserObject(number, name)) if created else NULL_HANDLE
        answer["RelativeId"] = number
        if isinstance(answer, samr.SamrCreateUser2InDomainResponse):
            answer["GrantedAccess"] = _ALL_ACCESS if created else 0
        answer["ErrorCode"] = status

    def _create(self, name: str) -> NtStatus:
        context = self._context
        if not context.administers:
            return NtStatus.ACCESS_DENIED
        try:
            check_name(name)
        except ValueError:
            return NtStatus.INVALID_ACCOUNT_NAME
        if context.accounts.find(name) is not None:
            return NtStatus.USER_EXISTS
        if context.accounts.groups.find(name) is not None:
            return NtStatus.ALIAS_EXISTS
        # Nobody knows the password that has this hash.
        made = StoredUser(name, os.urandom(16), disabled=True)
        return context.keep(f"new user {name}", lambda keeper: keeper.add(made))

    def delete(self, request: Any, answer: Any) -> None:
        """Serve SamrDeleteUser: the handle is closed, and sessions of the user end. [MS-SAMR 3.1.5.7.3]"""
        context = self._context
        user: UserObject = context.handles.find(request["UserHandle"], UserObject)
        answer["UserHandle"] = request["UserHandle"]
        answer["ErrorCode"] = NtStatus.ACCESS_DENIED
        if context.administers:
            status = context.keep(f"removal of user {user.name}", lambda keeper: keeper.remove(user.name))
            answer["ErrorCode"] = status
            if status == NtStatus.SUCCESS:
                context.handles.close(request["UserHandle"])
                answer["UserHandle"] = NULL_HANDLE

    def set(self, request: Any, answer: Any) -> None:
        """Serve SamrSetInformationUser and SamrSetInformationUser2. [MS-SAMR 3.1.5.6.4, 3.1.5.6.5]"""
        user: UserObject = self._context.handles.find(request["UserHandle"], UserObject)
        answer["ErrorCode"] = self._set(user, int(request["UserInformationClass"]), request["Buffer"])

    def _set(self, user: UserObject, level: int, buffer: Any) -> NtStatus:
        context = self._context
        if not context.administers:
            return NtStatus.ACCESS_DENIED
        account = context.account(user)
        if account is None:
            return NtStatus.NO_SUCH_USER
        read = _READ.get(level)
        if read is None:
            return NtStatus.INVALID_INFO_CLASS
        try:
            changes, sealed = read(buffer, account.name)
            made = self._new_hash(level, sealed, account.name) if sealed is not None else b""
        except StatusError as error:
            return NtStatus(error.status)

        def change(stored: StoredUser) -> StoredUser:
            return replace(stored.with_password(made) if made else stored, **changes)

        return context.keep(f"change of user {account.name}", lambda keeper: keeper.change(account.name, change))

    def _new_hash(self, level: int, sealed: Any, name: str) -> bytes:
        """Return the hash of a new password, which the session's key protects. Raises ``StatusError``.
        [MS-SAMR 3.1.5.6.4.1]"""
        key = self._context.session_key
        if level == _HASH:
            made = sam_passwords.decrypt_hash(bytes(sealed), key)
            if made == EMPTY_HASH:
                raise StatusError(NtStatus.PASSWORD_RESTRICTION)
            return made
        if level in (_AES, _ALL_AES):
            password = sam_passwords.open_aes(key, *aes_parts(sealed))
        elif level in (_SALTED, _ALL_SALTED):
            password = sam_passwords.open_salted_buffer(key, bytes(sealed["Buffer"]))
        else:
            password = sam_passwords.open_buffer(key, bytes(sealed["Buffer"]))
        if password is None:
            raise StatusError(NtStatus.WRONG_PASSWORD)
        try:
            # Who sets the passwords of others may set the one that there is.
            return check_new_password(password, name, None, self._context.server.settings.min_password_length)
        except PasswordRefused:
            raise StatusError(NtStatus.PASSWORD_RESTRICTION) from None


_Read = Callable[[Any, str], tuple[dict[str, Any], Any]]
"""Takes what a client sent, and the account's name. Returns changes of fields by their names in ``StoredUser``, and the
encrypted password if there is one."""


def _read_all(info: Any, own: str) -> dict[str, Any]:
    """Return what SAMPR_USER_ALL_INFORMATION changes. Raises ``StatusError`` for what accounts do not have.
    [MS-SAMR 3.1.5.6.4.2]"""
    which = int(info["WhichFields"])
    for bit, name in _NOT_KEPT.items():
        if which & bit and string_of(info[name]) not in ("", own if name == "UserName" else ""):
            raise StatusError(NtStatus.NOT_SUPPORTED)
    changes: dict[str, Any] = {}
    if which & _FULL_NAME:
        changes["full_name"] = string_of(info["FullName"])
    if which & (_COMMENT | _USER_COMMENT):
        changes["comment"] = string_of(info["AdminComment" if which & _COMMENT else "UserComment"])
    if which & _EXPIRES:
        changes["expires"] = _seconds(info["AccountExpires"])
    if which & _CONTROL:
        changes["disabled"] = bool(int(info["UserAccountControl"]) & DISABLED)
    if which & _PASSWORD_EXPIRED:
        changes["must_change"] = _flag(info["PasswordExpired"])
    return changes


def _with_all(name: str) -> _Read:
    def read(buffer: Any, own: str) -> tuple[dict[str, Any], Any]:
        part = buffer[name]
        has_password = int(part["I1"]["WhichFields"]) & (_NT_PRESENT | _LM_PRESENT)
        return _read_all(part["I1"], own), part["UserPassword"] if has_password else None

    return read


def _read_hash(buffer: Any, own: str) -> tuple[dict[str, Any], Any]:
    part = buffer["Internal1"]
    if not _flag(part["NtPasswordPresent"]):
        raise StatusError(NtStatus.PASSWORD_RESTRICTION)
    return {"must_change": _flag(part["PasswordExpired"])}, part["EncryptedNtOwfPassword"]


def _with_expired(name: str) -> _Read:
    def read(buffer: Any, own: str) -> tuple[dict[str, Any], Any]:
        return {"must_change": _flag(buffer[name]["PasswordExpired"])}, buffer[name]["UserPassword"]

    return read


_READ: dict[int, _Read] = {
    _FULL: lambda buffer, own: ({"full_name": string_of(buffer["FullName"]["FullName"])}, None),
    _ADMIN_COMMENT: lambda buffer, own: ({"comment": string_of(buffer["AdminComment"]["AdminComment"])}, None),
    _CONTROL_LEVEL: lambda buffer, own: (
        {"disabled": bool(int(buffer["Control"]["UserAccountControl"]) & DISABLED)},
        None,
    ),
    _HASH: _read_hash,
    _ALL: lambda buffer, own: (_read_all(buffer["All"], own), None),
    _ALL_RC4: _with_all("Internal4"),
    _RC4: _with_expired("Internal5"),
    _ALL_SALTED: _with_all("Internal4New"),
    _SALTED: _with_expired("Internal5New"),
    _AES: _with_expired("Internal7"),
    _ALL_AES: _with_all("Internal8"),
}


def _flag(value: Any) -> bool:
    """Return a UCHAR as a flag. impacket decodes it to a byte or a number."""
    return any(value) if isinstance(value, bytes) else bool(value)


def control_of(account: Account) -> int:
    """Return the UserAccountControl of an account. [MS-SAMR 2.2.1.12]"""
    found = NORMAL_ACCOUNT | NEVER_EXPIRES
    if account.disabled:
        found |= DISABLED
    return found | EXPIRED if account.must_change else found


def _seconds(time: Any) -> int:
    """Return an OLD_LARGE_INTEGER as seconds since 1970, 0 for never. [MS-SAMR 2.2.2.2]"""
    ticks = (int(time["HighPart"]) & 0xFFFFFFFF) << 32 | int(time["LowPart"]) & 0xFFFFFFFF
    return 0 if ticks in (0, _NEVER) else max(1, to_ns(ticks) // 1_000_000_000)


def _put_time(field: Any, seconds: int, otherwise: int) -> None:
    put_time(field, from_ns(seconds * 1_000_000_000) if seconds else otherwise)


def _fill_general(info: Any, account: Account) -> None:
    general = info["General"]
    general["UserName"], general["FullName"] = account.name, account.full_name
    general["AdminComment"], general["UserComment"] = account.comment, ""
    general["PrimaryGroupId"] = DOMAIN_USERS


def _fill_common(part: Any, account: Account) -> None:
    """Fill in what the levels 5 and 21 have in common."""
    part["UserName"], part["FullName"], part["AdminComment"] = account.name, account.full_name, account.comment
    for name in ("HomeDirectory", "HomeDirectoryDrive", "ScriptPath", "ProfilePath", "WorkStations"):
        part[name] = ""
    part["PrimaryGroupId"] = DOMAIN_USERS
    part["UserAccountControl"] = control_of(account)
    for name in ("LastLogon", "LastLogoff"):
        _put_time(part[name], 0, 0)
    _put_time(part["PasswordLastSet"], 0 if account.must_change else account.changed, 0)
    _put_time(part["AccountExpires"], account.expires, _NEVER)
    part["LogonHours"]["UnitsPerWeek"] = 0
    part["LogonHours"]["LogonHours"] = NULL
    part["BadPasswordCount"] = part["LogonCount"] = 0


def _fill_account(info: Any, account: Account) -> None:
    _fill_common(info["Account"], account)


def _fill_all(info: Any, account: Account) -> None:
    part = info["All"]
    _fill_common(part, account)
    for name in ("UserComment", "Parameters"):
        part[name] = ""
    _put_time(part["PasswordCanChange"], account.changed, 0)
    _put_time(part["PasswordMustChange"], 0, 0 if account.must_change else _NEVER)
    for name in ("LmOwfPassword", "NtOwfPassword"):
        part[name]["Length"] = part[name]["MaximumLength"] = 0
        part[name]["Buffer"] = NULL
    part["PrivateData"] = ""
    part["SecurityDescriptor"]["Length"] = 0
    part["SecurityDescriptor"]["SecurityDescriptor"] = NULL
    part["WhichFields"] = _SHOWN
    part["CountryCode"] = part["CodePage"] = 0
    part["LmPasswordPresent"] = part["NtPasswordPresent"] = part["PrivateDataSensitive"] = 0
    part["PasswordExpired"] = int(account.must_change)


def _fill_names(info: Any, account: Account) -> None:
    info["Name"]["UserName"], info["Name"]["FullName"] = account.name, account.full_name


def _fill_account_name(info: Any, account: Account) -> None:
    info["AccountName"]["UserName"] = account.name


def _fill_full_name(info: Any, account: Account) -> None:
    info["FullName"]["FullName"] = account.full_name


def _fill_primary_group(info: Any, account: Account) -> None:
    info["PrimaryGroup"]["PrimaryGroupId"] = DOMAIN_USERS


def _fill_comment(info: Any, account: Account) -> None:
    info["AdminComment"]["AdminComment"] = account.comment


def _fill_control(info: Any, account: Account) -> None:
    info["Control"]["UserAccountControl"] = control_of(account)


def _fill_expires(info: Any, account: Account) -> None:
    _put_time(info["Expires"]["AccountExpires"], account.expires, _NEVER)


_FILL: dict[int, Callable[[Any, Account], None]] = {
    _GENERAL: _fill_general,
    _ACCOUNT: _fill_account,
    _NAME: _fill_names,
    _ACCOUNT_NAME: _fill_account_name,
    _FULL: _fill_full_name,
    _PRIMARY_GROUP: _fill_primary_group,
    _ADMIN_COMMENT: _fill_comment,
    _CONTROL_LEVEL: _fill_control,
    _EXPIRES_LEVEL: _fill_expires,
    _ALL: _fill_all,
}


def operations(context: Context) -> dict[int, Operation]:
    """Return the operations by opnum."""
    users = _Users(context)
    served = ndr.operations(
        (samr.SamrCreateUserInDomain, users.create),
        (samr.SamrOpenUser, users.open),
        (samr.SamrDeleteUser, users.delete),
        (samr.SamrQueryInformationUser, users.query),
        (_SetInformation, StatusResponse, users.set),
        (samr.SamrGetGroupsForUser, users.groups),
        (samr.SamrQueryInformationUser2, users.query),
        (samr.SamrCreateUser2InDomain, users.create),
    )
    return served | {_SET_INFORMATION_USER: served[_SetInformation.opnum]}
