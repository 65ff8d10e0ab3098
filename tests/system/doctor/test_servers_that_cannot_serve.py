"""Broken set-ups of the server's own machine, each made in a network namespace, with the command as a process."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.admin.socket import SOCKET_NAME
from smb3server.doctor.findings import EXIT_NO_RDMA, EXIT_RDMA
from smb3server.process.state_lock import StateLock
from tests.lab.two_hosts import TwoHosts
from tools.support import own_user


def configuration(hosts: TwoHosts, *lines: str, state: Path | None = None) -> str:
    """A configuration of the share "data" and the user "u", with these lines in [server]."""
    share = hosts.folder / "share"
    share.mkdir(exist_ok=True)
    file = hosts.folder / "server.toml"
    file.touch(0o600)
    state_line = [f'state = "{state}"'] if state is not None else []
    file.write_text(
        "\n".join(
            [
                *("[server]", *lines, *state_line),
                *("[[share]]", 'name = "data"', f'path = "{share}"', own_user.LINE),
                *("[[user]]", 'name = "u"', 'password = "pw"', ""),
            ]
        )
    )
    return str(file)


@contextlib.contextmanager
def taken(hosts: TwoHosts, port: int, kind: int = socket.SOCK_STREAM) -> Iterator[None]:
    """Another program (this one) has a port of the server."""
    there, end = threading.Event(), threading.Event()

    def have() -> None:
        with socket.socket(socket.AF_INET, kind) as sock:
            sock.bind(("0.0.0.0", port))
            if kind == socket.SOCK_STREAM:
                sock.listen()
            there.set()
            end.wait()

    thread = threading.Thread(target=lambda: hosts.network.run("server", have))
    thread.start()
    try:
        assert there.wait(10)
        yield
    finally:
        end.set()
        thread.join()


def test_nothing_is_wrong(hosts: TwoHosts) -> None:
    found = hosts.command("server", "doctor")
    assert found.returncode == EXIT_RDMA, found.stdout + found.stderr
    assert f"clients will see {hosts.server}" in found.stdout
    found = hosts.command("server", "doctor", "--config", configuration(hosts, 'rdma = "auto"'))
    assert found.returncode == EXIT_RDMA, found.stdout
    assert "verdict: RDMA would be served: iwarp, roce" in found.stdout


def test_another_program_has_the_ports(hosts: TwoHosts) -> None:
    file = configuration(hosts, 'rdma = "iwarp"')
    with taken(hosts, 5445), taken(hosts, 445):
        found = hosts.command("server", "doctor", "--config", file)
        assert found.returncode == EXIT_NO_RDMA
        who = f"(process {os.getpid()})"
        assert "TCP port 5445 belongs to" in found.stdout
        assert who in found.stdout
        assert "problem  tcp port 445: 0.0.0.0: belongs to" in found.stdout
        assert "stop it or choose another port (`ss -lnp 'sport = :445'` shows it)" in found.stdout
        assert "verdict: the server would not start: iwarp cannot be served on 0.0.0.0" in found.stdout


def test_the_interface_is_down(hosts: TwoHosts) -> None:
    hosts.set_link("server", "down")
    found = hosts.command("server", "doctor")
    text = "problem  interface list: no interface with an address that clients can reach; down: eth0"
    assert text in found.stdout
    assert "`ip link set eth0 up`" in found.stdout
    found = hosts.command("server", "doctor", "--config", configuration(hosts, f'listen = ["{hosts.server}"]'))
    assert found.returncode == EXIT_NO_RDMA
    assert f"this machine does not have the address {hosts.server}, or its interface is down" in found.stdout


def test_only_loopback(hosts: TwoHosts) -> None:
    found = hosts.command(
        "server", "doctor", "--config", configuration(hosts, 'rdma = "auto"', 'listen = ["127.0.0.1"]')
    )
    assert "warning  listen: only at loopback addresses: no other machine reaches them" in found.stdout
    assert found.returncode == EXIT_NO_RDMA
    assert "at loopback addresses only" in found.stdout


def test_low_ports_without_the_capability(hosts: TwoHosts) -> None:
    """Root without CAP_NET_BIND_SERVICE is refused as any user is."""
    without = ("setpriv", "--bounding-set", "-net_bind_service,-net_raw")
    hosts.sysctl("server", "net.ipv4.ip_unprivileged_port_start=1024")
    found = hosts.command("server", "doctor", prefix=without)
    assert "warning  tcp port 445: free, but this user may not bind it" in found.stdout
    assert "AmbientCapabilities=CAP_NET_BIND_SERVICE" in found.stdout
    assert "warning  CAP_NET_RAW: missing" in found.stdout
    assert "setcap" not in found.stdout
    found = hosts.command("server", "doctor", "--config", configuration(hosts, "port = 445"), prefix=without)
    assert found.returncode == EXIT_NO_RDMA
    assert "problem  tcp port 445: this user may not bind it" in found.stdout


@pytest.mark.parametrize("answers", [True, False], ids=["serving", "not answering"])
def test_another_server_has_the_state_directory(hosts: TwoHosts, answers: bool) -> None:
    state = hosts.folder / "state"
    file = configuration(hosts, 'rdma = "auto"', state=state)
    with contextlib.ExitStack() as stack:
        if answers:
            stack.enter_context(hosts.served())
            assert (state / SOCKET_NAME).exists()
        else:
            state.mkdir(mode=0o700)
            stack.callback(StateLock(state).release)
        found = hosts.command("server", "doctor", "--config", file)
        assert f"{state}: another server uses it: process {os.getpid()}" in found.stdout, found.stdout
        # And this one does not start.
        found = hosts.command("server", "--config", file)
        assert found.returncode != 0
        assert f"another server uses it: process {os.getpid()}" in found.stderr


def test_the_configuration_is_wrong(hosts: TwoHosts) -> None:
    found = hosts.command("server", "doctor", "--config", configuration(hosts, 'rdma = "tin-cans"'))
    assert found.returncode == 2
    assert "tin-cans" in found.stdout
    assert "the server would not start: the configuration is wrong" in found.stdout


def test_protection_keeps_data_from_rdma(hosts: TwoHosts) -> None:
    lines = ('rdma = "auto"', "require_signing = true", "rdma_transforms = []", "multichannel = false")
    found = hosts.command("server", "doctor", "--config", configuration(hosts, *lines))
    assert "require_signing: required, and rdma_transforms lacks signing: that data goes inline" in found.stdout
    assert "multichannel: off: only mounts that ask for RDMA find it" in found.stdout
    assert found.returncode == EXIT_NO_RDMA


def test_rdma_is_off(hosts: TwoHosts) -> None:
    found = hosts.command("server", "doctor", "--config", configuration(hosts))
    assert found.returncode == EXIT_NO_RDMA
    assert 'warning  rdma: off\n         -> rdma = "auto"' in found.stdout


def test_a_firewall_of_this_machine(hosts: TwoHosts) -> None:
    """Of the ports to open the doctor speaks in any case: it does not judge rules."""
    found = hosts.command("server", "doctor")
    assert "note     firewall: clients need TCP 445, TCP 5445 (iWARP) and UDP 4791 (RoCEv2)" in found.stdout
