"""A bridge with one network namespace for each member: addresses really move, and a link can be cut. Requires root."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

NETWORK, NETWORK6 = "10.77.0", "fd77::"
INTERFACE = "eth0"
"""Interface of every member."""
_count = itertools.count()
_CLONE_NEWNET = 0x40000000


def why_not() -> str | None:
    """Return why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    name = f"probe{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "ip is not installed (Debian: iproute2)"
    if made.returncode:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None


def ip(*arguments: str) -> str:
    """Run ``ip`` and return its output. Raises ``CalledProcessError``."""
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def enter(name: str) -> None:
    """Move the calling thread into a namespace that ``ip netns`` has made. Raise ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (Path("/run/netns") / name).open("rb") as space:
        if libc.setns(space.fileno(), _CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), name)


class Network:
    """The network of a lab. Call ``up`` and then ``down``.

    ``members`` get the addresses 10.77.0.1 and fd77::1 onwards, in their order.
    """

    def __init__(self, members: Sequence[str]) -> None:
        tag = f"t{os.getpid() % 100000}n{next(_count)}"
        self.members = list(members)
        self.hub = f"{tag}hub"
        self.names = {member: f"{tag}{member}" for member in members}
        """Names of the namespaces by member."""

    def up(self) -> None:
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        ip("-n", self.hub, "link", "set", "br0", "up")
        for number, member in enumerate(self.members, 1):
            name = self.names[member]
            ip("netns", "add", name)
            ip("-n", self.hub, "link", "add", f"p{number}", "type", "veth", "peer", "name", INTERFACE, "netns", name)
            ip("-n", self.hub, "link", "set", f"p{number}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"{self.address(member)}/24", "dev", INTERFACE)
            ip("-n", name, "addr", "add", f"{self.address6(member)}/64", "dev", INTERFACE, "nodad")
            ip("-n", name, "link", "set", INTERFACE, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def down(self) -> None:
        """Remove the namespaces and the bridge, as far as they exist."""
        for name in [*self.names.values(), self.hub]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def number(self, member: str) -> int:
        """Return the member's number, the last part of its addresses."""
        return self.members.index(member) + 1

    def address(self, member: str) -> str:
        return f"{NETWORK}.{self.number(member)}"

    def address6(self, member: str) -> str:
        return f"{NETWORK6}{self.number(member):x}"

    def prefix(self, member: str) -> list[str]:
        """Return the first words of commands that run in the member's namespace."""
        return ["ip", "netns", "exec", self.names[member]]

    def cut(self, member: str, cut: bool = True) -> None:
        """Cut or restore the member's link at the bridge: the member itself sees the carrier change."""
        ip("-n", self.hub, "link", "set", f"p{self.number(member)}", "down" if cut else "up")

    def change_address(self, member: str, command: str, address: str) -> None:
        """Add or delete an address; ``command`` is ``add`` or ``del``, and ``address`` has its prefix length."""
        ip("-n", self.names[member], "addr", command, address, "dev", INTERFACE)

    def addresses(self, member: str) -> set[str]:
        """Return the current addresses of the member's interface, without prefix lengths."""
        lines = ip("-n", self.names[member], "-o", "addr", "show", "dev", INTERFACE).splitlines()
        return {line.split()[3].partition("/")[0] for line in lines}

    def run(self, member: str, action: Callable[[], None]) -> None:
        """Run ``action`` on a thread whose sockets are the member's. Raise the errors of ``action``."""
        failure: list[BaseException] = []

        def target() -> None:
            try:
                enter(self.names[member])
                action()
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
        if failure:
            raise failure[0]

    def inside(self, member: str, body: Callable[[], Awaitable[None]], timeout: float = 80) -> None:
        """Run a coroutine whose sockets are in the member's namespace; ``timeout`` in seconds."""
        self.run(member, lambda: asyncio.run(asyncio.wait_for(body(), timeout)))
