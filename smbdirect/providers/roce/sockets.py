"""The sockets of RoCEv2 on Linux, and the packets to and from them.

One unconnected UDP socket per local address sends. With path MTU discovery on, the kernel sends IP ID 0 with DF, so the
ICRC can be computed in advance. The check of an IPv4 packet's ICRC needs its IP header, which only a raw socket shows
(CAP_NET_RAW); a filter then drops the UDP socket's own copy. A UDP socket shows everything in an IPv6 header that the
ICRC covers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast
from zlib import crc32

from smbdirect.codec import Buffer
from smbdirect.errors import ProviderError
from smbdirect.providers.roce import icrc
from smbdirect.providers.roce.headers import ACK_REQUEST, BTH_STRUCT, DEFAULT_PKEY, MIGRATED, PSN_MASK

_IP_PKTINFO = 8
_IP_MTU_DISCOVER = 10
_IP_RECVTOS = 13
_IP_MTU = 14
_IPV6_MTU_DISCOVER = 23
_IPV6_MTU = 24
_PMTUDISC_DO = 2
_SO_ATTACH_FILTER = 26
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_UDP_SEGMENT = 103
_ECT0 = 2
_CE = 3
RECEIVE_BUFFER = 16 << 20
SEND_BUFFER = 4 << 20
BATCH = 64
"""Packets read from a socket before other work of the event loop gets its turn."""
MAX_SEGMENTS = 60
"""Most packets in one UDP_SEGMENT send (the kernel accepts 64)."""
MAX_BATCH_BYTES = 60_000
MAX_BATCH_BUFFERS = 1024 - 32
"""``sendmsg`` accepts 1024 buffers; a packet adds its segments and two more."""
LOCAL_MTU = 60_000
"""An interface with an MTU above this is the loopback interface: both ends are on this host."""
_LENGTH_OFFSET = 8
_MIN_PACKET = 16
"""BTH and ICRC."""
_MAX_SINGLE = 20 + 8 + 12 + 16 + 4096 + 4
"""Bytes of the longest IPv4 packet that is not a batch: BTH, RETH, the largest MTU, ICRC."""
_PADDING = (b"", b"\0", b"\0\0", b"\0\0\0")
_U16 = struct.Struct("=H")

OnPacket = Callable[["Route", memoryview, bool], None]
OnDamaged = Callable[["Port", memoryview, bytes], None]


class Route(NamedTuple):
    """Both ends of a path as packed addresses. ``scope`` is the interface of link-local IPv6 addresses, else 0."""

    port: Port
    local: bytes
    peer: bytes
    scope: int = 0


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


class Port:
    """The sockets of one local address (or of all: ``0.0.0.0``, ``::``), registered with the event loop."""

    def __init__(self, host: str, udp_port: int, check_icrc: bool, on_packet: OnPacket, on_damaged: OnDamaged) -> None:
        """Open the sockets. Raise ``ProviderError`` if the address is not available."""
        self.local = pack_address(host)
        self.udp_port = udp_port
        self.wildcard = not any(self.local)
        self.ipv6 = len(self.local) == 16
        self.blocked = False
        self.segmentation = True
        self.on_unblocked: Callable[[], None] = lambda: None
        self.counters = dict.fromkeys(("send_errors", "crc_errors", "malformed"), 0)
        self._on_packet = on_packet
        self._on_damaged = on_damaged
        self._pending: deque[tuple[bytes, list[tuple[int, int, bytes]], tuple[str, int]]] = deque()
        """Datagrams that the socket has not accepted. Invariant: empty unless ``blocked``."""
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(icrc.ONES) + bytearray(65536)
        self._view = memoryview(self._buffer)
        self._body = self._view[8:]
        self._routes: dict[tuple[bytes, bytes], Route] = {}
        self._prefixes: dict[tuple[bytes, bytes, int, int, int], int] = {}
        self._batch_sizes: dict[bytes, int] = {}
        """Bytes of the packets in the last batch from each address."""
        self.socket = self._open_udp(host)
        self._raw: socket.socket | None = None
        if check_icrc and not self.ipv6:
            self._raw = self._open_raw(host)
        # Closes the sockets even if the event loop ends before the last answers were sent.
        sockets = [sock for sock in (self.socket, self._raw) if sock is not None]
        weakref.finalize(self, _close_all, sockets)
        self.checks_icrc = check_icrc and (self.ipv6 or self._raw is not None)
        if self._raw is not None:
            self._loop.add_reader(self._raw, self._raw_readable)
        else:
            self._loop.add_reader(self.socket, self._udp_readable)

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
                sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, int(self.wildcard))
            _enlarge(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF, SEND_BUFFER)
            _enlarge(sock, _SO_RCVBUFFORCE, socket.SO_RCVBUF, RECEIVE_BUFFER)
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
            # ldxb 4*([0]&0xf); ldh [x+2]; jeq port; ret all; ret 0
            wanted = [(0xB1, 0, 0, 0), (0x48, 0, 0, 2), (0x15, 0, 1, self.udp_port), (6, 0, 0, 0x40000), (6, 0, 0, 0)]
            _attach_filter(raw, wanted)
            _enlarge(raw, _SO_RCVBUFFORCE, socket.SO_RCVBUF, RECEIVE_BUFFER)
            raw.bind((host, 0))
            _attach_filter(self.socket, [(6, 0, 0, 0)])
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

    # -- in ------------------------------------------------------------------------------------------------------

    def _route(self, local: bytes, peer: bytes, scope: int = 0) -> Route:
        route = self._routes.get((local, peer))
        if route is None:
            if len(self._routes) > 4096:
                self._routes.clear()
            route = self._routes[local, peer] = Route(self, local, peer, scope)
        return route

    def _raw_readable(self) -> None:
        buffer, view, body, raw = self._buffer, self._view, self._body, self._raw
        assert raw is not None
        for _ in range(BATCH):
            try:
                size = raw.recv_into(body)
            except BlockingIOError:
                return
            except OSError:
                # The kernel reports an error of an earlier packet; nothing was received.
                self.counters["send_errors"] += 1
                continue
            end = 8 + size
            if buffer[8] != 0x45 or size < 28 + _MIN_PACKET or (buffer[32] << 8 | buffer[33]) != size - 20:
                self.counters["malformed"] += 1
                continue
            marked = buffer[9] & 3 == _CE
            source = bytes(view[20:24])
            # A longer packet is a batch: it has no single ICRC.
            if size <= _MAX_SINGLE and icrc.check_ipv4(buffer, view, end):
                self._on_packet(self._route(bytes(view[24:28]), source), view[36:end], marked)
            elif not self._unfold(source, end, marked):
                self.counters["crc_errors"] += 1
                self._on_damaged(self, view[36:end], source)

    def _unfold(self, source: bytes, end: int, marked: bool) -> bool:
        """Split a batch of the sender (UDP_SEGMENT), which arrives in one piece on loopback and virtual links, and
        process its packets. They have one size, except for the last: find it by the ICRC of the first packet, which
        also covers the lengths. Return False if no size fits."""
        buffer, view = self._buffer, self._view
        ip_id = buffer[12] << 8 | buffer[13]
        source_port = buffer[28] << 8 | buffer[29]
        local = bytes(view[24:28])
        buffer[36 + icrc.BTH_MASKED_BYTE] = 0xFF
        usual = self._batch_sizes.get(source, 0)
        sizes = segment_sizes(end - 36)
        for size in [usual, *sizes] if usual in sizes else sizes:
            state = self._prefix(source, local, source_port, size, ip_id)
            first_end = 36 + size
            if crc32(view[36 : first_end - 4], state) == int.from_bytes(view[first_end - 4 : first_end], "little"):
                break
        else:
            return False
        if size != usual:
            if len(self._batch_sizes) > 4096:
                self._batch_sizes.clear()
            self._batch_sizes[source] = size
        route = self._route(local, source)
        for index, start in enumerate(range(36, end, size)):
            stop = min(start + size, end)
            packet = view[start:stop]
            if stop - start < _MIN_PACKET:
                self.counters["crc_errors"] += 1
                continue
            if index:  # the ICRC of the first one is known to be right
                buffer[start + icrc.BTH_MASKED_BYTE] = 0xFF
                state = self._prefix(source, local, source_port, stop - start, ip_id + index & 0xFFFF)
                if crc32(view[start : stop - 4], state) != int.from_bytes(view[stop - 4 : stop], "little"):
                    self.counters["crc_errors"] += 1
                    self._on_damaged(self, packet, source)
                    continue
            self._on_packet(route, packet, marked)
        return True

    def _prefix(self, source: bytes, local: bytes, source_port: int, length: int, ip_id: int) -> int:
        """Return ``icrc.prefix`` of an arriving packet from a cache: peers use few lengths and number their batches in
        the same way."""
        key = source, local, source_port, length, ip_id
        state = self._prefixes.get(key)
        if state is None:
            if len(self._prefixes) >= 4096:
                self._prefixes.clear()
            state = icrc.prefix(source, local, source_port, self.udp_port, length, ip_id)
            self._prefixes[key] = state
        return state

    def _udp_readable(self) -> None:
        buffer, view, body, sock = self._buffer, self._view, self._body, self.socket
        for _ in range(BATCH):
            try:
                size, ancillary, _, address = sock.recvmsg_into([body], 128)
            except BlockingIOError:
                return
            except OSError:
                self.counters["send_errors"] += 1
                continue
            if size < _MIN_PACKET:
                self.counters["malformed"] += 1
                continue
            local, marked = self.local, False
            for level, kind, data in ancillary:
                if level == socket.IPPROTO_IP:
                    if kind == socket.IP_TOS:
                        marked = data[0] & 3 == _CE
                    elif kind == _IP_PKTINFO:
                        local = data[8:12]
                elif level == socket.IPPROTO_IPV6:
                    if kind == socket.IPV6_TCLASS:
                        marked = data[0] & 3 == _CE
                    elif kind == socket.IPV6_PKTINFO:
                        local = data[:16]
            source = pack_address(address[0])
            packet = view[8 : 8 + size]
            if self.checks_icrc:
                state = self._prefix(source, local, address[1], size, 0)
                buffer[8 + icrc.BTH_MASKED_BYTE] = 0xFF
                if crc32(packet[:-4], state) != int.from_bytes(packet[-4:], "little"):
                    self.counters["crc_errors"] += 1
                    self._on_damaged(self, packet, source)
                    continue
            self._on_packet(self._route(local, source, address[3] if self.ipv6 else 0), packet, marked)

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
        return [(socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=I4s4s", 0, route.local, bytes(4)))]

    def transmit(self, buffers: list[Buffer], control: list[tuple[int, int, bytes]], address: tuple[str, int]) -> bool:
        """Send one datagram or one batch of them. If the socket does not accept it now, keep it until it does, and
        return False."""
        if not self.blocked:
            try:
                self.socket.sendmsg(buffers, control, 0, address)
            except BlockingIOError:
                self.blocked = True
                self._loop.add_writer(self.socket, self._writable)
            except OSError as error:
                self._failed(error, control)
                return True
            else:
                return True
        # Copied: the buffers may be used again before the socket accepts them.
        self._pending.append((b"".join(buffers), control, address))
        return False

    def _failed(self, error: OSError, control: list[tuple[int, int, bytes]]) -> None:
        """Count a packet that was lost, as on the network: the requester sends it again."""
        self.counters["send_errors"] += 1
        if any(kind == _UDP_SEGMENT for _, kind, _ in control) and error.errno in (
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
        self.on_unblocked()


def segment_sizes(total: int) -> list[int]:
    """Return the sizes that the equal packets of a batch of ``total`` bytes can have: full packets, with or without an
    extension header."""
    sizes = (12 + extension + mtu + 4 for mtu in (4096, 2048, 1024, 512, 256) for extension in (0, 4, 16))
    return [size for size in sizes if size < total]


class PacketPath:
    """The outgoing packets of one connection. Implements ``requester.Path``.

    Packets of equal size are collected in one UDP_SEGMENT batch, which ``flush`` sends. The kernel numbers their IP
    headers 0, 1, 2, ..., which the ICRC takes into account. ``segment`` allows batches on this path.
    """

    def __init__(self, route: Route, queue_pair: int, mtu: int, segment: bool, counters: dict[str, int]) -> None:
        self._route = route
        self._mtu = mtu
        self._port = route.port
        self._destination = queue_pair
        self._masked_destination = queue_pair | 0xFF000000
        self._counters = counters
        self._address = route.port.address_of(route)
        self._control = route.port.source_control(route)
        self._segment = segment
        self._prefixes: dict[int, int] = {}
        self._batch: list[Buffer] = []
        self._count = 0
        self._length = 0

    @property
    def ready(self) -> bool:
        return not self._port.blocked

    def _prefix(self, length: int, index: int) -> int:
        key = length << 8 | index
        state = self._prefixes.get(key)
        if state is None:
            if len(self._prefixes) >= 4096:
                self._prefixes.clear()
            route = self._route
            port = self._port.udp_port
            # Only IPv4 headers have an identification.
            state = self._prefixes[key] = icrc.prefix(route.local, route.peer, port, port, length, index)
        return state

    def send(
        self,
        opcode: int,
        flags: int,
        psn: int,
        ack_request: bool,
        extension: bytes,
        segments: Sequence[Buffer],
        size: int,
    ) -> None:
        pad = -size & 3
        flags |= MIGRATED | pad << 4
        if ack_request:
            psn |= ACK_REQUEST
        length = 16 + len(extension) + size + pad
        count = self._count
        if count and (
            length > self._length
            or count >= MAX_SEGMENTS
            or len(self._batch) > MAX_BATCH_BUFFERS
            or (count + 1) * self._length > MAX_BATCH_BYTES
        ):
            self.flush()
            count = 0
        masked = BTH_STRUCT.pack(opcode, flags, DEFAULT_PKEY, self._masked_destination, psn)
        state = crc32(masked + extension, self._prefix(length, count))
        for segment in segments:
            state = crc32(segment, state)
        trailer = _PADDING[pad]
        if pad:
            state = crc32(trailer, state)
        header = BTH_STRUCT.pack(opcode, flags, DEFAULT_PKEY, self._destination, psn) + extension
        self._counters["packets_sent"] += 1
        buffers = [header, *segments, trailer + state.to_bytes(4, "little")]
        if not count:
            # Only full packets begin a batch: a receiver on a virtual link can determine their size (``_unfold``).
            if size != self._mtu or not self._segment or not self._port.segmentation:
                if not self._port.transmit(buffers, self._control, self._address):
                    self._counters["allocations"] += 1
                return
            self._length = length
        self._batch += buffers
        self._count = count + 1
        if length < self._length:
            self.flush()

    def send_middles(
        self, opcode: int, psn: int, memory: memoryview, count: int, countdown: int = 0, ask_every: int = 0
    ) -> int:
        """See ``requester.Path``. This is ``send`` for many similar packets in one loop."""
        mtu, port = self._mtu, self._port
        length = 16 + mtu
        batched = self._segment and port.segmentation
        limit = min(MAX_SEGMENTS, MAX_BATCH_BYTES // length)
        pack, masked, destination = BTH_STRUCT.pack, self._masked_destination, self._destination
        flags = MIGRATED
        for index in range(count):
            if port.blocked:
                return index
            ask = index + 1 == countdown
            if ask:
                countdown += ask_every
            piece = memory[index * mtu : index * mtu + mtu]
            if self._count and self._length != length:
                self.send(opcode, 0, psn + index & PSN_MASK, ask, b"", (piece,), mtu)
                continue
            number = self._count
            word = psn + index & PSN_MASK
            if ask:
                word |= ACK_REQUEST
            state = crc32(pack(opcode, flags, DEFAULT_PKEY, masked, word), self._prefix(length, number))
            header = pack(opcode, flags, DEFAULT_PKEY, destination, word)
            trailer = crc32(piece, state).to_bytes(4, "little")
            self._counters["packets_sent"] += 1
            if not batched:
                if not port.transmit([header, piece, trailer], self._control, self._address):
                    self._counters["allocations"] += 1
                continue
            self._batch += (header, piece, trailer)
            self._length = length
            self._count = number + 1
            if number + 1 >= limit or len(self._batch) > MAX_BATCH_BUFFERS:
                self.flush()
        return count

    def flush(self) -> None:
        """Send the batch."""
        count, self._count = self._count, 0
        if not count:
            return
        batch, self._batch = self._batch, []
        control = self._control
        if count > 1:
            control = [*control, (socket.IPPROTO_UDP, _UDP_SEGMENT, _U16.pack(self._length))]
        if not self._port.transmit(batch, control, self._address):
            self._counters["allocations"] += 1


def send_single(route: Route, packet: bytes) -> None:
    """Send one packet for which no ``PacketPath`` exists. ``packet`` has no ICRC yet."""
    port = route.port
    state = icrc.prefix(route.local, route.peer, port.udp_port, port.udp_port, len(packet) + 4)
    with contextlib.suppress(OSError):
        port.transmit([packet, icrc.of_payload(packet, state)], port.source_control(route), port.address_of(route))
