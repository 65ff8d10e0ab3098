"""The client: asks once for a file, then reads and writes it by one-sided transfers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from smbdirect import rdma


class LentFile:
    """A file of the server."""

    def __init__(self, client: "Client", path: str, handle: rdma.Handle) -> None:
        self.path = path
        self.size = len(handle)
        self._client = client
        self._handle = handle

    async def read(self, offset: int, length: int) -> bytearray:
        """Read ``length`` bytes. Raises ``OutOfRange`` behind the size that the file had when it was lent."""
        into = bytearray(length)
        await self._client.connection.read(self._handle, into, offset)
        return into

    async def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write. On return every program of the server sees the data. ``flush`` brings it to the disk."""
        async with self._client.connection.batch() as batch:
            batch.write(self._handle, data, offset)
            batch.fence()

    async def flush(self) -> None:
        """Return when everything written before is on the server's disk."""
        await self._client.ask(f"f {self.path}")


class Client:
    """A connection to a lender."""

    def __init__(self, connection: rdma.Connection) -> None:
        self.connection = connection

    async def ask(self, request: str) -> bytes:
        """Send a request and return the answer. Raises ``OSError`` with the server's reason."""
        await self.connection.send(request.encode())
        answer = await self.connection.receive()
        if answer.startswith(b"!"):
            raise OSError(answer[1:].decode())
        return answer

    async def open(self, path: str, *, writable: bool = False, size: int = 0) -> LentFile:
        """Ask for a file. With ``writable`` it is this client's alone, and has at least ``size`` bytes."""
        request = f"w {size} {path}" if writable else f"r {path}"
        return LentFile(self, path, rdma.Handle.unpack(await self.ask(request)))


@asynccontextmanager
async def connect(fabric: str, host: str, port: int) -> AsyncIterator[Client]:
    """Connect to a lender."""
    async with rdma.connect(fabric, host, port) as connection:
        yield Client(connection)
