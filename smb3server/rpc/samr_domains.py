"""Domains as clients look at them: rules for passwords, names, counts. [MS-SAMR 3.1.5.5.1]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from impacket.dcerpc.v5 import samr
from impacket.dcerpc.v5.dtypes import LARGE_INTEGER, NULL, RPC_UNICODE_STRING, ULONG, USHORT
from impacket.dcerpc.v5.ndr import NDRCALL, NDRPOINTER, NDRSTRUCT, NDRUNION

from smb3server.auth.accounts import BUILTIN
from smb3server.auth.directory import Use
from smb3server.rpc import ndr
from smb3server.rpc.dcerpc import Operation
from smb3server.rpc.ndr import declare
from smb3server.rpc.samr_context import Context, DomainObject, put_time
from smb3server.wire.status import NtStatus

_ENABLED, _PRIMARY = 1, 3
"""DomainServerEnabled, DomainServerRolePrimary. [MS-SAMR 2.2.3.2, 2.2.3.4]"""
NEVER = -(1 << 63)
"""A duration without end. [MS-SAMR 2.2.2.2]"""
_GENERAL, _GENERAL2 = 2, 11

# Fields of one and of two bytes are encoded as four. To who reads the first bytes this is the same, with padding of
# zeros; Samba reads four.


_General = declare(
    NDRSTRUCT,
    structure=(
        ("ForceLogoff", samr.OLD_LARGE_INTEGER),
        ("OemInformation", RPC_UNICODE_STRING),
        ("DomainName", RPC_UNICODE_STRING),
        ("ReplicaSourceNodeName", RPC_UNICODE_STRING),
        ("DomainModifiedCount", samr.OLD_LARGE_INTEGER),
        ("DomainServerState", ULONG),
        ("DomainServerRole", ULONG),
        ("UasCompatibilityRequired", ULONG),
        ("UserCount", ULONG),
        ("GroupCount", ULONG),
        ("AliasCount", ULONG),
    ),
)
"""SAMPR_DOMAIN_GENERAL_INFORMATION. [MS-SAMR 2.2.3.10]"""
_General2 = declare(
    NDRSTRUCT,
    structure=(
        ("I1", _General),
        ("LockoutDuration", LARGE_INTEGER),
        ("LockoutObservationWindow", LARGE_INTEGER),
        ("LockoutThreshold", USHORT),
    ),
)
"""SAMPR_DOMAIN_GENERAL_INFORMATION2. [MS-SAMR 2.2.3.11]"""
_Number = declare(NDRSTRUCT, structure=(("Value", ULONG),))
"""DOMAIN_SERVER_ROLE_INFORMATION and DOMAIN_STATE_INFORMATION. [MS-SAMR 2.2.3.7, 2.2.3.3]"""
_Information = declare(
    NDRUNION,
    commonHdr=(("tag", USHORT),),
    union={
        1: ("Password", samr.DOMAIN_PASSWORD_INFORMATION),
        _GENERAL: ("General", _General),
        3: ("Logoff", samr.DOMAIN_LOGOFF_INFORMATION),
        4: ("Oem", samr.SAMPR_DOMAIN_OEM_INFORMATION),
        5: ("Name", samr.SAMPR_DOMAIN_NAME_INFORMATION),
        6: ("Replication", samr.SAMPR_DOMAIN_REPLICATION_INFORMATION),
        7: ("Role", _Number),
        8: ("Modified", samr.DOMAIN_MODIFIED_INFORMATION),
        9: ("State", _Number),
        _GENERAL2: ("General2", _General2),
        12: ("Lockout", samr.SAMPR_DOMAIN_LOCKOUT_INFORMATION),
        13: ("Modified2", samr.DOMAIN_MODIFIED_INFORMATION2),
    },
)
"""SAMPR_DOMAIN_INFO_BUFFER. [MS-SAMR 2.2.3.17]"""
_InformationPointer = declare(NDRPOINTER, referent=(("Data", _Information),))


class _Response(NDRCALL):  # type: ignore[misc]
    """Response of SamrQueryInformationDomain and SamrQueryInformationDomain2."""

    structure = (("Buffer", _InformationPointer), ("ErrorCode", ULONG))


class _Domains:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._fill: dict[str, Callable[[Any, DomainObject], None]] = {
            "Password": self._password_rules,
            "General": self._general,
            "Logoff": lambda part, domain: put_time(part["ForceLogoff"], NEVER),
            "Oem": lambda part, domain: part.__setitem__("OemInformation", context.server.settings.comment),
            "Name": lambda part, domain: part.__setitem__("DomainName", self._name(domain)),
            "Replication": lambda part, domain: part.__setitem__("ReplicaSourceNodeName", ""),
            "Role": lambda part, domain: part.__setitem__("Value", _PRIMARY),
            "Modified": self._modified,
            "State": lambda part, domain: part.__setitem__("Value", _ENABLED),
            "General2": self._general2,
            "Lockout": self._lockout,
            "Modified2": self._modified2,
        }

    def query(self, request: Any, answer: Any) -> None:
        """Serve SamrQueryInformationDomain and SamrQueryInformationDomain2. [MS-SAMR 3.1.5.5.1, 3.1.5.5.2]"""
        domain: DomainObject = self._context.handles.find(request["DomainHandle"], DomainObject)
        level = int(request["DomainInformationClass"])
        if level not in _Information.union:
            answer["Buffer"] = NULL
            answer["ErrorCode"] = NtStatus.INVALID_INFO_CLASS
            return
        name, _ = _Information.union[level]
        answer["Buffer"]["tag"] = level
        self._fill[name](answer["Buffer"][name], domain)

    def _name(self, domain: DomainObject) -> str:
        return "Builtin" if domain.sid == BUILTIN else self._context.accounts.domain

    def _password_rules(self, part: Any, domain: DomainObject) -> None:
        part["MinPasswordLength"] = self._context.server.settings.min_password_length
        part["PasswordHistoryLength"] = 1
        part["PasswordProperties"] = 0
        put_time(part["MaxPasswordAge"], NEVER)
        put_time(part["MinPasswordAge"], 0)

    def _general(self, part: Any, domain: DomainObject) -> None:
        put_time(part["ForceLogoff"], NEVER)
        part["OemInformation"] = self._context.server.settings.comment
        part["DomainName"], part["ReplicaSourceNodeName"] = self._name(domain), ""
        put_time(part["DomainModifiedCount"], 1)
        part["DomainServerState"], part["DomainServerRole"] = _ENABLED, _PRIMARY
        part["UasCompatibilityRequired"] = 1
        kinds = [use for _, _, use in self._context.entries(domain)]
        part["UserCount"], part["GroupCount"] = kinds.count(Use.USER), kinds.count(Use.GROUP)
        part["AliasCount"] = kinds.count(Use.ALIAS)

    def _general2(self, part: Any, domain: DomainObject) -> None:
        self._general(part["I1"], domain)
        self._lockout(part, domain)

    def _lockout(self, part: Any, domain: DomainObject) -> None:
        settings = self._context.server.settings
        part["LockoutThreshold"] = settings.lockout_failures
        for name in ("LockoutDuration", "LockoutObservationWindow"):
            # Durations are negative, in units of 100 ns. (rpcclient prints them as nonsense, Samba's own, too.)
            part[name] = -int(settings.lockout_time * 10_000_000)

    def _modified(self, part: Any, domain: DomainObject) -> None:
        put_time(part["DomainModifiedCount"], 1)
        put_time(part["CreationTime"], 0)

    def _modified2(self, part: Any, domain: DomainObject) -> None:
        self._modified(part, domain)
        put_time(part["ModifiedCountAtLastPromotion"], 0)


def operations(context: Context) -> dict[int, Operation]:
    """Return the operations by opnum."""
    domains = _Domains(context)
    return ndr.operations(
        (samr.SamrQueryInformationDomain, _Response, domains.query),
        (samr.SamrQueryInformationDomain2, _Response, domains.query),
    )
