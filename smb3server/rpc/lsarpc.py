"""Local Security Authority: names and SIDs for security dialogs, and the domain of the server. [MS-LSAD, MS-LSAT]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from impacket.dcerpc.v5 import lsad, lsat
from impacket.dcerpc.v5.dtypes import LPWSTR, NULL, PRPC_UNICODE_STRING
from impacket.dcerpc.v5.ndr import NDRCALL, NDRPOINTER, NDRULONG

from smb3server.access.descriptor import EVERYONE, LOCAL_SYSTEM, Acl, SecurityDescriptor, Sid, allow
from smb3server.auth.directory import Directory, Known, Use
from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.lsa_privileges import DisplayName, Privileges
from smb3server.rpc.lsa_structures import outcome, rpc_sid, sid_of, string_of
from smb3server.rpc.ndr import NULL_HANDLE, Handles, answering, operation, operations, wire_uuid
from smb3server.state.objects import Session
from smb3server.wire.query_info import SecurityInformation
from smb3server.wire.status import NtStatus

UUID = wire_uuid("12345778-1234-ABCD-EF00-0123456789AB")
VERSION = 0
MAX_LOOKUPS = 1000
"""Names or SIDs of one call. MS-LSAT 3.1.4.5 allows a limit."""
_NO_DOMAIN = -1
_ADMINISTRATORS = Sid(5, (32, 544))
_POLICY_READ = 0x00020801
"""READ_CONTROL, POLICY_LOOKUP_NAMES and POLICY_VIEW_LOCAL_INFORMATION. [MS-LSAD 2.2.1.1.2]"""
_POLICY_DACL = Acl((allow(EVERYONE, _POLICY_READ),))
_PRIMARY, _ACCOUNT, _ROLE, _DNS, _LOCAL_ACCOUNT = 3, 5, 6, 12, 14


class _Reference(NDRPOINTER):  # type: ignore[misc]
    # A pointer to a pointer; impacket's LsarGetUserName has one level less. [MS-LSAT 3.1.4.4]
    referent = (("Data", PRPC_UNICODE_STRING),)


class Unread:
    """A request that is not decoded: its object attributes are ignored. [MS-LSAD 2.2.2.4]"""

    def __init__(self, stub: bytes) -> None:
        del stub


class _UserNameRequest(NDRCALL):  # type: ignore[misc]
    opnum = 45
    structure = (("SystemName", LPWSTR), ("UserName", PRPC_UNICODE_STRING), ("DomainName", _Reference))


class _UserName(NDRCALL):  # type: ignore[misc]
    structure = (("UserName", PRPC_UNICODE_STRING), ("DomainName", _Reference), ("ErrorCode", NDRULONG))


class _Domains:
    """LSAPR_REFERENCED_DOMAIN_LIST of an answer under construction."""

    def __init__(self, accounts: Directory, answer: Any) -> None:
        self._accounts = accounts
        self._list = answer["ReferencedDomains"]
        self._list["Entries"] = 0
        self._list["MaxEntries"] = 0
        self._index: dict[str, int] = {}

    def add(self, known: Known) -> int:
        """Add the domain of a name if the list does not have it. Return its index."""
        index = self._index.get(known.domain)
        if index is None:
            index = self._index[known.domain] = len(self._index)
            entry = lsad.LSAPR_TRUST_INFORMATION()
            entry["Name"] = known.domain
            prefix = known.sid if known.use == Use.DOMAIN else _prefix(known.sid)
            if known.domain == self._accounts.domain and prefix.authority == 22:
                prefix = self._accounts.domain_sid
            entry["Sid"] = rpc_sid(prefix)
            self._list["Domains"].append(entry)
            self._list["Entries"] = self._list["MaxEntries"] = len(self._index)
        return index


def _prefix(sid: Sid) -> Sid:
    return Sid(sid.authority, sid.sub_authorities[:-1])


class _Service:
    def __init__(self, accounts: Directory, session: Session) -> None:
        self.session = session
        self.accounts = accounts
        self.handles = Handles()

    def open_policy(self, request: Any, answer: Any) -> None:
        """Serve LsarOpenPolicy and LsarOpenPolicy2. Any requested access gets read access. [MS-LSAD 3.1.4.4.2]"""
        if not self.accounts.may_be_asked_by(self.session.identity):
            answer["PolicyHandle"] = NULL_HANDLE
            answer["ErrorCode"] = NtStatus.ACCESS_DENIED
            return
        answer["PolicyHandle"] = self.handles.add(self)

    def close(self, request: Any, answer: Any) -> None:
        """Serve LsarClose."""
        self.handles.close(request["ObjectHandle"])
        answer["ObjectHandle"] = NULL_HANDLE

    def query_policy(self, request: Any, answer: Any) -> None:
        """Serve LsarQueryInformationPolicy and LsarQueryInformationPolicy2. [MS-LSAD 3.1.4.4.4]"""
        self.handles.find(request["PolicyHandle"])
        level = int(request["InformationClass"])
        if level not in (_PRIMARY, _ACCOUNT, _ROLE, _DNS, _LOCAL_ACCOUNT):
            answer["PolicyInformation"] = NULL
            answer["ErrorCode"] = NtStatus.INVALID_PARAMETER
            return
        info = answer["PolicyInformation"]
        info["tag"] = level
        if level == _PRIMARY:
            info["PolicyPrimaryDomainInfo"]["Name"] = "WORKGROUP"
            info["PolicyPrimaryDomainInfo"]["Sid"] = NULL
        elif level == _ROLE:
            info["PolicyServerRoleInfo"]["LsaServerRole"] = 3
        elif level == _DNS:
            domain = info["PolicyDnsDomainInfo"]
            domain["Name"] = "WORKGROUP"
            domain["DnsDomainName"] = domain["DnsForestName"] = ""
            domain["DomainGuid"] = bytes(16)
            domain["Sid"] = NULL
        else:
            account = info["PolicyAccountDomainInfo" if level == _ACCOUNT else "PolicyLocalAccountDomainInfo"]
            account["DomainName"] = self.accounts.domain
            account["DomainSid"] = rpc_sid(self.accounts.domain_sid)

    def trusted_domains(self, request: Any, answer: Any) -> None:
        """Serve LsarEnumerateTrustedDomains: there are none. [MS-LSAD 3.1.4.7.8]"""
        self.handles.find(request["PolicyHandle"])
        answer["EnumerationContext"] = request["EnumerationContext"]
        answer["EnumerationBuffer"]["Entries"] = 0
        answer["EnumerationBuffer"]["Information"] = NULL
        answer["ErrorCode"] = NtStatus.NO_MORE_ENTRIES

    def query_security(self, request: Any, answer: Any) -> None:
        """Serve LsarQuerySecurityObject: all may look at the policy, nobody changes it. [MS-LSAD 3.1.4.9.1]"""
        self.handles.find(request["PolicyHandle"])
        wanted = int(request["SecurityInformation"])
        descriptor = SecurityDescriptor(
            _ADMINISTRATORS if wanted & SecurityInformation.OWNER else None,
            LOCAL_SYSTEM if wanted & SecurityInformation.GROUP else None,
            _POLICY_DACL if wanted & SecurityInformation.DACL else None,
        )
        packed = descriptor.pack()
        answer["SecurityDescriptor"]["Length"] = len(packed)
        answer["SecurityDescriptor"]["SecurityDescriptor"] = list(packed)

    def _learn(self, sids: Sequence[Sid] = (), names: Sequence[str] = ()) -> None:
        """Have others asked about what is not known here. These pipes are served by a thread, which may wait."""
        if self.accounts.may_be_asked_by(self.session.identity):
            self.accounts.learn(sids, names)

    # SIDs to names

    def _names(self, request: Any, answer: Any, entry_type: Any, extended: bool) -> None:
        domains = _Domains(self.accounts, answer)
        answer["TranslatedNames"]["Entries"] = 0
        answer["MappedCount"] = 0
        try:
            sids = [sid_of(entry["Sid"]) for entry in request["SidEnumBuffer"]["SidInfo"]]
        except ValueError:
            # Every SID is checked first. [MS-LSAT 3.1.4.9]
            sids = None
        if sids is None or len(sids) > MAX_LOOKUPS:
            answer["ErrorCode"] = NtStatus.INVALID_PARAMETER
            return
        self._learn(sids=sids)
        found = [self.accounts.by_sid(sid) for sid in sids]
        for sid, known in zip(sids, found, strict=True):
            entry = entry_type()
            entry["Use"] = known.use if known is not None else Use.UNKNOWN
            entry["Name"] = known.name if known is not None else str(sid)
            entry["DomainIndex"] = domains.add(known) if known is not None else _NO_DOMAIN
            if extended:
                entry["Flags"] = 0
            answer["TranslatedNames"]["Names"].append(entry)
        answer["TranslatedNames"]["Entries"] = len(found)
        answer["MappedCount"] = sum(entry is not None for entry in found)
        answer["ErrorCode"] = outcome(found)

    def lookup_sids(self, request: Any, answer: Any) -> None:
        """Serve LsarLookupSids. [MS-LSAT 3.1.4.11]"""
        self.handles.find(request["PolicyHandle"])
        self._names(request, answer, lsat.LSAPR_TRANSLATED_NAME, False)

    def lookup_sids2(self, request: Any, answer: Any) -> None:
        """Serve LsarLookupSids2. [MS-LSAT 3.1.4.10]"""
        self.handles.find(request["PolicyHandle"])
        self._names(request, answer, lsat.LSAPR_TRANSLATED_NAME_EX, True)

    # Names to SIDs

    def _sids(self, request: Any, answer: Any, entry_type: Any, relative: bool, extended: bool) -> None:
        names = [string_of(name) for name in request["Names"]][: MAX_LOOKUPS + 1]
        domains = _Domains(self.accounts, answer)
        answer["TranslatedSids"]["Entries"] = 0
        answer["MappedCount"] = 0
        if len(names) > MAX_LOOKUPS:
            answer["ErrorCode"] = NtStatus.INVALID_PARAMETER
            return
        self._learn(names=names)
        found = [self._by_name(name, relative) for name in names]
        for known in found:
            entry = entry_type()
            entry["Use"] = known.use if known is not None else Use.UNKNOWN
            if relative:
                entry["RelativeId"] = known.sid.sub_authorities[-1] if known is not None else 0
            else:
                entry["Sid"] = rpc_sid(known.sid) if known is not None else NULL
            entry["DomainIndex"] = domains.add(known) if known is not None else _NO_DOMAIN
            if extended:
                entry["Flags"] = 0
            answer["TranslatedSids"]["Sids"].append(entry)
        answer["TranslatedSids"]["Entries"] = len(found)
        answer["MappedCount"] = sum(entry is not None for entry in found)
        answer["ErrorCode"] = outcome(found)

    def _by_name(self, name: str, relative: bool) -> Known | None:
        """Look up a name. If the answer can only have a RID, return an account's SID in the account domain, whatever
        uid it has. Other names of that domain have their SID in it."""
        known = self.accounts.by_name(name)
        if not relative or known is None or known.use is not Use.USER or known.domain != self.accounts.domain:
            return known
        if known.sid.sub_authorities[:-1] == self.accounts.domain_sid.sub_authorities:
            return known
        return known._replace(sid=self.accounts.account_sid(known.name))

    def lookup_sids3(self, request: Any, answer: Any) -> None:
        """Serve LsarLookupSids3, which has no handle. [MS-LSAT 3.1.4.9]"""
        self._names(request, answer, lsat.LSAPR_TRANSLATED_NAME_EX, True)

    def lookup_names4(self, request: Any, answer: Any) -> None:
        """Serve LsarLookupNames4, which has no handle. [MS-LSAT 3.1.4.5]"""
        self._sids(request, answer, lsat.LSAPR_TRANSLATED_SID_EX2, False, True)

    def lookup_names(self, request: Any, answer: Any) -> None:
        """Serve LsarLookupNames. [MS-LSAT 3.1.4.8]"""
        self.handles.find(request["PolicyHandle"])
        self._sids(request, answer, lsat.LSA_TRANSLATED_SID, True, False)

    def lookup_names2(self, request: Any, answer: Any) -> None:
        """Serve LsarLookupNames2. [MS-LSAT 3.1.4.7]"""
        self.handles.find(request["PolicyHandle"])
        self._sids(request, answer, lsat.LSAPR_TRANSLATED_SID_EX, True, True)

    def lookup_names3(self, request: Any, answer: Any) -> None:
        """Serve LsarLookupNames3. [MS-LSAT 3.1.4.6]"""
        self.handles.find(request["PolicyHandle"])
        self._sids(request, answer, lsat.LSAPR_TRANSLATED_SID_EX2, False, True)

    def get_user_name(self, request: Any, answer: Any) -> None:
        """Serve LsarGetUserName. [MS-LSAT 3.1.4.4]"""
        identity = self.session.identity
        nobody = identity is None or identity.anonymous
        answer["UserName"] = "ANONYMOUS LOGON" if identity is None or nobody else identity.name
        asked = request.fields["DomainName"].fields["ReferentID"]
        domain = "NT AUTHORITY" if nobody else self.accounts.domain
        answer["DomainName"] = domain if asked else NULL


def interface(accounts: Directory, session: Session) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    service = _Service(accounts, session)
    privileges = Privileges(accounts, service.handles)
    served = operations(
        (lsad.LsarClose, service.close),
        (lsad.LsarQuerySecurityObject, service.query_security),
        (lsad.LsarQueryInformationPolicy, service.query_policy),
        (lsad.LsarEnumerateTrustedDomains, service.trusted_domains),
        (lsat.LsarLookupNames, service.lookup_names),
        (lsat.LsarLookupSids, service.lookup_sids),
        (_UserNameRequest, _UserName, service.get_user_name),
        (lsad.LsarQueryInformationPolicy2, service.query_policy),
        (lsat.LsarLookupSids2, service.lookup_sids2),
        (lsat.LsarLookupNames2, service.lookup_names2),
        (lsat.LsarLookupNames3, service.lookup_names3),
        (lsat.LsarLookupSids3, service.lookup_sids3),
        (lsat.LsarLookupNames4, service.lookup_names4),
        (lsad.LsarEnumeratePrivileges, privileges.enumerate_privileges),
        (lsad.LsarEnumerateAccounts, privileges.enumerate_accounts),
        (lsad.LsarOpenAccount, privileges.open_account),
        (lsad.LsarEnumeratePrivilegesAccount, privileges.privileges_of_account),
        (lsad.LsarGetSystemAccessAccount, privileges.system_access),
        (lsad.LsarLookupPrivilegeValue, privileges.value),
        (lsad.LsarLookupPrivilegeName, privileges.name),
        (lsad.LsarLookupPrivilegeDisplayName, DisplayName, privileges.display_name),
        (lsad.LsarEnumerateAccountsWithUserRight, privileges.accounts_with_right),
        (lsad.LsarEnumerateAccountRights, privileges.account_rights),
    )
    served |= {
        6: operation(Unread, answering(lsad.LsarOpenPolicyResponse, service.open_policy)),
        44: operation(Unread, answering(lsad.LsarOpenPolicy2Response, service.open_policy)),
    }
    return Interface(UUID, VERSION, served)
