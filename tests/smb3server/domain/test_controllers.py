"""Which controllers are asked, and in which order."""

from __future__ import annotations

import threading

from smb3server.domain.controllers import FIRST_PAUSE, LIFETIME, DomainControllers, Record, in_order
from smb3server.domain.user import Controller


class Network:
    """DNS and a clock of the test's own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.records: dict[str, list[Record]] = {}
        self.asked: list[str] = []
        self.down = False
        self.site: str | Exception = ""
        self.pings: list[str] = []

    def ask_site(self, address: str, realm: str) -> str:
        assert realm == "CONTOSO.COM"
        self.pings.append(address)
        if isinstance(self.site, Exception):
            raise self.site
        return self.site

    def lookup(self, name: str) -> list[Record]:
        self.asked.append(name)
        if self.down:
            raise OSError("no DNS")
        return self.records.get(name, [])

    def resolve(self, host: str) -> str:
        if host.startswith("nowhere"):
            raise OSError("no such host")
        return f"address of {host}"

    def controllers(self, *hosts: str, site: str = "") -> DomainControllers:
        return DomainControllers("CONTOSO.COM", hosts, site, self.lookup, self.resolve, self.ask_site, lambda: self.now)


ALL = "_ldap._tcp.dc._msdcs.contoso.com"


def names(controllers: DomainControllers) -> list[str]:
    return [one.name for one in controllers.locate()]


def test_those_of_the_configuration_come_in_its_order() -> None:
    network = Network()
    assert names(network.controllers("dc2", "dc1")) == ["dc2", "dc1"]
    assert network.asked == []


def test_dns_names_them_by_priority_and_those_of_the_site_first() -> None:
    network = Network()
    network.records[ALL] = [Record(10, 1, "far"), Record(0, 1, "near"), Record(0, 1, "local")]
    network.records["_ldap._tcp.Berlin._sites.dc._msdcs.contoso.com"] = [Record(0, 1, "local")]
    found = network.controllers(site="Berlin")
    assert names(found) == ["local", "near", "far"]
    assert found.problem == ""


def test_a_controller_says_which_site_this_machine_is_in() -> None:
    network = Network()
    network.records[ALL] = [Record(0, 1, "near"), Record(10, 1, "local")]
    network.records["_ldap._tcp.Berlin._sites.dc._msdcs.contoso.com"] = [Record(0, 1, "local")]
    network.site = "Berlin"
    found = network.controllers()
    assert names(found) == ["local", "near"] and found.site == "Berlin"
    assert network.pings == ["address of near"]
    # Without an answer the site of the last time counts.
    network.site = TimeoutError("no answer")
    network.now += LIFETIME + 1
    assert names(found) == ["local", "near"]
    assert len(network.pings) == 3
    # A site that DNS does not have is no obstacle.
    network.site = "Paris"
    network.now += LIFETIME + 1
    assert names(found) == ["near", "local"]


def test_those_who_come_while_dns_is_asked_do_not_wait() -> None:
    network = Network()
    network.records[ALL] = [Record(0, 1, "dc1")]
    found = network.controllers()
    assert names(found) == ["dc1"]
    network.now += LIFETIME + 1
    seen: list[list[str]] = []

    def slow(name: str) -> list[Record]:
        one = threading.Thread(target=lambda: seen.append(names(found)))
        one.start()
        one.join()
        return network.records[ALL]

    found._lookup = slow
    assert names(found) == ["dc1"] and seen == [["dc1"]]


def test_weights_count_among_equals() -> None:
    records = [Record(0, 99, "strong"), Record(0, 1, "weak")]
    first = [in_order(records)[0] for _ in range(300)]
    assert first.count("strong") > 250
    assert in_order([]) == []


def test_answers_are_remembered_and_survive_dns() -> None:
    network = Network()
    network.records[ALL] = [Record(0, 1, "dc1")]
    found = network.controllers()
    assert names(found) == names(found) == ["dc1"]
    assert len(network.asked) == 1
    network.now += LIFETIME + 1
    network.down = True
    assert names(found) == ["dc1"]
    assert found.problem == "no DNS"


def test_without_any_the_problem_is_said() -> None:
    network = Network()
    found = network.controllers()
    assert names(found) == []
    assert ALL in found.problem
    assert names(network.controllers("nowhere", "dc2")) == ["dc2"]


def test_one_that_failed_is_tried_last_for_a_time_that_grows() -> None:
    network = Network()
    found = network.controllers("dc1", "dc2")
    first = Controller("dc1", "address of dc1")
    found.failed(first)
    assert names(found) == ["dc2", "dc1"]
    network.now += FIRST_PAUSE + 1
    assert names(found) == ["dc1", "dc2"]
    found.failed(first)
    network.now += FIRST_PAUSE + 1
    assert names(found) == ["dc2", "dc1"]
    found.answered(first)
    assert names(found) == ["dc1", "dc2"]
