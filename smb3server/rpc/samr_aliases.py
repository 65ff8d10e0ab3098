"""Groups of the configuration and those of BUILTIN, as clients look at them. [MS-SAMR 3.1.5.5.3, 3.1.5.8.3, 3.1.5.9.2]

They are changed in the configuration file: no client can."""

from __future__ import annotations

from typing import Any

from impacket.dcerpc.v5 import samr
from impacket.dcerpc.v5.dtypes import NULL

from smb3server.access.descriptor import Sid
from smb3server.auth.accounts import DOMAIN_USERS
from smb3server.auth.directory import Use
from smb3server.rpc import ndr
from smb3server.rpc.dcerpc import Operation
from smb3server.rpc.lsa_structures import numbers, rpc_sid, sid_of
from smb3server.rpc.ndr import NULL_HANDLE
from smb3server.rpc.samr_context import AliasObject, Context, DomainObject, GroupObject, StatusResponse
from smb3server.wire.status import NtStatus

_ENABLED = 7
"""SE_GROUP_MANDATORY, _ENABLED_BY_DEFAULT, _ENABLED. [MS-SAMR 2.2.1.10]"""
_GENERAL, _NAME, _COMMENT = 1, 2, 3
"""Levels of information about an alias. [MS-SAMR 2.2.5.5]"""


class _Groups:
    """The one group of the domain, which has all accounts as members."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def open(self, request: Any, answer: Any) -> None:
        """Serve SamrOpenGroup. [MS-SAMR 3.1.5.1.7]"""
        domain = self._context.handles.find(request["DomainHandle"], DomainObject)
        found = domain.sid == self._context.accounts.domain_sid and int(request["GroupId"]) == DOMAIN_USERS
        answer["GroupHandle"] = self._context.handles.add(GroupObject()) if found else NULL_HANDLE
        answer["ErrorCode"] = NtStatus.SUCCESS if found else NtStatus.NO_SUCH_GROUP

    def query(self, request: Any, answer: Any) -> None:
        """Serve SamrQueryInformationGroup. [MS-SAMR 3.1.5.5.2]"""
        group: GroupObject = self._context.handles.find(request["GroupHandle"], GroupObject)
        level = int(request["GroupInformationClass"])
        names = {1: "General", 2: "Name", 3: "Attribute", 4: "AdminComment", 5: "DoNotUse"}
        if level not in names:
            answer["Buffer"] = NULL
            answer["ErrorCode"] = NtStatus.INVALID_INFO_CLASS
            return
        answer["Buffer"]["tag"] = level
        info = answer["Buffer"][names[level]]
        if level in (1, 5):
            info["Name"], info["AdminComment"], info["Attributes"] = group.name, "", _ENABLED
            info["MemberCount"] = sum(1 for _ in self._context.accounts.users())
        elif level == 2:
            info["Name"] = group.name
        elif level == 3:
            info["Attributes"] = _ENABLED
        else:
            info["AdminComment"] = ""

    def members(self, request: Any, answer: Any) -> None:
        """Serve SamrGetMembersInGroup. [MS-SAMR 3.1.5.8.1]"""
        self._context.handles.find(request["GroupHandle"], GroupObject)
        found = [rid for rid, _ in self._context.accounts.users()]
        answer["Members"]["MemberCount"] = len(found)
        answer["Members"]["Members"] = numbers(found)
        answer["Members"]["Attributes"] = numbers([_ENABLED] * len(found))


class _Aliases:
    def __init__(self, context: Context) -> None:
        self._context = context

    def open(self, request: Any, answer: Any) -> None:
        """Serve SamrOpenAlias. [MS-SAMR 3.1.5.1.8]"""
        domain: DomainObject = self._context.handles.find(request["DomainHandle"], DomainObject)
        rid = int(request["AliasId"])
        entries = self._context.entries(domain)
        name = next((name for own, name, use in entries if own == rid and use is Use.ALIAS), None)
        answer["AliasHandle"] = NULL_HANDLE
        if name is not None:
            sid = Sid(domain.sid.authority, (*domain.sid.sub_authorities, rid))
            answer["AliasHandle"] = self._context.handles.add(AliasObject(sid, name))
        answer["ErrorCode"] = NtStatus.SUCCESS if name is not None else NtStatus.NO_SUCH_ALIAS

    def query(self, request: Any, answer: Any) -> None:
        """Serve SamrQueryInformationAlias. [MS-SAMR 3.1.5.5.3]"""
        alias: AliasObject = self._context.handles.find(request["AliasHandle"], AliasObject)
        level = int(request["AliasInformationClass"])
        if level not in (_GENERAL, _NAME, _COMMENT):
            answer["Buffer"] = NULL
            answer["ErrorCode"] = NtStatus.INVALID_INFO_CLASS
            return
        info = answer["Buffer"]
        info["tag"] = level
        if level == _GENERAL:
            info["General"]["Name"], info["General"]["AdminComment"] = alias.name, ""
            info["General"]["MemberCount"] = len(self._members(alias))
        elif level == _NAME:
            info["Name"]["Name"] = alias.name
        else:
            info["AdminComment"]["AdminComment"] = ""

    def members(self, request: Any, answer: Any) -> None:
        """Serve SamrGetMembersInAlias. [MS-SAMR 3.1.5.8.3]"""
        alias: AliasObject = self._context.handles.find(request["AliasHandle"], AliasObject)
        found = self._members(alias)
        answer["Members"]["Count"] = len(found)
        answer["Members"]["Sids"] = []
        for sid in found:
            entry = samr.PSAMPR_SID_INFORMATION()
            entry["SidPointer"] = rpc_sid(sid)
            answer["Members"]["Sids"].append(entry)

    def _members(self, alias: AliasObject) -> list[Sid]:
        return self._context.accounts.members(alias.sid) or []

    def remove_from_domain(self, request: Any, answer: Any) -> None:
        """Serve SamrRemoveMemberFromForeignDomain, which clients call before they delete an account.
        [MS-SAMR 3.1.5.8.7]

        It succeeds if there is nothing to remove. Administrators are named in the configuration file.
        """
        domain: DomainObject = self._context.handles.find(request["DomainHandle"], DomainObject)
        member = sid_of(request["MemberSid"])
        entries = self._context.entries(domain)
        sids = [Sid(5, (*domain.sid.sub_authorities, rid)) for rid, _, use in entries if use is Use.ALIAS]
        listed = any(member in (self._context.accounts.members(sid) or ()) for sid in sids)
        if listed or not self._context.administers:
            answer["ErrorCode"] = NtStatus.ACCESS_DENIED

    def membership(self, request: Any, answer: Any) -> None:
        """Serve SamrGetAliasMembership: the RIDs of the domain's aliases that have any of the SIDs as a member.
        [MS-SAMR 3.1.5.9.2]"""
        domain: DomainObject = self._context.handles.find(request["DomainHandle"], DomainObject)
        wanted = {sid_of(entry["SidPointer"]) for entry in request["SidArray"]["Sids"]}
        found = [
            rid
            for rid, name, use in self._context.entries(domain)
            if use is Use.ALIAS
            and wanted & set(self._members(AliasObject(Sid(5, (*domain.sid.sub_authorities, rid)), name)))
        ]
        answer["Membership"]["Count"] = len(found)
        answer["Membership"]["Element"] = numbers(found)


def operations(context: Context) -> dict[int, Operation]:
    """Return the operations by opnum."""
    aliases, groups = _Aliases(context), _Groups(context)
    return ndr.operations(
        (samr.SamrOpenGroup, groups.open),
        (samr.SamrQueryInformationGroup, groups.query),
        (samr.SamrGetMembersInGroup, groups.members),
        (samr.SamrGetAliasMembership, aliases.membership),
        (samr.SamrOpenAlias, aliases.open),
        (samr.SamrQueryInformationAlias, aliases.query),
        (samr.SamrGetMembersInAlias, aliases.members),
        (samr.SamrRemoveMemberFromForeignDomain, StatusResponse, aliases.remove_from_domain),
    )
