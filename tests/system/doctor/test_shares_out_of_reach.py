"""Broken set-ups between a client and a server, each made in network namespaces: the doctor names what is wrong, says
what to do, and ends with the status of its verdict."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from smb3server.doctor.findings import EXIT_NO_RDMA, EXIT_RDMA, EXIT_UNKNOWN
from tests.lab.two_hosts import TwoHosts

Said = dict[str, Any]


class Doctor:
    """Asks the doctor, and looks at what it said."""

    def __init__(self, hosts: TwoHosts, capsys: pytest.CaptureFixture[str]) -> None:
        self._hosts = hosts
        self._capsys = capsys
        self.status = 0
        self.said: Said = {}

    def ask(self, target: str = "", user: str = "u:pw", fabrics: str = "iwarp,roce") -> None:
        arguments = [target or f"//{self._hosts.server}/data", "--user", user, "--fabrics", fabrics, "--json"]
        self.status = self._hosts.doctor(*arguments)
        self.said = json.loads(self._capsys.readouterr().out)

    def expect(self, status: int, verdict: str, text: str = "", remedy: str = "") -> None:
        """Compare the verdict, and find a finding with ``text`` and ``remedy``."""
        assert self.status == status, self.said
        assert verdict in self.said["verdict"]
        lines = [(entry["text"], entry["remedy"]) for entry in self.said["findings"]]
        assert any(text in said and remedy in cure for said, cure in lines), lines


@pytest.fixture
def doctor(hosts: TwoHosts, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(hosts, capsys)


def test_nothing_is_wrong(hosts: TwoHosts, doctor: Doctor) -> None:
    with hosts.served():
        doctor.ask()
        doctor.expect(EXIT_RDMA, "RDMA is used: iwarp (4096 KiB written, 4096 KiB read), roce (4096 KiB written")
        mount = f"mount -t cifs //{hosts.server}/data /mnt -o username=u,vers=3.1.1,rdma"
        doctor.expect(
            EXIT_RDMA, "", mount + "   (on a client without an RDMA NIC first: modprobe siw; rdma link add siw0"
        )
        doctor.expect(EXIT_RDMA, "", "`Get-SmbMultichannelConnection -IncludeNotSelected`")


def test_a_firewall_drops_5445(hosts: TwoHosts, doctor: Doctor) -> None:
    with hosts.served(rdma="iwarp"):
        hosts.firewall("server", "tcp dport 5445 drop")
        doctor.ask(fabrics="iwarp")
        text = f"no answer from TCP port 5445 at {hosts.server}: a firewall drops it"
        doctor.expect(EXIT_NO_RDMA, f"RDMA is not used, because {text}", text, "let TCP port 5445 through")


def test_a_firewall_rejects_5445(hosts: TwoHosts, doctor: Doctor) -> None:
    with hosts.served(rdma="iwarp"):
        hosts.firewall("server", "tcp dport 5445 reject with tcp reset")
        doctor.ask(fabrics="iwarp")
        text = "nothing listens on TCP port 5445"
        doctor.expect(EXIT_NO_RDMA, text, text, "let TCP port 5445 through")


def test_a_firewall_drops_445(hosts: TwoHosts, doctor: Doctor) -> None:
    with hosts.served(rdma="iwarp"):
        hosts.firewall("server", "tcp dport 445 drop")
        doctor.ask(fabrics="iwarp")
        text = "no answer from TCP port 445, although the host is there (port 5445 answers): a firewall drops it"
        assert text in doctor.said["verdict"]
        doctor.expect(EXIT_NO_RDMA, "RDMA could be used by clients that ask for it", text, "let TCP port 445 through")


def test_a_firewall_drops_4791(hosts: TwoHosts, doctor: Doctor) -> None:
    with hosts.served(rdma="roce"):
        hosts.firewall("server", "udp dport 4791 drop")
        doctor.ask(fabrics="roce")
        text = f"no answer from UDP port 4791 at {hosts.server}: a firewall drops it, or RoCEv2 is not served there"
        doctor.expect(EXIT_NO_RDMA, text, text, "let UDP port 4791 through, in both directions")


def test_nobody_serves_4791(hosts: TwoHosts, doctor: Doctor) -> None:
    with hosts.served(rdma="iwarp"):
        doctor.ask(fabrics="roce")
        text = f"nothing has UDP port 4791 at {hosts.server}: RoCEv2 is not served there"
        doctor.expect(EXIT_NO_RDMA, text, text)


def test_a_firewall_drops_everything(hosts: TwoHosts, doctor: Doctor) -> None:
    hosts.firewall("server", "drop")
    began = time.monotonic()
    doctor.ask()
    text = "nor from any other: the host is down, or a firewall drops everything"
    doctor.expect(EXIT_UNKNOWN, text, text, f"`ping {hosts.server}`")
    assert doctor.said["attempts"] == []
    assert time.monotonic() - began < 5


def test_the_host_is_down(hosts: TwoHosts, doctor: Doctor) -> None:
    doctor.ask("//10.77.0.99/data")
    text = "No route to host: 10.77.0.99 does not answer in this network (ARP)"
    doctor.expect(EXIT_UNKNOWN, text, text, "the host is down, or its cable, VLAN or address is wrong")


def test_there_is_no_route(doctor: Doctor) -> None:
    doctor.ask("//192.0.2.1/data")
    text = "Network is unreachable: this machine has no route to 192.0.2.1"
    doctor.expect(EXIT_UNKNOWN, text, text, "`ip route get 192.0.2.1`")


def test_the_clients_interface_is_down(hosts: TwoHosts, doctor: Doctor) -> None:
    hosts.set_link("client", "down")
    doctor.ask()
    text = "Network is unreachable"
    doctor.expect(EXIT_UNKNOWN, text, text, "an interface may be down")


def test_no_server_runs(hosts: TwoHosts, doctor: Doctor) -> None:
    doctor.ask()
    text = "Connection refused: nothing listens on TCP port 445 there"
    doctor.expect(EXIT_UNKNOWN, text, text, "start the server, or name its port")


@pytest.mark.parametrize("banner", [b"SSH-2.0-OpenSSH_9.2\r\n", b""], ids=["ssh", "silent until asked"])
def test_a_foreign_service_has_the_port(hosts: TwoHosts, doctor: Doctor, banner: bytes) -> None:
    with hosts.foreign_service(445, banner):
        doctor.ask()
        said = ' (it says "SSH-2.0-OpenSSH_9.2")' if banner else ""
        text = f"what answers there is no SMB server{said}"
        doctor.expect(EXIT_UNKNOWN, text, text, "stop the other service, or name the server's port")


def test_long_packets_vanish(hosts: TwoHosts, doctor: Doctor) -> None:
    """Both ends have jumbo frames, and the switch between them has not: a black hole."""
    for member in ("server", "client"):
        hosts.set_link(member, "mtu", "9000")
    hosts.drop_long_packets(1500)
    with hosts.served(rdma="iwarp"):
        doctor.ask(fabrics="iwarp")
        text = f"small messages get through to {hosts.server} by iwarp, and data does not (MTU black hole)"
        doctor.expect(EXIT_NO_RDMA, text, text, f"ping -M do -s 1472 {hosts.server}")


def test_the_server_is_behind_address_translation(hosts: TwoHosts, doctor: Doctor) -> None:
    """Its list of interfaces has addresses that the client has no way to."""
    inside = "192.168.5.1"
    hosts.network.change_address("server", "add", f"{inside}/24")
    hosts.translate(445, inside)
    with hosts.served(rdma="iwarp", listen=inside):
        doctor.ask(fabrics="iwarp")
        text = f"{inside} cannot be reached from here: it is in another network, or the server is behind address"
        doctor.expect(EXIT_NO_RDMA, text, text, "connect without NAT")


def test_rdma_is_off_on_the_server(hosts: TwoHosts, doctor: Doctor) -> None:
    with hosts.served(rdma="off"):
        doctor.ask()
        text = "no address of the server is RDMA capable"
        doctor.expect(EXIT_NO_RDMA, "no interface in the server's list is RDMA capable", text, "with --rdma")


def test_rdma_is_not_served_at_the_named_address(hosts: TwoHosts, doctor: Doctor) -> None:
    """It is at another one, which the list has and clients find: that works."""
    hosts.network.change_address("server", "add", "10.77.0.101/24")
    with hosts.served(rdma="iwarp", listen="10.77.0.101"), hosts.foreign_service(5445, b""):
        hosts.translate(445, "10.77.0.101")
        doctor.ask(fabrics="iwarp")
        doctor.expect(EXIT_RDMA, "RDMA is used: iwarp", "10.77.0.101 port 5445")


@pytest.mark.parametrize(
    ("settings", "user", "target", "status", "verdict", "text", "remedy"),
    [
        ({}, "u:wrong", "", EXIT_UNKNOWN, "the logon failed", "u: STATUS_LOGON_FAILURE", "check name and password"),
        ({}, "u:pw", "missing", EXIT_UNKNOWN, "share missing cannot be used", "BAD_NETWORK_NAME", "no such share"),
        (
            {"share": {"users": frozenset({"bob"})}},
            "u:pw",
            "",
            EXIT_UNKNOWN,
            "share data cannot be used",
            "STATUS_ACCESS_DENIED",
            "u may not use it, or not from this address",
        ),
        (
            {"require_signing": True, "rdma_transforms": ()},
            "u:pw",
            "",
            EXIT_NO_RDMA,
            "although iwarp, roce answers: the server requires signing",
            "without an RDMA transform for signing",
            "let the server offer RDMA transforms",
        ),
        (
            {"require_encryption": True, "rdma_transforms": ()},
            "u:pw",
            "",
            EXIT_NO_RDMA,
            "although iwarp, roce answers: the server encrypts every session",
            "without an RDMA transform for encryption",
            "let the server offer RDMA transforms",
        ),
        (
            {"min_dialect": 0x0202, "rdma_min_dialect": 0x0202, "max_dialect": 0x0210},
            "u:pw",
            "",
            EXIT_NO_RDMA,
            "the server speaks dialect 2.1, and RDMA needs 3.0",
            "2.1: RDMA needs 3.0",
            "raise the server's maximum dialect",
        ),
        (
            {"multichannel": False},
            "u:pw",
            "",
            EXIT_NO_RDMA,
            "others do not find it, because the server does not offer multichannel",
            "not offered by the server",
            "turn it on in the server",
        ),
    ],
    ids=["wrong password", "no such share", "denied", "signing", "encryption", "dialect", "multichannel"],
)
def test_the_server_is_set_up_wrongly(
    hosts: TwoHosts,
    doctor: Doctor,
    settings: dict[str, Any],
    user: str,
    target: str,
    status: int,
    verdict: str,
    text: str,
    remedy: str,
) -> None:
    with hosts.served(**settings):
        doctor.ask(f"//{hosts.server}/{target}" if target else "", user)
        doctor.expect(status, verdict, text, remedy)
