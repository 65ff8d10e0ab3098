"""What the doctor finds about a domain's member: DNS, controllers, clocks, the machine account and its keys."""

from __future__ import annotations

import importlib
import socket
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from smb3server.access.descriptor import Sid
from smb3server.doctor.findings import Finding, Verdict
from smb3server.process import parts
from smb3server.settings.domain import DomainConfig

if TYPE_CHECKING:
    from smb3server.domain.machine import Machine

_DOCS = "docs/domain-join.md"
_TIMEOUT = 5.0
"""Seconds for one question to a controller."""
_OLD_POLICIES = 3600
"""Seconds without an answer about central access policies that are worth a warning."""
_NOTABLE_SKEW = 60
"""Seconds of difference that are worth a note. Kerberos allows 300."""


def examine_domain(config: DomainConfig | None) -> Iterator[Finding]:
    """Look at the membership in a domain, if there is one."""
    if config is None:
        return
    for name in ("gssapi", "krb5", "dns.resolver"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            remedy = parts.remedy("domain").removeprefix("remedy: ")
            yield Finding(Verdict.PROBLEM, "domain", f"it needs {error.name}", remedy)
            return
    yield from _DomainCheck(config).findings()


class _DomainCheck:
    """One look at a membership."""

    def __init__(self, config: DomainConfig) -> None:
        # They need optional libraries.
        from smb3server.domain.machine import Machine
        from smb3server.domain.member import controllers_of

        self._config = config
        self._controllers = controllers_of(config)
        self._machine = Machine(config.secret, config.keytab) if config.secret is not None else None

    def findings(self) -> Iterator[Finding]:
        """Look at everything, the network first."""
        found = self._controllers.locate()
        yield from self._dns(bool(found))
        for controller in found:
            yield from self._controller(controller.name, controller.address)
        if self._machine is None:
            text = "there is none: users log on by tickets alone"
            yield Finding(Verdict.NOTE, "machine account", text, "`secret` in [domain], or `state`, and a join")
        elif (yield from self._account(self._machine)):
            if found:
                yield from self._channel(self._machine)
            yield from self._policies(self._machine)

    def _dns(self, found: bool) -> Iterator[Finding]:
        config = self._config
        if not found:
            yield Finding(
                Verdict.PROBLEM,
                "controllers",
                f"none is found: {self._controllers.problem}",
                f"have this machine ask the domain's DNS servers, or name `controllers` in [domain] ({_DOCS})",
            )
        elif self._controllers.problem:
            yield Finding(Verdict.WARNING, "controllers", self._controllers.problem, "mend DNS, or `controllers`")
        try:
            socket.getaddrinfo(config.host, None)
        except OSError as error:
            yield Finding(
                Verdict.WARNING,
                "DNS",
                f"{config.host}: {error.strerror}: clients do not find this server by the name that its tickets have",
                f"add an address record: samba-tool dns add, or the DNS manager ({_DOCS})",
            )

    def _controller(self, name: str, address: str) -> Iterator[Finding]:
        from smb3server.domain.join import MAX_SKEW, root_of, skew_of
        from smb3server.domain.ldap_client import LdapConnection, LdapError

        subject = f"controller {name}"
        try:
            ldap = LdapConnection(address, _TIMEOUT)
            try:
                skew = skew_of(root_of(ldap))
            finally:
                ldap.close()
        except (OSError, LdapError, ValueError) as error:
            yield Finding(Verdict.WARNING, subject, f"{address} does not answer: {error}", "others are tried instead")
            return
        if abs(skew) > MAX_SKEW:
            text = f"its clock differs from ours by {abs(skew):.0f} s: Kerberos allows {MAX_SKEW} s, no ticket is valid"
            yield Finding(Verdict.PROBLEM, subject, text, "have both follow one NTP server")
        elif abs(skew) > _NOTABLE_SKEW:
            text = f"its clock differs from ours by {abs(skew):.0f} s"
            yield Finding(Verdict.WARNING, subject, text, "have both follow one NTP server")
        else:
            yield Finding(Verdict.OK, subject, f"{address} answers, and the clocks agree")

    def _account(self, machine: Machine) -> Generator[Finding, None, bool]:
        """Compare the files with each other, and with the configuration. Returns whether there is an account."""
        from smb3server.domain.keytab import numbers
        from smb3server.domain.machine import MachineError

        config = self._config
        try:
            account = machine.account()
        except MachineError as error:
            text, _, remedy = str(error).partition("; remedy: ")
            yield Finding(Verdict.PROBLEM, "machine account", text, remedy or "smb3server domain join")
            return False
        for what, ours, theirs in (
            ("realm", config.realm, account.realm),
            ("workgroup", config.workgroup, account.workgroup),
            ("machine", config.machine, account.machine),
        ):
            if ours != theirs:
                yield Finding(
                    Verdict.PROBLEM,
                    what,
                    f"the configuration says {ours}, and the server has joined as {theirs}",
                    "smb3server domain join, or the old value",
                )
        latest = account.versions[0]
        days = (time.time() - latest.set_at) / 86400
        text = f"{account.machine}$ of {account.realm}, key version {latest.number}, password of {days:.0f} days"
        if account.pending:
            text += "; its last change did not come to an end, and will be tried again"
        late = config.rotation and time.time() - latest.set_at > 2 * config.rotation
        verdict = Verdict.WARNING if account.pending or late else Verdict.OK
        yield Finding(
            verdict, "machine account", text, "smb3server domain rotate" if verdict is Verdict.WARNING else ""
        )
        try:
            known = numbers(config.keytab.read_bytes())
        except (OSError, ValueError) as error:
            yield Finding(Verdict.PROBLEM, "keytab", f"{config.keytab}: {error}", "smb3server domain rotate")
            return True
        lacking = {one.number for one in account.versions} - known
        if lacking:
            text = f"{config.keytab} lacks key version {', '.join(map(str, sorted(lacking)))}"
            yield Finding(Verdict.PROBLEM, "keytab", text, "smb3server domain rotate")
        else:
            yield Finding(Verdict.OK, "keytab", f"key versions {', '.join(map(str, sorted(known)))}")
        return True

    def _channel(self, machine: Machine) -> Iterator[Finding]:
        """Have a controller accept the machine account, and compare the number of its key."""
        from smb3server.domain.join import JoinError, registered
        from smb3server.domain.netlogon import Netlogon
        from smb3server.domain.user import NoController

        netlogon = Netlogon(self._controllers, machine)
        try:
            name = netlogon.ask(lambda channel, deadline: channel.controller.name)
        except NoController as error:
            remedy = "smb3server domain join --reuse, if the domain does not know the machine account any more"
            yield Finding(Verdict.PROBLEM, "secure channel", str(error), remedy)
            return
        finally:
            netlogon.close()
        yield Finding(Verdict.OK, "secure channel", f"{name} accepts the machine account")
        latest = machine.account().versions[0]
        try:
            found = registered(self._config, self._controllers, latest.password)
        except JoinError as error:
            yield Finding(Verdict.WARNING, "key version", f"not compared: {error}")
            return
        yield from self._services(found.services)
        if found.number == latest.number:
            yield Finding(Verdict.OK, "key version", f"the domain has {found.number}, too")
        else:
            yield Finding(
                Verdict.PROBLEM,
                "key version",
                f"the domain has {found.number}, and this server {latest.number}: no ticket is valid",
                "smb3server domain join --reuse",
            )

    def _policies(self, machine: Machine) -> Iterator[Finding]:
        """Say which central access policies the server has read, and how long ago."""
        from smb3server.domain.central_policies import chosen, file_of, kept, understood

        assert self._config.secret is not None
        subject, names, file = "central access policies", self._config.central_policies, file_of(self._config.secret)
        try:
            found = kept(file)
        except FileNotFoundError:
            yield Finding(Verdict.NOTE, subject, "the server has not read them yet", "start it, with a controller")
            return
        except (OSError, ValueError) as error:
            yield Finding(Verdict.WARNING, subject, str(error), f"remove {file}: the server reads them anew")
            return
        policies = list(chosen(found.policies, names))
        age = max(time.time() - found.read_at, 0)
        known = ", ".join(policy.name for policy in policies) or "none"
        late = age > _OLD_POLICIES
        remedy = "the log of the server says why it gets no newer ones" if late else ""
        text = f"{known}; a controller has said so {age / 60:.0f} minutes ago"
        yield Finding(Verdict.WARNING if late else Verdict.OK, subject, text, remedy)
        for name in names or ():
            if name.casefold() not in {policy.name.casefold() for policy in policies}:
                yield Finding(Verdict.WARNING, subject, f"the directory has none named {name}", "`central_policies`")
        for policy in policies:
            try:
                understood(policy, Sid.parse(machine.account().domain_sid))
            except ValueError as error:
                text = f"{policy.name}: {error}: its files are for administrators and owners"
                yield Finding(Verdict.WARNING, subject, text, "mend the rule in the directory")

    def _services(self, services: frozenset[str]) -> Iterator[Finding]:
        """Look whether clients get tickets for all names of the server."""
        from smb3server.domain.keytab import principals

        config = self._config
        wanted = dict.fromkeys(name.lower() for name in principals(config.machine, config.host) if "/" in name)
        lacking = [name for name in wanted if name not in services]
        if lacking:
            text = f"the domain does not know {', '.join(lacking)}: clients get no ticket for these names"
            yield Finding(Verdict.PROBLEM, "service names", text, "smb3server domain join --reuse")
        else:
            yield Finding(Verdict.OK, "service names", f"the domain knows {', '.join(wanted)}")
