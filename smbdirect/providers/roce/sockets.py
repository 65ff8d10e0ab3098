"""The sockets of RoCEv2 on Linux, and the packets to and from them.

One unconnected UDP socket per local address sends. With path MTU discovery on, the kernel sends IP ID 0 with DF, so the
ICRC can be computed in advance.

The ICRC of an IPv4 packet covers its identification, which only a raw socket shows (CAP_NET_RAW). Two filters divide
the packets by their UDP checksum. Devices send none (0) [IBTA A17.5.2]: their packets have any identification, and come
through the raw socket, one by one. Our own and other user-space senders have a checksum: their packets come through the
UDP socket, many at once (UDP_GRO), and their identification counts from 0. Without the capability, everything comes
through the UDP socket. IPv6 headers have no identification, and a UDP socket shows all of them that the ICRC covers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

from smbdirect.errors import ProviderError
from smbdirect.providers.roce import icrc
from smbdirect.providers.roce.arrival import MIN_PACKET, SLOTS, Run, Slots, is_intact, runs
from smbdirect.providers.roce.batch_calls import IP_PKTINFO, UDP_GRO, UDP_SEGMENT, Awaited, Control
from smbdirect.providers.roce.batches import launch, take

_IP_MTU_DISCOVER = 10
_IP_RECVTOS = 13
_IP_MTU = 14
_IPV6_MTU_DISCOVER = 23
_IPV6_MTU = 24
_PMTUDISC_DO = 2
_SO_ATTACH_FILTER = 26
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_ECT0 = 2
_CE = 3
RECEIVE_BUFFER = 16 << 20
SEND_BUFFER = 4 << 20
TURN_BYTES = 512 << 10
"""Bytes read from a socket before other work of the event loop gets its turn. A packet counts as ``TURN_PACKET`` at
least."""
TURN_PACKET = 4096
_SHORTEST_MIDDLE = 256
"""No packet in front of the last one of a message is that short."""
_MAX_SENDERS = 4096
"""Most senders whose routes are kept."""


class Arrivals(Protocol):
    """What takes the packets that arrive. Each has been checked."""

    def on_packet(self, route: Route, packet: memoryview, marked: bool) -> None:
        """Process a packet, from BTH to ICRC. ``marked`` says whether its IP header has the congestion mark."""

    def on_run(self, route: Route, run: Run, marked: bool) -> None:
        """Process several packets."""

    def awaited(self, route: Route, flow: icrc.Flow) -> Awaited | None:
        """Return the packets in the middle of a message that are due next by ``route`` for the connection whose packet
        arrived last, if they are to be placed in memory and nothing else. ``flow`` is that of their sender."""

    def on_placed(self, number: int, words: int) -> None:
        """Note that so many of the packets that are ``awaited`` were placed. ``words``: see ``Run``."""

    def on_damaged(self, port: Port, packet: memoryview, source: bytes) -> None:
        """Count a packet of at least ``MIN_PACKET`` bytes whose ICRC is wrong."""

    def on_pause(self) -> None:
        """Answer: all that has arrived, or enough for one turn, was handed over."""

    def on_unblocked(self) -> None:
        """Send what waits: a socket accepts packets again."""


class Route(NamedTuple):
    """Both ends of a path as packed addresses. ``scope`` is the interface of link-local IPv6 addresses, else 0."""

    port: Port
    local: bytes
    peer: bytes
    scope: int = 0


class _Sender(NamedTuple):
    """One UDP port that packets come from."""

    route: Route
    flow: icrc.Flow
    address: tuple[Any, ...]
    """That of its socket."""


class RouteInfo(NamedTuple):
    """The addresses, scope and MTU that the kernel would use to reach an address."""

    local: bytes
    peer: bytes
    scope: int
    mtu: int


def look_up(host: str, source: str | None = None) -> RouteInfo:
    """Return the kernel's route to ``host`` (an address or a name). Raise ``ProviderError`` if there is none."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        family, address = found[0], cast("tuple[Any, ...]", found[4])
        ipv6 = family == socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            if source is not None:
                probe.bind((source, 0))
            probe.connect(address)
            local = probe.getsockname()
            level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if ipv6 else (socket.IPPROTO_IP, _IP_MTU)
            mtu = probe.getsockopt(level, option)
    except OSError as error:
        raise ProviderError(f"no route to {host}: {error.strerror or error}") from None
    return RouteInfo(pack_address(local[0]), pack_address(address[0]), address[3] if ipv6 else 0, mtu)


def pack_address(host: str) -> bytes:
    """Return a numeric address in packed form. Raise ``OSError`` for anything else."""
    if ":" in host:
        return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    return socket.inet_pton(socket.AF_INET, host)


def unpack_address(packed: bytes) -> str:
    """Return a packed address in numeric form."""
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _attach_filter(sock: socket.socket, program: Sequence[tuple[int, int, int, int]]) -> None:
    """Attach a classic BPF program (SO_ATTACH_FILTER)."""
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    memory = ctypes.create_string_buffer(code, len(code))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(memory)))


def _enlarge(sock: socket.socket, forced: int, ordinary: int, size: int) -> None:
    """Set a buffer of ``size`` bytes by the option ``forced``, or by ``ordinary`` if the first is not permitted."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, forced, size)
    except OSError:
        # Without CAP_NET_ADMIN the kernel gives at most net.core.rmem_max or wmem_max.
        sock.setsockopt(socket.SOL_SOCKET, ordinary, size)


def _close_all(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


_ports: weakref.WeakSet[Port] = weakref.WeakSet()
_ports_lock = threading.Lock()


def _close_left() -> bool:
    """Close the sockets that event loops of this process had when they ended: the garbage collector may take its time.
    Return whether there were any."""
    with _ports_lock:
        left = [port for port in _ports if port.is_left]
    for port in left:
        port.close_left()
    return bool(left)


class Port:
    """The sockets of one local address (or of all: ``0.0.0.0``, ``::``), registered with the event loop."""

    def __init__(self, host: str, udp_port: int, raw: bool, arrivals: Arrivals) -> None:
        """Open the sockets, among them a raw one if ``raw`` is set and the process may do so. Raise ``ProviderError``
        if the address is not available."""
        self.local = pack_address(host)
        self.udp_port = udp_port
        self.wildcard = not any(self.local)
        self.ipv6 = len(self.local) == 16
        self.blocked = False
        self.segmentation = True
        self.counters = dict.fromkeys(("send_errors", "crc_errors", "malformed"), 0)
        self._arrivals = arrivals
        self._pending: deque[tuple[bytes, list[tuple[int, int, bytes]], tuple[str, int]]] = deque()
        """Datagrams that the socket has not accepted. Invariant: empty unless ``blocked``."""
        self._loop = asyncio.get_running_loop()
        self._body = memoryview(bytearray(65536))
        self._routes: dict[tuple[bytes, bytes], Route] = {}
        self._senders: dict[tuple[object, bytes], _Sender] = {}
        """By the socket address of the sender and our own packed address."""
        self._latest: _Sender | None = None
        """The sender of the last packet, if packets in the middle of a message may follow it."""
        self.socket = self._open_udp(host)
        self._raw = self._open_raw(host) if raw and not self.ipv6 else None
        self._slots = Slots() if self._raw is not None else None
        self.sees_identification = self.ipv6 or self._raw is not None
        """Whether nothing that the ICRC covers is hidden."""
        # Closes the sockets even if the event loop ends before the last answers were sent.
        sockets = [sock for sock in (self.socket, self._raw) if sock is not None]
        weakref.finalize(self, _close_all, sockets)
        with _ports_lock:
            _ports.add(self)
        self._loop.add_reader(self.socket, self._udp_readable)
        if self._raw is not None:
            self._loop.add_reader(self._raw, self._raw_readable)

    def _open_udp(self, host: str) -> socket.socket:
        sock = socket.socket(socket.AF_INET6 if self.ipv6 else socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            if self.ipv6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_DO)
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, _ECT0)
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, int(self.wildcard))
            else:
                sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_DO)
                sock.setsockopt(socket.IPPROTO_IP, _IP_RECVTOS, 1)
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _ECT0)
                sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, int(self.wildcard))
            _enlarge(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF, SEND_BUFFER)
            _enlarge(sock, _SO_RCVBUFFORCE, socket.SO_RCVBUF, RECEIVE_BUFFER)
            with contextlib.suppress(OSError):
                # A kernel without UDP_GRO delivers packets one by one.
                sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            try:
                sock.bind((host, self.udp_port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not _close_left():
                    raise
                sock.bind((host, self.udp_port))
        except OSError as error:
            sock.close()
            remedy = ""
            if error.errno == errno.EADDRINUSE:
                remedy = (
                    ": another process or the kernel's rdma_rxe owns it (see `rdma link`, `ss -lunp`); stop it, or use"
                    " the verbs provider on that device"
                )
            raise ProviderError(
                f"UDP port {self.udp_port} of {host}: {os.strerror(error.errno or 0)}{remedy}"
            ) from None
        return sock

    def _open_raw(self, host: str) -> socket.socket | None:
        try:
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.IPPROTO_UDP)
        except PermissionError:
            return None
        try:
            everything, nothing = (6, 0, 0, 0x40000), (6, 0, 0, 0)
            # Until it has a filter, it receives whatever comes to any port of this machine.
            _attach_filter(raw, [nothing])
            with contextlib.suppress(BlockingIOError):
                while True:
                    raw.recv(1)
            # ldxb 4*([0]&0xf); ldh [x+2]; jeq port; ldh [x+6]; jeq 0
            to_port = [(0xB1, 0, 0, 0), (0x48, 0, 0, 2), (0x15, 0, 3, self.udp_port)]
            _attach_filter(raw, [*to_port, (0x48, 0, 0, 6), (0x15, 0, 1, 0), everything, nothing])
            _enlarge(raw, _SO_RCVBUFFORCE, socket.SO_RCVBUF, RECEIVE_BUFFER)
            raw.bind((host, 0))
            # ldh [6]; jeq 0
            _attach_filter(self.socket, [(0x28, 0, 0, 6), (0x15, 0, 1, 0), nothing, everything])
        except OSError as error:
            raw.close()
            self.socket.close()
            raise ProviderError(f"raw socket on {host}: {error}") from None
        return raw

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        for sock in (self.socket, self._raw):
            if sock is not None and sock.fileno() >= 0:
                self._loop.remove_reader(sock)
                self._loop.remove_writer(sock)
                sock.close()
        self._pending.clear()

    @property
    def is_left(self) -> bool:
        """Whether the event loop has ended, and the sockets are open."""
        return self._loop.is_closed() and self.socket.fileno() >= 0

    def close_left(self) -> None:
        """Close the sockets. The event loop must have ended."""
        _close_all([sock for sock in (self.socket, self._raw) if sock is not None])

    # -- in ------------------------------------------------------------------------------------------------------

    def _route(self, local: bytes, peer: bytes, scope: int = 0) -> Route:
        route = self._routes.get((local, peer))
        if route is None:
            if len(self._routes) > 4096:
                self._routes.clear()
            route = self._routes[local, peer] = Route(self, local, peer, scope)
        return route

    def _raw_readable(self) -> None:
        assert self._raw is not None and self._slots is not None
        left = TURN_BYTES
        while left > 0:
            left -= SLOTS * TURN_PACKET
            try:
                found = self._slots.receive(self._raw)
            except OSError:
                # The kernel reports an error of an earlier packet; nothing was received.
                self.counters["send_errors"] += 1
                continue
            if found is None:
                break
            for arrived in found:
                if arrived is None:
                    self.counters["malformed"] += 1
                else:
                    self._hand_over(arrived.run, self._route(arrived.local, arrived.source), arrived.marked)
        self._arrivals.on_pause()

    def _hand_over(self, run: Run, route: Route, marked: bool) -> None:
        if not run.intact:
            self._damaged(run.packets, route.peer)
        elif run.number == 1:
            self._arrivals.on_packet(route, run.packets, marked)
        else:
            self._arrivals.on_run(route, run, marked)

    def _damaged(self, packet: memoryview, source: bytes) -> None:
        self.counters["crc_errors"] += 1
        if len(packet) >= MIN_PACKET:
            self._arrivals.on_damaged(self, packet, source)

    def _udp_readable(self) -> None:
        sock, body, arrivals = self.socket, self._body, self._arrivals
        left = TURN_BYTES
        while left > 0:
            latest, awaited, source, own = self._latest, None, None, b""
            if latest is not None:
                awaited, source, own = arrivals.awaited(latest.route, latest.flow), latest.address, latest.route.local
            placed, words, begin, length, size, marked, to, address = take(sock, body, left, source, own, awaited)
            if placed and awaited is not None:
                arrivals.on_placed(placed, words)
                left -= max(awaited.size, TURN_PACKET) * placed
            if length < 0:
                if length == -errno.EAGAIN:
                    break
                # The kernel reports an error of an earlier packet; nothing was received.
                self.counters["send_errors"] += 1
                left -= TURN_PACKET
                continue
            left -= max(length, TURN_PACKET)
            if not MIN_PACKET <= size <= length:
                self.counters["malformed"] += 1
                continue
            local = to or self.local
            sender = self._senders.get((address, local)) or self._new_sender(address, local)
            self._latest = sender if (length % size or size) > _SHORTEST_MIDDLE else None
            if size == length:
                packet = body[:length]
                if is_intact(packet, sender.flow):
                    arrivals.on_packet(sender.route, packet, marked)
                else:
                    self._damaged(packet, sender.route.peer)
            else:
                for run in runs(body[:length], size, sender.flow, begin):
                    self._hand_over(run, sender.route, marked)
        arrivals.on_pause()

    def _new_sender(self, address: tuple[Any, ...], local: bytes) -> _Sender:
        if len(self._senders) >= _MAX_SENDERS:
            self._senders.clear()
        source = pack_address(address[0])
        route = self._route(local, source, address[3] if self.ipv6 else 0)
        sender = _Sender(route, icrc.Flow(source, local, address[1], self.udp_port), address)
        self._senders[address, local] = sender
        return sender

    # -- out -----------------------------------------------------------------------------------------------------

    def address_of(self, route: Route) -> tuple[str, int]:
        """Return the address of the route's peer for ``sendmsg``."""
        host = unpack_address(route.peer)
        if self.ipv6:
            return (host, self.udp_port, 0, route.scope)  # type: ignore[return-value]
        return (host, self.udp_port)

    def source_control(self, route: Route) -> list[tuple[int, int, bytes]]:
        """Return the ancillary data that makes a wildcard socket send from the route's local address."""
        if not self.wildcard:
            return []
        if self.ipv6:
            return [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, route.local + struct.pack("=I", route.scope))]
        return [(socket.IPPROTO_IP, IP_PKTINFO, struct.pack("=I4s4s", 0, route.local, bytes(4)))]

    def launch(self, control: list[Control], address: tuple[str, int], *packets: Any) -> int:
        """Send many packets in full batches: see ``batch_calls.launch``. Return how many were sent. Those after them
        are left to ``transmit``."""
        return 0 if self.blocked else launch(self.socket, control, address, *packets)

    def transmit(self, data: bytes, control: list[tuple[int, int, bytes]], address: tuple[str, int]) -> bool:
        """Send one datagram or one batch of them. If the socket does not accept it now, keep it until it does, and
        return False."""
        if not self.blocked:
            try:
                self.socket.sendmsg([data], control, 0, address)
            except BlockingIOError:
                self.blocked = True
                self._loop.add_writer(self.socket, self._writable)
            except OSError as error:
                self._failed(error, control)
                return True
            else:
                return True
        self._pending.append((data, control, address))
        return False

    def _failed(self, error: OSError, control: list[tuple[int, int, bytes]]) -> None:
        """Count a packet that was lost, as on the network: the requester sends it again."""
        self.counters["send_errors"] += 1
        if any(kind == UDP_SEGMENT for _, kind, _ in control) and error.errno in (
            errno.EIO,
            errno.EINVAL,
            errno.EOPNOTSUPP,
        ):
            # The interface has no checksum offload, or the kernel no segmentation: send packets one by one from now on.
            self.segmentation = False

    def _writable(self) -> None:
        while self._pending:
            data, control, address = self._pending[0]
            try:
                self.socket.sendmsg([data], control, 0, address)
            except BlockingIOError:
                return
            except OSError as error:
                self._failed(error, control)
            self._pending.popleft()
        self._loop.remove_writer(self.socket)
        self.blocked = False
        self._arrivals.on_unblocked()
