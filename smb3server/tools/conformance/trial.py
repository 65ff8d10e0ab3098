"""What a case is given: connections to the server, a session with a file, waiting, and the evidence."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence

from smb3server.client import Client, ClientSession, RemoteFile, ServerError, Tree
from smb3server.client.files import READ_WRITE
from smb3server.client.negotiation import Offer
from smb3server.tools.conformance.conversation import Conversation
from smb3server.tools.conformance.peer import Ended, Observer, Peer, Silence
from smb3server.tools.conformance.target import Target
from smb3server.tools.conformance.verdict import Busy, Inconclusive, NotApplicable, Violation
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.negotiate import Dialect
from smbdirect.core.messages import NegotiateResponse
from smbdirect.errors import SmbDirectError

DIALECTS = (Dialect.SMB_2_1, Dialect.SMB_3_0, Dialect.SMB_3_0_2, Dialect.SMB_3_1_1)
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

    async def captured_write(self, file: RemoteFile, data: bytes) -> bytes:
        """Return the SMB2 message of a WRITE at offset 0, which is not sent. The request stays unanswered."""
        captured: list[bytes] = []
        self.conversation.captured = captured
        writing = asyncio.get_running_loop().create_task(self.tree.write(file, 0, data))
        try:
            while not captured and not writing.done():
                await asyncio.sleep(0)
        finally:
            self.conversation.captured = None
            # Cancelling would send CANCEL. The task ends with the connection.
            writing.add_done_callback(_ignore_outcome)
        if not captured:
            raise Inconclusive("no WRITE could be made")
        return captured[0]


def _ignore_outcome(task: asyncio.Task[int]) -> None:
    """Retrieve a task's exception, which asyncio would log otherwise: the connection ended, as the case wants."""
    if not task.cancelled():
        task.exception()


class Trial:
    """One run of one case against one server."""

    def __init__(self, target: Target, observe: Observer = lambda peer, received: None) -> None:
        self.target = target
        self.timing = target.timing
        self.evidence: list[str] = []
        self._observe = observe
        self._peers: list[Peer] = []
        self._clients: list[Client] = []
        self._files: list[tuple[Session, str]] = []
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

    # -- connections ---------------------------------------------------------------------------------------------

    async def connect(self) -> Peer:
        """Return a new RDMA connection, on which nothing was sent yet."""
        peer = Peer(self.target, self.note, self._observe)
        self._peers.append(peer)
        await peer.open()
        return peer

    async def negotiated(self, **fields: int) -> Peer:
        """Return a connection that has negotiated; see ``Peer.request_negotiation``."""
        peer = await self.connect()
        await self.succeed(peer, **fields)
        return peer

    async def succeed(self, peer: Peer, **fields: int) -> NegotiateResponse:
        """Negotiate; it is a violation if the server does not accept."""
        try:
            response = await peer.negotiate(**fields)
        except (Silence, Ended) as error:
            raise Violation(f"a good Negotiate Request was not answered: {error}") from error
        self.require(response.status == 0, f"a good Negotiate Request was refused with {response.status:#010x}")
        return response

    async def log_on(
        self,
        *,
        window: int = 32,
        credits_requested: int = 32,
        dialects: Sequence[int] = DIALECTS,
        offer: Offer | None = None,
        sign: bool = False,
        encrypt: bool = False,
        **fields: int,
    ) -> Session:
        """Negotiate, log on and connect to the share.

        ``window`` is how many credits the server is kept at. ``fields`` are those of the Negotiate Request. Raises
        ``NotApplicable`` without an account, and ``Inconclusive`` if the logon fails.
        """
        if not self.target.share:
            raise NotApplicable("needs --user and --share")
        peer = await self.negotiated(credits_requested=credits_requested, **fields)
        peer.quiet = True
        try:
            async with asyncio.timeout(self.timing.patience):
                conversation = Conversation(peer, window, credits_requested)
                client = await Client.connect(conversation, dialects, offer)
                self._clients.append(client)
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
            async with asyncio.timeout(self.timing.patience):
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

    # -- judging -------------------------------------------------------------------------------------------------

    async def terminated(self, peer: Peer, why: str) -> None:
        """Require that the server terminates the connection. ``why`` says what it was sent."""
        if not await peer.ended(self.timing.patience):
            raise Violation(f"the connection still stands {self.timing.patience:g} s after {why}")

    async def still_serves(self) -> None:
        """Require that the server accepts a new connection."""
        await self.negotiated()

    async def pause(self, seconds: float) -> None:
        """Let time pass. Raise ``Busy`` if this machine came back much later."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        await asyncio.sleep(seconds)
        self.note(f"waited {seconds:g} s")
        if loop.time() - end > self.timing.slack / 2:
            raise Busy(f"this machine came back {loop.time() - end:.1f} s late from a wait of {seconds:g} s")

    async def finish(self) -> None:
        """End all connections of the case."""
        for client in self._clients:
            client.on_closed = lambda error: None
        await asyncio.gather(*(peer.close() for peer in self._peers))
