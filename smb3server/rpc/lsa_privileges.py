"""Privileges for the Local Security Authority: which there are, and who has them. [MS-LSAD 3.1.4.5, 3.1.4.8]

The configuration gives them, to accounts and not to groups: ``Directory.privileges``. Nobody changes them over the
network.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from impacket.dcerpc.v5 import lsad
from impacket.dcerpc.v5.dtypes import NULL, PRPC_UNICODE_STRING, RPC_UNICODE_STRING
from impacket.dcerpc.v5.ndr import NDRULONG, NDRUSHORT

from smb3server.access.descriptor import Sid
from smb3server.access.privileges import NO_PRIVILEGE, Privilege
from smb3server.auth.directory import Directory
from smb3server.rpc.lsa_structures import rpc_sid, sid_of, string_of
from smb3server.rpc.ndr import NULL_HANDLE, Handles
from smb3server.rpc.privileges import PRIVILEGES, by_name, by_value
from smb3server.rpc.privileges import Privilege as Known
from smb3server.wire.status import NtStatus

VALUES: dict[Privilege, int] = {
    Privilege.SECURITY: 8,
    Privilege.BACKUP: 17,
    Privilege.RESTORE: 18,
    Privilege.MANAGE_VOLUME: 28,
}
"""The LUIDs of the privileges that count on this server. Nobody has one of the others. [MS-LSAD 3.1.1.2.1]"""
_ENGLISH = 0x0409
_HELD = 3
"""SE_PRIVILEGE_ENABLED_BY_DEFAULT and SE_PRIVILEGE_ENABLED. [MS-LSAD 2.2.5.4]"""
_PRIVILEGE_SET_ALL_NECESSARY = 1


class DisplayName(lsad.LsarLookupPrivilegeDisplayNameResponse):  # type: ignore[misc]
    # impacket's LanguageReturned has one byte. [MS-LSAD 3.1.4.8.6]
    structure = (("Name", PRPC_UNICODE_STRING), ("LanguageReturned", NDRUSHORT), ("ErrorCode", NDRULONG))


def _held(privileges: Privilege) -> list[Known]:
    found = (by_value(value) for one, value in VALUES.items() if privileges & one)
    return [known for known in found if known is not None]


def _put_luid(luid: Any, value: int) -> None:
    luid["LowPart"], luid["HighPart"] = value, 0


class _Account(NamedTuple):
    """An account object that a client has opened."""

    privileges: Privilege


class Privileges:
    """The calls about privileges, for the handles of one service."""

    def __init__(self, accounts: Directory, handles: Handles) -> None:
        self._accounts = accounts
        self._handles = handles

    def _privileged(self) -> list[tuple[Sid, Privilege]]:
        """Return the accounts that have privileges, which are the account objects. [MS-LSAD 3.1.1.3]"""
        accounts = self._accounts
        found = ((account.name, accounts.privileges(account.identity)) for _, account in accounts.users())
        return [(accounts.account_sid(name), held) for name, held in found if held]

    def _of(self, sid: Sid) -> Privilege:
        return next((held for account, held in self._privileged() if account == sid), NO_PRIVILEGE)

    def enumerate_privileges(self, request: Any, answer: Any) -> None:
        """Serve LsarEnumeratePrivileges. [MS-LSAD 3.1.4.8.1]"""
        self._handles.find(request["PolicyHandle"])
        begin = int(request["EnumerationContext"])
        rest = PRIVILEGES[begin:]
        buffer = answer["EnumerationBuffer"]
        buffer["Entries"] = len(rest)
        answer["EnumerationContext"] = begin + len(rest)
        if not rest:
            buffer["Privileges"] = NULL
            answer["ErrorCode"] = NtStatus.NO_MORE_ENTRIES
            return
        for known in rest:
            entry = lsad.LSAPR_POLICY_PRIVILEGE_DEF()
            entry["Name"] = known.name
            _put_luid(entry["LocalValue"], known.value)
            buffer["Privileges"].append(entry)

    def enumerate_accounts(self, request: Any, answer: Any) -> None:
        """Serve LsarEnumerateAccounts. [MS-LSAD 3.1.4.5.2]"""
        self._handles.find(request["PolicyHandle"])
        begin = int(request["EnumerationContext"])
        found = [sid for sid, _ in self._privileged()][begin:]
        answer["EnumerationContext"] = begin + len(found)
        _with_accounts(answer, found)

    def accounts_with_right(self, request: Any, answer: Any) -> None:
        """Serve LsarEnumerateAccountsWithUserRight. [MS-LSAD 3.1.4.5.9]"""
        self._handles.find(request["PolicyHandle"])
        right = request["UserRight"]
        if isinstance(right, bytes):
            # A NULL pointer: any right.
            _with_accounts(answer, [sid for sid, _ in self._privileged()])
            return
        known = by_name(string_of(right))
        if known is None:
            _with_accounts(answer, [])
            answer["ErrorCode"] = NtStatus.NO_SUCH_PRIVILEGE
            return
        _with_accounts(answer, [sid for sid, held in self._privileged() if known in _held(held)])

    def account_rights(self, request: Any, answer: Any) -> None:
        """Serve LsarEnumerateAccountRights. [MS-LSAD 3.1.4.5.10]"""
        self._handles.find(request["PolicyHandle"])
        held = _held(self._of(sid_of(request["AccountSid"])))
        answer["UserRights"]["EntriesRead"] = len(held)
        if not held:
            answer["UserRights"]["UserRights"] = NULL
            answer["ErrorCode"] = NtStatus.OBJECT_NAME_NOT_FOUND
            return
        for known in held:
            name = RPC_UNICODE_STRING()
            name["Data"] = known.name
            answer["UserRights"]["UserRights"].append(name)

    def open_account(self, request: Any, answer: Any) -> None:
        """Serve LsarOpenAccount. [MS-LSAD 3.1.4.5.3]"""
        self._handles.find(request["PolicyHandle"])
        privileges = self._of(sid_of(request["AccountSid"]))
        if not privileges:
            answer["AccountHandle"] = NULL_HANDLE
            answer["ErrorCode"] = NtStatus.OBJECT_NAME_NOT_FOUND
            return
        answer["AccountHandle"] = self._handles.add(_Account(privileges))

    def privileges_of_account(self, request: Any, answer: Any) -> None:
        """Serve LsarEnumeratePrivilegesAccount. [MS-LSAD 3.1.4.5.4]"""
        account = self._handles.find(request["AccountHandle"], _Account)
        held = _held(account.privileges)
        answer["Privileges"]["PrivilegeCount"] = len(held)
        answer["Privileges"]["Control"] = _PRIVILEGE_SET_ALL_NECESSARY
        for known in held:
            entry = lsad.LSAPR_LUID_AND_ATTRIBUTES()
            _put_luid(entry["Luid"], known.value)
            entry["Attributes"] = _HELD
            answer["Privileges"]["Privilege"].append(entry)

    def system_access(self, request: Any, answer: Any) -> None:
        """Serve LsarGetSystemAccessAccount: accounts have no such rights of their own. [MS-LSAD 3.1.4.5.7]"""
        self._handles.find(request["AccountHandle"], _Account)
        answer["SystemAccess"] = 0

    def value(self, request: Any, answer: Any) -> None:
        """Serve LsarLookupPrivilegeValue. [MS-LSAD 3.1.4.8.4]"""
        self._handles.find(request["PolicyHandle"])
        found = by_name(string_of(request["Name"]))
        if found is None:
            answer["ErrorCode"] = NtStatus.NO_SUCH_PRIVILEGE
        else:
            _put_luid(answer["Value"], found.value)

    def name(self, request: Any, answer: Any) -> None:
        """Serve LsarLookupPrivilegeName. [MS-LSAD 3.1.4.8.5]"""
        self._handles.find(request["PolicyHandle"])
        luid = request["Value"]
        found = None if int(luid["HighPart"]) else by_value(int(luid["LowPart"]))
        answer["Name"] = NULL if found is None else found.name
        answer["ErrorCode"] = NtStatus.NO_SUCH_PRIVILEGE if found is None else NtStatus.SUCCESS

    def display_name(self, request: Any, answer: Any) -> None:
        """Serve LsarLookupPrivilegeDisplayName. [MS-LSAD 3.1.4.8.6]"""
        self._handles.find(request["PolicyHandle"])
        found = by_name(string_of(request["Name"]))
        answer["Name"] = NULL if found is None else found.display_name
        answer["LanguageReturned"] = _ENGLISH
        answer["ErrorCode"] = NtStatus.NO_SUCH_PRIVILEGE if found is None else NtStatus.SUCCESS


def _with_accounts(answer: Any, sids: Iterable[Sid]) -> None:
    """Fill in the accounts of an answer. NO_MORE_ENTRIES means that there are none."""
    buffer = answer["EnumerationBuffer"]
    buffer["EntriesRead"] = 0
    for sid in sids:
        entry = lsad.LSAPR_ACCOUNT_INFORMATION()
        entry["Sid"] = rpc_sid(sid)
        buffer["Information"].append(entry)
        buffer["EntriesRead"] += 1
    if not buffer["EntriesRead"]:
        buffer["Information"] = NULL
        answer["ErrorCode"] = NtStatus.NO_MORE_ENTRIES
