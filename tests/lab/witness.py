"""A Witness service on loopback, on a thread of its own: the clients in these tests block."""

from __future__ import annotations

import asyncio
import ipaddress
import threading
from collections.abc import Callable
from typing import Any

from smb3server.auth.acceptor import Acceptor
from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.rpc.association import Association
from smb3server.rpc.dcerpc import Interface
from witness.client import WitnessClient
from witness.cluster import ManualCluster, Node
from witness.service import WitnessService, WitnessSettings

USER, PASSWORD = "u", "pw"


NET_NAME = "FILES"


ADDRESS_A, ADDRESS_B, ADDRESS_B6 = "10.9.0.1", "10.9.0.2", "fd00::2"


def manual_cluster() -> ManualCluster:
    """Two nodes; this one is A."""
    return ManualCluster(
        [NET_NAME],
        [
            Node("NODE-A", [ipaddress.ip_address(ADDRESS_A)], local=True),
            Node("NODE-B", [ipaddress.ip_address(ADDRESS_B), ipaddress.ip_address(ADDRESS_B6)]),
        ],
        lambda: ["data", "IPC$"],
    )


def new_event_loop() -> asyncio.AbstractEventLoop:
    """What the server uses."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()  # type: ignore[no-any-return]


class Running:
    """A started service."""

    def __init__(
        self,
        settings: WitnessSettings,
        extra: Callable[[Association], list[Interface]] = lambda association: [],
        new_acceptor: Callable[[], Acceptor] | None = None,
    ) -> None:
        users = UserDatabase()
        users.add(Account(USER, nt_hash(PASSWORD)))
        users.add(Account("other", nt_hash(PASSWORD)))
        self.cluster = manual_cluster()
        self.loop = new_event_loop()
        self.service = WitnessService(
            self.cluster, new_acceptor or (lambda: Acceptor(users, NET_NAME)), settings, extra
        )
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.service.start(), self.loop).result(10)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """On the service's thread."""

        async def run() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def client(self, user: str = USER, privacy: bool = True) -> WitnessClient:
        return WitnessClient("127.0.0.1", user, PASSWORD, port=self.service.port, privacy=privacy, timeout=10)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until the service's thread sees it."""

        async def run() -> None:
            async with asyncio.timeout(10):
                while not condition():
                    await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(12)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.service.stop(), self.loop).result(10)

        async def settle() -> None:
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(settle(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def settings(**changes: Any) -> WitnessSettings:
    return WitnessSettings(listen=["127.0.0.1"], endpoint_mapper_port=0, **changes)
