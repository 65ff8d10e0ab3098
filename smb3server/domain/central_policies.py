"""The central access policies of the domain, from its directory. [MS-GPCAP 3.2.5.3, MS-ADSC, MS-ADA2]

A controller is asked by LDAP as the machine account. What it says is kept in a file, so that policies count as well
after a start without any controller. Texts are kept, and not what they mean to this version.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from smb3server.access import sddl
from smb3server.access.conditions.text import parse_condition
from smb3server.access.descriptor import Control, Sid
from smb3server.access.policies import RECOVERY, Policies, Policy, Rule
from smb3server.domain.ldap_client import BASE, NO_SUCH_OBJECT, Entry, LdapConnection, LdapError
from smb3server.domain.ldap_questions import Asks
from smb3server.process.own_files import replace_file
from smb3server.process.secret_files import read_secret

log = logging.getLogger(__name__)

MAX_POLICIES = 1000
"""Policies, and rules of all policies. As many a controller returns at once. [MS-ADTS 3.1.1.3.4.6]"""
_POLICY, _RULE = "msAuthz-CentralAccessPolicy", "msAuthz-CentralAccessRule"
_POLICY_ATTRIBUTES = ("name", "msAuthz-CentralAccessPolicyID", "msAuthz-MemberRulesInCentralAccessPolicy")
_RULE_ATTRIBUTES = ("name", "msAuthz-ResourceCondition", "msAuthz-EffectiveSecurityPolicy")
_FORMAT = 1


class RuleText(NamedTuple):
    """A rule as the directory has it. What is proposed (msAuthz-ProposedSecurityPolicy) decides nothing."""

    name: str
    condition: str
    """msAuthz-ResourceCondition. Empty: the rule applies to all files."""
    effective: str
    """msAuthz-EffectiveSecurityPolicy."""


class PolicyText(NamedTuple):
    """A policy as the directory has it."""

    sid: Sid
    name: str
    rules: tuple[RuleText, ...]
    lacking: tuple[str, ...] = ()
    """Rules that the directory does not have, or does not show."""


def from_directory(ldap: LdapConnection) -> list[PolicyText]:
    """Return all policies of the forest, in the order of their names.

    Raises ``LdapError``, ``OSError`` and ``ValueError``."""
    root = ldap.search("", ["configurationNamingContext"], scope=BASE)
    if not root:
        raise LdapError("the controller has no root")
    base = f"CN=Claims Configuration,CN=Services,{_text(root[0][1], 'configurationnamingcontext')}"
    try:
        policies = ldap.search(base, _POLICY_ATTRIBUTES, [("objectClass", _POLICY)], most=MAX_POLICIES)
        rules = ldap.search(base, _RULE_ATTRIBUTES, [("objectClass", _RULE)], most=MAX_POLICIES)
    except LdapError as error:
        if error.code == NO_SUCH_OBJECT:
            # The forest is older than Windows Server 2012.
            return []
        raise
    by_name = {name.casefold(): _rule(entry) for name, entry in rules}
    return sorted((_policy(entry, by_name) for _, entry in policies), key=lambda policy: policy.name.casefold())


def _rule(entry: Entry) -> RuleText:
    condition = _text(entry, "msauthz-resourcecondition")
    return RuleText(_text(entry, "name"), condition, _text(entry, "msauthz-effectivesecuritypolicy"))


def _policy(entry: Entry, rules: Mapping[str, RuleText]) -> PolicyText:
    """Return a policy. Raises ``ValueError``."""
    members = [value.decode() for value in entry.get("msauthz-memberrulesincentralaccesspolicy", [])]
    found = [(member, rules.get(member.casefold())) for member in members]
    return PolicyText(
        Sid.unpack(entry.get("msauthz-centralaccesspolicyid", [b""])[0]),
        _text(entry, "name"),
        tuple(sorted(rule for _, rule in found if rule is not None)),
        tuple(sorted(member for member, rule in found if rule is None)),
    )


def _text(entry: Entry, attribute: str) -> str:
    values = entry.get(attribute, [])
    return values[0].decode() if values else ""


def understood(policy: PolicyText, domain: Sid | None) -> Policy:
    """Return what a policy means. ``domain``: whose groups abbreviations as DA are.

    Raises ``ValueError``, whose text says which rule is not understood. Such a policy is as good as unknown: nobody
    knows what it would take away."""
    if policy.lacking:
        raise ValueError(f"the directory does not show its rule {policy.lacking[0]}")
    if not policy.rules:
        raise ValueError("it has no rules")
    return Policy(policy.name, tuple(_understood(rule, domain) for rule in policy.rules))


def _understood(rule: RuleText, domain: Sid | None) -> Rule:
    try:
        access = sddl.parse(rule.effective, domain)
        if not access.control & Control.DACL_PRESENT:
            raise ValueError("it has no DACL")
        return Rule(access.dacl, parse_condition(rule.condition, domain) if rule.condition else ())
    except ValueError as error:
        raise ValueError(f"rule {rule.name}: {error}") from error


class Kept(NamedTuple):
    """What the file has."""

    policies: list[PolicyText]
    read_at: float
    """When a controller has said so last."""


def kept(file: Path) -> Kept:
    """Return what the file has. Raises ``FileNotFoundError``, and ``ValueError`` if it is damaged or not to be
    trusted."""
    read_at = os.stat(file).st_mtime
    content = read_secret(file, (os.stat(file.parent).st_uid,))
    try:
        data = json.loads(content)
        if data["format"] != _FORMAT:
            raise ValueError("another format")
        return Kept([_unpacked(policy) for policy in data["policies"]], read_at)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged") from error


def _unpacked(data: Any) -> PolicyText:
    rules = tuple(RuleText(str(one["name"]), str(one["condition"]), str(one["effective"])) for one in data["rules"])
    return PolicyText(Sid.parse(data["sid"]), str(data["name"]), rules, tuple(map(str, data["lacking"])))


def _packed(policies: Collection[PolicyText]) -> bytes:
    found = [
        policy._asdict() | {"sid": str(policy.sid), "rules": [rule._asdict() for rule in policy.rules]}
        for policy in policies
    ]
    return json.dumps({"format": _FORMAT, "policies": found}, indent=1).encode() + b"\n"


def chosen(found: Collection[PolicyText], names: Collection[str] | None) -> Iterator[PolicyText]:
    """Iterate over the policies that have one of the names. None means all."""
    wanted = None if names is None else {name.casefold() for name in names}
    return (policy for policy in found if wanted is None or policy.name.casefold() in wanted)


def file_of(secret: Path) -> Path:
    """Return where policies are kept: beside the file with the machine account's password."""
    return secret.with_name("domain.policies")


class CentralPolicies:
    """The policies of the domain that this server applies."""

    def __init__(self, directory: Asks, file: Path, names: Collection[str] | None, domain: Sid | None) -> None:
        """``names``: those that the configuration chooses. None means all. ``domain``: the SID of the server's
        domain."""
        self._directory = directory
        self._file = file
        self._names = names
        self._domain = domain
        self._current: list[PolicyText] | None = None
        """Those that apply."""
        self._kept: list[PolicyText] | None = None
        """Those that the file has, as far as is known."""
        self.policies = Policies()

    def load(self) -> None:
        """Apply what the file has, if there is one."""
        try:
            self._kept = kept(self._file).policies
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("central access policies: %s", error)
        else:
            self._apply(self._kept)

    def refresh(self) -> None:
        """Ask a controller, and apply and keep what it says. Blocks. Raises ``NoController``, and ``OSError`` if it
        cannot be kept: it applies even then."""
        found = self._directory.ask(from_directory)
        if found != self._current:
            if self._current and not found:
                log.warning(
                    "the directory shows no central access policies any more: files are as their descriptors say"
                )
            self._apply(found)
        try:
            self._keep(found)
        except OSError as error:
            text = f"they apply, but the next start would not know them: {error.strerror}"
            raise OSError(error.errno, text, str(self._file)) from error

    def _keep(self, found: list[PolicyText]) -> None:
        """Have the file say this, and when it was said last. Raises ``OSError``."""
        if found == self._kept:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._file)
                return
        replace_file(self._file, _packed(found), self._dress)
        self._kept = found

    def _dress(self, descriptor: int) -> None:
        """Give a file that root makes to the owner of its folder, who is the server's user."""
        if os.geteuid() == 0:
            owner = os.stat(self._file.parent)
            os.fchown(descriptor, owner.st_uid, owner.st_gid)

    def _apply(self, found: list[PolicyText]) -> None:
        self._current = found
        applied: dict[Sid, Policy] = {}
        for policy in chosen(found, self._names):
            try:
                applied[policy.sid] = understood(policy, self._domain)
            except ValueError as error:
                applied[policy.sid] = RECOVERY
                log.warning(
                    "central access policy %s: %s: its files are for administrators and owners", policy.name, error
                )
        self.policies.replace(applied)
