"""Links between the host and the guest: taps in a network namespace, which are removed when the block ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tools.kernel_lab.wishes import answering

TAPS = ("lab0", "lab1")
ADDRESSES = ("10.77.0.1", "10.78.0.1")
"""Addresses of the host's ends; the guest's scripts use .2 of the same networks for eth0 and eth1."""
TAP, ADDRESS = TAPS[0], ADDRESSES[0]
SECOND_ADDRESS = "10.77.0.7"
"""Another address of the first tap, for cases whose server has several processes."""
MTU = 9000
"""MTU of the host's ends. The client requests RoCE's path MTU, which depends on the guest's MTU."""


class NetworkError(Exception):
    """The namespace or a tap cannot be made."""


def _ip(*arguments: str) -> None:
    run = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if run.returncode:
        raise NetworkError(f"ip {' '.join(arguments)}: {run.stderr.strip()}")


@contextlib.contextmanager
def tap_namespace(count: int = 1) -> Iterator[list[str]]:
    """Make a namespace with ``count`` taps, each with a network; yield the first words of commands that run in it.

    Raises ``NetworkError``, also without root.
    """
    name = f"smb-lab-{os.getpid()}"
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        for tap, address in zip(TAPS[:count], ADDRESSES, strict=False):
            _ip("-n", name, "tuntap", "add", tap, "mode", "tap")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", tap)
            _ip("-n", name, "link", "set", tap, "mtu", str(MTU), "up")
        yield ["ip", "netns", "exec", name]
    finally:
        _ip("netns", "delete", name)


def add_second_address(prefix: Sequence[str]) -> None:
    """Give the first tap ``SECOND_ADDRESS``. ``prefix`` is that of the namespace. Raises ``NetworkError``."""
    _ip("-n", prefix[-1], "addr", "add", f"{SECOND_ADDRESS}/24", "dev", TAP)


def _switch(prefix: Sequence[str], wish: Path) -> None:
    """Switch the link that the file names: ``NUMBER up`` or ``NUMBER down``. Errors go to ``link-error`` beside it."""
    try:
        number, state = wish.read_text().split()
        _ip("-n", prefix[-1], "link", "set", TAPS[int(number)], {"up": "up", "down": "down"}[state])
    except (NetworkError, LookupError, ValueError) as error:
        wish.with_name("link-error").write_text(f"{error!r}\n")


@contextlib.contextmanager
def switching(prefix: Sequence[str], out: Path) -> Iterator[None]:
    """While the block runs, switch links as the guest requests.

    ``out/CASE/ask-link`` contains the number of a tap and ``up`` or ``down``. ``prefix`` is that of the namespace.
    """
    with answering(out, "ask-link", partial(_switch, prefix)):
        yield
