"""Loopback ports for servers that must know their port before they start, or keep it over restarts."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

FIRST, LAST = 10000, 32767
"""Range of ports to choose from. Linux assigns the ports above to connections and to programs that request any port."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_APART = 500
"""Ports between the places where two processes begin to look."""


def _last() -> int:
    """Return the last port that the kernel does not assign by itself."""
    try:
        return min(LAST, int(_RANGE.read_text().split()[0]) - 1)
    except OSError:
        return LAST


def _candidates() -> Iterator[int]:
    """Yield all ports, forever, beginning at a place that depends on this process."""
    last = _last()
    if last <= FIRST + _APART:
        raise RuntimeError(f"{_RANGE} leaves no ports between {FIRST} and {last}")
    place = FIRST + os.getpid() * _APART % (last - FIRST)
    return itertools.cycle(itertools.chain(range(place, last + 1), range(FIRST, place)))


def _is_free(port: int) -> bool:
    """Return whether the port is free, both for TCP and for UDP."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def _claim(claims: int, port: int) -> bool:
    """Lock the byte of ``claims`` that stands for the port, until this process ends. Return whether nobody else has."""
    try:
        fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _open_claims() -> int:
    """Open the file in which the processes of this user lock the ports that they have."""
    path = Path(tempfile.gettempdir(), f"smb3server-ports-{os.getuid()}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


_looking: tuple[int, int, Iterator[int]] | None = None
"""The process that looks, its claims, and where it continues: no port is returned twice before all were."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` ports that are free for TCP and UDP on 127.0.0.1.

    They stay free until their servers bind them, and while servers restart: the kernel does not assign these ports, and
    other processes that ask here get none of them while this one lives.
    """
    global _looking  # noqa: PLW0603
    if _looking is None or _looking[0] != os.getpid():
        _looking = os.getpid(), _open_claims(), _candidates()
    _, claims, candidates = _looking
    mine = (port for port in candidates if _is_free(port) and _claim(claims, port))
    return list(itertools.islice(mine, count))


def free_port() -> int:
    """Return one such port."""
    (port,) = free_ports(1)
    return port
