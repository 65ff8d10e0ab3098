"""A server and a client in network namespaces of their own, with a bridge between them that a test breaks.

Both run in this process, on threads: a socket belongs to the namespace of the thread that makes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from smb3server.auth.users import Account, nt_hash
from smb3server.cli.main import main
from smb3server.config.model import Config, ShareConfig
from smb3server.service.service import Service
from smb3server.settings.server import Settings
from tools.cluster.network import Network, ip
from tools.support import own_user

START_TIMEOUT = 20.0


class TwoHosts:
    """The members "server" (10.77.0.1) and "client" (10.77.0.2)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Network(["server", "client"])
        self.server = self.network.address("server")

    def up(self) -> None:
        self.network.up()
        for member in ("server", "client"):
            # A neighbour that is not there is found missing in a tenth of a second instead of three.
            self.sysctl(member, "net.ipv4.neigh.eth0.retrans_time_ms=30")

    def sysctl(self, member: str, setting: str) -> None:
        subprocess.run([*self.network.prefix(member), "sysctl", "-qw", setting], check=True)

    def firewall(self, member: str, *rules: str) -> None:
        """Add rules for nft(8) to what a member lets in."""
        prefix = self.network.prefix(member)
        self._nft(prefix, "table inet lab { chain input { type filter hook input priority 0; }; }")
        for rule in rules:
            self._nft(prefix, f"add rule inet lab input {rule}")

    def translate(self, port: int, inside: str) -> None:
        """Lead a TCP port of the server's address to its address ``inside``."""
        prefix = self.network.prefix("server")
        self._nft(prefix, "table ip translation { chain prerouting { type nat hook prerouting priority dstnat; }; }")
        rule = f"ip daddr {self.server} tcp dport {port} dnat to {inside}"
        self._nft(prefix, f"add rule ip translation prerouting {rule}")

    def drop_long_packets(self, most: int) -> None:
        """Drop what is longer at the bridge without a word, as a switch with a smaller MTU does."""
        prefix = ["ip", "netns", "exec", self.network.hub]
        self._nft(prefix, "table bridge lab { chain on { type filter hook forward priority 0; }; }")
        self._nft(prefix, f"add rule bridge lab on meta length > {most} drop")

    @staticmethod
    def _nft(prefix: list[str], text: str) -> None:
        subprocess.run([*prefix, "nft", "-f", "-"], input=text, text=True, check=True, capture_output=True)

    def set_link(self, member: str, *settings: str) -> None:
        ip("-n", self.network.names[member], "link", "set", "eth0", *settings)

    @contextlib.contextmanager
    def served(
        self, rdma: str = "iwarp,roce", listen: str = "", share: dict[str, Any] | None = None, **settings: Any
    ) -> Iterator[Service]:
        """Serve the share "data" to the user "u", password "pw", on the usual ports."""
        (self.folder / "share").mkdir(exist_ok=True)
        config = Config(
            [ShareConfig("data", self.folder / "share", force_user=own_user.CREDENTIALS, **(share or {}))],
            [Account("u", nt_hash("pw"))],
            Settings(failed_logon_delay=0, **settings),
            [listen or self.server],
            port=445,
            rdma=rdma,
            state=self.folder / "state",
        )
        services: list[Service] = []
        running, end = threading.Event(), threading.Event()

        async def body() -> None:
            service = Service(config)
            try:
                await service.start()
                services.append(service)
                running.set()
                await asyncio.to_thread(end.wait)
            finally:
                await service.stop()

        with self._beside(lambda: self.network.run("server", lambda: asyncio.run(body())), end):
            assert running.wait(START_TIMEOUT)
            yield services[0]

    @contextlib.contextmanager
    def foreign_service(self, port: int, banner: bytes) -> Iterator[None]:
        """Answer on a TCP port of the server with ``banner`` and whatever else, but not with SMB."""
        running, end = threading.Event(), threading.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(banner)
            await reader.read(1)
            writer.write(b"what?\r\n")
            writer.close()

        async def body() -> None:
            async with await asyncio.start_server(answer, self.server, port):
                running.set()
                await asyncio.to_thread(end.wait)

        with self._beside(lambda: self.network.run("server", lambda: asyncio.run(body())), end):
            assert running.wait(START_TIMEOUT)
            yield

    @staticmethod
    @contextlib.contextmanager
    def _beside(work: Callable[[], None], end: threading.Event) -> Iterator[None]:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def doctor(self, *arguments: str) -> int:
        """Run ``smb3server doctor`` in the client's namespace, and return the exit status."""
        status: list[int] = []
        self.network.run("client", lambda: status.append(main(["doctor", *arguments])))
        return status[0]

    def command(self, member: str, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run ``smb3server`` as a process in a member's namespace, with a /sys that shows its interfaces."""
        return subprocess.run(
            [*self.network.prefix(member), *prefix, sys.executable, "-m", "smb3server", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
