"""A wire between the host and the guest: a tap in a network namespace of its own, gone when the block ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

TAP = "lab0"
ADDRESS = "10.77.0.1"
"""Of the host's end; guest/workout.sh takes .2 of the same network."""
MTU = 9000
"""Of the host's end. RoCE's path MTU is what the client asks for, which goes by the guest's."""


class NetworkError(Exception):
    """The namespace or the tap cannot be made."""


def _ip(*arguments: str) -> None:
    run = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if run.returncode:
        raise NetworkError(f"ip {' '.join(arguments)}: {run.stderr.strip()}")


@contextlib.contextmanager
def tap_namespace() -> Iterator[list[str]]:
    """A namespace with a tap; the prefix of commands that run in it. Raises ``NetworkError`` (it takes root)."""
    name = f"smb-lab-{os.getpid()}"
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "tuntap", "add", TAP, "mode", "tap")
        _ip("-n", name, "addr", "add", f"{ADDRESS}/24", "dev", TAP)
        _ip("-n", name, "link", "set", TAP, "mtu", str(MTU), "up")
        yield ["ip", "netns", "exec", name]
    finally:
        _ip("netns", "delete", name)
