"""Two sites of a domain: a member turns to the controllers of its own one first. [MS-ADTS 6.3.3]"""

from __future__ import annotations

import sys

import pytest

from tests.system.domain.controller import REALM, WORKGROUP, Domain

pytestmark = [pytest.mark.root, pytest.mark.interop, pytest.mark.long, pytest.mark.timeout(900)]

_LOCATE = f"""
from smb3server.domain.controllers import DomainControllers
for _ in range(12):
    found = DomainControllers("{REALM}")
    print(*(one.name for one in found.locate()), found.site)
"""
"""Names of controllers in the order to try, and the site. Without sites chance decides the order."""


def _located(domain: Domain) -> set[str]:
    done = domain.command("member", sys.executable, "-c", _LOCATE)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


def test_controllers_of_the_own_site_come_first(domain: Domain) -> None:
    """A controller names the site by the member's address, and DNS the site's controllers."""
    first, second = domain.first, domain.second()
    zone, who = f"_msdcs.{REALM.lower()}", ["-U", f"{WORKGROUP}\\Administrator%{domain.password}"]
    names = {first: "Main", second: "Berlin"}
    if not any(second.name in line for line in _located(domain)):
        # No controller of the lab changes DNS by itself.
        domain.tool("dns", "add", first.name, zone, "_ldap._tcp.dc", "SRV", f"{second.name} 389 0 100", *who)
    for controller, site in names.items():
        domain.tool("sites", "create", site)
        record = f"_ldap._tcp.{site}._sites.dc"
        domain.tool("dns", "add", first.name, zone, record, "SRV", f"{controller.name} 389 0 100", *who)
    subnet = f"{domain.network.address('member')}/32"
    domain.tool("sites", "subnet", "create", subnet, "Berlin")
    domain.replicate("CN=Configuration,")
    assert _located(domain) == {f"{second.name} {first.name} Berlin"}
    domain.tool("sites", "subnet", "set-site", subnet, "Main")
    domain.replicate("CN=Configuration,")
    assert _located(domain) == {f"{first.name} {second.name} Main"}
