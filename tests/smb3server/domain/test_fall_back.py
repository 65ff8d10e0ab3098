"""Which controller answers when others do not."""

from __future__ import annotations

from typing import Any

import pytest

from smb3server.domain import netlogon
from smb3server.domain.controllers import DomainControllers
from smb3server.domain.netlogon import Netlogon
from smb3server.domain.netlogon_calls import ChannelRefused, Secret
from smb3server.domain.rpc_client import Fault, RpcError
from smb3server.domain.user import Controller, NoController

NEW, OLD = (Secret("CONTOSO", "FILES", bytes((number,)) * 16) for number in (1, 2))


class Channel:
    """The secure channel to a controller that behaves as its name says."""

    made: list[tuple[str, Secret]] = []

    def __init__(self, controller: Controller, secret: Secret, deadline: float) -> None:
        self.made.append((controller.name, secret))
        self.controller, self.secret = controller, secret
        if controller.name.startswith("silent"):
            raise TimeoutError("no answer in time")
        if controller.name.startswith("liar"):
            raise RpcError("the controller does not know the password of the machine account")
        if controller.name.startswith("faulty"):
            raise Fault(5)
        if controller.name.startswith("behind") and secret is NEW:
            raise ChannelRefused("refused")

    def close(self) -> None:
        pass


class Machine:
    def secrets(self) -> list[Secret]:
        return [NEW, OLD]


@pytest.fixture(autouse=True)
def channels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Secret]]:
    monkeypatch.setattr(netlogon, "SecureChannel", Channel)
    Channel.made = []
    return Channel.made


def asking(*hosts: str) -> Netlogon:
    controllers = DomainControllers("CONTOSO.COM", hosts, resolve=lambda host: host)
    return Netlogon(controllers, Machine())


def who(channel: Any, deadline: float) -> str:
    return str(channel.controller.name)


def test_the_next_one_is_asked_and_stays() -> None:
    member = asking("silent", "liar", "faulty", "good")
    assert member.ask(who) == "good"
    asked = len(Channel.made)
    assert member.ask(who) == "good"
    assert len(Channel.made) == asked
    # A lost channel is made again, and those that failed a moment ago come last.
    lost = [True]

    def once(channel: Any, deadline: float) -> str:
        if lost:
            lost.clear()
            raise ConnectionResetError
        return who(channel, deadline)

    assert member.ask(once) == "good"
    assert [name for name, _ in Channel.made[asked:]] == ["good"]


def test_one_that_hangs_is_waited_for_once() -> None:
    member = asking("first", "second")
    assert member.ask(who) == "first"
    waits: list[str] = []

    def hang(channel: Any, deadline: float) -> str:
        if channel.controller.name == "first":
            waits.append("first")
            raise TimeoutError
        return who(channel, deadline)

    assert [member.ask(hang) for _ in range(3)] == ["second"] * 3
    assert waits == ["first"]


def test_one_that_has_not_heard_of_the_latest_password_takes_the_one_before() -> None:
    assert asking("behind").ask(lambda channel, deadline: channel.secret) is OLD


def test_the_reasons_of_all_are_said() -> None:
    with pytest.raises(NoController, match=r"silent: no answer in time; liar: the controller does not know"):
        asking("silent", "liar").ask(who)


def test_time_ends_before_the_list_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlogon, "TIMEOUT", 0.0)
    with pytest.raises(NoController, match="no time is left"):
        asking("good").ask(who)
    assert Channel.made == []
