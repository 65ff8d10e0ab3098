"""Carries the direct TCP of an SMB client onto SMB Direct, so that clients that know no RDMA exercise a server's.

    python -m tools.smbdirect_proxy --fabric iwarp --server 127.0.0.1:5445 [--listen 127.0.0.1:0]
    python -m tools.smbdirect_proxy --fabric loopback -- --share data=/srv/data --user u:pw --port 0

For each TCP connection it opens one over SMB Direct and passes whole messages both ways, unchanged: signatures and
encryption are the client's and the server's own. With ``loopback`` the server, whose options follow ``--``, runs in the
same process. It says ``ready tcp HOST:PORT`` once clients can connect.

READ and WRITE travel in messages, since the client describes no buffers. The server offers a MaxReadSize that fits what
the proxy reassembles (16 MiB, the most that direct TCP frames); a request longer than the server reassembles ends the
connection, and the proxy says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence

from smb3server.buffers import BufferPool as TcpBufferPool
from smb3server.config import ConfigError, parse_arguments
from smb3server.fabrics import make_provider
from smb3server.service import Service
from smb3server.transports.listener import TcpListener
from smb3server.transports.tcp import MAX_MESSAGE
from smbdirect.buffers import BufferPool
from smbdirect.errors import ConnectionLost, ProtocolError, ProviderError
from smbdirect.message_transport import InboundMessage, MessageTransport
from smbdirect.providers.base import Provider
from smbdirect.providers.loopback import LoopbackProvider
from smbdirect.settings import Settings
from smbdirect.transport import connect, listen

log = logging.getLogger(__name__)

FABRICS = ("iwarp", "roce", "loopback")
HIGH_WATER = 4 << 20
"""Bytes waiting for one side at which the other is not read any more, until half of them are gone."""
CONNECT_TIMEOUT = 10.0
_LOOPBACK = ("loopback", 5445)
SETTINGS = Settings(max_fragmented_receive_size=MAX_MESSAGE)


class _Direction:
    """Messages from ``source`` to ``target``."""

    def __init__(self, source: MessageTransport, target: MessageTransport, on_closed: Callable[[], None]) -> None:
        self._source = source
        self._target = target
        self._on_closed = on_closed
        self._paused = False

    def start(self) -> None:
        self._source.start(self._forward, self._closed)

    def _forward(self, message: InboundMessage) -> None:
        limit = self._target.max_outbound_message_size
        if len(message.view) > limit:
            log.warning(
                "%s: a message of %d bytes, and the other side takes %d: connection ended",
                self._source.peer_address,
                len(message.view),
                limit,
            )
            message.release()
            self._source.abort("message too long")
            self._target.abort("message too long")
            return
        self._target.send([message.view], None, lambda: self._sent(message))
        if not self._paused and self._target.pending_send_bytes > HIGH_WATER:
            self._paused = True
            self._source.pause_reading()

    def _sent(self, message: InboundMessage) -> None:
        message.release()
        if self._paused and self._target.pending_send_bytes <= HIGH_WATER // 2:
            self._paused = False
            self._source.resume_reading()

    def _closed(self, error: BaseException | None) -> None:
        """What was queued for the target still reaches it after a clean end, and only then."""
        if error is None:
            self._target.close("the other side closed")
        else:
            log.info("%s: %s", self._source.peer_address, error)
            self._target.abort("the other side was lost")
        self._on_closed()


class Proxy:
    """Listens on direct TCP for the SMB Direct server at ``server``."""

    def __init__(self, provider: Provider, server: tuple[str, int], settings: Settings = SETTINGS) -> None:
        self.address: tuple[str, int] = ("", 0)
        self.connections = 0
        """Open pairs."""
        self._provider = provider
        self._server = server
        self._settings = settings
        self._pool = BufferPool()
        self._listener: TcpListener | None = None
        self._pairs: set[tuple[MessageTransport, MessageTransport]] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    def listen(self, host: str, port: int) -> None:
        """Raises ``OSError``."""
        self._listener = TcpListener(host, port, TcpBufferPool(), self._accept, MAX_MESSAGE)
        self.address = self._listener.address

    def _accept(self, client: MessageTransport) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: MessageTransport) -> None:
        """The client is not read before the server is there to hear it."""
        try:
            server = await connect(
                self._provider, *self._server, self._settings, pool=self._pool, timeout=CONNECT_TIMEOUT
            )
        except (ConnectionLost, ProtocolError, ProviderError, OSError) as error:
            log.warning("%s:%d: no SMB Direct connection: %s", *self._server, error)
            client.abort("no connection to the server")
            return
        except asyncio.CancelledError:
            client.abort("the proxy stops")
            raise
        pair = (client, server)
        self._pairs.add(pair)
        self.connections += 1
        ended = 0

        def one_ended() -> None:
            nonlocal ended
            ended += 1
            if ended == 2:
                self._pairs.discard(pair)
                self.connections -= 1

        _Direction(server, client, one_ended).start()
        _Direction(client, server, one_ended).start()

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._listener is not None:
            await self._listener.close()
        for task in tuple(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for client, server in tuple(self._pairs):
            client.abort("the proxy stops")
            server.abort("the proxy stops")


@contextlib.asynccontextmanager
async def server_in_process(arguments: Sequence[str], provider: Provider) -> AsyncIterator[Service]:
    """A server with these options that also listens on ``provider``. Raises ``ConfigError``, ``OSError``."""
    service = Service(parse_arguments(arguments))
    try:
        await service.start()
        listener = await listen(provider, *_LOOPBACK, service.server.accept)
        try:
            yield service
        finally:
            await listener.close()
    finally:
        await service.stop()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise argparse.ArgumentTypeError(f"{text}: write HOST:PORT")
    return host.strip("[]"), int(port)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.smbdirect_proxy", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--fabric", choices=FABRICS, default="iwarp")
    parser.add_argument("--listen", type=_address, default=("127.0.0.1", 0), metavar="HOST:PORT")
    parser.add_argument("--server", type=_address, metavar="HOST:PORT", help="where SMB Direct is (not for loopback)")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="of the server, after --, for loopback")
    options = parser.parse_args(arguments)
    if (options.fabric == "loopback") != (options.server is None):
        parser.error(
            "--server HOST:PORT is for iwarp and roce, and they need it; loopback has the server in the process"
        )
    return options


async def run(options: argparse.Namespace) -> int:
    """Until SIGTERM or SIGINT. Exit status."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        try:
            provider: Provider
            if options.fabric == "loopback":
                provider = LoopbackProvider()
                await stack.enter_async_context(server_in_process(options.options, provider))
            else:
                provider = make_provider(options.fabric)
            proxy = Proxy(provider, options.server or _LOOPBACK)
            proxy.listen(*options.listen)
        except (ConfigError, OSError, ProviderError) as error:
            print(f"smbdirect_proxy: {error}", file=sys.stderr)
            return 1
        host, port = proxy.address
        print(f"ready tcp {f'[{host}]' if ':' in host else host}:{port}", flush=True)
        await stop.wait()
        await proxy.close()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _arguments(arguments)
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for name in ("spnego", "asyncio", "pyroute2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return asyncio.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
