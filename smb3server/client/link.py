"""The connections to one share: made, kept, made anew when they are lost, and the choice between them for data.

A link has one channel for everything but data (``control``) and one or more for data, which may be the same. All
channels belong to one session, so each open is valid on each of them. [MS-SMB2 3.2.4.1.7]
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from smb3server.client import errors, fabrics
from smb3server.client.address import Address
from smb3server.client.credentials import Login
from smb3server.client.options import MAX_CHANNELS, ConnectOptions
from smb3server.client.protocol import Client
from smb3server.client.protocol.messages import Chains, LogonError, UnprovenServer
from smb3server.client.protocol.messages import Way as DataWay
from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.session import BoundSession, ClientSession
from smb3server.client.protocol.transports import addresses_of, open_tcp, speaks_smb1
from smb3server.client.protocol.tree import RDMA_THRESHOLD, SOFTWARE_RDMA_THRESHOLD, Tree
from smb3server.compression.benefit import Counts
from smb3server.net.host import SMB_PORT
from smb3server.process import parts
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import ConnectionLost, ProtocolError, ProviderError
from smbdirect.message_transport import MessageTransport, TransportKind

if TYPE_CHECKING:
    # Most commands need none of these modules, and each takes its time to load.
    from smb3server.client.one_sided import Line, Place
    from smb3server.client.protocol.messages import Break
    from smb3server.wire.dfs import Referral

log = logging.getLogger(__name__)
T = TypeVar("T")

PIECE = 1 << 20
"""Bytes of one READ or WRITE of a long transfer."""
DEPTH = 8
"""Pieces in flight on one channel. With ``PIECE`` this bounds the memory of transfers, however many there are."""
MAX_IN_FLIGHT = PIECE * DEPTH * MAX_CHANNELS
_DELAY, _MAX_DELAY = 0.05, 2.0
ACKNOWLEDGE = 1
"""SMB2_NOTIFY_BREAK_LEASE_FLAG_ACK_REQUIRED. [MS-SMB2 2.2.23.2]"""
_LEAST_TIMEOUT = 1.0
"""Seconds that an attempt to connect has at least."""
_SMB1 = "the server speaks SMB 1 only, which nothing protects; turn on SMB 2 or 3 there"
_GONE = frozenset(
    [
        NtStatus.USER_SESSION_DELETED,
        NtStatus.NETWORK_SESSION_EXPIRED,
        NtStatus.NETWORK_NAME_DELETED,
        NtStatus.CONNECTION_DISCONNECTED,
        NtStatus.SERVER_UNAVAILABLE,
    ]
)
"""Statuses of a server that has ended the session or the tree connect; a new connection may help."""


class Channel:
    """One connection of the session, and the share on it."""

    def __init__(self, tree: Tree, fabric: str) -> None:
        self.tree = tree
        self.fabric = fabric
        """tcp, iwarp, roce or verbs."""
        self.slots = asyncio.Semaphore(DEPTH)
        self.busy = 0
        """Pieces in flight or waiting."""
        self.why_ended = ""
        """Why this side ended the connection."""
        tree.rdma_from = SOFTWARE_RDMA_THRESHOLD if fabric in fabrics.SOFTWARE else RDMA_THRESHOLD

    @property
    def lost(self) -> bool:
        """Whether the connection has ended."""
        return self.tree.client.closed is not None

    @property
    def by_rdma(self) -> bool:
        """Whether data travels by RDMA."""
        return self.tree.choice.way is not DataWay.INLINE


class Link:
    """One share over connections that may come and go. ``connect`` makes the first ones."""

    def __init__(
        self, address: Address, login: Login, options: ConnectOptions, fabric: fabrics.Fabrics | None = None
    ) -> None:
        self.address = address
        self.place = address.place
        self.options = options
        self.why_not_rdma = ""
        self.notes: list[str] = []
        """What came of channels that were asked for and are not there."""
        self._login = login
        self._fabrics = fabric or fabrics.Fabrics()
        self._control: Channel | None = None
        self._data: list[Channel] = []
        self._guid = os.urandom(16)
        self._chains = Chains()
        """Outlives the connections: a server may end one because of a chain."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of ``connect``."""
        self._session_id = 0
        self._lock = asyncio.Lock()
        self._closed = False
        self._hopeless_until = 0.0
        """The event loop's time until which one attempt to connect anew is enough: many have just failed."""
        self._look_for_rdma_first = False
        """Whether the next piece of data starts the search for RDMA."""
        self._search: asyncio.Task[None] | None = None
        self._moved: dict[str, list[int]] = {}
        self.compressed = Counts()
        """What compression gave on all connections."""
        self.line = self._make_line() if options.one_sided == "auto" else None
        """The RDMA connection for files that the server lends; None if they are not asked for."""
        self.leases: dict[bytes, Callable[[int], None]] = {}
        """Called with the new state when the lease of that key is broken."""
        self._acknowledging: set[asyncio.Task[None]] = set()

    # Connecting

    async def connect(self) -> None:
        """Make the first connections. Raises ``RemoteError``."""
        self._loop = asyncio.get_running_loop()
        with errors.named(str(self.address)):
            try:
                async with self._lock:
                    await self._set_up(self.options.timeout)
            except (OSError, ConnectionLost) as error:
                raise errors.of(error, f"{self.address.host}:{self.address.port}") from error
            except StatusError as error:
                raise errors.of(error, str(self.address), reason=self._meaning(error.status)) from error
            except LogonError as error:
                if not self._login.kerberos:
                    raise
                reason = (
                    f"no Kerberos ticket for cifs/{self._login.kerberos}; klist shows what there is, kinit gets one"
                )
                raise errors.make(errno.EACCES, str(self.address), reason=reason) from error

    async def ready(self) -> Channel:
        """Return the channel for everything but data; connect anew if it was lost. [MS-SMB2 3.2.4.2]

        Raises ``RuntimeError`` on another event loop than that of ``connect``: nobody would ever answer there.
        """
        self._check_loop()
        if self._control is not None and not self._control.lost:
            return self._control
        async with self._lock:
            if self._closed:
                raise errors.make(errno.EBADF, str(self.address), reason="the share is closed")
            if self._control is None or self._control.lost:
                await self._set_up_anew()
            assert self._control is not None
            return self._control

    @property
    def is_dfs(self) -> bool:
        """Return whether the share is the root of a namespace, or has links. [MS-SMB2 3.2.5.5]"""
        return self._control is not None and self._control.tree.is_dfs

    @property
    def is_protected(self) -> bool:
        """Return whether nobody on the way can change what the server answers."""
        return self.options.signs or self.options.encrypt

    async def referral(self, path: str) -> Referral:
        """Ask the server where a path of a namespace lies. Raises ``StatusError`` and ``RemoteError``."""

        from smb3server.client.protocol.referrals import ask_referral

        async def ask(tree: Tree) -> Referral:
            assert isinstance(tree.session, ClientSession)
            return await ask_referral(tree.session, path)

        return await self.again(ask)

    @property
    def has_connection(self) -> bool:
        """Return whether there is a channel that is not known to be lost."""
        return self._control is not None and not self._control.lost

    def _broken(self, notification: Break) -> None:
        """Give up what a lease break takes, and acknowledge it if the server waits for that. [MS-SMB2 3.2.5.19.2]"""
        from smb3server.wire.oplock_break import LeaseBreakNotification

        if not isinstance(notification, LeaseBreakNotification):
            return
        broken = self.leases.get(notification.lease_key)
        if broken is not None:
            broken(notification.new_lease_state)
        if notification.flags & ACKNOWLEDGE and self._control is not None:
            work = self._acknowledge(self._control.tree, notification.lease_key, notification.new_lease_state)
            task = asyncio.get_running_loop().create_task(work)
            self._acknowledging.add(task)
            task.add_done_callback(self._acknowledging.discard)

    @staticmethod
    async def _acknowledge(tree: Tree, key: bytes, state: int) -> None:
        try:
            await tree.acknowledge_lease_break(key, state)
        except (StatusError, ConnectionLost) as error:
            # The open was closed meanwhile, or the server breaks the lease again on the next connection.
            log.debug("lease break: %s", error)

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(f"{self.address}: connected on another event loop, or before a fork: connect here anew")

    def is_current(self, channel: Channel) -> bool:
        """Return whether opens made on ``channel``, which was once returned by ``ready``, are still valid.

        Raises ``RuntimeError`` as ``ready`` does.
        """
        if asyncio.get_running_loop() is not self._loop:
            self._check_loop()
        return channel is self._control and channel.tree.client.closed is None

    async def _set_up_anew(self) -> None:
        """Connect anew, for ``patience`` seconds. Who comes after a failure of that waits for one attempt only."""
        loop = asyncio.get_running_loop()
        patience = self.options.patience if loop.time() >= self._hopeless_until else 0.0
        give_up, delay = loop.time() + patience, _DELAY
        while True:
            try:
                await self._set_up(min(self.options.timeout, max(_LEAST_TIMEOUT, give_up - loop.time())))
                self._hopeless_until = 0.0
                return
            except (OSError, ConnectionLost, ProtocolError) as error:
                if isinstance(error, PermissionError | UnprovenServer):
                    raise
                if loop.time() + delay > give_up:
                    self._hopeless_until = loop.time() + self.options.patience
                    raise
                log.info("%s: connecting anew: %s", self.address.host, error)
            except StatusError as error:
                if error.status not in _GONE or loop.time() + delay > give_up:
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY)

    async def _set_up(self, limit: float) -> None:
        """Connect, log on and connect to the share within ``limit`` seconds; then open the channels for data."""
        self._abort("connecting anew")
        self.why_not_rdma, self.notes = "", []
        mode = self.options.rdma
        async with asyncio.timeout(limit):
            transport, fabric = await (self._open_rdma(mode) if mode in fabrics.FABRICS else self._open_tcp())
            try:
                client = await self._negotiate(transport, fabric)
                session = await self._log_on(client)
                tree = await session.tree_connect(f"\\\\{self.address.host}\\{self.address.share}")
            except BaseException as error:
                transport.abort(f"set-up failed: {error}")
                raise
        client.limit_answers(self.options.answer_timeout)
        self._session_id = session.session_id
        self._control = Channel(tree, fabric)
        self._data = [self._control]
        try:
            await self._choose_channels(session)
        except BaseException as error:
            self._abort(f"set-up failed: {error}")
            raise

    async def _negotiate(self, transport: MessageTransport, fabric: str) -> Client:
        offer = Offer(
            compression=self._compression_offered(),
            require_signing=self.options.signs,
            transport_security=transport.kind is TransportKind.QUIC and not self.options.encrypt,
        )
        try:
            client = await Client.connect(transport, offer=offer, client_guid=self._guid)
        except ConnectionLost:
            if fabric == "tcp" and await speaks_smb1(self.address.host, self.address.port):
                raise errors.make(errno.EPROTONOSUPPORT, str(self.address), reason=_SMB1) from None
            raise
        client.on_break = self._broken
        client.chains, client.compressed = self._chains, Counts(self.compressed)
        return client

    def _compression_offered(self) -> tuple[int, ...]:
        if not self.options.compress:
            return ()
        from smb3server.compression.codecs import COMPRESSION

        return COMPRESSION

    async def _choose_channels(self, session: ClientSession) -> None:
        """Open the channels that were asked for. Nobody waits for RDMA that was not."""
        mode = self.options.rdma
        if self.options.quic:
            self.why_not_rdma = "the connection is over QUIC"
            return
        if mode == "off":
            self.why_not_rdma = "it was turned off (rdma=off)"
        if mode == "auto" and self.options.channels == 1:
            self._look_for_rdma_first = bool(fabrics.tried_by(mode))
            self.why_not_rdma = "no data has moved yet" if self._look_for_rdma_first else fabrics.NO_NIC
        elif mode == "prefer" or self.options.channels > 1:
            await self._add_channels(session)
        if not self._data[0].by_rdma:
            self.why_not_rdma = self.why_not_rdma or self._data[0].tree.choice.why_inline

    def _meaning(self, status: int) -> str:
        """Return what a refusal of the logon or of the share means here."""
        if status == NtStatus.BAD_NETWORK_NAME:
            return f"{self.address.host} has no share {self.address.share!r}"
        if status in (NtStatus.LOGON_FAILURE, NtStatus.WRONG_PASSWORD, NtStatus.NO_SUCH_USER):
            who = self._login.user or ("the user of the ticket" if self._login.kerberos else "anonymous users")
            return f"{self.address.host} does not let {who} in: wrong name or password, or not allowed"
        if status == NtStatus.ACCESS_DENIED:
            who = self._login.user or "this user"
            return f"{self.address.host} does not let {who} use {self.address.share!r}"
        return ""

    async def _open_quic(self) -> tuple[MessageTransport, str]:
        try:
            # An extra, and others start faster without these modules.
            from smb3server.net.quic.client import PORT, open_quic
        except ImportError as error:
            raise errors.make(errno.ENOSYS, reason=f"QUIC needs {error.name}; {parts.remedy('quic')}") from error
        options = self.options
        names = (options.quic_authority, options.quic_certificate, options.quic_key)
        authority, certificate, key = (Path(name) if name else None for name in names)
        port = self.address.port if self.address.port != SMB_PORT else PORT
        made = await open_quic(self.address.host, port, authority, certificate, key, options.timeout)
        return made, "quic"

    async def _open_tcp(self) -> tuple[MessageTransport, str]:
        if self.options.quic:
            return await self._open_quic()
        return await open_tcp(self.address.host, self.address.port, self.options.timeout), "tcp"

    async def _open_rdma(self, fabric: str) -> tuple[MessageTransport, str]:
        """Connect over the fabric that was named, or raise."""
        failure: OSError | None = None
        found = await addresses_of(self.address.host, self.address.port)
        hosts = dict.fromkeys(str(entry[4][0]) for entry in found[: fabrics.MAX_ADDRESSES])
        places = [(host, port) for host in hosts for port in fabrics.ports_of(fabric, self.options.rdma_port)]
        for host, port in places:
            way = fabrics.Way(fabric, host, port, max(_LEAST_TIMEOUT, self.options.timeout / len(places)))
            try:
                return await self._fabrics.open(way), fabric
            except OSError as error:
                reason = self._fabrics.reasons.get(fabric) or fabrics.reason_of(error)
                failure = errors.make(error.errno or errno.EIO, reason=reason)
        assert failure is not None
        raise failure

    async def _log_on(self, client: Client) -> ClientSession:
        login = self._login
        return await client.log_on(
            login.user,
            login.password,
            login.domain,
            sign=self.options.signs,
            encrypt=self.options.encrypt,
            previous_session_id=self._session_id,
            kerberos_host=login.kerberos,
            guest=login.guest,
        )

    # Channels for data

    async def _look_for_rdma(self, session: ClientSession) -> None:
        """Look for RDMA while data goes over TCP, and use it once it is there."""
        try:
            await self._add_channels(session)
        except (*errors.TROUBLE, OSError) as error:
            self.why_not_rdma = fabrics.reason_of(error)

    async def _add_channels(self, session: ClientSession) -> None:
        wanted, mode = min(self.options.channels, MAX_CHANNELS), self.options.rdma
        obstacle = fabrics.obstacle(session)
        if obstacle:
            self._explain(obstacle, wanted)
            return
        interfaces = await fabrics.list_interfaces(session)
        peer = session.client.transport.peer_address[0]
        if order := fabrics.tried_by(mode):
            found = list(self._data) if mode in fabrics.FABRICS else []
            ways = fabrics.candidates(interfaces, peer, order, self.options.rdma_port)
            try:
                await self._add_by_rdma(session, found, self._fabrics.worth_trying(ways))
            except BaseException:
                for channel in found:
                    channel.tree.client.transport.abort("the search was given up")
                raise
            if found:
                self._data, self.why_not_rdma = found, ""
                return
            self._explain("; ".join(self._fabrics.reasons.values()) or "the server lists no RDMA interface", 0)
        elif mode == "auto":
            self._explain(fabrics.NO_NIC, 0)
        if mode not in fabrics.FABRICS:
            others = [str(entry.address) for entry in interfaces if str(entry.address) != peer]
            await self._add_by_tcp(session, wanted, [peer, *others])

    def _explain(self, reason: str, wanted: int) -> None:
        if self.options.rdma in ("auto", "prefer"):
            self.why_not_rdma = reason
        if wanted > 1:
            self.notes.append(f"one channel in place of {wanted}: {reason}")

    async def _add_by_rdma(self, session: ClientSession, found: list[Channel], ways: list[fabrics.Way]) -> None:
        """Add channels over the best fabric that works; several go to its addresses in turn.

        All addresses are tried at the same time, so those that do not answer cost the time of one.
        """
        wanted = min(self.options.channels, MAX_CHANNELS)
        working: list[fabrics.Way] = []
        attempts = [(way, asyncio.ensure_future(self._fabrics.open(way))) for way in ways]
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(fabrics.PATIENCE):
                    for way, attempt in attempts:
                        if len(found) >= wanted or (working and way.fabric != working[0].fabric):
                            break
                        if any(way.host == other.host for other in working):
                            continue
                        if await self._bind_rdma(session, way, attempt, found):
                            working.append(way)
        finally:
            await _give_back([attempt for _, attempt in attempts], found)
        while working and len(found) < wanted:
            way = working[len(found) % len(working)]
            attempt = asyncio.ensure_future(self._fabrics.open(way))
            try:
                added = await self._bind_rdma(session, way, attempt, found)
            finally:
                await _give_back([attempt], found)
            if not added:
                self.notes.append(
                    f"{len(found)} channels in place of {wanted}: {self._fabrics.reasons.get(working[0].fabric)}"
                )
                return

    async def _bind_rdma(
        self, session: ClientSession, way: fabrics.Way, attempt: asyncio.Task[MessageTransport], found: list[Channel]
    ) -> bool:
        try:
            transport = await asyncio.shield(attempt)
        except OSError:
            return False
        try:
            channel = await self._bind(session, transport, way.fabric)
        except (*errors.TROUBLE, OSError) as error:
            self._fabrics.reasons[way.fabric] = f"{way.fabric} at {way.host}: {fabrics.reason_of(error)}"
            return False
        if not channel.by_rdma:
            self._fabrics.reasons[way.fabric] = f"{way.fabric} at {way.host}: {channel.tree.choice.why_inline}"
            await channel.tree.client.close()
            return False
        found.append(channel)
        return True

    async def _add_by_tcp(self, session: ClientSession, wanted: int, hosts: list[str]) -> None:
        """Add channels over TCP, to the server's addresses in turn."""
        while len(self._data) < wanted and hosts:
            host = hosts[len(self._data) % len(hosts)]
            try:
                transport = await open_tcp(host, self.address.port, fabrics.ATTEMPT_TIMEOUT)
                self._data.append(await self._bind(session, transport, "tcp"))
            except (*errors.TROUBLE, OSError) as error:
                self.notes.append(f"no channel to {host}: {fabrics.reason_of(error)}")
                hosts.remove(host)

    async def _bind(self, session: ClientSession, transport: MessageTransport, fabric: str) -> Channel:
        """Make a channel of the session from a fresh connection. [MS-SMB2 3.2.4.2.3.1]"""
        assert self._control is not None
        try:
            async with asyncio.timeout(self.options.timeout):
                dialects = [session.client.dialect]
                offer = Offer(compression=self._compression_offered(), require_signing=self.options.signs)
                client = await Client.connect(transport, dialects, offer, client_guid=self._guid)
                client.chains, client.compressed = self._chains, Counts(self.compressed)
                login = self._login
                bound = await BoundSession.bind(
                    session, client, login.user, login.password, login.domain, kerberos_host=login.kerberos
                )
                tree = self._control.tree.on(bound)
                await bound.validate(tree)
        except BaseException as error:
            transport.abort(f"no channel: {error}")
            raise
        client.limit_answers(self.options.answer_timeout)
        return Channel(tree, fabric)

    # Using

    def pick(self) -> Channel:
        """Return the channel for the next piece of data: the one with the fewest pieces."""
        if self._look_for_rdma_first and self._control is not None:
            self._look_for_rdma_first = False
            session = self._control.tree.session
            assert isinstance(session, ClientSession)
            self._search = asyncio.ensure_future(self._look_for_rdma(session))
        for channel in [channel for channel in self._data if channel.lost]:
            self._data.remove(channel)
            if channel is not self._control:
                self.why_not_rdma = (
                    f"the {channel.fabric} connection was lost: {channel.why_ended or channel.tree.client.closed}"
                )
        if not self._data:
            # Data goes on over the channel that is left. The next session tries all of them again.
            assert self._control is not None
            self._data = [self._control]
        return min(self._data, key=lambda channel: channel.busy)

    @property
    def window(self) -> int:
        """Pieces of one transfer that may be in flight."""
        return DEPTH * max(1, len(self._data))

    @property
    def channels(self) -> list[Channel]:
        """The channels for data."""
        return list(self._data)

    def count(self, channel: Channel, written: int, read: int) -> None:
        """Count payload by what carried it."""
        kind = channel.fabric
        if kind not in ("tcp", "quic") and (max(written, read) < channel.tree.rdma_from or not channel.by_rdma):
            kind = "messages"
        self.count_as(kind, written, read)

    @property
    def moves_by_rdma_from(self) -> int:
        """Bytes from which data of one request goes by RDMA; more than any file has if it does not."""
        return min((channel.tree.rdma_from for channel in self._data if channel.by_rdma), default=1 << 63)

    def kind_of(self, tree: Tree) -> str:
        """Return a kind of ``moved``: what carries the messages of a channel."""
        fabric = next((channel.fabric for channel in self._data if channel.tree is tree), "tcp")
        return fabric if fabric in ("tcp", "quic") else "messages"

    def count_as(self, kind: str, written: int, read: int) -> None:
        """Count payload of a kind of ``moved``."""
        counts = self._moved.setdefault(kind, [0, 0])
        counts[0] += written
        counts[1] += read

    def _make_line(self) -> Line:
        from smb3server.client.one_sided import Line

        return Line(self._place_of_line)

    def _place_of_line(self) -> Place | None:
        """Return where data goes by RDMA in software, which can serve files."""
        from smb3server.client.one_sided import Place

        for channel in self._data:
            if channel.by_rdma and channel.fabric in fabrics.SOFTWARE and not channel.lost:
                host, port = channel.tree.client.transport.peer_address
                return Place(self._fabrics.provider(channel.fabric), host, port)
        return None

    @property
    def compression(self) -> str:
        """What was agreed upon, such as "LZ4, Pattern_V1"; empty if messages are not compressed."""
        agreed = self._data[0].tree.client.negotiated.compression if self._data else None
        return agreed.name if agreed is not None else ""

    @property
    def moved(self) -> dict[str, tuple[int, int]]:
        """Payload bytes written and read so far: by the fabric if RDMA moved them, else "tcp", or "messages" of SMB
        Direct; "one-sided" without requests.
        """
        return {kind: (counts[0], counts[1]) for kind, counts in self._moved.items()}

    async def once(self, work: Callable[[Tree], Awaitable[T]]) -> T:
        """Do something that must not be done twice: if its answer is lost, nobody knows whether it was done."""
        tree = (await self.ready()).tree
        return await self.answered(tree, work)

    async def answered(self, tree: Tree, work: Callable[[Tree], Awaitable[T]]) -> T:
        """Do something on a connection, which ends if it is of no use: data goes on over another one.

        It is of no use if no memory can be registered for it. Each answer has its own time limit there, so what is done
        may take many of them.
        """
        try:
            return await work(tree)
        except ProviderError as error:
            raise self.end(tree, str(error)) from error

    def end(self, tree: Tree, why: str) -> ConnectionLost:
        """End a connection that is of no use, and return the error for those who use it."""
        for channel in self._data:
            if channel.tree is tree:
                channel.why_ended = why
        tree.client.transport.abort(why)
        return ConnectionLost(why)

    async def again(self, work: Callable[[Tree], Awaitable[T]]) -> T:
        """Do something that may be repeated, until it is done or nothing was done for ``patience`` seconds."""
        return await self.until_done(lambda: self.once(work))

    async def until_done(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat ``attempt`` over connections that are lost. Raises its last error after ``patience`` seconds."""
        give_up = 0.0
        while True:
            try:
                return await attempt()
            except (StatusError, ConnectionLost) as error:
                give_up = await self.recover(error, give_up)

    async def recover(self, error: BaseException, give_up: float = 0.0) -> float:
        """Wait until what failed with ``error`` can be tried again, on another connection.

        Return when to give up, which is handed in at the next failure of the same work. Raises ``error`` if another
        connection would not help, and after ``patience`` seconds.
        """
        if isinstance(error, StatusError) and error.status in _GONE:
            self._abort(str(error))
        elif not isinstance(error, ConnectionLost):
            raise error
        loop = asyncio.get_running_loop()
        give_up = give_up or loop.time() + self.options.patience
        if self._closed or loop.time() >= give_up:
            raise error
        await asyncio.sleep(_DELAY)
        return give_up

    # Closing

    async def close(self) -> None:
        """Log off and close all connections. Idempotent."""
        self._check_loop()
        self._closed = True
        self._stop_searching()
        if self.line is not None:
            await self.line.close()
        control, self._control = self._control, None
        others = [channel for channel in self._data if channel is not control]
        self._data = []
        if control is not None and not control.lost:
            session = control.tree.session
            try:
                async with asyncio.timeout(2):
                    if isinstance(session, ClientSession):
                        await session.log_off()
            except (*errors.TROUBLE, TimeoutError):
                # The server ends the session with the connection.
                control.tree.client.transport.abort("closing")
        for channel in (*others, *([control] if control is not None else [])):
            await channel.tree.client.close()

    def _stop_searching(self) -> None:
        self._look_for_rdma_first = False
        search, self._search = self._search, None
        if search is not None:
            search.cancel()

    def _abort(self, why: str) -> None:
        self._stop_searching()
        channels = [*self._data, *([self._control] if self._control is not None else [])]
        self._control, self._data = None, []
        for channel in channels:
            if not channel.lost:
                channel.tree.client.transport.abort(why)


async def _give_back(attempts: list[asyncio.Task[MessageTransport]], found: list[Channel]) -> None:
    """End attempts to connect, and the connections made by them that no channel uses."""
    for attempt in attempts:
        attempt.cancel()
    used = [channel.tree.client.transport for channel in found]
    for made in await asyncio.gather(*attempts, return_exceptions=True):
        if not isinstance(made, BaseException) and made not in used:
            made.abort("not needed")
