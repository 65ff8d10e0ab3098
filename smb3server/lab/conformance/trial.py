"""What a case is given: connections to the server, a session with a file, waiting, and the evidence."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Unpack

from smb3server.client.protocol import Client, ClientSession, RemoteFile, ServerError, Tree
from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.lab.conformance.conversation import Conversation, Sizes, whole
from smb3server.lab.conformance.observed import Monitor
from smb3server.lab.conformance.peer import Ended, Fields, Peer, Received, Silence
from smb3server.lab.conformance.target import Target
from smb3server.lab.conformance.verdict import Busy, Inconclusive, NotApplicable, Violation
from smb3server.lab.content import content_of
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.negotiate import Dialect
from smbdirect.core.messages import DATA_TRANSFER, DataTransfer, NegotiateResponse
from smbdirect.errors import SmbDirectError
from smbdirect.providers.base import CloseReason

DIALECTS = (Dialect.SMB_2_1, Dialect.SMB_3_0, Dialect.SMB_3_0_2, Dialect.SMB_3_1_1)
WRITE_HEADER = 64 + 48
"""Bytes of a WRITE request before its data. [MS-SMB2 2.2.1, 2.2.21]"""
MAX_EVIDENCE = 400
"""Lines of evidence of one case. Of more, the middle is left out."""


class Session:
    """A connection that has logged on and connected to the share."""

    def __init__(self, conversation: Conversation, client: Client, session: ClientSession, tree: Tree) -> None:
        self.conversation = conversation
        self.peer = conversation.peer
        self.client = client
        self.session = session
        self.tree = tree

    async def captured(self, operation: Coroutine[Any, Any, int]) -> tuple[bytes, asyncio.Task[int]]:
        """Return the SMB2 message of ``operation``, a WRITE for example, which is not sent, and the task that waits for
        its response. The case sends the message in its own way."""
        captured: list[bytes] = []
        self.conversation.captured = captured
        task = asyncio.get_running_loop().create_task(operation)
        # The task is not cancelled, which would send CANCEL: it ends with the connection.
        task.add_done_callback(ignore_outcome)
        try:
            while not captured and not task.done():
                await asyncio.sleep(0)
        finally:
            self.conversation.captured = None
        if not captured:
            raise Inconclusive("the client made no request")
        return captured[0], task


def ignore_outcome(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's exception, which asyncio would log otherwise: the connection ended, as the case wants."""
    if not task.cancelled():
        task.exception()


class Trial:
    """One run of one case against one server."""

    def __init__(self, target: Target, monitor: Monitor | None = None) -> None:
        self.target = target
        self.timing = target.timing
        self.monitor = monitor or Monitor()
        """Judges what all cases of the run receive."""
        self.evidence: list[str] = []
        self.received: list[tuple[Peer, Received]] = []
        """Every message of the server in this case, in order."""
        self._news = asyncio.Event()
        self._peers: list[Peer] = []
        self._began = asyncio.get_running_loop().time()

    def note(self, text: str) -> None:
        """Add a line to the evidence."""
        if len(self.evidence) == MAX_EVIDENCE:
            half = MAX_EVIDENCE // 2
            self.evidence[half : half + 1] = ["..."]
            del self.evidence[half + 1]
        self.evidence.append(f"{asyncio.get_running_loop().time() - self._began:8.3f} {text}")

    def require(self, condition: object, reason: str) -> None:
        """Raise ``Violation`` unless ``condition`` holds. ``reason`` says what is wrong if it does not."""
        if not condition:
            raise Violation(reason)

    def _observed(self, peer: Peer, received: Received) -> None:
        self.received.append((peer, received))
        self.monitor.observe(peer, received)
        self._news.set()

    def _ended(self, reason: CloseReason) -> None:
        self.monitor.ended(reason)
        self._news.set()

    # -- connections ---------------------------------------------------------------------------------------------

    async def connect(self) -> Peer:
        """Return a new RDMA connection, on which nothing was sent yet."""
        peer = Peer(self.target, self.note, self._observed, self._ended)
        self._peers.append(peer)
        await peer.open()
        if self.timing.settle:
            await asyncio.sleep(self.timing.settle)
        return peer

    async def negotiated(self, **fields: Unpack[Fields]) -> Peer:
        """Return a connection that has negotiated; see ``Peer.request_negotiation``."""
        peer = await self.connect()
        await self.succeed(peer, **fields)
        return peer

    async def succeed(self, peer: Peer, **fields: Unpack[Fields]) -> NegotiateResponse:
        """Negotiate; it is a violation if the server does not accept."""
        async with self.expecting("the answer to a good Negotiate Request", 2 * self.timing.patience):
            response = await peer.negotiate(**fields)
        self.require(response.status == 0, f"a good Negotiate Request was refused with {response.status:#010x}")
        return response

    async def log_on(
        self,
        *,
        window: int = 32,
        dialects: Sequence[int] = DIALECTS,
        offer: Offer | None = None,
        sign: bool = False,
        encrypt: bool = False,
        **fields: Unpack[Fields],
    ) -> Session:
        """Negotiate, log on and connect to the share.

        ``window`` is how many credits the server is kept at. ``fields`` are those of the Negotiate Request. Raises
        ``NotApplicable`` without an account, and ``Inconclusive`` if the logon fails.
        """
        if not self.target.share:
            raise NotApplicable("needs --user and --share")
        credits_requested = fields.setdefault("credits_requested", 32)
        peer = await self.negotiated(**fields)
        peer.quiet = True
        try:
            async with asyncio.timeout(self.timing.setup):
                conversation = Conversation(peer, window, credits_requested)
                client = await Client.connect(conversation, dialects, offer)
                session = await client.log_on(self.target.user, self.target.password, sign=sign, encrypt=encrypt)
                tree = await session.tree_connect(self.target.share)
        except (ServerError, SmbDirectError, TimeoutError) as error:
            what = str(error) or "no answer in time"
            raise Inconclusive(f"cannot log on and connect to {self.target.share}: {what}") from error
        self.note(f"logged on with dialect {client.dialect:#06x}, connected to {self.target.share}")
        peer.quiet = False
        return Session(conversation, client, session, tree)

    async def create(self, session: Session, content: bytes = b"") -> RemoteFile:
        """Create a file with ``content`` that goes away when it is closed or the connection ends."""
        name = f"conformance-{os.getpid()}-{secrets.token_hex(6)}"
        quiet, session.peer.quiet = session.peer.quiet, True
        try:
            async with asyncio.timeout(self.timing.setup):
                file = await session.tree.create(
                    name, READ_WRITE, CreateDisposition.CREATE, int(CreateOptions.DELETE_ON_CLOSE)
                )
                if content:
                    await session.tree.write(file, 0, content)
        except (ServerError, SmbDirectError, TimeoutError) as error:
            raise Inconclusive(f"cannot create a file in {self.target.share}: {str(error) or 'no answer'}") from error
        session.peer.quiet = quiet
        self.note(f"created {name}" + (f" with {len(content)} bytes" if content else ""))
        return file

    # -- waiting -------------------------------------------------------------------------------------------------

    def messages_of(self, peer: Peer, since: int = 0) -> list[DataTransfer]:
        """Return the headers of the server's Data Transfer messages on ``peer``, from entry ``since`` of ``received``
        on."""
        return [
            DATA_TRANSFER.unpack(received.data)
            for owner, received in self.received[since:]
            if owner is peer and received.negotiated and len(received.data) >= DATA_TRANSFER.size
        ]

    async def until(self, peer: Peer, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Return when ``condition`` holds, which messages of the server change. It is a violation if it does not within
        ``seconds``: ``what`` did not happen."""
        end = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    if not peer.alive:
                        raise Violation(f"the connection ended: {peer.reason}; {what} was to come")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            self._came_back(end, seconds)
            raise Violation(f"{what} did not come within {seconds:g} s") from None

    async def message(
        self, peer: Peer, since: int, accept: Callable[[DataTransfer], object], seconds: float, what: str
    ) -> DataTransfer:
        """Return the first message from entry ``since`` of ``received`` on that is ``what`` the case waits for. It is a
        violation if none comes within ``seconds``."""
        found: list[DataTransfer] = []

        def came() -> bool:
            found[:] = [header for header in self.messages_of(peer, since) if accept(header)]
            return bool(found)

        await self.until(peer, came, seconds, what)
        return found[0]

    async def settled(self) -> None:
        """Return when no message has come for the quiet time."""
        count = -1
        while count != len(self.received):
            count = len(self.received)
            await asyncio.sleep(self.timing.quiet)

    # -- judging -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def expecting(self, what: str, seconds: float | None = None) -> AsyncIterator[None]:
        """Make it a violation if the block takes longer than ``seconds`` (patience by default), if the connection ends,
        or if a request gets a status of failure. ``what`` is what the server has to do."""
        limit = self.timing.patience if seconds is None else seconds
        try:
            async with asyncio.timeout(limit):
                yield
        except TimeoutError:
            raise Violation(f"{what}: nothing came within {limit:g} s") from None
        except (ServerError, SmbDirectError, Ended, Silence) as error:
            raise Violation(f"{what}: {error}") from error

    async def terminated(self, peer: Peer, why: str) -> None:
        """Require that the server terminates the connection, and no timer does. ``why`` says what it was sent."""
        limit = self.timing.prompt
        end = asyncio.get_running_loop().time() + limit
        if not await peer.ended(limit):
            self._came_back(end, limit)
            raise Violation(f"the connection still stands {limit:g} s after {why}")

    async def still_serves(self) -> None:
        """Require that the server accepts a new connection, after whatever the case did."""
        try:
            await self.negotiated()
        except Inconclusive as error:
            raise Violation(f"the server does not go on: {error}") from error

    async def pause(self, seconds: float) -> None:
        """Let time pass. Raise ``Busy`` if this machine came back much later."""
        end = asyncio.get_running_loop().time() + seconds
        await asyncio.sleep(seconds)
        self.note(f"waited {seconds:g} s")
        self._came_back(end, seconds)

    def _came_back(self, end: float, seconds: float) -> None:
        """Raise ``Busy`` if a wait of ``seconds`` that had to end at ``end`` took much longer."""
        late = asyncio.get_running_loop().time() - end
        if late > self.timing.slack / 2:
            raise Busy(f"this machine came back {late:.1f} s late from a wait of {seconds:g} s")

    async def finish(self) -> None:
        """End all connections of the case."""
        await asyncio.gather(*(peer.close() for peer in self._peers))


async def write_and_check(trial: Trial, session: Session, size: int, sizes: Sizes = whole, fill: bool = False) -> None:
    """Write with a request of ``size`` bytes, and require that the file has the data then. ``sizes`` and ``fill`` are
    those of ``Conversation``, for the WRITE."""
    file = await trial.create(session)
    data = content_of(size - WRITE_HEADER)
    conversation = session.conversation
    conversation.sizes, conversation.fill = sizes, fill
    async with trial.expecting(f"a WRITE of {size} bytes", 2 * trial.timing.patience):
        written = await session.tree.write(file, 0, data)
    trial.require(written == len(data), f"{written} of {len(data)} bytes were written")
    conversation.sizes, conversation.fill = whole, False
    async with trial.expecting(f"a READ of {len(data)} bytes", 2 * trial.timing.patience):
        same = await session.tree.read(file, 0, len(data)) == data
        await session.tree.close(file)
    trial.require(same, "the file has other data than was written")
