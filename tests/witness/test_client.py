"""Our client (impacket's DCE/RPC) against our service."""

from __future__ import annotations

import ipaddress
import threading
import time

import pytest

from tests.lab.witness import ADDRESS_A, ADDRESS_B, ADDRESS_B6, NET_NAME, USER, Running
from witness import ndr
from witness.client import Notice, Registered, WitnessClient, WitnessClientError, find_port


@pytest.mark.parametrize("privacy", [True, False])
def test_interfaces_of_all_nodes_and_witnesses_are_the_others(running: Running, privacy: bool) -> None:
    with running.client(privacy=privacy) as client:
        found = client.interfaces()
    assert [(entry.group_name, str(entry.ipv4), str(entry.ipv6), entry.witness) for entry in found] == [
        ("NODE-A", ADDRESS_A, "None", False),
        ("NODE-B", ADDRESS_B, ADDRESS_B6, True),
    ]


def test_endpoint_mapper_names_the_port(running: Running) -> None:
    assert running.service.mapper_port is not None
    assert find_port("127.0.0.1", running.service.mapper_port, 5) == running.service.port


def test_wrong_password_is_refused(running: Running) -> None:
    with pytest.raises(WitnessClientError), WitnessClient("127.0.0.1", USER, "no", port=running.service.port) as client:
        client.interfaces()


def waiting(running: Running) -> bool:
    return any(entry.waiters for entry in running.service.registrations)


def notified(running: Running, client: WitnessClient, registered: Registered, cause: threading.Thread) -> Notice:
    running.wait_for(lambda: True)
    cause.start()
    notice = client.wait(registered, 5)
    cause.join()
    assert notice is not None
    return notice


def test_notification_arrives_within_a_second(running: Running) -> None:
    told: list[float] = []

    def fail() -> None:
        running.wait_for(lambda: waiting(running))
        told.append(time.monotonic())
        running.call(running.cluster.node_changed, "NODE-A", False)

    with running.client() as client:
        registered = client.register(NET_NAME, ADDRESS_A, "CLIENT")
        notice = notified(running, client, registered, threading.Thread(target=fail))
        assert time.monotonic() - told[0] < 1
    assert notice.resources == [(NET_NAME, ndr.InterfaceState.UNAVAILABLE)]


def test_queued_notifications_come_in_order(running: Running) -> None:
    target = [ipaddress.ip_address(ADDRESS_B), ipaddress.ip_address(ADDRESS_B6)]
    with running.client() as client:
        registered = client.register_extended(NET_NAME, ADDRESS_A, "CLIENT", "data", ip_notifications=True, keepalive=1)
        running.call(running.cluster.move_client, "client", target)
        running.call(running.cluster.move_share, NET_NAME, "DATA", target)
        running.call(running.cluster.ip_change, NET_NAME, [], target[:1])
        running.call(running.cluster.resource_changed, "data", True)
        notices = [client.wait(registered, 5) for _ in range(4)]
        assert [str(notice) for notice in notices] == [
            f"client move: {ADDRESS_B} online, {ADDRESS_B6} online",
            f"share move: {ADDRESS_B} online, {ADDRESS_B6} online",
            f"ip change: {ADDRESS_B} offline",
            "resource change: data available",
        ]
        assert client.wait(registered, 5) is None, "keepalive"
        client.unregister(registered)
        with pytest.raises(WitnessClientError) as caught:
            client.wait(registered)
        assert caught.value.status == ndr.Win32.NOT_FOUND
        with pytest.raises(WitnessClientError) as caught:
            client.unregister_extended(registered)
        assert caught.value.status == ndr.Win32.INVALID_PARAMETER


def test_registrations_end_with_the_connection(running: Running) -> None:
    with running.client() as client:
        client.register(NET_NAME, ADDRESS_A, "CLIENT")
        assert len(running.service.registrations) == 1
    running.wait_for(lambda: len(running.service.registrations) == 0)


def test_handles_of_others_are_unknown(running: Running) -> None:
    with running.client() as client, running.client("other") as other:
        registered = client.register(NET_NAME, ADDRESS_A, "CLIENT")
        with pytest.raises(WitnessClientError) as caught:
            other.unregister(registered)
        assert caught.value.status == ndr.Win32.INVALID_PARAMETER
        client.unregister_extended(registered)
