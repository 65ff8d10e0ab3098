"""Carry an SMB client's direct TCP over SMB Direct, so that clients without RDMA exercise the server's.

    smb3server proxy --fabric iwarp --server 127.0.0.1:5445 [--listen 127.0.0.1:0]
    smb3server proxy --fabric loopback -- --share data=/srv/data --user u:pw --port 0

For each TCP connection the proxy opens one over SMB Direct and passes whole messages both ways, unchanged: signatures
and encryption are those of client and server. With ``--tcp-server`` the first and then every other connection goes over
TCP, so that a session has channels of both kinds. With ``loopback`` the server, whose options follow ``--``, runs in
the same process. The proxy prints ``ready tcp HOST:PORT`` once clients can connect.

The data of READ and WRITE travels by RDMA from 4 KiB on, through buffers that the proxy describes in place of the
client (``smb3server.lab.proxy.offload``), unless the client signs or encrypts or ``--inline`` is given. The server
offers a MaxReadSize that fits what the proxy reassembles (16 MiB, the maximum of direct TCP framing). A message longer
than the server can reassemble ends the connection, and the proxy logs that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from smb3server.client.protocol import open_tcp
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.lab.proxy.offload import Offload, Outgoing
from smb3server.net.framing import MAX_MESSAGE
from smb3server.net.listener import TcpListener
from smb3server.service.service import Service
from smbdirect.core.settings import Settings
from smbdirect.errors import ConnectionLost, ProtocolError, ProviderError
from smbdirect.message_transport import InboundMessage, MessageTransport
from smbdirect.providers.base import Provider
from smbdirect.providers.loopback import LoopbackProvider
from smbdirect.providers.make import make_provider
from smbdirect.rdma.pool import BufferPool
from smbdirect.transport.listen import connect, listen
from smbdirect.transport.smb_direct import SmbDirectTransport

log = logging.getLogger(__name__)

FABRICS = ("iwarp", "roce", "loopback")
HIGH_WATER = 64 << 20
"""Bytes queued for one side at which reading from the other side pauses, until half of them are sent."""
CONNECT_TIMEOUT = 10.0
_LOOPBACK = ("loopback", 5445)
SETTINGS = Settings(max_fragmented_receive_size=MAX_MESSAGE)


class _Direction:
    """The messages from ``source`` to ``target``."""

    def __init__(
        self,
        source: MessageTransport,
        target: MessageTransport,
        translate: Callable[[InboundMessage], Outgoing],
        waiting: Callable[[], int],
    ) -> None:
        self.on_closed: Callable[[BaseException | None], None] = lambda error: None
        self._source = source
        self._target = target
        self._translate = translate
        self._waiting = waiting
        """Bytes queued for the target and not sent yet."""
        # Invariant: whether reading from the source is paused.
        self._paused = False

    def start(self) -> None:
        self._source.start(self._forward, self.on_closed)

    def _forward(self, message: InboundMessage) -> None:
        segments, on_sent = self._translate(message)
        length, limit = sum(map(len, segments)), self._target.max_outbound_message_size
        if length > limit:
            log.warning(
                "%s: a message of %d bytes, and %s takes %d: connection ended",
                *(self._source.peer_address, length, self._target.peer_address, limit),
            )
            on_sent()
            self._source.abort("message too long")
            self._target.abort("message too long")
            return

        def sent() -> None:
            on_sent()
            self.check()

        self._target.send(segments, None, sent)
        if not self._paused and self._waiting() > HIGH_WATER:
            self._paused = True
            self._source.pause_reading()

    def check(self) -> None:
        """Resume reading once enough queued bytes are sent."""
        if self._paused and self._waiting() <= HIGH_WATER // 2:
            self._paused = False
            self._source.resume_reading()


class _Pair:
    """A client's connection and ours to the server."""

    def __init__(self, client: MessageTransport, server: MessageTransport, inline: bool) -> None:
        self.client = client
        self.server = server
        self.on_ended: Callable[[], None] = _ignore
        self._offload = Offload(server) if isinstance(server, SmbDirectTransport) and not inline else None
        # Invariant: the number of the two sides that have not ended.
        self._open = 2
        if self._offload is None:
            self._up = _Direction(client, server, _as_it_is, lambda: server.pending_send_bytes)
            self._down = _Direction(server, client, _as_it_is, lambda: client.pending_send_bytes)
        else:
            self._up = _Direction(client, server, self._offload.request, self._waiting_for_server)
            self._down = _Direction(server, client, self._response, lambda: client.pending_send_bytes)
        self._up.on_closed = lambda error: self._ended(client, server, error)
        self._down.on_closed = lambda error: self._ended(server, client, error)

    def start(self) -> None:
        self._down.start()
        self._up.start()

    def abort(self, reason: str) -> None:
        self.client.abort(reason)
        self.server.abort(reason)

    def _waiting_for_server(self) -> int:
        assert self._offload is not None
        return self.server.pending_send_bytes + self._offload.held_bytes

    def _response(self, message: InboundMessage) -> Outgoing:
        assert self._offload is not None
        outgoing = self._offload.response(message)
        self._up.check()
        return outgoing

    def _ended(self, side: MessageTransport, other: MessageTransport, error: BaseException | None) -> None:
        """Close the other side. After a clean end, first send the messages queued for it."""
        if error is None:
            other.close("the other side closed")
        else:
            log.info("%s: %s", side.peer_address, error)
            other.abort("the other side was lost")
        if side is self.server and self._offload is not None:
            self._offload.close()
        self._open -= 1
        if not self._open:
            self.on_ended()


def _ignore() -> None:
    """Ignore the event."""


def _as_it_is(message: InboundMessage) -> Outgoing:
    return Outgoing([message.view], message.release)


class Proxy:
    """Listens on direct TCP and connects clients to the SMB Direct server at ``server``."""

    def __init__(
        self,
        provider: Provider,
        server: tuple[str, int],
        *,
        inline: bool = False,
        tcp_server: tuple[str, int] | None = None,
    ) -> None:
        """Prepare for ``listen``. Every other connection, beginning with the first, goes to ``tcp_server`` over TCP."""
        self.address: tuple[str, int] = ("", 0)
        self._provider = provider
        self._server = server
        self._tcp_server = tcp_server
        self._accepted = 0
        self._inline = inline
        self._pool = BufferPool()
        self._listener: TcpListener | None = None
        self._pairs: set[_Pair] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    def listen(self, host: str, port: int) -> None:
        """Listen for clients. Raises ``OSError``."""
        self._listener = TcpListener(host, port, self._pool, self._accept, MAX_MESSAGE)
        self.address = self._listener.address

    def _accept(self, client: MessageTransport) -> None:
        client.trust(MAX_MESSAGE)
        self._accepted += 1
        task = asyncio.get_running_loop().create_task(self._connect(client, bool(self._accepted % 2)))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _open(self, odd: bool) -> MessageTransport:
        if self._tcp_server is not None and odd:
            return await open_tcp(*self._tcp_server, CONNECT_TIMEOUT)
        return await connect(self._provider, *self._server, SETTINGS, pool=self._pool, timeout=CONNECT_TIMEOUT)

    async def _connect(self, client: MessageTransport, odd: bool) -> None:
        """Connect to the server, and read from the client only then."""
        try:
            server = await self._open(odd)
        except (ConnectionLost, ProtocolError, ProviderError, OSError) as error:
            log.warning("no connection to the server: %s", error)
            client.abort("no connection to the server")
            return
        except asyncio.CancelledError:
            client.abort("the proxy stops")
            raise
        pair = _Pair(client, server, self._inline)
        self._pairs.add(pair)
        pair.on_ended = lambda: self._pairs.discard(pair)
        pair.start()

    @property
    def connections(self) -> int:
        """Number of clients connected to the server."""
        return len(self._pairs)

    @property
    def counters(self) -> dict[str, int]:
        """Counters of SMB Direct, summed over the open connections."""
        total: Counter[str] = Counter()
        for pair in self._pairs:
            if isinstance(pair.server, SmbDirectTransport):
                total.update(pair.server.counters)
        return dict(total)

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._listener is not None:
            await self._listener.close()
        for task in tuple(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for pair in tuple(self._pairs):
            pair.abort("the proxy stops")


@contextlib.asynccontextmanager
async def server_in_process(arguments: Sequence[str], provider: Provider) -> AsyncIterator[Service]:
    """Run a server with these options that also listens on ``provider``. Raises ``ConfigError`` and ``OSError``."""
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


@dataclass(slots=True)
class Options:
    """Where the proxy listens, and what it connects to."""

    fabric: str
    listen: tuple[str, int]
    server: tuple[str, int] | None
    """Where SMB Direct is. None with the fabric "loopback": the server is in this process."""
    tcp_server: tuple[str, int] | None
    """Target of every other connection."""
    inline: bool
    server_options: tuple[str, ...] = ()
    """Command line of the server in this process."""


async def run(options: Options) -> int:
    """Run until SIGTERM or SIGINT, and return the exit status.

    Raises ``ConfigError``, ``OSError`` and ``ProviderError`` if it cannot start.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        provider: Provider
        if options.fabric == "loopback":
            provider = LoopbackProvider()
            await stack.enter_async_context(server_in_process(options.server_options, provider))
        else:
            provider = make_provider(options.fabric)
        server = options.server or _LOOPBACK
        proxy = Proxy(provider, server, inline=options.inline, tcp_server=options.tcp_server)
        proxy.listen(*options.listen)
        host, port = proxy.address
        print(f"ready tcp {f'[{host}]' if ':' in host else host}:{port}", flush=True)
        await stop.wait()
        await proxy.close()
    return 0


def carry(options: Options) -> int:
    """Run until SIGTERM or SIGINT, and return the exit status.

    Raises ``ConfigError``, ``OSError`` and ``ProviderError`` if it cannot start.
    """
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for name in ("spnego", "asyncio", "pyroute2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return asyncio.run(run(options))
