"""A server for the client of people: on a thread of its own, so that a test may block, over TCP and iWARP."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from smb3server.service.service import Service
from tests.lab.services import configured, port_of, running

T = TypeVar("T")
USER, PASSWORD = "u", "pw"


class Home:
    """The server, its share's folder, and how to reach it."""

    def __init__(self, service: Service, folder: Path, stop: asyncio.Event) -> None:
        self.service = service
        self.folder = folder
        """What the share shows."""
        self.port = port_of(service, "tcp", "127.0.0.1")
        self.rdma_port = port_of(service, "iwarp", "127.0.0.1")
        self._loop = asyncio.get_running_loop()
        self._stop = stop

    def stop(self) -> None:
        """End the server."""
        self._loop.call_soon_threadsafe(self._stop.set)

    @property
    def url(self) -> str:
        return f"smb://{USER}@127.0.0.1:{self.port}/share"

    def do(self, work: Callable[[], T]) -> T:
        """Do something on the server's thread."""

        async def call() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)

    def cut(self, rdma_only: bool = False) -> int:
        """End all connections, or those over SMB Direct; return how many there were."""

        def abort() -> int:
            found = [
                connection
                for connection in list(self.service.server.connection_list)
                if connection.transport.rdma is not None or not rdma_only
            ]
            for connection in found:
                connection.transport.abort("cut by the test")
            return len(found)

        return self.do(abort)


@contextlib.contextmanager
def home(tmp_path: Path, *options: str, text: str = "") -> Iterator[Home]:
    """Run a server with the share ``share`` for user ``u`` with password ``pw``."""
    started = threading.Event()
    found: list[Home] = []
    failed: list[BaseException] = []
    (tmp_path / "home").mkdir()
    fixed = ("--rdma", "iwarp", "--listen", "127.0.0.1", "--state", str(tmp_path / "state"))
    config = configured(tmp_path / "home", *fixed, *options, text=text)

    async def serve() -> None:
        stop = asyncio.Event()
        async with running(config) as service:
            found.append(Home(service, tmp_path / "home" / "share", stop))
            started.set()
            await stop.wait()

    def main() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=main, name="server")
    thread.start()
    started.wait(30)
    try:
        if not found:
            raise failed[0]
        yield found[0]
    finally:
        if found:
            found[0].stop()
        thread.join(30)
    if failed:
        raise failed[0]


def run(work: Callable[[], Awaitable[T]], limit: float = 60.0) -> T:
    """Run a client on this thread."""

    async def main() -> T:
        async with asyncio.timeout(limit):
            return await work()

    return asyncio.run(main())
