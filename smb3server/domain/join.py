"""Makes, takes over and removes the machine account of this server. [MS-ADTS 6.4.1, MS-ADTS 3.1.1.3.1.5]

An administrator's Kerberos logon protects all of it. What was made is tried before the join counts: a logon with the
new key, and a secure channel.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from smb3server.access.descriptor import Sid
from smb3server.domain import kerberos, keytab
from smb3server.domain.controllers import DomainControllers
from smb3server.domain.keytab import Version
from smb3server.domain.ldap_client import (
    ALREADY_EXISTS,
    BASE,
    NO_SUCH_OBJECT,
    REPLACE,
    Entry,
    LdapConnection,
    LdapError,
    escaped,
)
from smb3server.domain.machine import Account, Machine, MachineError, machine_of, new_password
from smb3server.domain.netlogon import open_channel
from smb3server.domain.rpc_client import RpcError
from smb3server.domain.user import Controller
from smb3server.process import parts
from smb3server.settings.domain import DomainConfig

MAX_SKEW = 300
"""Seconds by which clocks may differ, as Kerberos allows by default. [RFC 4120 8.2]"""
TIMEOUT = 15.0
"""Seconds for one request of a join."""
_WORKSTATION_TRUST, _DISABLED = 0x1000, 0x2
"""Bits of userAccountControl. [MS-ADTS 2.2.16]"""
_COMPUTERS = "AA312825768811D1ADED00C04FD8D5CD"
"""GUID_COMPUTERS_CONTAINER_W. [MS-ADTS 6.1.1.4]"""


class JoinError(Exception):
    """The join, or leaving, could not be done; the text has the reason."""


class Administrator(NamedTuple):
    """Who changes the domain."""

    name: str
    password: str | None
    """None means the ticket that the user has from kinit."""


class _Directory(NamedTuple):
    """A controller's directory, open for changes."""

    controller: Controller
    ldap: LdapConnection
    base: str
    configuration: str


def join(
    config: DomainConfig, controllers: DomainControllers, who: Administrator, container: str = "", reuse: bool = False
) -> tuple[Account, Controller]:
    """Make the machine account and both files. Return what was made, and by which controller.

    ``container``: distinguished name of the account's place; empty means the domain's own for computers. ``reuse``:
    take over an account of the name. Raises ``JoinError``.
    """
    with _errors():
        machine = machine_of(config)
    with _errors(), machine.locked(), _directory(config, controllers, who) as directory:
        _check_domain(directory, config)
        password = new_password()
        name = _make_account(directory, config, password, container, reuse)
        found = directory.ldap.search(name, ["objectSid"], scope=BASE)
        sid = Sid.unpack(_one(found[0][1] if found else {}, "objectsid", "SID of the account"))
        version = Version(password, _number_of_key(directory, name), int(time.time()))
        domain_sid = str(sid._replace(sub_authorities=sid.sub_authorities[:-1]))
        versions = (version, *_earlier(machine, config, version))
        account = Account(config.realm, config.workgroup, config.machine, config.host, domain_sid, versions)
        machine.write(account)
        _try_out(machine, config, password, directory.controller)
        return account, directory.controller


def _earlier(machine: Machine, config: DomainConfig, version: Version) -> list[Version]:
    """Return the key that this server had until now, for the tickets that clients have. None after a first join."""
    try:
        known = machine.account()
    except MachineError:
        return []
    same = (known.realm, known.machine) == (config.realm, config.machine)
    return [one for one in known.versions[:1] if same and one.number < version.number]


def leave(config: DomainConfig, controllers: DomainControllers, who: Administrator) -> str:
    """Remove the machine account and both files. Return the name that the account had. Raises ``JoinError``."""
    with _errors():
        machine = machine_of(config)
    with _errors(), machine.locked(), _directory(config, controllers, who) as directory:
        entry = _find(directory, config.machine)
        if entry is not None:
            directory.ldap.delete(entry[0])
        machine.remove()
        return entry[0] if entry is not None else ""


class Registered(NamedTuple):
    """What the domain knows of the machine account."""

    number: int
    """Version of its key."""
    services: frozenset[str]
    """Its service principals, in lower case: the directory compares them so."""


def registered(config: DomainConfig, controllers: DomainControllers, password: str) -> Registered:
    """Return what the domain knows of the machine account, asked by the account itself. Raises ``JoinError``."""
    who = Administrator(f"{config.machine}$", password)
    with _errors(), _directory(config, controllers, who) as directory:
        entry = _find(directory, config.machine)
        if entry is None:
            raise JoinError(f"the domain has no account {config.machine}$")
        found = directory.ldap.search(entry[0], ["servicePrincipalName"], scope=BASE)
        names = found[0][1].get("serviceprincipalname", []) if found else []
        services = frozenset(name.decode("utf-8", "replace").lower() for name in names)
        return Registered(_number_of_key(directory, entry[0]), services)


def _number_of_key(directory: _Directory, name: str) -> int:
    found = directory.ldap.search(name, ["msDS-KeyVersionNumber"], scope=BASE)
    return int(_one(found[0][1] if found else {}, "msds-keyversionnumber", "version of the account's key"))


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn the errors of what a join uses into ``JoinError``."""
    try:
        import gssapi
    except ImportError as error:
        raise JoinError(f"{error}; {parts.remedy('domain')}") from error
    try:
        yield
    except gssapi.raw.GSSError as error:
        raise JoinError(f"Kerberos: {kerberos.words(error)}") from error
    except (LdapError, RpcError, MachineError, OSError, ValueError) as error:
        raise JoinError(str(error)) from error


@contextlib.contextmanager
def _directory(config: DomainConfig, controllers: DomainControllers, who: Administrator) -> Iterator[_Directory]:
    """Log on to the directory of the first controller that answers."""
    found = controllers.locate()
    if not found:
        raise JoinError(f"no controller is found: {controllers.problem}; remedy: name `controllers` in [domain]")
    controller, ldap, root = _first(found)
    try:
        _check_clock(controller, root)
        with kerberos.realm_known(config.realm, [controller, *(one for one in found if one != controller)]):
            ldap.log_on(controller.name, config.realm, kerberos.credentials(who.name, config.realm, who.password))
            base = _one(root, "defaultnamingcontext", "naming context").decode()
            configuration = _one(root, "configurationnamingcontext", "configuration").decode()
            yield _Directory(controller, ldap, base, configuration)
    finally:
        ldap.close()


def _first(found: list[Controller]) -> tuple[Controller, LdapConnection, Entry]:
    """Return the first controller that answers, a connection to it, and its root."""
    reasons = []
    for controller in found:
        try:
            ldap = LdapConnection(controller.address, TIMEOUT)
        except OSError as error:
            reasons.append(f"{controller.name} ({controller.address}): {error}")
            continue
        try:
            return controller, ldap, root_of(ldap)
        except (OSError, LdapError) as error:
            ldap.close()
            reasons.append(f"{controller.name}: {error}")
    raise JoinError(f"no controller answers: {'; '.join(reasons)}")


def root_of(ldap: LdapConnection) -> Entry:
    """Return what a controller says about itself to everybody. Raises ``LdapError`` and ``OSError``."""
    wanted = ["defaultNamingContext", "configurationNamingContext", "currentTime", "dnsHostName"]
    found = ldap.search("", wanted, scope=BASE)
    if not found:
        raise LdapError("the controller has no root")
    return found[0][1]


def skew_of(root: Entry) -> float:
    """Return by how many seconds a controller's clock is ahead of ours. Raises ``ValueError``. [MS-ADTS 3.1.1.3.2.9]"""
    text = _one(root, "currenttime", "time").decode("ascii")
    theirs = datetime.strptime(text[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return theirs.timestamp() - time.time()


def _check_clock(controller: Controller, root: Entry) -> None:
    skew = skew_of(root)
    if abs(skew) > MAX_SKEW:
        raise JoinError(
            f"this machine's clock is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'} that of "
            f"{controller.name}, and Kerberos allows {MAX_SKEW} s; remedy: have both follow one NTP server"
        )


def _one(entry: Entry, attribute: str, what: str) -> bytes:
    values = entry.get(attribute)
    if not values:
        raise ValueError(f"the controller does not say the {what}")
    return values[0]


def _check_domain(directory: _Directory, config: DomainConfig) -> None:
    """Compare the names of the configuration with the domain's."""
    partitions = f"CN=Partitions,{directory.configuration}"
    found = directory.ldap.search(partitions, ["nETBIOSName", "dnsRoot"], [("nCName", directory.base)])
    names = [entry for _, entry in found if "netbiosname" in entry]
    if not names:
        raise JoinError("the controller does not say the domain's NetBIOS name")
    netbios = names[0]["netbiosname"][0].decode()
    if netbios.casefold() != config.workgroup.casefold():
        raise JoinError(f'the domain\'s NetBIOS name is {netbios}; remedy: workgroup = "{netbios}" in [domain]')


def _find(directory: _Directory, machine: str) -> tuple[str, Entry] | None:
    found = directory.ldap.search(directory.base, ["userAccountControl"], [("sAMAccountName", f"{machine}$")])
    # References to other domains have no entry.
    return found[0] if found and found[0][1] else None


def _make_account(directory: _Directory, config: DomainConfig, password: str, container: str, reuse: bool) -> str:
    """Make the account or take it over, and return its distinguished name."""
    attributes = {
        "dNSHostName": [config.host.encode()],
        "servicePrincipalName": [
            name.encode() for name in keytab.principals(config.machine, config.host) if "/" in name
        ],
        "msDS-SupportedEncryptionTypes": [str(keytab.SUPPORTED).encode()],
        "userAccountControl": [str(_WORKSTATION_TRUST).encode()],
        "unicodePwd": [f'"{password}"'.encode("utf-16-le")],
    }
    # The names of services compare without case in the directory.
    names = {name.lower(): name for name in attributes["servicePrincipalName"]}
    attributes["servicePrincipalName"] = list(names.values())
    known = _find(directory, config.machine)
    if known is not None:
        if not reuse:
            raise JoinError(
                f"there is an account {config.machine}$ already ({known[0]}): another machine may use it; remedy: "
                "--reuse takes it over"
            )
        # The encryption types come first: they decide which keys the new password gets.
        order = ("msDS-SupportedEncryptionTypes", "dNSHostName", "servicePrincipalName", "userAccountControl")
        directory.ldap.modify(known[0], [(REPLACE, name, attributes[name]) for name in order])
        directory.ldap.modify(known[0], [(REPLACE, "unicodePwd", attributes["unicodePwd"])])
        return known[0]
    place = container or _computers(directory)
    name = f"CN={escaped(config.machine)},{place}"
    first = {"objectClass": [b"computer"], "sAMAccountName": [f"{config.machine}$".encode()]}
    try:
        directory.ldap.add(name, first | attributes)
    except LdapError as error:
        if error.code == NO_SUCH_OBJECT:
            raise JoinError(f"there is no container {place}") from error
        if error.code == ALREADY_EXISTS:
            raise JoinError(f"there is an object {name} already, which is no account of this name") from error
        raise
    return name


def _computers(directory: _Directory) -> str:
    """Return the domain's container for computers, which administrators may have moved. [MS-ADTS 6.1.1.4]"""
    found = directory.ldap.search(directory.base, ["wellKnownObjects"], scope=BASE)
    for value in found[0][1].get("wellknownobjects", ()):
        parts_of = value.decode().split(":", 3)
        if len(parts_of) == 4 and parts_of[2].upper() == _COMPUTERS:
            return parts_of[3]
    return f"CN=Computers,{directory.base}"


def _try_out(machine: Machine, config: DomainConfig, password: str, controller: Controller) -> None:
    """Log on as the machine, and establish its secure channel."""
    kerberos.credentials(f"{config.machine.upper()}$", config.realm, password)
    open_channel(controller, machine, time.monotonic() + TIMEOUT).close()
