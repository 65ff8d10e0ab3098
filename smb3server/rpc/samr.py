"""Security Account Manager, read-only: the server's accounts. There are no groups of its own. [MS-SAMR]"""

from __future__ import annotations

from typing import Any, NamedTuple

from impacket.dcerpc.v5 import samr
from impacket.dcerpc.v5.dtypes import NULL, RPC_UNICODE_STRING
from impacket.dcerpc.v5.ndr import NDRCALL

from smb3server.access.descriptor import Sid
from smb3server.auth.accounts import BUILTIN, WELL_KNOWN, Accounts, Use
from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.handles import NULL_HANDLE, Handles
from smb3server.rpc.lsarpc import rpc_sid, sid_of, string_of
from smb3server.rpc.ndr import operation, wire_uuid
from smb3server.state.objects import Session
from smb3server.wire.status import NtStatus

UUID = wire_uuid("12345778-1234-ABCD-EF00-0123456789AC")
VERSION = 1
DOMAIN_USERS = 513
"""RID of the primary group of every account."""
MAX_LOOKUPS = 1000
_NO_SUCH_DOMAIN, _NO_SUCH_USER = 0xC00000DF, 0xC0000064
_SOME_NOT_MAPPED, _NONE_MAPPED = 0x00000107, 0xC0000073
_NORMAL_ACCOUNT = 0x00000010


class _CloseHandle(NDRCALL):  # type: ignore[misc]
    """Request of SamrCloseHandle: the handle and nothing else. [MS-SAMR 3.1.5.13.1]"""

    opnum = 1
    structure = (("SamHandle", samr.SAMPR_HANDLE),)


class _Connection(NamedTuple):
    name: str = "server"


class _Domain(NamedTuple):
    sid: Sid


class _User(NamedTuple):
    rid: int
    name: str


class _Service:
    def __init__(self, accounts: Accounts, session: Session) -> None:
        self.session = session
        self.accounts = accounts
        self.handles = Handles()

    def connect(self, request: Any, answer: Any) -> Any:
        """Serve SamrConnect, SamrConnect2 and SamrConnect4. [MS-SAMR 3.1.5.1]

        Any requested access gets read access. Guests and anonymous users do not get the handle that all other calls
        need, unless the settings allow it.
        """
        if not self.accounts.may_be_asked_by(self.session.identity):
            answer["ServerHandle"] = NULL_HANDLE
            answer["ErrorCode"] = NtStatus.ACCESS_DENIED
            return answer
        answer["ServerHandle"] = self.handles.add(_Connection())
        answer["ErrorCode"] = 0
        return answer

    def connect5(self, request: Any) -> Any:
        """Serve SamrConnect5. [MS-SAMR 3.1.5.1.1]"""
        answer = samr.SamrConnect5Response()
        answer["OutVersion"] = 1
        answer["OutRevisionInfo"]["tag"] = 1
        answer["OutRevisionInfo"]["V1"]["Revision"] = 3
        answer["OutRevisionInfo"]["V1"]["SupportedFeatures"] = 0
        return self.connect(request, answer)

    def close(self, request: Any) -> Any:
        """Serve SamrCloseHandle."""
        self.handles.close(request["SamHandle"])
        answer = samr.SamrCloseHandleResponse()
        answer["SamHandle"] = NULL_HANDLE
        answer["ErrorCode"] = 0
        return answer

    # Domains

    def lookup_domain(self, request: Any) -> Any:
        """Serve SamrLookupDomainInSamServer. [MS-SAMR 3.1.5.11.1]"""
        self.handles.find(request["ServerHandle"], _Connection)
        name = string_of(request["Name"]).casefold()
        answer = samr.SamrLookupDomainInSamServerResponse()
        sids = {self.accounts.domain.casefold(): self.accounts.domain_sid, "builtin": BUILTIN}
        sid = sids.get(name)
        answer["DomainId"] = rpc_sid(sid) if sid is not None else NULL
        answer["ErrorCode"] = 0 if sid is not None else _NO_SUCH_DOMAIN
        return answer

    def enumerate_domains(self, request: Any) -> Any:
        """Serve SamrEnumerateDomainsInSamServer. [MS-SAMR 3.1.5.2.1]"""
        self.handles.find(request["ServerHandle"], _Connection)
        return self._entries(
            request, samr.SamrEnumerateDomainsInSamServerResponse(), [(0, self.accounts.domain), (1, "Builtin")]
        )

    def open_domain(self, request: Any) -> Any:
        """Serve SamrOpenDomain. [MS-SAMR 3.1.5.1.5]"""
        self.handles.find(request["ServerHandle"], _Connection)
        sid = sid_of(request["DomainId"])
        answer = samr.SamrOpenDomainResponse()
        known = sid in (self.accounts.domain_sid, BUILTIN)
        answer["DomainHandle"] = self.handles.add(_Domain(sid)) if known else NULL_HANDLE
        answer["ErrorCode"] = 0 if known else _NO_SUCH_DOMAIN
        return answer

    # Users, groups, aliases

    def _entries(self, request: Any, answer: Any, entries: list[tuple[int, str]]) -> Any:
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
        answer["ErrorCode"] = 0
        return answer

    def _members(self, domain: _Domain) -> list[tuple[int, str, Use]]:
        if domain.sid == BUILTIN:
            return [
                (known.sid.sub_authorities[1], known.name, Use.ALIAS)
                for known in WELL_KNOWN
                if known.use is Use.ALIAS and known.sid.sub_authorities[0] == 32
            ]
        return [(rid, account.name, Use.USER) for rid, account in self.accounts.users()]

    def _enumerate(self, request: Any, answer: Any, use: Use) -> Any:
        domain = self.handles.find(request["DomainHandle"], _Domain)
        return self._entries(request, answer, [(rid, name) for rid, name, kind in self._members(domain) if kind is use])

    def enumerate_users(self, request: Any) -> Any:
        """Serve SamrEnumerateUsersInDomain. A filter without normal accounts returns no accounts.
        [MS-SAMR 3.1.5.2.5]"""
        kinds = int(request["UserAccountControl"])
        use = Use.USER if not kinds or kinds & _NORMAL_ACCOUNT else Use.UNKNOWN
        return self._enumerate(request, samr.SamrEnumerateUsersInDomainResponse(), use)

    def enumerate_groups(self, request: Any) -> Any:
        """Serve SamrEnumerateGroupsInDomain. There are no groups."""
        return self._enumerate(request, samr.SamrEnumerateGroupsInDomainResponse(), Use.GROUP)

    def enumerate_aliases(self, request: Any) -> Any:
        """Serve SamrEnumerateAliasesInDomain."""
        return self._enumerate(request, samr.SamrEnumerateAliasesInDomainResponse(), Use.ALIAS)

    def lookup_names(self, request: Any) -> Any:
        """Serve SamrLookupNamesInDomain. [MS-SAMR 3.1.5.11.2]"""
        domain = self.handles.find(request["DomainHandle"], _Domain)
        answer = samr.SamrLookupNamesInDomainResponse()
        members = {name.casefold(): (rid, use) for rid, name, use in self._members(domain)}
        wanted = [string_of(name).casefold() for name in request["Names"]][:MAX_LOOKUPS]
        found = [members.get(name) for name in wanted]
        self._numbers(answer["RelativeIds"], [entry[0] if entry else 0 for entry in found])
        self._numbers(answer["Use"], [entry[1] if entry else Use.UNKNOWN for entry in found])
        answer["ErrorCode"] = _outcome(found)
        return answer

    def lookup_ids(self, request: Any) -> Any:
        """Serve SamrLookupIdsInDomain. [MS-SAMR 3.1.5.11.3]"""
        domain = self.handles.find(request["DomainHandle"], _Domain)
        answer = samr.SamrLookupIdsInDomainResponse()
        members = {rid: (name, use) for rid, name, use in self._members(domain)}
        found = [members.get(int(rid["Data"])) for rid in request["RelativeIds"]][:MAX_LOOKUPS]
        answer["Names"]["Count"] = len(found)
        for entry in found:
            name = RPC_UNICODE_STRING()
            name["Data"] = entry[0] if entry else ""
            answer["Names"]["Element"].append(name)
        self._numbers(answer["Use"], [entry[1] if entry else Use.UNKNOWN for entry in found])
        answer["ErrorCode"] = _outcome(found)
        return answer

    @staticmethod
    def _numbers(array: Any, values: list[int]) -> None:
        array["Count"] = len(values)
        for value in values:
            number = samr.ULONG()
            number["Data"] = int(value)
            array["Element"].append(number)

    def open_user(self, request: Any) -> Any:
        """Serve SamrOpenUser. [MS-SAMR 3.1.5.1.9]"""
        domain = self.handles.find(request["DomainHandle"], _Domain)
        rid = int(request["UserId"])
        name = next((name for own, name, use in self._members(domain) if own == rid and use is Use.USER), None)
        answer = samr.SamrOpenUserResponse()
        answer["UserHandle"] = self.handles.add(_User(rid, name)) if name is not None else NULL_HANDLE
        answer["ErrorCode"] = 0 if name is not None else _NO_SUCH_USER
        return answer

    def groups_of_user(self, request: Any) -> Any:
        """Serve SamrGetGroupsForUser. [MS-SAMR 3.1.5.9.1]"""
        self.handles.find(request["UserHandle"], _User)
        answer = samr.SamrGetGroupsForUserResponse()
        entry = samr.GROUP_MEMBERSHIP()
        entry["RelativeId"] = DOMAIN_USERS
        entry["Attributes"] = 7
        answer["Groups"]["MembershipCount"] = 1
        answer["Groups"]["Groups"].append(entry)
        answer["ErrorCode"] = 0
        return answer

    def alias_membership(self, request: Any) -> Any:
        """Serve SamrGetAliasMembership. Aliases have no listed members. [MS-SAMR 3.1.5.9.2]"""
        self.handles.find(request["DomainHandle"], _Domain)
        answer = samr.SamrGetAliasMembershipResponse()
        answer["Membership"]["Count"] = 0
        answer["Membership"]["Element"] = []
        answer["ErrorCode"] = 0
        return answer

    def query_user(self, request: Any, answer: Any) -> Any:
        """Serve SamrQueryInformationUser and SamrQueryInformationUser2. [MS-SAMR 3.1.5.5.6]

        The levels are general (1), names (6, 7, 8) and account control (16).
        """
        user: _User = self.handles.find(request["UserHandle"], _User)
        level = int(request["UserInformationClass"])
        info = answer["Buffer"]
        if level not in (1, 6, 7, 8, 16):
            answer["Buffer"] = NULL
            answer["ErrorCode"] = NtStatus.INVALID_INFO_CLASS
            return answer
        info["tag"] = level
        if level == 1:
            general = info["General"]
            general["UserName"] = user.name
            general["FullName"] = general["AdminComment"] = general["UserComment"] = ""
            general["PrimaryGroupId"] = DOMAIN_USERS
        elif level == 6:
            info["Name"]["UserName"], info["Name"]["FullName"] = user.name, ""
        elif level == 7:
            info["AccountName"]["UserName"] = user.name
        elif level == 8:
            info["FullName"]["FullName"] = ""
        else:
            info["Control"]["UserAccountControl"] = _NORMAL_ACCOUNT
        answer["ErrorCode"] = 0
        return answer


def _outcome(found: list[Any]) -> int:
    mapped = sum(entry is not None for entry in found)
    if mapped == len(found):
        return 0
    return _SOME_NOT_MAPPED if mapped else _NONE_MAPPED


def interface(accounts: Accounts, session: Session) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    service = _Service(accounts, session)
    return Interface(
        UUID,
        VERSION,
        {
            0: operation(samr.SamrConnect, lambda request: service.connect(request, samr.SamrConnectResponse())),
            1: operation(_CloseHandle, service.close),
            5: operation(samr.SamrLookupDomainInSamServer, service.lookup_domain),
            6: operation(samr.SamrEnumerateDomainsInSamServer, service.enumerate_domains),
            7: operation(samr.SamrOpenDomain, service.open_domain),
            11: operation(samr.SamrEnumerateGroupsInDomain, service.enumerate_groups),
            13: operation(samr.SamrEnumerateUsersInDomain, service.enumerate_users),
            15: operation(samr.SamrEnumerateAliasesInDomain, service.enumerate_aliases),
            16: operation(samr.SamrGetAliasMembership, service.alias_membership),
            17: operation(samr.SamrLookupNamesInDomain, service.lookup_names),
            18: operation(samr.SamrLookupIdsInDomain, service.lookup_ids),
            34: operation(samr.SamrOpenUser, service.open_user),
            36: operation(
                samr.SamrQueryInformationUser,
                lambda request: service.query_user(request, samr.SamrQueryInformationUserResponse()),
            ),
            39: operation(samr.SamrGetGroupsForUser, service.groups_of_user),
            47: operation(
                samr.SamrQueryInformationUser2,
                lambda request: service.query_user(request, samr.SamrQueryInformationUser2Response()),
            ),
            57: operation(samr.SamrConnect2, lambda request: service.connect(request, samr.SamrConnect2Response())),
            62: operation(samr.SamrConnect4, lambda request: service.connect(request, samr.SamrConnect4Response())),
            64: operation(samr.SamrConnect5, service.connect5),
        },
    )
