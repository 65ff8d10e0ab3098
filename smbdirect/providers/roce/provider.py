"""RoCEv2 in user space as an RDMA provider: listeners, connection set-up, and dispatch of packets to connections."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import cast

from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.providers.base import (
    Capabilities,
    CloseCause,
    CloseReason,
    OnRequest,
    Prepare,
    Provider,
    ignore,
)
from smbdirect.providers.memory import SharedRegions
from smbdirect.providers.roce.arrival import Run
from smbdirect.providers.roce.batch_calls import Awaited
from smbdirect.providers.roce.cm import (
    MAX_PRIVATE_DATA,
    QUEUE_KEY,
    REJECT_PRIVATE_DATA,
    REPLY_PRIVATE_DATA,
    Connection,
    ConnectionManager,
    Event,
    Outcome,
    Parameters,
)
from smbdirect.providers.roce.cm_messages import MAD_LENGTH, Reason
from smbdirect.providers.roce.endpoint import RoceEndpoint
from smbdirect.providers.roce.headers import (
    BTH,
    DEFAULT_PKEY,
    DETH,
    ICRC_LENGTH,
    PATH_MTUS,
    PSN_MASK,
    UDP_PORT,
    Bth,
    Deth,
    Opcode,
    path_mtu,
)
from smbdirect.providers.roce.icrc import Flow
from smbdirect.providers.roce.path import PacketPath, send_single
from smbdirect.providers.roce.responder import MAX_PENDING_READS
from smbdirect.providers.roce.sockets import Port, Route, look_up, unpack_address

log = logging.getLogger(__name__)

CAPABILITIES = Capabilities(
    name="roce",
    max_send_sge=16,
    max_read_sge=16,
    max_transfer=8 << 20,
    max_message=1 << 20,
    max_send_queue=512,
    max_receive_queue=1024,
    max_outstanding_reads=MAX_PENDING_READS,
    atomics=True,
)
RNR_RETRY = 6
"""How often a peer may retry after an RNR NAK; a peer that respects credits never needs to."""
_MAD_PACKET = BTH.size + DETH.size + MAD_LENGTH + ICRC_LENGTH
_FIRST_EPHEMERAL_PORT = 49152
DATAGRAMS_PER_TURN = 8
"""Most management datagrams processed in one turn of the event loop: a request with all that it sets up takes half a
millisecond."""
DATAGRAMS_WAITING, DATAGRAMS_PER_PEER = 256, 64
"""Most datagrams that wait for the next turns, of all peers and of each. Further datagrams are dropped; a genuine
sender repeats them."""


class RoceRequest:
    """One connection request. Implements ``base.ConnectionRequest``."""

    def __init__(self, provider: RoceProvider, connection: Connection, route: Route) -> None:
        self.peer_address = (unpack_address(route.peer), connection.client_port)
        self.local_address = (unpack_address(route.local), connection.port)
        self.private_data = connection.private_data
        self._provider = provider
        self._connection = connection
        self._route = route
        self._endpoint: RoceEndpoint | None = None

    def prepare(self) -> RoceEndpoint:
        if self._endpoint is None:
            self._endpoint = self._provider.new_endpoint(self.local_address, self.peer_address)
            self._endpoint.private_data = self.private_data
        return self._endpoint

    async def accept(self, private_data: bytes = b"") -> None:
        if len(private_data) > REPLY_PRIVATE_DATA:
            raise ProviderError(f"private data of {len(private_data)} bytes")
        await self._provider.accept(self._connection, self._route, self.prepare(), private_data)

    def reject(self, private_data: bytes = b"") -> None:
        self._provider.reject(self._connection, private_data[:REJECT_PRIVATE_DATA])
        if self._endpoint is not None:
            self._endpoint.end(CloseReason(CloseCause.LOCAL, "rejected"))


class RoceListener:
    """A listening service ID. Implements ``base.Listener``."""

    def __init__(
        self,
        provider: RoceProvider,
        port: Port,
        address: tuple[str, int],
        on_request: OnRequest,
    ) -> None:
        self.address = address
        self.port = port
        self.down = ""
        self.on_change: Callable[[], None] = ignore
        self.on_request = on_request
        self._provider = provider

    async def close(self) -> None:
        self._provider.remove_listener(self)


class RoceProvider(Provider):
    """Software RoCEv2. Implements ``base.Provider``.

    ``udp_port`` is for tests. ``max_mtu`` limits the payload of a packet in bytes. ``raw`` and ``segmentation`` say
    whether raw sockets and UDP_SEGMENT batches are used where the kernel allows it.
    """

    def __init__(
        self,
        udp_port: int = UDP_PORT,
        capabilities: Capabilities = CAPABILITIES,
        max_mtu: int = 4096,
        raw: bool = True,
        segmentation: bool = True,
    ) -> None:
        if max_mtu not in PATH_MTUS.values():
            raise ProviderError(f"{max_mtu} is not an InfiniBand MTU")
        self.capabilities = capabilities
        self._notices: list[str] = []
        self.counters = dict.fromkeys(("unknown_queue_pair", "malformed", "dropped_datagrams"), 0)
        self.endpoints: dict[int, RoceEndpoint] = {}
        """By queue pair number."""
        self._udp_port = udp_port
        self._max_mtu = max_mtu
        self._raw = raw
        self._segmentation = segmentation
        self._ports: dict[bytes, Port] = {}
        self._listeners: dict[tuple[Port, int], RoceListener] = {}
        self._manager = ConnectionManager(
            secrets.randbits, self._is_listening, lambda path: unpack_address(cast(Route, path).peer)
        )
        self._connections: dict[Connection, Route] = {}
        self._waiting: dict[Connection, asyncio.Future[None]] = {}
        self._dirty: list[RoceEndpoint] = []
        self._latest: tuple[RoceEndpoint, Route] | None = None
        """The connection whose packet arrived last, and the way that it came."""
        self._sweeping = False
        self._timer: asyncio.TimerHandle | None = None
        self._mad_psn = 0
        self._turn_left = DATAGRAMS_PER_TURN
        """Management datagrams that may still be processed in this turn of the event loop."""
        self._datagrams: deque[tuple[Route, bytes]] = deque()
        """Datagrams that wait for the next turns."""
        self._waiting_by_peer: Counter[bytes] = Counter()
        """Invariant: how many of ``_datagrams`` came from each peer address; no count is 0."""

    @property
    def notices(self) -> Sequence[str]:
        return self._notices

    def available(self) -> str | None:
        if not sys.platform.startswith("linux"):
            return "RoCEv2 in user space needs Linux: the IP header that its ICRC covers cannot be predicted elsewhere"
        return None

    # -- listening and connecting ----------------------------------------------------------------------------------

    def shared_regions(self) -> SharedRegions:
        return SharedRegions()

    async def listen(self, host: str, port: int, on_request: OnRequest) -> RoceListener:
        """Serve service ID 0x01060000 | ``port`` on ``host`` (an address; ``0.0.0.0`` or ``::`` for all). Raise
        ``ProviderError`` if UDP port 4791 is in use."""
        host = host or "0.0.0.0"
        shared = self._port_for(
            look_up(host).peer if host not in ("0.0.0.0", "::") else bytes(16 if ":" in host else 4)
        )
        if not port:
            port = _FIRST_EPHEMERAL_PORT + secrets.randbelow(16384)
            while (shared, port) in self._listeners:
                port = _FIRST_EPHEMERAL_PORT + secrets.randbelow(16384)
        if (shared, port) in self._listeners:
            raise ProviderError(f"port {port} of {host} is in use")
        listener = RoceListener(self, shared, (host, port), on_request)
        self._listeners[shared, port] = listener
        return listener

    async def connect(
        self, host: str, port: int, prepare: Prepare, private_data: bytes = b"", timeout: float = 5.0
    ) -> RoceEndpoint:
        """See ``base.Provider``. Raise ``ConnectionLost`` if the peer rejects or does not answer within ``timeout``
        seconds, and ``ProviderError`` if there is no route."""
        if len(private_data) > MAX_PRIVATE_DATA:
            raise ProviderError(f"private data of {len(private_data)} bytes")
        info = look_up(host)
        mtu = min(self._max_mtu, path_mtu(info.mtu, len(info.local) == 16))
        if not mtu:
            raise ProviderError(f"MTU {info.mtu} towards {host} is too small for RoCEv2")
        shared = self._port_for(info.local)
        route = Route(shared, info.local, info.peer, info.scope)
        client_port = _FIRST_EPHEMERAL_PORT + secrets.randbelow(16384)
        endpoint = self.new_endpoint((unpack_address(info.local), client_port), (unpack_address(info.peer), port))
        prepare(endpoint)
        parameters = self._parameters(endpoint, mtu)
        now = asyncio.get_running_loop().time()
        connection = self._manager.connect(
            route, port, client_port, (info.local, info.peer), parameters, private_data, now
        )
        connection.owner, endpoint.connection = endpoint, connection
        await self._until_established(connection, route, endpoint, timeout)
        return endpoint

    async def accept(self, connection: Connection, route: Route, endpoint: RoceEndpoint, private_data: bytes) -> None:
        """Accept a connection for ``RoceRequest.accept``. Raise ``ConnectionLost`` if it is not established."""
        peer = connection.peer
        assert peer is not None
        mtu = PATH_MTUS[peer.mtu_code]
        try:
            info = look_up(unpack_address(route.peer), unpack_address(route.local))
        except ProviderError as error:
            self.reject(connection, b"")
            raise _lost(endpoint, CloseCause.DEVICE, str(error)) from None
        if mtu > path_mtu(info.mtu, len(route.peer) == 16):
            self._manager.reject(connection, Reason.INVALID_MTU)
            self._after_manager()
            raise _lost(endpoint, CloseCause.DEVICE, f"the peer requests MTU {mtu}, the interface has {info.mtu}")
        parameters = self._parameters(endpoint, mtu)._replace(
            responder_resources=min(MAX_PENDING_READS, peer.initiator_depth or MAX_PENDING_READS),
            initiator_depth=min(self.capabilities.max_outstanding_reads, peer.responder_resources),
        )
        if not self._manager.accept(connection, parameters, private_data, asyncio.get_running_loop().time()):
            raise _lost(endpoint, CloseCause.PEER, "the peer gave up connecting")
        connection.owner, endpoint.connection = endpoint, connection
        self._start(connection, route, endpoint)
        await self._until_established(connection, route, endpoint, None)

    async def _until_established(
        self, connection: Connection, route: Route, endpoint: RoceEndpoint, timeout: float | None
    ) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[connection] = future
        self._connections[connection] = route
        self._after_manager()
        try:
            async with asyncio.timeout(timeout):
                await future
        except ConnectionLost as error:
            endpoint.end(cast(CloseReason, error.reason))
            raise
        except TimeoutError:
            raise _lost(endpoint, CloseCause.TIMEOUT, "no answer to the connection request") from None
        except asyncio.CancelledError:
            endpoint.end(CloseReason(CloseCause.LOCAL, "cancelled"))
            raise
        finally:
            self._waiting.pop(connection, None)
            # Its exception refers to this frame.
            del future

    def _parameters(self, endpoint: RoceEndpoint, mtu: int) -> Parameters:
        return Parameters(
            queue_pair=endpoint.queue_pair.number,
            psn=secrets.randbits(24),
            mtu_code=next(code for code, size in PATH_MTUS.items() if size == mtu),
            responder_resources=MAX_PENDING_READS,
            initiator_depth=self.capabilities.max_outstanding_reads,
            rnr_retry=RNR_RETRY,
        )

    def _start(self, connection: Connection, route: Route, endpoint: RoceEndpoint) -> None:
        """Have the queue pair accept packets, now that the parameters of both ends are known."""
        peer, own = connection.peer, connection.parameters
        assert peer is not None and own is not None
        mtu = PATH_MTUS[own.mtu_code]
        endpoint.peer = route.peer
        endpoint.path = PacketPath(route, peer.queue_pair, mtu, self._segmentation, endpoint.counters)
        reads = min(own.initiator_depth, peer.responder_resources)
        endpoint.capabilities = replace(self.capabilities, max_outstanding_reads=reads)
        endpoint.queue_pair.start(peer.psn, own.psn, mtu, reads, peer.rnr_retry)

    def reject(self, connection: Connection, private_data: bytes) -> None:
        """Reject a connection request for ``RoceRequest.reject``."""
        self._manager.reject(connection, Reason.CONSUMER, private_data)
        self._after_manager()

    # -- bookkeeping -----------------------------------------------------------------------------------------------

    def new_endpoint(self, local_address: tuple[str, int], peer_address: tuple[str, int]) -> RoceEndpoint:
        """Return a new endpoint with an unpredictable queue pair number."""
        number = 0
        while number < 2 or number == PSN_MASK or number in self.endpoints:
            number = secrets.randbits(24)
        endpoint = self.endpoints[number] = RoceEndpoint(
            self.capabilities, number, local_address, peer_address, self._forget
        )
        return endpoint

    def _forget(self, endpoint: RoceEndpoint, reason: CloseReason) -> None:
        """Disconnect the peer of an endpoint that ended for ``reason``."""
        self.endpoints.pop(endpoint.queue_pair.number, None)
        if self._latest is not None and self._latest[0] is endpoint:
            self._latest = None
        connection = endpoint.connection
        if connection is not None:
            endpoint.connection = connection.owner = None
            future = self._waiting.get(connection)
            if future is not None and not future.done():
                # The manager sends no event, since this side ended the connection, so end the wait for the peer's
                # answer here.
                future.set_exception(ConnectionLost(reason))
            self._manager.disconnect(connection, asyncio.get_running_loop().time())
        self._after_manager()

    def _port_for(self, local: bytes) -> Port:
        """Return the sockets that serve ``local``: its own, or those of all addresses, whichever are open. Open its own
        if there are none."""
        port = self._ports.get(local) or self._ports.get(bytes(len(local)))
        if port is None:
            port = self._ports[local] = Port(unpack_address(local), self._udp_port, self._raw, self)
            if not port.sees_identification and not self._notices:
                self._notices.append(
                    "RoCEv2: the ICRC of received IPv4 packets is checked for any IP identification, so that one"
                    " damaged packet in 65,536 passes: seeing the identification needs the capability CAP_NET_RAW"
                )
                log.warning("%s", self._notices[0])
        return port

    def _is_listening(self, route: Hashable, port: int) -> bool:
        return (cast(Route, route).port, port) in self._listeners

    def remove_listener(self, listener: RoceListener) -> None:
        """Forget ``listener``. Idempotent."""
        if self._listeners.get((listener.port, listener.address[1])) is listener:
            del self._listeners[listener.port, listener.address[1]]
            self._sweep_soon()

    def _sweep_soon(self) -> None:
        """Close unused sockets after the answers under way were sent."""
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_soon(self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        used = {port for port, _ in self._listeners}
        used.update(route.port for route in self._connections.values())
        for local, port in list(self._ports.items()):
            if port not in used:
                del self._ports[local]
                port.close()

    def on_unblocked(self) -> None:
        for endpoint in list(self.endpoints.values()):
            endpoint.pump()

    # -- packets in ------------------------------------------------------------------------------------------------

    def on_packet(self, route: Route, packet: memoryview, marked: bool) -> None:
        number = packet[5] << 16 | packet[6] << 8 | packet[7]
        endpoint = self._receiver(number, route, marked)
        if endpoint is not None:
            endpoint.queue_pair.receive(packet, endpoint.now())
        elif number == 1:
            self._on_datagram(route, packet)
        else:
            self.counters["unknown_queue_pair"] += 1

    def on_run(self, route: Route, run: Run, marked: bool) -> None:
        endpoint = self._receiver(int.from_bytes(run.head[5:], "big"), route, marked)
        if endpoint is not None:
            endpoint.queue_pair.receive_run(run, endpoint.now())
        else:
            for packet in run.split():
                self.on_packet(route, packet, marked)

    def _receiver(self, number: int, route: Route, marked: bool) -> RoceEndpoint | None:
        """Return the endpoint with this queue pair whose peer sent a packet by ``route``, and have it pumped by
        ``on_pause``; None if there is none."""
        endpoint = self.endpoints.get(number)
        if endpoint is None or endpoint.peer != route.peer:
            return None
        if marked:
            endpoint.queue_pair.congestion_seen(endpoint.now())
        self._latest = endpoint, route
        self._touched(endpoint)
        return endpoint

    def _touched(self, endpoint: RoceEndpoint) -> None:
        """Have an endpoint pumped by ``on_pause``."""
        if not endpoint.dirty:
            endpoint.dirty = True
            self._dirty.append(endpoint)

    def awaited(self, route: Route, flow: Flow) -> Awaited | None:
        if self._latest is None or self._latest[1] is not route:
            return None
        return self._latest[0].queue_pair.awaited(flow)

    def on_placed(self, number: int, words: int) -> None:
        assert self._latest is not None
        endpoint = self._latest[0]
        endpoint.queue_pair.on_placed(number, words, endpoint.now())
        self._touched(endpoint)

    def on_pause(self) -> None:
        dirty, self._dirty = self._dirty, []
        for endpoint in dirty:
            if not endpoint.queue_pair.ready_to_send:
                self._early(endpoint)
            endpoint.pump()

    def _early(self, endpoint: RoceEndpoint) -> None:
        """Note that a connection is established if data arrives before the RTU."""
        connection = endpoint.connection
        if connection in self._waiting and endpoint.counters["packets_received"]:
            self._manager.established(connection)
            self._after_manager()

    def on_damaged(self, port: Port, packet: memoryview, source: bytes) -> None:
        endpoint = self.endpoints.get(packet[5] << 16 | packet[6] << 8 | packet[7])
        if endpoint is not None and endpoint.peer == source:
            endpoint.counters["crc_errors"] += 1

    def _on_datagram(self, route: Route, packet: memoryview) -> None:
        """Check a management datagram on QP1, and process it in this turn of the event loop or a later one."""
        bth = BTH.unpack(packet)
        if len(packet) != _MAD_PACKET or bth.opcode != Opcode.UD_SEND_ONLY or bth.flags & 0x3F:
            self.counters["malformed"] += 1
            return
        deth = DETH.unpack(packet, BTH.size)
        if deth.queue_key != QUEUE_KEY or deth.source & PSN_MASK != 1 or bth.pkey & 0x7FFF != 0x7FFF:
            self.counters["malformed"] += 1
            return
        start = BTH.size + DETH.size
        datagram = packet[start : start + MAD_LENGTH]
        if self._turn_left:
            self._turn_left -= 1
            if self._turn_left == DATAGRAMS_PER_TURN - 1:
                asyncio.get_running_loop().call_soon(self._next_turn)
            self._take_datagram(route, datagram)
        elif self._waiting_by_peer[route.peer] < DATAGRAMS_PER_PEER and len(self._datagrams) < DATAGRAMS_WAITING:
            self._waiting_by_peer[route.peer] += 1
            self._datagrams.append((route, bytes(datagram)))
        else:
            self.counters["dropped_datagrams"] += 1

    def _next_turn(self) -> None:
        """Begin another turn of the event loop: process waiting datagrams first."""
        self._turn_left = DATAGRAMS_PER_TURN
        while self._datagrams and self._turn_left:
            route, datagram = self._datagrams.popleft()
            self._waiting_by_peer[route.peer] -= 1
            if not self._waiting_by_peer[route.peer]:
                del self._waiting_by_peer[route.peer]
            self._turn_left -= 1
            self._take_datagram(route, memoryview(datagram))
        if self._turn_left < DATAGRAMS_PER_TURN:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _take_datagram(self, route: Route, datagram: memoryview) -> None:
        self._manager.receive(datagram, route, asyncio.get_running_loop().time())
        self._after_manager()

    # -- connection management out -----------------------------------------------------------------------------------

    def _after_manager(self) -> None:
        """Send the manager's datagrams, handle its events and arm its timer."""
        manager = self._manager
        while manager.outbox or manager.events:
            outbox, manager.outbox = manager.outbox, []
            for path, mad in outbox:
                self._send_mad(cast(Route, path), mad)
            events, manager.events = manager.events, []
            for event in events:
                self._on_event(event)
        deadline = manager.next_deadline
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expired)
        while manager.ended:
            if self._connections.pop(manager.ended.pop(), None) is not None:
                self._sweep_soon()

    def _expired(self) -> None:
        self._timer = None
        self._manager.handle_timer(asyncio.get_running_loop().time())
        self._after_manager()

    def _send_mad(self, route: Route, mad: bytes) -> None:
        self._mad_psn = self._mad_psn + 1 & PSN_MASK
        header = BTH.pack(Bth(Opcode.UD_SEND_ONLY, 0, DEFAULT_PKEY, 1, self._mad_psn))
        send_single(route, header + DETH.pack(Deth(QUEUE_KEY, 1)) + mad)

    def _on_event(self, event: Event) -> None:
        connection = event.connection
        route = cast(Route, connection.path)
        if event.outcome is Outcome.REQUESTED:
            self._connections[connection] = route
            listener = self._listeners[route.port, connection.port]
            listener.on_request(RoceRequest(self, connection, route))
            return
        endpoint = connection.owner
        future = self._waiting.get(connection)
        if event.outcome is Outcome.ESTABLISHED:
            if isinstance(endpoint, RoceEndpoint):
                self._established(connection, route, endpoint)
            if future is not None and not future.done():
                future.set_result(None)
            return
        cause = CloseCause.TIMEOUT if event.outcome is Outcome.TIMED_OUT else CloseCause.PEER
        if isinstance(endpoint, RoceEndpoint) and endpoint.queue_pair.responder.starved:
            cause = CloseCause.NO_RECEIVE
        reason = CloseReason(cause, event.detail)
        if isinstance(endpoint, RoceEndpoint):
            endpoint.end(reason)
        if future is not None and not future.done():
            future.set_exception(ConnectionLost(reason))

    def _established(self, connection: Connection, route: Route, endpoint: RoceEndpoint) -> None:
        if endpoint.path is None:
            endpoint.private_data = connection.private_data
            self._start(connection, route, endpoint)
        endpoint.established()


def _lost(endpoint: RoceEndpoint, cause: CloseCause, detail: str) -> ConnectionLost:
    """End an endpoint that is not established, and return the error for its user."""
    reason = CloseReason(cause, detail)
    endpoint.end(reason)
    return ConnectionLost(reason)
