"""A whole server and its clients in this process: no sockets, no threads, a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from smb3server import commands
from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.backends.memory.backend import MemoryBackend
from smb3server.client.protocol import Client, ClientSession
from smb3server.client.protocol.transports import open_rdma
from smb3server.crypto.encryption import TRANSFORM_PROTOCOL_ID
from smb3server.server.server import Server
from smb3server.settings.server import Settings
from smb3server.state.share import Share
from smb3server.wire.negotiate import Dialect
from smbdirect.codec import Buffer
from smbdirect.message_transport import InboundMessage, MessageTransport
from smbdirect.providers.loopback import LoopbackProvider
from smbdirect.transport.listen import listen
from tools.fuzz.memory_transport import pair
from tools.fuzz.target import Wrong
from tools.fuzz.virtual_loop import VirtualLoop

CANARY = bytes.fromhex("c3a5c85c97cb3127b54be68b2c9f5d2e")
"""What buffers held when another request used them. No reply may have it."""
USER = "alice"
_DIRTY = (4096, 8192, 16384, 65536, 131072)
"""Sizes of pooled buffers that are filled with the canary."""


class RawClient(Client):
    """A client that logs on as every other, and then sends and receives what the fuzzer wants."""

    session: ClientSession | None = None
    raw = False
    encrypt = False
    trees: tuple[int, int] = (0, 0)
    """TreeIds of the share and of IPC$."""
    message_id = 0
    files: list[bytes]
    """FileIds of what was opened."""

    def begin(self, encrypt: bool) -> None:
        """Behave like an ordinary client no longer: everything that comes from now on is kept."""
        self.files, self.replies = [], list[bytes]()
        self.raw, self.encrypt = True, encrypt
        self.message_id = self._next_message_id

    def _receive(self, inbound: InboundMessage) -> None:
        if not self.raw:
            super()._receive(inbound)
            return
        view = inbound.view
        if view[:4] == TRANSFORM_PROTOCOL_ID and self.session is not None and self.session.cipher is not None:
            plain = self.session.cipher.decrypt(view)
            if plain is None:
                raise Wrong("an encrypted reply is not authentic")
            view = plain
        reply = bytes(view)
        inbound.release()
        if CANARY in reply:
            raise Wrong("a reply shows what a buffer held before")
        self.replies.append(reply)

    def post(self, message: Buffer) -> None:
        """Send one message as it is, encrypted if the session is."""
        if self.closed is None and len(message) <= self.transport.max_outbound_message_size:
            self._send([bytes(message)], self.session, self.encrypt)


class World:
    """One server with an empty share."""

    def __init__(self, loop: VirtualLoop) -> None:
        commands.load()
        self.loop = loop
        users = UserDatabase()
        users.add(Account(USER, nt_hash("pw")))
        self.server = Server(Settings(min_dialect=Dialect.SMB_2_0_2, failed_logon_delay=0.0, allow_guest=True), users)
        self.server.add_share(Share("share", backend=MemoryBackend(8 << 20)))
        self.fabric = LoopbackProvider()
        self.port = 0

    def soil(self) -> None:
        """Leave the canary in pooled buffers, as another client's data would be."""
        for size in _DIRTY:
            lent = [self.server.buffers.acquire(size) for _ in range(2)]
            for buffer in lent:
                buffer.view[:] = CANARY * (size // len(CANARY))
                buffer.release()

    async def transport(self, rdma: bool) -> MessageTransport:
        """Connect."""
        if rdma:
            if not self.port:
                listener = await listen(self.fabric, "127.0.0.1", 0, self.server.accept)
                self.port = listener.address[1]
            return await open_rdma(self.fabric, "127.0.0.1", self.port)
        server, client = pair(self.server.buffers, "127.0.0.1")
        self.server.accept(server)
        return client

    async def client(self, user: str, dialects: Sequence[int], rdma: bool = False, encrypt: bool = False) -> RawClient:
        """Return a client that is connected to the share."""
        client = await RawClient.connect(await self.transport(rdma), dialects)
        assert isinstance(client, RawClient)
        client.session = await client.log_on(user, "pw", encrypt=encrypt)
        share, pipes = [await client.session.tree_connect(name) for name in ("share", "IPC$")]
        client.trees = share.tree_id, pipes.tree_id
        client.begin(encrypt)
        return client

    async def stranger(self) -> RawClient:
        """Return a client that has said nothing yet."""
        client = RawClient(await self.transport(False))
        client.begin(False)
        return client


@contextmanager
def world() -> Iterator[World]:
    """Make a server, and end it. Nothing of it may be left."""
    loop = VirtualLoop()

    async def make() -> World:
        return World(loop)

    try:
        made = loop.run_until_complete(make())
        yield made
        loop.run_until_complete(made.server.shutdown(1.0))
        loop.pass_time(0.1)
        if made.server.opens.by_id or len(made.server.file_table):
            raise Wrong("opens are left behind after the end")
    finally:
        loop.close()
