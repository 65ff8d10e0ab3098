"""Which fabric serves which address: decisions on made-up machines, and the ports' owners read from real files."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from smb3server.config.error import ConfigError
from smb3server.config.values import parse_rdma
from smb3server.net.fabric_choice import Choice, Machine, choose_automatically, choose_named, explain, fatal
from smb3server.net.host import (
    PortOwner,
    effective_capabilities,
    kernel_owner,
    mtu,
    overlapping,
    port_owners,
    rdma_devices,
)
from tests.lab.machine import PLAIN, RDMA, device, write

NO_VERBS = {"verbs": "no RDMA device"}


def served(choices: list[Choice]) -> set[tuple[str, str, tuple[int, ...]]]:
    return {(choice.fabric, choice.host, choice.ports) for choice in choices if choice.served}


def test_auto_without_devices_listens_on_wildcards() -> None:
    choices = choose_automatically(["0.0.0.0", "::"], Machine(PLAIN, unavailable=NO_VERBS), None)
    assert served(choices) == {
        ("iwarp", "0.0.0.0", (5445,)),
        ("roce", "0.0.0.0", (5445, 445)),
        ("iwarp", "::", (5445,)),
        ("roce", "::", (5445, 445)),
    }
    assert str(choices[0]) == "verbs not served: no RDMA device"
    assert all("no RDMA device" in choice.reason for choice in choices)


def test_auto_with_a_device_divides_the_interfaces() -> None:
    machine = Machine(RDMA, [device("mlx5_0", "eth1")])
    choices = choose_automatically(["0.0.0.0"], machine, None)
    assert served(choices) == {
        ("iwarp", "127.0.0.1", (5445,)),
        ("roce", "127.0.0.1", (5445, 445)),
        ("iwarp", "192.0.2.1", (5445,)),
        ("roce", "192.0.2.1", (5445, 445)),
        ("verbs", "198.51.100.1", (445, 5445)),
    }
    (verbs,) = [choice for choice in choices if choice.fabric == "verbs"]
    assert str(verbs).endswith("mlx5_0 (RoCE, driver mlx5_core) on eth1")
    # a family without such an interface keeps its wildcard
    assert ("iwarp", "::", (5445,)) in served(choose_automatically(["::"], machine, None))


def test_iwarp_devices_keep_off_port_445() -> None:
    machine = Machine(RDMA, [device("siw0", "eth1", "siw", iwarp=True)])
    assert ("verbs", "198.51.100.1", (5445,)) in served(choose_automatically(["198.51.100.1"], machine, None))
    assert ("verbs", "198.51.100.1", (7,)) in served(choose_automatically(["198.51.100.1"], machine, 7))


@pytest.mark.parametrize(
    "machine",
    [
        Machine(RDMA, [device("mlx5_0", "eth1", active=False)]),
        Machine(RDMA, [device("mlx5_0", "eth1")], unavailable={"verbs": "no /dev/infiniband/rdma_cm"}),
    ],
    ids=["port-down", "not-available"],
)
def test_auto_falls_back_to_software(machine: Machine) -> None:
    choices = choose_automatically(["198.51.100.1"], machine, None)
    assert {choice.fabric for choice in choices if choice.served} == {"iwarp", "roce"}


def test_rxe_owns_the_udp_port() -> None:
    owner = PortOwner("udp", "0.0.0.0", 4791, "", None, False)
    machine = Machine(RDMA, [device("rxe0", "eth1", "rxe")], [owner])
    choices = choose_automatically(["192.0.2.1"], machine, None)
    assert served(choices) == {("iwarp", "192.0.2.1", (5445,))}
    (refused,) = [choice for choice in choices if choice.fabric == "roce"]
    assert "UDP port 4791 belongs to the kernel's rdma_rxe (rxe0)" in str(refused)
    assert "--rdma=verbs" in refused.remedy
    named = choose_named(["roce"], ["192.0.2.1"], machine, None)
    assert fatal(named, ["roce"], ["192.0.2.1"]) == named[0]


def test_named_verbs() -> None:
    machine = Machine(RDMA, [device("mlx5_0", "eth1")])
    choices = choose_named(["verbs"], ["0.0.0.0", "::"], machine, None)
    assert served(choices) == {("verbs", "198.51.100.1", (445, 5445))}
    assert fatal(choices, ["verbs"], ["0.0.0.0", "::"]) is None
    choices = choose_named(["verbs"], ["192.0.2.1"], machine, None)
    wrong = fatal(choices, ["verbs"], ["192.0.2.1"])
    assert wrong is not None
    assert "no RDMA device on eth0" in str(wrong)


def test_one_of_several_named_fabrics_missing_is_fatal() -> None:
    machine = Machine(PLAIN, unavailable={"verbs": "no RDMA device"})
    choices = choose_named(["iwarp", "verbs"], ["0.0.0.0"], machine, None)
    wrong = fatal(choices, ["iwarp", "verbs"], ["0.0.0.0"])
    assert wrong is not None
    assert wrong.fabric == "verbs"
    assert fatal(choices, ["iwarp"], ["0.0.0.0"]) is None


def test_a_wildcard_whose_port_is_taken_is_fatal_and_one_without_addresses_is_not() -> None:
    hosts = ["0.0.0.0", "::"]
    owners = [PortOwner("tcp", "0.0.0.0", 5445, "smbd", 12, False)]
    choices = choose_named(["iwarp"], hosts, Machine(PLAIN, owners=owners), None)
    assert served(choices) == {("iwarp", "::", (5445,))}
    wrong = fatal(choices, ["iwarp"], hosts)
    assert wrong is not None and "TCP port 5445 belongs to smbd (process 12)" in str(wrong)
    four, six = choose_named(["iwarp"], hosts, Machine(PLAIN), None)
    absent = explain(OSError(errno.EADDRNOTAVAIL, "not here"), six, 5445, Machine)
    assert fatal([four, absent], ["iwarp"], hosts) is None
    unnamed = explain(OSError(errno.EADDRINUSE, "in use"), six, 5445, Machine)
    assert fatal([four, unnamed], ["iwarp"], hosts) == unnamed


def test_failed_listening_is_explained() -> None:
    choice = Choice("iwarp", "192.0.2.1", (445,), "")
    owner = PortOwner("tcp", "0.0.0.0", 445, "smbd", 12, False)
    explained = explain(OSError(errno.EADDRINUSE, "in use"), choice, 445, lambda: Machine(owners=[owner]))
    assert "TCP port 445 belongs to smbd (process 12)" in str(explained)
    explained = explain(PermissionError(errno.EACCES, "denied"), choice, 445, Machine)
    assert "CAP_NET_BIND_SERVICE" in explained.remedy
    assert not explained.served


def test_ksmbd_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "sys/module/ksmbd").mkdir(parents=True)
    owner = PortOwner("tcp", "::", 445, "", None, False)
    assert "ksmbd" in kernel_owner(owner, [], tmp_path)[0]
    hidden = PortOwner("tcp", "::", 446, "", None, True)
    assert "another user" in kernel_owner(hidden, [], tmp_path / "elsewhere")[0]


@pytest.mark.parametrize(
    ("address", "host", "blocks"),
    [
        ("0.0.0.0", "192.0.2.1", True),
        ("::", "192.0.2.1", True),
        ("::", "fd00::1", True),
        ("0.0.0.0", "fd00::1", False),
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.2", "192.0.2.1", False),
        ("192.0.2.2", "0.0.0.0", True),
        ("192.0.2.2", "::", False),
    ],
)
def test_overlapping(address: str, host: str, blocks: bool) -> None:
    owners = [PortOwner("tcp", address, 445, "smbd", 12, False)]
    assert (overlapping(owners, "tcp", host, 445) is not None) is blocks
    assert overlapping(owners, "udp", host, 445) is None
    assert overlapping(owners, "tcp", host, 446) is None


def test_port_owners_finds_this_process() -> None:
    with socket.socket() as tcp, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("::1", 0))
        wanted = [("tcp", tcp.getsockname()[1]), ("udp", udp.getsockname()[1])]
        assert [owner.protocol for owner in port_owners(wanted)] == ["udp"], "bound, but not listening"
        tcp.listen()
        found = {owner.protocol: owner for owner in port_owners(wanted)}
    assert found["tcp"].pid == found["udp"].pid == os.getpid()
    assert (found["tcp"].address, found["udp"].address) == ("127.0.0.1", "::1")


def test_kernel_sockets_have_no_process(tmp_path: Path) -> None:
    header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "   0: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0 0\n"
    write(tmp_path, {"proc/net/udp": header + line, "proc/7/comm": "x\n"})
    (owner,) = port_owners([("udp", 4791)], tmp_path)
    assert owner == PortOwner("udp", "0.0.0.0", 4791, "", None, False)
    (tmp_path / "proc/7/fd").mkdir()
    (tmp_path / "proc/7/fd/3").symlink_to("socket:[4711]")
    (owner,) = port_owners([("udp", 4791)], tmp_path)
    assert str(owner) == "x (process 7)"


def test_rdma_devices_from_sysfs(tmp_path: Path) -> None:
    base = "sys/class/infiniband/"
    for name, node, description in (("rxe0", "1: CA", "rxe"), ("siw0", "4: RNIC", "Software iWARP stack")):
        write(
            tmp_path,
            {
                f"{base}{name}/node_type": f"{node}\n",
                f"{base}{name}/node_desc": f"{description}\n",
                f"{base}{name}/ports/1/state": "4: ACTIVE\n",
                f"{base}{name}/ports/1/link_layer": "Ethernet\n",
                f"{base}{name}/ports/1/gid_attrs/ndevs/0": "eth0\n",
            },
        )
    rxe, siw = rdma_devices(tmp_path)
    assert (rxe.driver, rxe.fabric, rxe.smb_ports) == ("rxe", "RoCE", (445, 5445))
    assert (siw.driver, siw.fabric, siw.smb_ports) == ("siw", "iWARP", (5445,))
    assert rxe.state.netdevs == ("eth0",)
    assert rdma_devices(tmp_path / "none") == []


def test_small_facts(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/status": "Name:\tx\nCapEff:\t0000000000002000\n", "sys/class/net/eth0/mtu": "9000\n"})
    assert effective_capabilities(tmp_path) == 1 << 13
    assert (mtu("eth0", tmp_path), mtu("eth9", tmp_path)) == (9000, 0)


@pytest.mark.parametrize("text", ["auto", "off", "iwarp", "iwarp,roce", "roce, verbs"])
def test_rdma_option(text: str) -> None:
    assert parse_rdma(text) == text.replace(" ", "")


@pytest.mark.parametrize("text", ["", "ib", "auto,iwarp", "iwarp,off", "iwarp,iwarp", "iwarp,"])
def test_rdma_option_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_rdma(text)


def test_the_line_of_rocev2_names_the_port_that_a_firewall_sees() -> None:
    assert str(Choice("roce", "192.0.2.1", (5445, 445), "asked for")) == (
        "roce on 192.0.2.1, UDP 4791, port 5445 and 445: asked for"
    )
    assert str(Choice("iwarp", "192.0.2.1", (5445,), "asked for")) == "iwarp on 192.0.2.1, port 5445: asked for"
