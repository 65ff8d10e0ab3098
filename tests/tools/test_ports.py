"""Ports for servers that keep theirs: nothing else gets them, and none is given twice."""

from __future__ import annotations

import socket
import subprocess
import sys

from tools.support import ports
from tools.support.ports import free_port, free_ports


def test_ports_are_not_those_that_the_kernel_gives_away() -> None:
    first = int(ports._RANGE.read_text().split()[0])
    found = free_ports(50)
    assert len(set(found)) == 50
    assert all(ports.FIRST <= port < first for port in found)
    assert not set(found) & set(free_ports(50))


def test_ports_that_somebody_has_are_passed_over() -> None:
    port = free_port() + 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", port))
        assert port not in free_ports(3)


def test_processes_get_ports_of_their_own() -> None:
    program = "from tools.support.ports import free_ports; print(*free_ports(20))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(map(int, found.stdout.split())) & set(free_ports(20))


def test_what_another_process_has_is_passed_over() -> None:
    port = free_port()
    program = (
        "import itertools; from tools.support import ports; "
        f"ports._candidates = lambda: iter(range({port} - 1, {port} + 30)); print(*ports.free_ports(2))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert port not in map(int, found.stdout.split())
