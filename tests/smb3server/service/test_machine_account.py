"""The schedule by which a member changes its machine account's password, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("impacket", reason="needs the part domain")

from smb3server.auth.users import nt_hash
from smb3server.domain import keytab
from smb3server.domain.keytab import Version
from smb3server.domain.machine import Account, Machine
from smb3server.domain.member import Member
from smb3server.domain.user import NoController
from smb3server.service.machine_account import EVERY, MachineAccount
from smb3server.settings.domain import DEFAULT_ROTATION, DomainConfig

DAY = 86400


class Domain:
    """What the controllers know of the account. ``now`` is the clock of all."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.begun = self.now
        self.password = "at the join"
        self.number = 1
        self.changes: list[float] = []
        self.away = False
        self.loses_answers = False

    @property
    def day(self) -> float:
        return (self.now - self.begun) / DAY

    def set(self, password: str) -> None:
        self.password = password
        self.number += 1
        self.changes.append(self.now)
        if self.loses_answers:
            raise ConnectionResetError("the answer is lost")


class Channel:
    def __init__(self, domain: Domain, secret: Any) -> None:
        self._domain = domain
        self.secret = secret

    def set_password(self, password: str, deadline: float) -> None:
        self._domain.set(password)


class Controllers:
    """Takes the place of ``Netlogon``."""

    def __init__(self, domain: Domain, machine: Machine) -> None:
        self._domain = domain
        self._machine = machine

    def ask(self, operation: Callable[[Any, float], Any]) -> Any:
        if self._domain.away:
            raise NoController("nobody answers")
        for secret in self._machine.secrets():
            if secret.nt_hash == nt_hash(self._domain.password):
                try:
                    return operation(Channel(self._domain, secret), 0.0)
                except OSError as error:
                    raise NoController(str(error)) from error
        raise NoController("the machine account is refused")

    def close(self) -> None:
        pass


class Node:
    """One start of a server: it runs until the clock has come to a day, or ``meanwhile`` ends it."""

    def __init__(self, domain: Domain, folder: Path, rotation: int = DEFAULT_ROTATION) -> None:
        self._domain = domain
        config = DomainConfig("CONTOSO.COM", "CONTOSO", folder / "keytab", "FILES", folder / "secret")
        config.rotation = rotation
        member = Member(config)
        member.machine = Machine(folder / "secret", folder / "keytab", lambda: domain.now)
        member.netlogon = Controllers(domain, member.machine)  # type: ignore[assignment]
        self.member = member
        self._account = MachineAccount(member, rotation, self._sleep)
        self._until = 0.0

    async def _sleep(self, seconds: float) -> None:
        self._domain.now += seconds
        if self._domain.day >= self._until:
            raise asyncio.CancelledError

    def run(self, until: float) -> None:
        self._until = until
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(self._account.run())


@pytest.fixture
def domain(tmp_path: Path) -> Domain:
    found = Domain()
    first = Version(found.password, found.number, int(found.now))
    account = Account("CONTOSO.COM", "CONTOSO", "FILES", "files.contoso.com", "S-1-5-21-1-2-3", (first,))
    Machine(tmp_path / "secret", tmp_path / "keytab").write(account)
    return found


def days(domain: Domain) -> list[int]:
    return [round((when - domain.begun) / DAY) for when in domain.changes]


def check(domain: Domain, folder: Path) -> None:
    """Check that the member knows what the domain does."""
    account = Machine(folder / "secret", folder / "keytab").account()
    latest = account.versions[0]
    assert (latest.password, latest.number) == (domain.password, domain.number)
    assert max(keytab.numbers((folder / "keytab").read_bytes())) == domain.number
    assert not account.pending


def test_it_is_changed_every_thirty_days(domain: Domain, tmp_path: Path) -> None:
    Node(domain, tmp_path).run(100)
    assert days(domain) == [30, 60, 90]
    check(domain, tmp_path)


def test_restarts_neither_lose_nor_double_a_change(domain: Domain, tmp_path: Path) -> None:
    for day in range(7, 127, 7):
        Node(domain, tmp_path).run(day)
    assert days(domain) == [30, 60, 90, 120]
    # A server that was off on the day makes up for it, once.
    domain.now = domain.begun + 200 * DAY
    Node(domain, tmp_path).run(229)
    assert days(domain)[4:] == [200]
    check(domain, tmp_path)


def test_without_a_controller_it_is_tried_every_hour(domain: Domain, tmp_path: Path) -> None:
    domain.away = True
    Node(domain, tmp_path).run(40)
    assert domain.changes == [] and Machine(tmp_path / "secret", tmp_path / "keytab").account().pending
    # The same password is tried again by the next start, as soon as there is a controller.
    domain.away = False
    node = Node(domain, tmp_path)
    node.run(41)
    assert days(domain) == [40]
    check(domain, tmp_path)
    node.run(71)
    assert days(domain) == [40, 70]


def test_a_lost_answer_costs_no_key(domain: Domain, tmp_path: Path) -> None:
    domain.loses_answers = True
    Node(domain, tmp_path).run(30.02)
    assert len(domain.changes) == 1
    domain.loses_answers = False
    Node(domain, tmp_path).run(59)
    # What was set is found out, and counts.
    assert len(domain.changes) == 1
    check(domain, tmp_path)


def test_two_nodes_of_one_machine_change_it_once(domain: Domain, tmp_path: Path) -> None:
    nodes = [Node(domain, tmp_path) for _ in range(2)]
    for day in range(1, 95):
        for node in nodes:
            node.run(day)
    assert len(domain.changes) == 3
    check(domain, tmp_path)


def test_never_means_never(domain: Domain, tmp_path: Path) -> None:
    Node(domain, tmp_path, rotation=0).run(400)
    assert domain.changes == []


def test_a_clock_that_was_wrong_does_not_stop_it(domain: Domain, tmp_path: Path) -> None:
    domain.now += 3000 * DAY
    Node(domain, tmp_path).run(3001)
    domain.now = domain.begun
    domain.changes.clear()
    Node(domain, tmp_path).run(70)
    assert days(domain) == [0, 30, 60]


def test_it_is_looked_at_more_often_where_it_is_short(domain: Domain, tmp_path: Path) -> None:
    Node(domain, tmp_path, rotation=600).run(EVERY / DAY)
    assert len(domain.changes) == 5
