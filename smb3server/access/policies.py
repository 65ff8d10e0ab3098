"""Central access policies: what a policy of the domain leaves of the access that a descriptor gives. [MS-DTYP 2.5.3.2]

An entry of the SACL names the policy. Its rules can only take access away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from smb3server.access.check import Token, facts_of, granted_access
from smb3server.access.conditions.evaluation import value_of
from smb3server.access.conditions.expression import Term
from smb3server.access.descriptor import LOCAL_SYSTEM, OWNER_RIGHTS, Acl, SecurityDescriptor, Sid, allow
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.access.resource_attributes import policy_of

_ADMINISTRATORS = Sid(5, (32, 544))


class Rule(NamedTuple):
    """A rule of a policy: EffectiveCentralAccessPolicy. [MS-GPCAP 3.2.1.1]"""

    dacl: Acl | None
    """AccessCondition. None allows everything."""
    condition: tuple[Term, ...] = ()
    """AppliesToPredicate. Empty: the rule applies to all files."""


class Policy(NamedTuple):
    """A central access policy. [MS-GPCAP 3.2.1.1]"""

    name: str
    rules: tuple[Rule, ...]


RECOVERY = Policy(
    "recovery",
    (Rule(Acl(tuple(allow(sid, FILE_ALL_ACCESS) for sid in (_ADMINISTRATORS, LOCAL_SYSTEM, OWNER_RIGHTS)))),),
)
"""The policy of files that name one which is not known: the descriptor goes on to count for administrators and the
owner, and nobody else is let in. [MS-DTYP 2.5.3.1.4]"""


class Policies:
    """The policies that a server applies (CentralAccessPoliciesList). [MS-GPCAP 3.2.1.1]

    Other threads may replace them."""

    def __init__(self) -> None:
        self._known: Mapping[Sid, Policy] | None = None
        """None: nobody has said yet which there are."""

    @property
    def known(self) -> Mapping[Sid, Policy]:
        """The policies by their ids."""
        return self._known or {}

    def replace(self, policies: Mapping[Sid, Policy]) -> None:
        """Apply other policies from now on."""
        self._known = policies

    def limit(self, granted: int, descriptor: SecurityDescriptor, token: Token) -> int:
        """Return what the policy of a file leaves of the access that its descriptor gives. [MS-DTYP 2.5.3.2]"""
        policy = self._of(descriptor)
        if policy is None:
            return granted
        facts = facts_of(token, descriptor)
        for rule in policy.rules:
            if not rule.condition or value_of(rule.condition, facts, denying=False) is True:
                granted &= granted_access(descriptor._replace(dacl=rule.dacl), token, facts)
        return granted

    def _of(self, descriptor: SecurityDescriptor) -> Policy | None:
        """Return the policy that a descriptor names, or None. [MS-DTYP 2.5.3.1.4]

        Where the domain has none at all, entries mean nothing. As long as this is not known, they mean the worst."""
        sid = policy_of(descriptor)
        known = self._known
        if sid is None or (known is not None and not known):
            return None
        return (known or {}).get(sid, RECOVERY)
