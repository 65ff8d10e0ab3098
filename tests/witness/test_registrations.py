"""The registration table: every bad field with its status, timers on a clock of ours, bounded queues."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

import pytest

from tests.lab.witness import ADDRESS_A, ADDRESS_B, NET_NAME, manual_cluster
from witness.cluster import ClientMove, IpChange, ManualCluster, ResourceChanged, ShareMove, online
from witness.ndr import V1, V2, MessageType, RegisterFlags, Win32
from witness.registrations import Limits, Notification, Registrations, Request, WitnessError

FIRST = Request(V1, NET_NAME, ADDRESS_A, "CLIENT")
SECOND = Request(V2, NET_NAME, ADDRESS_A, "CLIENT", True, "data", 0, 60)
OWNER = (1, "u")
A, B = ipaddress.ip_address(ADDRESS_A), ipaddress.ip_address(ADDRESS_B)
TARGET = online([B])


@pytest.fixture
def table() -> Registrations:
    return Registrations(manual_cluster(), Limits(5, 3, 2, 3, default_keepalive=50, max_keepalive=100, unused=300))


class Inbox:
    """What was answered."""

    def __init__(self) -> None:
        self.answers: list[tuple[Win32, MessageType | None]] = []

    def __call__(self, status: Win32, notification: Notification | None) -> None:
        self.answers.append((status, notification.kind if notification is not None else None))


BAD = [
    (replace(FIRST, version=V2), Win32.REVISION_MISMATCH),
    (replace(FIRST, version=0), Win32.REVISION_MISMATCH),
    (replace(FIRST, version=0xFFFFFFFF, net_name=None), Win32.REVISION_MISMATCH),
    (replace(SECOND, version=V1), Win32.REVISION_MISMATCH),
    (replace(FIRST, net_name=None), Win32.INVALID_PARAMETER),
    (replace(FIRST, net_name=""), Win32.INVALID_PARAMETER),
    (replace(FIRST, net_name="OTHER"), Win32.INVALID_PARAMETER),
    (replace(FIRST, net_name="x" * 1025), Win32.INVALID_PARAMETER),
    (replace(FIRST, ip_address=None), Win32.INVALID_PARAMETER),
    (replace(FIRST, ip_address=""), Win32.INVALID_PARAMETER),
    (replace(FIRST, ip_address="10.9.0.300"), Win32.INVALID_PARAMETER),
    (replace(FIRST, client=None), Win32.INVALID_PARAMETER),
    (replace(FIRST, client=""), Win32.INVALID_PARAMETER),
    (replace(SECOND, client=None), Win32.INVALID_PARAMETER),
    (replace(SECOND, flags=2), Win32.INVALID_PARAMETER),
    (replace(SECOND, flags=0x80000001), Win32.INVALID_PARAMETER),
]


@pytest.mark.parametrize(("request_", "status"), BAD)
def test_bad_registration_has_its_status_and_no_effect(table: Registrations, request_: Request, status: Win32) -> None:
    with pytest.raises(WitnessError) as caught:
        table.register(request_, OWNER, "u", 0)
    assert caught.value.status == status
    assert len(table) == 0
    assert table.next_deadline() is None


def test_without_scale_out_shares_any_address_is_registered(table: Registrations) -> None:
    """[MS-SWN 3.1.4.2, 3.1.4.5]"""
    for request in (FIRST, SECOND):
        table.register(replace(request, ip_address="255.255.255.255"), OWNER, "u", 0)
    assert {str(entry.ip_address) for entry in table} == {"255.255.255.255"}


@pytest.mark.parametrize("name", ["nothing", ""])
def test_without_scale_out_shares_an_unknown_share_is_ignored(table: Registrations, name: str) -> None:
    """[MS-SWN 3.1.4.5]"""
    table.register(replace(SECOND, share_name=name), OWNER, "u", 0)
    assert [entry.share_name for entry in table] == [None]


def test_share_of_a_name_without_shares() -> None:
    """[MS-SWN 3.1.4.5]"""
    table = Registrations(ManualCluster([NET_NAME], []))
    table.register(replace(SECOND, share_name=None), OWNER, "u", 0)
    with pytest.raises(WitnessError) as caught:
        table.register(SECOND, OWNER, "u", 0)
    assert caught.value.status == Win32.INVALID_STATE
    assert len(table) == 1


@pytest.mark.parametrize("name", ["files", "FILES.example.com", "Files"])
def test_names_are_compared_without_case_and_domain(table: Registrations, name: str) -> None:
    table.register(replace(FIRST, net_name=name), OWNER, "u", 0)
    assert [entry.net_name for entry in table] == [NET_NAME]


def test_limits_of_owner_and_table(table: Registrations) -> None:
    for _ in range(3):
        table.register(FIRST, OWNER, "u", 0)
    with pytest.raises(WitnessError) as caught:
        table.register(FIRST, OWNER, "u", 0)
    assert caught.value.status == Win32.NO_SYSTEM_RESOURCES
    table.register(FIRST, "second", "u", 0)
    table.register(FIRST, "second", "u", 0)
    with pytest.raises(WitnessError) as caught:
        table.register(FIRST, "third", "u", 0)
    assert caught.value.status == Win32.NO_SYSTEM_RESOURCES
    assert table.owner_gone(OWNER) == 3
    assert len(table) == 2


def test_handles_are_of_no_use_to_others(table: Registrations) -> None:
    key = table.register(FIRST, OWNER, "u", 0)
    with pytest.raises(WitnessError) as caught:
        table.unregister(key, "other")
    assert caught.value.status == Win32.INVALID_PARAMETER
    with pytest.raises(WitnessError) as caught:
        table.wait(key, "other", 0, Inbox())
    assert caught.value.status == Win32.NOT_FOUND
    assert len(table) == 1


def test_unregistering_ends_calls_that_wait(table: Registrations) -> None:
    inbox = Inbox()
    key = table.register(FIRST, OWNER, "u", 0)
    table.wait(key, OWNER, 0, inbox)
    table.unregister(key, OWNER)
    assert inbox.answers == [(Win32.NOT_FOUND, None)]
    with pytest.raises(WitnessError):
        table.unregister(key, OWNER)


def test_too_many_calls_that_wait(table: Registrations) -> None:
    inbox = Inbox()
    key = table.register(FIRST, OWNER, "u", 0)
    assert table.wait(key, OWNER, 0, inbox) is not None
    waiter = table.wait(key, OWNER, 0, inbox)
    assert waiter is not None
    with pytest.raises(WitnessError) as caught:
        table.wait(key, OWNER, 0, inbox)
    assert caught.value.status == Win32.NO_SYSTEM_RESOURCES
    table.forget(key, waiter, 0)
    assert table.notify(ResourceChanged(NET_NAME, False), 0) == 1
    assert table.notify(ResourceChanged(NET_NAME, True), 0) == 1
    assert inbox.answers == [(Win32.SUCCESS, MessageType.RESOURCE_CHANGE)], "the second is queued"
    assert table.wait(key, OWNER, 1, inbox) is None
    assert len(inbox.answers) == 2


@pytest.mark.parametrize(("asked", "granted"), [(0, 50), (1, 1), (60, 60), (100, 100), (101, 100), (0xFFFFFFFF, 100)])
def test_keepalive_runs_out(table: Registrations, asked: int, granted: int) -> None:
    inbox = Inbox()
    key = table.register(replace(SECOND, keepalive=asked), OWNER, "u", 0)
    table.wait(key, OWNER, 10, inbox)
    table.handle_timer(10 + granted - 0.001)
    assert inbox.answers == []
    assert table.next_deadline() == 10 + granted
    table.handle_timer(10 + granted)
    assert inbox.answers == [(Win32.TIMEOUT, None)]
    assert len(table) == 1


def test_first_version_waits_without_limit(table: Registrations) -> None:
    inbox = Inbox()
    key = table.register(FIRST, OWNER, "u", 0)
    table.wait(key, OWNER, 0, inbox)
    table.handle_timer(1e6)
    assert inbox.answers == []
    assert len(table) == 1


def test_unused_registration_expires(table: Registrations) -> None:
    key = table.register(FIRST, OWNER, "u", 0)
    used = table.register(SECOND, OWNER, "u", 0)
    table.wait(used, OWNER, 200, Inbox())
    table.handle_timer(299.9)
    assert len(table) == 2
    table.handle_timer(300)
    assert [entry.key for entry in table] == [used]
    with pytest.raises(WitnessError):
        table.wait(key, OWNER, 300, Inbox())
    table.handle_timer(600)
    assert len(table) == 0
    assert table.next_deadline() is None


def test_waiting_again_and_again_costs_no_timers(table: Registrations) -> None:
    key = table.register(SECOND, OWNER, "u", 0)
    for now in range(1000):
        waiter = table.wait(key, OWNER, now / 100, Inbox())
        assert waiter is not None
        table.forget(key, waiter, now / 100)
    assert len(table._timers) <= 3


def test_queue_is_bounded_and_drops_the_oldest(table: Registrations) -> None:
    key = table.register(replace(SECOND, flags=RegisterFlags.IP_NOTIFICATION), OWNER, "u", 0)
    for _ in range(5):
        table.notify(IpChange(NET_NAME, TARGET), 0)
    table.notify(ClientMove("CLIENT", TARGET), 0)
    inbox = Inbox()
    for _ in range(3):
        assert table.wait(key, OWNER, 0, inbox) is None
    assert [kind for _, kind in inbox.answers] == [
        MessageType.IP_CHANGE,
        MessageType.IP_CHANGE,
        MessageType.CLIENT_MOVE,
    ]
    assert table.wait(key, OWNER, 0, inbox) is not None
    assert table.notifications_dropped == 3


def test_repeated_news_is_kept_once(table: Registrations) -> None:
    key = table.register(FIRST, OWNER, "u", 0)
    for _ in range(4):
        table.notify(ResourceChanged(NET_NAME, False), 0)
    inbox = Inbox()
    assert table.wait(key, OWNER, 0, inbox) is None
    assert table.wait(key, OWNER, 0, inbox) is not None


def test_state_changes_stay_in_order(table: Registrations) -> None:
    key = table.register(FIRST, OWNER, "u", 0)
    stubs: list[bytes] = []
    for available in (False, True, False):
        table.notify(ResourceChanged(NET_NAME, available), 0)
    for _ in range(2):
        table.wait(key, OWNER, 0, lambda status, told: stubs.append(told.stub if told is not None else b""))
    assert [0xFF in stub[:40] for stub in stubs] == [False, True]


def test_who_is_told(table: Registrations) -> None:
    plain = table.register(replace(FIRST, client="one"), OWNER, "u", 0)
    shared = table.register(replace(SECOND, client="two", ip_address=ADDRESS_B), OWNER, "u", 0)
    everything = table.register(replace(SECOND, client="three", flags=1, share_name=None), OWNER, "u", 0)
    del plain, shared, everything
    assert table.notify(ResourceChanged("files", False), 0) == 3
    assert table.notify(ResourceChanged("DATA", False), 0) == 1
    assert table.notify(ResourceChanged("unknown", False), 0) == 0
    assert table.notify(ResourceChanged(NET_NAME, False, frozenset({A})), 0) == 2
    assert table.notify(ResourceChanged(NET_NAME, False, frozenset()), 0) == 0
    assert table.notify(ClientMove("TWO", TARGET), 0) == 1
    assert table.notify(ClientMove("TWO", TARGET, "elsewhere"), 0) == 0
    assert table.notify(ClientMove("four", TARGET), 0) == 0
    assert table.notify(ShareMove(NET_NAME, "Data", TARGET), 0) == 1
    assert table.notify(ShareMove("elsewhere", "Data", TARGET), 0) == 0
    assert table.notify(IpChange(NET_NAME, TARGET), 0) == 1


@pytest.mark.parametrize("request_", [FIRST, replace(SECOND, keepalive=100)])
def test_a_notification_is_a_use(request_: Request) -> None:
    """3.1.4.4: who was told after hours of waiting has all the time of an unused registration to wait again."""
    table = Registrations(manual_cluster(), Limits(default_keepalive=10_000, max_keepalive=10_000, unused=300))
    request_ = replace(request_, keepalive=10_000) if request_.extended else request_
    inbox = Inbox()
    key = table.register(request_, OWNER, "u", 0)
    table.wait(key, OWNER, 1, inbox)
    table.handle_timer(5000)
    assert table.notify(ResourceChanged(NET_NAME, False), 5000) == 1
    table.handle_timer(5001)
    assert len(table) == 1
    assert table.notify(ResourceChanged(NET_NAME, True), 5002) == 1
    table.wait(key, OWNER, 5003, inbox)
    assert inbox.answers == [(Win32.SUCCESS, MessageType.RESOURCE_CHANGE)] * 2
    # Who does not wait again is forgotten in the end.
    table.handle_timer(5303)
    assert len(table) == 0
