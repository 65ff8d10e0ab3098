"""The server under the fuzzer, and the conditions that it must always meet."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.support import memory_file_system, server_process
from tools.support.innocent import PASSWORD, USER, Innocent, Lost
from tools.support.server_process import ServerProcess

LOGINS = (("carol", "carol-pw"), ("dave", "dave-pw"))
MOST_RESIDENT = 400 << 20
"""Bytes of memory that the server may reach."""
DESCRIPTORS_LEFT = 80
"""Descriptors that may stay open when all clients have gone: durable opens whose timeout a mutation made long."""
SLOWEST_ECHO = 5.0
"""Seconds that an innocent client may wait, in elapsed time on a busy machine."""
_SETTLE_SECONDS = 15.0
_SHARE_BYTES, _SHARE_FILES = 64 << 20, 20_000

_CONFIG = """\
[server]
listen = ["127.0.0.1"]
port = 0
guest = true
anonymous = true
rdma = "{rdma}"
{rdma_port}
log_level = "info"
{server}
[[share]]
name = "data"
path = "{share}/data"
guest = true
[[share]]
name = "ca"
path = "{share}/ca"
continuous_availability = true
posix_locks = true
access_based_enumeration = true
hide_dot_files = true
[witness]
endpoint_mapper_port = 0
names = ["FILES"]
[limits]
failed_logon_delay = 0.01
"""


class Failed(Exception):
    """The server broke a condition."""


@dataclass
class Watch:
    """Checks the server between runs."""

    server: ServerProcess
    share: Path
    slowest: float = 0.0
    _read: int = 0
    _innocent: Innocent | None = None
    base_descriptors: int = 0
    base_resident: int = 0
    commands: list[int] = field(default_factory=list)

    def begin(self) -> None:
        """Record the server's state before the first run."""
        self._echo()
        self.base_descriptors = self.server.descriptors()
        self.base_resident = self.server.resident()

    def look(self) -> None:
        """Raise ``Failed`` if the log has a traceback, the innocent client waits too long, or memory
        exceeds its limit.
        """
        if not self.server.alive():
            raise Failed(f"the server has ended:\n{self.server.log_text(self._read)[-4000:]}")
        new = self.server.log_text(self._read)
        # A line may be half written; it is read again next time.
        whole = new[: new.rfind("\n") + 1]
        self._read += len(whole.encode())
        if "Traceback" in new:
            raise Failed(f"traceback in the log:\n{new[-6000:]}")
        for line in whole.splitlines():
            if " ERROR " in line or " CRITICAL " in line:
                raise Failed(f"in the log: {line[:500]}")
        self._echo()
        if self.server.resident() > MOST_RESIDENT:
            raise Failed(f"the server holds {self.server.resident() >> 20} MiB")
        self._make_room()

    def _echo(self) -> None:
        begun = time.monotonic()
        try:
            if self._innocent is None:
                self._innocent = Innocent(self.server.port)
            self._innocent.echo()
        except (OSError, Lost) as error:
            self.close()
            raise Failed(f"the innocent client: {error!r}") from error
        took = time.monotonic() - begun
        self.slowest = max(self.slowest, took)
        if took > SLOWEST_ECHO:
            raise Failed(f"the innocent client waited {took:.1f} s")

    def close(self) -> None:
        """End the innocent client's connection."""
        if self._innocent is not None:
            self._innocent.close()
            self._innocent = None

    def _make_room(self) -> None:
        """Empty the share when it is almost full: a full disk would hide faults behind its check."""
        room = os.statvfs(self.share)
        if room.f_bavail * room.f_frsize > _SHARE_BYTES // 4 and room.f_favail > 1000:
            return
        for place, _, files in os.walk(self.share):
            for name in files:
                with contextlib.suppress(OSError):
                    os.truncate(os.path.join(place, name), 0)

    def settle(self) -> None:
        """Raise ``Failed`` unless, without any clients, descriptors are released within some seconds."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while self.server.descriptors() > self.base_descriptors + DESCRIPTORS_LEFT:
            if time.monotonic() > deadline:
                raise Failed(f"descriptors: {self.base_descriptors} before, {self.server.descriptors()} after")
            time.sleep(0.5)
        self.look()

    def summary(self) -> str:
        """Return a line about the current state of the server."""
        return (
            f"innocent ECHO at most {self.slowest * 1e3:.0f} ms; memory {self.base_resident >> 20} -> "
            f"{self.server.resident() >> 20} MiB; descriptors {self.base_descriptors} -> {self.server.descriptors()}; "
            f"log {self.server.log_size()} bytes"
        )


@contextlib.contextmanager
def watched(rdma: str = "iwarp", server_options: str = "") -> Iterator[Watch]:
    """Start a server on a share of limited size. ``server_options`` are more lines for its section [server]."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
        folder.chmod(0o755)
        share = folder / "shares"
        share.mkdir()
        if os.geteuid() == 0:
            # The fuzzer's files use at most this much memory, and no disk.
            stack.enter_context(memory_file_system.mounted(share, _SHARE_BYTES, _SHARE_FILES))
        for name in ("data", "ca"):
            (share / name).mkdir()
            (share / name).chmod(0o777)
            if os.geteuid() == 0:
                # A server that runs as root acts as the folder's owner for users without a user of the host.
                shutil.chown(share / name, "nobody", "nogroup")
        port = "" if rdma == "roce" else "rdma_port = 0"
        config = _CONFIG.format(rdma=rdma, rdma_port=port, share=share, server=server_options)
        for name, password in (*LOGINS, (USER, PASSWORD)):
            config += f'[[user]]\nname = "{name}"\npassword = "{password}"\n'
        server = stack.enter_context(server_process.running(folder, config))
        watch = stack.enter_context(contextlib.closing(Watch(server, share)))
        watch.begin()
        yield watch
