"""Printed commands work: right address, right port, right fabric, and guests without a password."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from smb3server.cli.server.serving import commands as commands_of
from smb3server.doctor.mount_commands import Reach, choose_host, commands
from tests.lab.machine import interface
from tests.lab.services import configured, running

FOUR, SIX = "192.0.2.1", "2001:db8::1"
EVERYWHERE = (("iwarp", "0.0.0.0", 5445), ("roce", "0.0.0.0", 5445), ("roce", "0.0.0.0", 445), ("iwarp", "::", 5445))


def line(reach: Reach, kind: str) -> str:
    (found,) = [entry.partition(":")[2].strip() for entry in commands(reach) if entry.startswith(kind)]
    return found


def test_ordinary_ports() -> None:
    reach = Reach("data", "alice", FOUR, 445, [FOUR, SIX], EVERYWHERE)
    assert line(reach, "Windows") == r"net use Z: \\192.0.2.1\data /user:alice"
    assert line(reach, "Linux (TCP)") == "mount -t cifs //192.0.2.1/data /mnt -o username=alice,vers=3.1.1"
    rdma, _, hint = line(reach, "Linux (RDMA)").partition("   ")
    assert rdma == "mount -t cifs //192.0.2.1/data /mnt -o username=alice,vers=3.1.1,rdma"
    assert "modprobe siw; rdma link add siw0 type siw netdev eth0" in hint
    assert line(reach, "macOS") == "open 'smb://alice@192.0.2.1/data'"
    assert line(reach, "smbclient") == "smbclient //192.0.2.1/data -U alice"


def test_other_rdma_ports_have_no_linux_command() -> None:
    """Linux ignores ``port=`` with ``rdma``."""
    reach = Reach("data", "alice", FOUR, 445, [FOUR, SIX], [("iwarp", "0.0.0.0", 6445), ("iwarp", "::", 6445)])
    said = line(reach, "Linux (RDMA)")
    assert "mount" not in said
    assert said == "not possible: Linux asks for port 5445 only, and SMB Direct is served on 6445"
    # 445 over iWARP is not what Linux asks for; over RoCE it is.
    assert "mount" not in line(Reach("data", "alice", FOUR, 445, [FOUR], [("iwarp", FOUR, 445)]), "Linux (RDMA)")
    assert "mount" in line(Reach("data", "alice", FOUR, 445, [FOUR], [("roce", FOUR, 445)]), "Linux (RDMA)")
    assert not [entry for entry in commands(Reach("data", "alice", FOUR, 445, [FOUR])) if "RDMA" in entry]


def test_rdma_on_the_other_family_only() -> None:
    reach = Reach("data", "alice", FOUR, 445, [FOUR, SIX], [("iwarp", "::", 5445)])
    assert f"//{SIX}/data" in line(reach, "Linux (RDMA)")
    assert f"//{FOUR}/data" in line(reach, "Linux (TCP)")


def test_a_fabric_on_one_address_only() -> None:
    reach = Reach("data", "alice", FOUR, 445, [FOUR, "198.51.100.1"], [("verbs", "198.51.100.1", 445)])
    assert line(reach, "Linux (RDMA)") == "mount -t cifs //198.51.100.1/data /mnt -o username=alice,vers=3.1.1,rdma"


def test_guests_are_asked_for_nothing() -> None:
    reach = Reach("data", "", FOUR, 1445, [FOUR], [("roce", FOUR, 5445)])
    assert line(reach, "Linux (TCP)") == "mount -t cifs //192.0.2.1/data /mnt -o guest,vers=3.1.1,port=1445"
    assert line(reach, "Linux (RDMA)").startswith("mount -t cifs //192.0.2.1/data /mnt -o guest,vers=3.1.1,rdma   ")
    assert "modprobe rdma_rxe; rdma link add rxe0 type rxe" in line(reach, "Linux (RDMA)")
    assert line(reach, "smbclient") == "smbclient //192.0.2.1/data -U guest% -p 1445"
    assert line(reach, "Windows").startswith(r'net use Z: \\192.0.2.1\data "" /user:guest')


def test_names_are_quoted() -> None:
    reach = Reach("my data", "a b", SIX, 445, [SIX], EVERYWHERE)
    for kind in ("Linux (TCP)", "smbclient"):
        assert f"//{SIX}/my data" in shlex.split(line(reach, kind))
    assert r'"\\2001-db8--1.ipv6-literal.net\my data"' in line(reach, "Windows")
    assert line(reach, "macOS") == f"open 'smb://a%20b@[{SIX}]/my%20data'"


@pytest.mark.parametrize(
    ("listen", "addresses", "chosen"),
    [
        ([], [SIX, FOUR], FOUR),
        (["::"], [FOUR, "fe80::1", SIX], SIX),
        ([SIX], [FOUR, SIX], SIX),
        (["198.51.100.7"], [FOUR], "198.51.100.7"),
        ([], [], "127.0.0.1"),
    ],
)
def test_the_address_is_one_that_is_served(listen: list[str], addresses: list[str], chosen: str) -> None:
    assert choose_host(listen, addresses) == chosen


def test_a_cluster_is_reached_at_its_service(tmp_path: Path) -> None:
    """On whatever node the service is: the node's own address says BAD_NETWORK_NAME."""
    share = tmp_path / "shared"
    share.mkdir()
    text = (
        f'[[share]]\nname = "clustered"\npath = "{share}"\nservice = "files"\n'
        '[cluster]\netcd = "etcd://127.0.0.1:1"\nnode = "a"\n'
        '[[service]]\nname = "files"\naddresses = ["192.0.2.50/24@eth0"]\n'
    )

    async def test() -> None:
        async with running(configured(tmp_path, "--listen", "127.0.0.1", "--rdma=iwarp")) as service:
            config = configured(tmp_path, text=text)
            shares = [entry for entry in config.shares if entry.service]
            service.config.shares, service.config.cluster = shares, config.cluster
            service.server.interfaces.interfaces = [interface("eth0", FOUR)]
            assert all("192.0.2.50" in entry and FOUR not in entry for entry in commands_of(service)[:2])

    asyncio.run(test())
