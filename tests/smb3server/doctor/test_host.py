"""What the doctor finds wrong with a machine: every finding, on a machine made up to have it."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.doctor import host as doctor_host
from smb3server.doctor.findings import Finding, Verdict
from smb3server.doctor.host import Host, examine, gather
from smb3server.net.fabric_choice import Machine
from smb3server.net.host import (
    CAP_NET_BIND_SERVICE,
    CAP_NET_RAW,
    ROCE_UDP_PORT,
    SMB_DIRECT_PORT,
    SMB_PORT,
    PortOwner,
    RdmaDevice,
)
from smbdirect.providers.verbs.device import PortState
from tests.lab.doctor import FREE_TO_BIND, MODULES
from tests.lab.machine import PLAIN, RDMA, device, interface, write

UNREACHABLE = RdmaDevice(PortState("mlx4_0", 1, True, "InfiniBand", (), False), "mlx4_core")
NO_VERBS = {"verbs": "no rdma_cm"}
Change = Callable[[Host], Any]


def healthy(root: Path, files: dict[str, str]) -> Host:
    write(
        root, FREE_TO_BIND | MODULES | {"sys/class/net/eth0/mtu": "9000\n", "sys/class/net/eth1/mtu": "9000\n"} | files
    )
    devices = [device("mlx5_0", "eth1")]
    return Host(list(RDMA), devices, Machine(RDMA, devices), root, 1 << CAP_NET_RAW, resource.RLIM_INFINITY)


def changed(host: Host, **fields: Any) -> None:
    """The machine's view of the decision changes, too."""
    for name, value in fields.items():
        if hasattr(host, name):
            setattr(host, name, value)
    host.machine = host.machine._replace(**{k: v for k, v in fields.items() if k in Machine._fields})


def taken(protocol: str, port: int, process: str = "smbd", pid: int | None = 12) -> Change:
    return lambda host: changed(host, owners=[PortOwner(protocol, "0.0.0.0", port, process, pid, False)])


def test_a_healthy_machine(tmp_path: Path) -> None:
    found = examine(healthy(tmp_path, {}))
    assert {finding.verdict for finding in found} == {Verdict.OK}
    assert not any(finding.remedy for finding in found)
    assert {finding.subject for finding in found} == {
        "mlx5_0", "modules", "udp port 4791", "tcp port 445", "tcp port 5445", "CAP_NET_RAW", "locked memory", "eth0",
        "eth1", "--rdma=auto", "interface list", "modules in C",
    }  # fmt: skip


CASES: dict[str, tuple[Change, dict[str, str], Verdict, str, str]] = {
    "no-device": (
        lambda host: changed(host, devices=[]),
        {},
        Verdict.NOTE,
        "devices: no RDMA device: iWARP and RoCEv2 are served in user space",
        "",
    ),
    "port-down": (
        lambda host: changed(host, devices=[device("mlx5_0", "eth1", active=False)]),
        {},
        Verdict.WARNING,
        "mlx5_0: RoCE, driver mlx5_core, on eth1: port 1 is down",
        "check cable and switch",
    ),
    "no-interface": (
        lambda host: changed(host, devices=[UNREACHABLE]),
        {},
        Verdict.WARNING,
        "mlx4_0: InfiniBand, driver mlx4_core, on no interface: clients cannot reach it",
        "load ib_ipoib",
    ),
    "verbs-unusable": (
        lambda host: changed(host, unavailable=NO_VERBS),
        {},
        Verdict.PROBLEM,
        "verbs: no rdma_cm",
        "",
    ),
    "module-not-built": (
        lambda host: changed(host, not_native={"smb3server.backends.local._native": "not built"}),
        {},
        Verdict.NOTE,
        "modules in C: smb3server.backends.local._native: not built; Python does the same, slower",
        "C compiler",
    ),
    "smb-port-taken": (
        taken("tcp", SMB_PORT),
        {},
        Verdict.PROBLEM,
        "tcp port 445: belongs to smbd (process 12)",
        "stop",
    ),
    "smb-direct-port-taken": (
        taken("tcp", SMB_DIRECT_PORT),
        {},
        Verdict.WARNING,
        "tcp port 5445: belongs to smbd (process 12)",
        "stop",
    ),
    "port-of-ours": (
        taken("tcp", SMB_PORT, "smb3server"),
        {},
        Verdict.NOTE,
        "tcp port 445: belongs to smb3server (process 12) (perhaps one of our servers)",
        "",
    ),
    "ksmbd": (
        taken("tcp", SMB_PORT, "", None),
        {"sys/module/ksmbd/x": ""},
        Verdict.PROBLEM,
        "tcp port 445: belongs to the kernel's SMB server (ksmbd)",
        "ksmbd.control --shutdown",
    ),
    "siw-listener": (
        lambda host: (
            changed(host, devices=[device("siw0", "eth1", "siw", iwarp=True)]),
            taken("tcp", SMB_DIRECT_PORT, "", None)(host),
        ),
        {},
        Verdict.WARNING,
        "tcp port 5445: belongs to a listener on the kernel's siw device",
        "stop that server",
    ),
    "rxe": (
        lambda host: (
            changed(host, devices=[device("rxe0", "eth1", "rxe")]),
            taken("udp", ROCE_UDP_PORT, "", None)(host),
        ),
        {},
        Verdict.WARNING,
        "udp port 4791: belongs to the kernel's rdma_rxe (rxe0)",
        "rdma link delete rxe0",
    ),
    "rxe-elsewhere": (
        taken("udp", ROCE_UDP_PORT, "", None),
        {"sys/module/rdma_rxe/x": ""},
        Verdict.WARNING,
        "udp port 4791: belongs to the kernel's rdma_rxe",
        "rmmod rdma_rxe",
    ),
    "no-right-to-bind": (
        lambda host: None,
        {"proc/sys/net/ipv4/ip_unprivileged_port_start": "1024\n"},
        Verdict.WARNING,
        "tcp port 445: free, but this user may not bind it",
        "CAP_NET_BIND_SERVICE",
    ),
    "no-raw-sockets": (
        lambda host: changed(host, capabilities=0),
        {},
        Verdict.WARNING,
        "CAP_NET_RAW: missing: software RoCEv2 serves, but cannot check the ICRC",
        "CAP_NET_RAW",
    ),
    "small-mtu": (
        lambda host: None,
        {"sys/class/net/eth0/mtu": "1280\n"},
        Verdict.WARNING,
        "eth0: MTU 1280 is small",
        "ip link set eth0 mtu 1500",
    ),
    "ordinary-mtu": (
        lambda host: None,
        {"sys/class/net/eth0/mtu": "1500\n"},
        Verdict.OK,
        "eth0: MTU 1500; 9000 makes RDMA in user space faster",
        "",
    ),
    "nothing-reachable": (
        lambda host: changed(host, interfaces=[interface("lo", "127.0.0.1", True)]),
        {},
        Verdict.PROBLEM,
        "interface list: no interface with an address that clients can reach",
        "ip address add",
    ),
    "not-flagged": (
        lambda host: changed(
            host, interfaces=list(PLAIN), devices=[], unavailable=dict.fromkeys(("verbs", "iwarp", "roce"), "no")
        ),
        {},
        Verdict.WARNING,
        "interface list: clients will see 192.0.2.1 (eth0, 1000 Mbit/s) as not RDMA capable",
        "",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_finding(tmp_path: Path, name: str) -> None:
    change, files, verdict, text, remedy = CASES[name]
    host = healthy(tmp_path, files)
    change(host)
    (found,) = [finding for finding in examine(host) if f"{finding.subject}: {finding.text}".startswith(text)]
    assert found.verdict is verdict
    assert remedy in found.remedy
    assert bool(remedy) == bool(found.remedy)


@pytest.mark.parametrize("module", ["rdma_ucm", "ib_uverbs"])
def test_module_not_loaded(tmp_path: Path, module: str) -> None:
    host = healthy(tmp_path, {})
    (tmp_path / "sys" / "module" / module / "x").unlink()
    (tmp_path / "sys" / "module" / module).rmdir()
    found = [finding for finding in examine(host) if finding.verdict is not Verdict.OK]
    assert found == [Finding(Verdict.PROBLEM, "modules", f"{module} is not loaded", f"modprobe {module}")]


@pytest.mark.parametrize(("user", "verdict"), [(1000, Verdict.PROBLEM), (0, Verdict.NOTE)])
def test_locked_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, verdict: Verdict) -> None:
    """Root's is not limited, whatever the number says (CAP_IPC_LOCK)."""
    monkeypatch.setattr("os.geteuid", lambda: user)
    host = healthy(tmp_path, {})
    host.memlock = 8 << 20
    (found,) = [finding for finding in examine(host) if finding.subject == "locked memory"]
    assert (found.verdict, found.text) == (verdict, "8192 KiB may be locked; registered buffers need more")
    assert "ulimit -l" in found.remedy
    host.memlock = doctor_host.MEMLOCK_WANTED
    assert "ok       locked memory: 256 MiB" in [finding.line() for finding in examine(host)]


def test_low_ports_with_the_capability(tmp_path: Path) -> None:
    host = healthy(tmp_path, {"proc/sys/net/ipv4/ip_unprivileged_port_start": "1024\n"})
    host.capabilities |= 1 << CAP_NET_BIND_SERVICE
    assert {finding.verdict for finding in examine(host)} == {Verdict.OK}


def test_no_netlink(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A sandbox that shows no interfaces is examined all the same."""

    def refuse() -> None:
        raise PermissionError

    monkeypatch.setattr(doctor_host, "read_interfaces", refuse)
    host = gather(tmp_path)
    assert host.interfaces == []
    assert any(finding.subject == "interface list" and finding.verdict is Verdict.PROBLEM for finding in examine(host))
