"""What leaves: the packets of one connection, in batches, with their ICRCs.

The kernel cuts a batch into packets (UDP_SEGMENT), which costs one system call for many. All packets of a batch have
the same length, except for the last one, which may be shorter.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence

from smbdirect.codec import Buffer
from smbdirect.providers.roce import icrc
from smbdirect.providers.roce.batch_calls import UDP_SEGMENT
from smbdirect.providers.roce.batches import seal
from smbdirect.providers.roce.headers import ACK_REQUEST, AETH, DEFAULT_PKEY, HEAD, MIGRATED, Opcode
from smbdirect.providers.roce.icrc import crc32
from smbdirect.providers.roce.sockets import Route

MAX_SEGMENTS = 60
"""Most packets in one UDP_SEGMENT send (the kernel accepts 64)."""
MAX_BATCH_BYTES = 62_000
_ACKNOWLEDGEMENT = 16 + AETH.size
"""Bytes of an ACKNOWLEDGE packet."""
_PADDING = (b"", b"\0", b"\0\0", b"\0\0\0")
_U16 = struct.Struct("=H")


class PacketPath:
    """The outgoing packets of one connection. Implements ``requester.Path``.

    Packets of equal size are collected in one batch, which ``flush`` sends. The kernel numbers their IP headers 0, 1,
    2, ..., which the ICRC takes into account. With ``segment=False`` each packet leaves by itself.
    """

    def __init__(self, route: Route, queue_pair: int, mtu: int, segment: bool, counters: dict[str, int]) -> None:
        port = route.port
        self._mtu = mtu
        self._port = port
        self._destination = queue_pair
        self._counters = counters
        self._address = port.address_of(route)
        self._control = port.source_control(route)
        self._segment = segment
        self._flow = icrc.Flow(route.local, route.peer, port.udp_port, port.udp_port)
        self._batch: list[Buffer] = []
        self._count = 0
        """Packets in the batch."""
        self._length = 0
        """Bytes of each packet in the batch."""
        self._capacity = 0
        """Most packets of that length in one batch."""
        self._held: tuple[int, bytes] | None = None
        """PSN and AETH of an acknowledgement that leaves at the end of the next batch."""

    @property
    def ready(self) -> bool:
        return not self._port.blocked

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
        if opcode == Opcode.ACKNOWLEDGE and not self._count and self._held is None:
            self._held = psn, extension
            return
        pad = -size & 3
        if ack_request:
            psn |= ACK_REQUEST
        length = 16 + len(extension) + size + pad
        if self._held is not None and length <= _ACKNOWLEDGEMENT:
            self._release()
            if self._capacity == 1:
                self._send_batch()
        if self._count and (length > self._length or (length < self._length and self._held is not None)):
            self.flush()
        self._add(opcode, flags, psn, extension, segments, length, pad)
        if length < self._length or self._count >= self._capacity:
            self.flush()

    def _add(
        self,
        opcode: int,
        flags: int,
        word: int,
        extension: bytes,
        segments: Sequence[Buffer],
        length: int,
        pad: int,
    ) -> None:
        """Add a packet of ``length`` bytes to the batch, or begin one with it. ``word`` is the word with the PSN."""
        head = HEAD.pack(opcode, flags | MIGRATED | pad << 4, DEFAULT_PKEY, self._destination)
        rest = word.to_bytes(4, "big") + extension
        flow, number = self._flow, self._count
        state = crc32(rest, flow.states(length, head)[number] if number else flow.state(length, head))
        for segment in segments:
            state = crc32(segment, state)
        trailer = _PADDING[pad]
        if pad:
            state = crc32(trailer, state)
        self._counters["packets_sent"] += 1
        self._batch += (head + rest, *segments, trailer + state.to_bytes(4, "little"))
        if not self._count:
            self._begin(length)
        self._count += 1

    def _release(self) -> None:
        """Add the acknowledgement that is held to the batch, or begin one with it."""
        if self._held is not None:
            (psn, extension), self._held = self._held, None
            self._add(Opcode.ACKNOWLEDGE, 0, psn, extension, (), _ACKNOWLEDGEMENT, 0)

    def _begin(self, length: int) -> None:
        """Begin a batch of packets of ``length`` bytes."""
        self._length = length
        batches = self._segment and self._port.segmentation
        self._capacity = min(MAX_SEGMENTS, MAX_BATCH_BYTES // length) if batches else 1

    def send_middles(
        self, opcode: int, psn: int, memory: memoryview, count: int, countdown: int = 0, ask_every: int = 0
    ) -> int:
        """See ``requester.Path``. This is ``send`` for many similar packets in one loop."""
        mtu, port = self._mtu, self._port
        length = 16 + mtu
        head = HEAD.pack(opcode, MIGRATED, DEFAULT_PKEY, self._destination)
        states = self._flow.states(length, head)
        done = 0
        while done < count and not port.blocked:
            if self._count and self._length != length:
                # One shorter packet could end the batch, but many are sent as one run.
                self.flush()
            if not self._count:
                self._begin(length)
            ask_at, left, number = max(0, countdown - done - 1), memory[done * mtu :], 0
            if not self._count and self._held is None and count - done >= self._capacity:
                number = port.launch(
                    self._control, self._address, head, psn + done, left, mtu, count - done, self._capacity, states,
                    ask_at, ask_every,
                )  # fmt: skip
            if not number:
                number = min(count - done, self._capacity - self._count)
                packets = seal(head, psn + done, left, mtu, number, states, self._count, ask_at, ask_every)
                self._batch.append(packets)
                self._count += number
                if self._count >= self._capacity:
                    self.flush()
            if ask_every:
                countdown += ask_every * len(range(ask_at, number, ask_every))
            self._counters["packets_sent"] += number
            done += number
        return done

    def flush(self) -> None:
        """Send the batch, and the acknowledgement that is held."""
        if self._held is not None:
            if self._capacity == 1:
                self._send_batch()
            self._release()
        self._send_batch()

    def _send_batch(self) -> None:
        count, self._count = self._count, 0
        if not count:
            return
        # Joined, since the kernel copies one long piece in half of the time of many short ones.
        batch, self._batch = b"".join(self._batch), []
        control = self._control
        if count > 1:
            control = [*control, (socket.IPPROTO_UDP, UDP_SEGMENT, _U16.pack(self._length))]
        if not self._port.transmit(batch, control, self._address):
            self._counters["allocations"] += 1


def send_single(route: Route, packet: bytes) -> None:
    """Send one packet for which no ``PacketPath`` exists. ``packet`` has no ICRC yet."""
    port = route.port
    state = icrc.prefix(route.local, route.peer, port.udp_port, port.udp_port, len(packet) + 4)
    with contextlib.suppress(OSError):
        port.transmit(packet + icrc.of_payload(packet, state), port.source_control(route), port.address_of(route))
