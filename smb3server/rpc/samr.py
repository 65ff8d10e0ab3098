"""Security Account Manager: the server's accounts and groups as a domain. [MS-SAMR]"""

from __future__ import annotations

import itertools
from typing import Any

from impacket.dcerpc.v5 import samr
from impacket.dcerpc.v5.dtypes import NULL, RPC_UNICODE_STRING
from impacket.dcerpc.v5.ndr import NDRCALL

from smb3server.auth.accounts import BUILTIN
from smb3server.auth.directory import Use
from smb3server.rpc import samr_aliases, samr_domains, samr_passwords, samr_users
from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.lsa_structures import numbers, outcome, rpc_sid, sid_of, string_of
from smb3server.rpc.ndr import NULL_HANDLE, operations, wire_uuid
from smb3server.rpc.samr_context import Context, DomainObject, ServerObject, UserObject
from smb3server.state.objects import Session
from smb3server.state.server_state import ServerState
from smb3server.wire.status import NtStatus

UUID = wire_uuid("12345778-1234-ABCD-EF00-0123456789AC")
VERSION = 1
MAX_LOOKUPS = 1000
_NO_SUCH_DOMAIN = 0xC00000DF
_ENABLED_GROUP = 7
"""SE_GROUP_MANDATORY, _ENABLED_BY_DEFAULT, _ENABLED. [MS-SAMR 2.2.1.10]"""


_DISPLAYED = {
    1: ("UserInformation", Use.USER, samr.SAMPR_DOMAIN_DISPLAY_USER),
    2: ("MachineInformation", None, samr.SAMPR_DOMAIN_DISPLAY_MACHINE),
    3: ("GroupInformation", Use.GROUP, samr.SAMPR_DOMAIN_DISPLAY_GROUP),
    4: ("OemUserInformation", Use.USER, samr.SAMPR_DOMAIN_DISPLAY_OEM_USER),
    5: ("OemGroupInformation", Use.GROUP, samr.SAMPR_DOMAIN_DISPLAY_OEM_GROUP),
}
"""Field, kind and type of the entries of SAMPR_DISPLAY_INFO_BUFFER, by level. [MS-SAMR 2.2.8.13]"""


class _CloseHandle(NDRCALL):  # type: ignore[misc]
    """Request of SamrCloseHandle: the handle and nothing else. [MS-SAMR 3.1.5.13.1]"""

    opnum = 1
    structure = (("SamHandle", samr.SAMPR_HANDLE),)


class _Service:
    def __init__(self, context: Context) -> None:
        self._context = context

    def connect(self, request: Any, answer: Any) -> None:
        """Serve SamrConnect, SamrConnect2 and SamrConnect4. [MS-SAMR 3.1.5.1]

        Any requested access gets read access. Guests and anonymous users do not get the handle that all other calls
        need, unless the settings allow it.
        """
        if not self._context.accounts.may_be_asked_by(self._context.session.identity):
            answer["ServerHandle"] = NULL_HANDLE
            answer["ErrorCode"] = NtStatus.ACCESS_DENIED
            return
        answer["ServerHandle"] = self._context.handles.add(ServerObject())

    def connect5(self, request: Any, answer: Any) -> None:
        """Serve SamrConnect5. [MS-SAMR 3.1.5.1.1]"""
        answer["OutVersion"] = 1
        answer["OutRevisionInfo"]["tag"] = 1
        answer["OutRevisionInfo"]["V1"]["Revision"] = 3
        answer["OutRevisionInfo"]["V1"]["SupportedFeatures"] = 0
        self.connect(request, answer)

    def close(self, request: Any, answer: Any) -> None:
        """Serve SamrCloseHandle."""
        self._context.handles.close(request["SamHandle"])
        answer["SamHandle"] = NULL_HANDLE

    # Domains

    def lookup_domain(self, request: Any, answer: Any) -> None:
        """Serve SamrLookupDomainInSamServer. [MS-SAMR 3.1.5.11.1]"""
        self._context.handles.find(request["ServerHandle"], ServerObject)
        name = string_of(request["Name"]).casefold()
        sids = {self._context.accounts.domain.casefold(): self._context.accounts.domain_sid, "builtin": BUILTIN}
        sid = sids.get(name)
        answer["DomainId"] = rpc_sid(sid) if sid is not None else NULL
        answer["ErrorCode"] = 0 if sid is not None else _NO_SUCH_DOMAIN

    def enumerate_domains(self, request: Any, answer: Any) -> None:
        """Serve SamrEnumerateDomainsInSamServer. [MS-SAMR 3.1.5.2.1]"""
        self._context.handles.find(request["ServerHandle"], ServerObject)
        self._entries(request, answer, [(0, self._context.accounts.domain), (1, "Builtin")])

    def open_domain(self, request: Any, answer: Any) -> None:
        """Serve SamrOpenDomain. [MS-SAMR 3.1.5.1.5]"""
        self._context.handles.find(request["ServerHandle"], ServerObject)
        sid = sid_of(request["DomainId"])
        known = sid in (self._context.accounts.domain_sid, BUILTIN)
        answer["DomainHandle"] = self._context.handles.add(DomainObject(sid)) if known else NULL_HANDLE
        answer["ErrorCode"] = 0 if known else _NO_SUCH_DOMAIN

    # Users, groups, aliases

    def _entries(self, request: Any, answer: Any, entries: list[tuple[int, str]]) -> None:
        """Fill in all entries in one answer. An enumeration that continues gets no more."""
        start = int(request["EnumerationContext"])
        rest = entries[start:]
        answer["EnumerationContext"] = len(entries)
        answer["Buffer"]["EntriesRead"] = len(rest)
        answer["Buffer"]["Buffer"] = []
        for rid, name in rest:
            entry = samr.SAMPR_RID_ENUMERATION()
            entry["RelativeId"] = rid
            entry["Name"] = name
            answer["Buffer"]["Buffer"].append(entry)
        answer["CountReturned"] = len(rest)

    def _enumerate(self, request: Any, answer: Any, use: Use) -> None:
        domain = self._context.handles.find(request["DomainHandle"], DomainObject)
        self._entries(
            request, answer, [(rid, name) for rid, name, kind in self._context.entries(domain) if kind is use]
        )

    def enumerate_users(self, request: Any, answer: Any) -> None:
        """Serve SamrEnumerateUsersInDomain. A filter without normal accounts returns no accounts.
        [MS-SAMR 3.1.5.2.5]"""
        kinds = int(request["UserAccountControl"])
        use = Use.USER if not kinds or kinds & samr_users.NORMAL_ACCOUNT else Use.UNKNOWN
        self._enumerate(request, answer, use)

    def enumerate_groups(self, request: Any, answer: Any) -> None:
        """Serve SamrEnumerateGroupsInDomain. All users are in one group; others are aliases."""
        self._enumerate(request, answer, Use.GROUP)

    def enumerate_aliases(self, request: Any, answer: Any) -> None:
        """Serve SamrEnumerateAliasesInDomain."""
        self._enumerate(request, answer, Use.ALIAS)

    def lookup_names(self, request: Any, answer: Any) -> None:
        """Serve SamrLookupNamesInDomain. [MS-SAMR 3.1.5.11.2]"""
        domain = self._context.handles.find(request["DomainHandle"], DomainObject)
        members = {name.casefold(): (rid, use) for rid, name, use in self._context.entries(domain)}
        wanted = [string_of(name).casefold() for name in request["Names"]][:MAX_LOOKUPS]
        found = [members.get(name) for name in wanted]
        self._numbers(answer["RelativeIds"], [entry[0] if entry else 0 for entry in found])
        self._numbers(answer["Use"], [entry[1] if entry else Use.UNKNOWN for entry in found])
        answer["ErrorCode"] = outcome(found)

    def lookup_ids(self, request: Any, answer: Any) -> None:
        """Serve SamrLookupIdsInDomain. [MS-SAMR 3.1.5.11.3]"""
        domain = self._context.handles.find(request["DomainHandle"], DomainObject)
        members = {rid: (name, use) for rid, name, use in self._context.entries(domain)}
        found = [members.get(int(rid["Data"])) for rid in request["RelativeIds"]][:MAX_LOOKUPS]
        answer["Names"]["Count"] = len(found)
        for entry in found:
            name = RPC_UNICODE_STRING()
            name["Data"] = entry[0] if entry else ""
            answer["Names"]["Element"].append(name)
        self._numbers(answer["Use"], [entry[1] if entry else Use.UNKNOWN for entry in found])
        answer["ErrorCode"] = outcome(found)

    @staticmethod
    def _numbers(array: Any, values: list[int]) -> None:
        array["Count"] = len(values)
        array["Element"] = numbers(values)

    def rid_to_sid(self, request: Any, answer: Any) -> None:
        """Serve SamrRidToSid. [MS-SAMR 3.1.5.13.3]"""
        held = self._context.handles.find(request["ObjectHandle"])
        domain = held.sid if isinstance(held, DomainObject) else self._context.accounts.domain_sid
        answer["Sid"] = rpc_sid(domain._replace(sub_authorities=(*domain.sub_authorities, int(request["Rid"]))))

    # Rules for passwords

    def password_information(self, request: Any, answer: Any) -> None:
        """Serve SamrGetDomainPasswordInformation and SamrGetUserDomainPasswordInformation. Anybody may ask: who cannot
        log on needs them for a new password. [MS-SAMR 3.1.5.13.1, 3.1.5.13.4]"""
        if "UserHandle" in request.fields:
            self._context.handles.find(request["UserHandle"], UserObject)
        answer["PasswordInformation"]["MinPasswordLength"] = self._context.server.settings.min_password_length
        answer["PasswordInformation"]["PasswordProperties"] = 0

    # Lists as tables

    def display(self, request: Any, answer: Any) -> None:
        """Serve SamrQueryDisplayInformation, 2 and 3: accounts (levels 1 and 4) and groups (3 and 5); no account is a
        machine's (2). [MS-SAMR 3.1.5.3.1]"""
        domain: DomainObject = self._context.handles.find(request["DomainHandle"], DomainObject)
        level, first = int(request["DisplayInformationClass"]), int(request["Index"])
        answer["TotalAvailable"] = answer["TotalReturned"] = 0
        if level not in _DISPLAYED:
            answer["Buffer"]["tag"] = 1
            answer["Buffer"]["UserInformation"]["EntriesRead"] = 0
            answer["ErrorCode"] = NtStatus.INVALID_INFO_CLASS
            return
        name, use, entry_type = _DISPLAYED[level]
        every = [entry for entry in self._context.entries(domain) if entry[2] is use]
        found = every[first : first + MAX_LOOKUPS]
        answer["Buffer"]["tag"] = level
        part = answer["Buffer"][name]
        part["EntriesRead"] = len(found)
        part["Buffer"] = []
        for index, (rid, own, _) in enumerate(found, first + 1):
            entry = entry_type()
            entry["Index"] = index
            self._display(entry, rid, own)
            part["Buffer"].append(entry)
        answer["TotalAvailable"] = answer["TotalReturned"] = len(found)
        answer["ErrorCode"] = NtStatus.MORE_ENTRIES if first + len(found) < len(every) else 0

    def _display(self, entry: Any, rid: int, name: str) -> None:
        if "OemAccountName" in entry.fields:
            entry["OemAccountName"] = name
            return
        entry["Rid"], entry["AccountName"], entry["AdminComment"] = rid, name, ""
        account = self._context.accounts.find(name) if "FullName" in entry.fields else None
        if account is None:
            entry["AccountControl"] = _ENABLED_GROUP
        else:
            entry["AccountControl"] = samr_users.control_of(account)
            entry["AdminComment"], entry["FullName"] = account.comment, account.full_name


def interface(server: ServerState, session: Session) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    context = Context(server, session)
    service = _Service(context)
    own = operations(
        (samr.SamrConnect, service.connect),
        (_CloseHandle, samr.SamrCloseHandleResponse, service.close),
        (samr.SamrLookupDomainInSamServer, service.lookup_domain),
        (samr.SamrEnumerateDomainsInSamServer, service.enumerate_domains),
        (samr.SamrOpenDomain, service.open_domain),
        (samr.SamrEnumerateGroupsInDomain, service.enumerate_groups),
        (samr.SamrEnumerateUsersInDomain, service.enumerate_users),
        (samr.SamrEnumerateAliasesInDomain, service.enumerate_aliases),
        (samr.SamrLookupNamesInDomain, service.lookup_names),
        (samr.SamrLookupIdsInDomain, service.lookup_ids),
        (samr.SamrQueryDisplayInformation, service.display),
        (samr.SamrGetUserDomainPasswordInformation, service.password_information),
        (samr.SamrQueryDisplayInformation2, service.display),
        (samr.SamrQueryDisplayInformation3, service.display),
        (samr.SamrGetDomainPasswordInformation, service.password_information),
        (samr.SamrConnect2, service.connect),
        (samr.SamrConnect4, service.connect),
        (samr.SamrConnect5, service.connect5),
        (samr.SamrRidToSid, service.rid_to_sid),
    )
    parts = (samr_domains, samr_users, samr_aliases, samr_passwords)
    others = (part.operations(context).items() for part in parts)
    return Interface(UUID, VERSION, dict(itertools.chain(own.items(), *others)))
