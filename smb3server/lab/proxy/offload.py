"""Move the data of a TCP client's READs and WRITEs out of the messages and into RDMA. [MS-SMB2 3.2.4.6, 3.2.4.7]

Requests that are neither signed, encrypted nor compounded get buffer descriptors, as a client with RDMA would send
them; responses get the data back. All other messages pass unchanged, because the proxy cannot forge signatures.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.negotiate import Dialect
from smb3server.wire.read_write import (
    READ_REQUEST,
    READ_RESPONSE,
    TAIL,
    WRITE_REQUEST,
    Channel,
    ReadResponse,
    pack_descriptors,
)
from smbdirect.codec import Buffer
from smbdirect.errors import ProviderError
from smbdirect.message_transport import InboundMessage, PooledBuffer
from smbdirect.rdma.transfers import RegisteredBuffer
from smbdirect.transport.smb_direct import SmbDirectTransport

THRESHOLD = 4096
"""Bytes from which data goes by RDMA, as in Linux (rdma_readwrite_threshold)."""
_HEAD = struct.Struct("<4sHHIHHIIQ")
"""The SMB2 header from ProtocolId to MessageId."""
_SMB2 = b"\xfeSMB"
_RESPONSE, _SIGNED, _RELATED = 0x1, 0x8, 0x4
_PENDING = 0x103
_DATA_OFFSET = HEADER_SIZE + 16
_READ_RESPONSE_SIZE = 17


class Outgoing(NamedTuple):
    """The message to send instead, and what to do once it is sent."""

    segments: list[Buffer]
    on_sent: Callable[[], None]


class _Exposed(NamedTuple):
    """Memory that the server may use until it has answered."""

    region: RegisteredBuffer
    owner: InboundMessage | PooledBuffer
    reading: bool


class Offload:
    """The exposed memory of one connection to the server."""

    def __init__(self, server: SmbDirectTransport) -> None:
        # Invariant: the total length of the memory in ``_exposed``.
        self.held_bytes = 0
        """Bytes of exposed memory."""
        self._server = server
        self._dialect = 0
        self._exposed: dict[int, _Exposed] = {}
        """Exposed memory by MessageId."""

    def request(self, message: InboundMessage) -> Outgoing:
        """Return the client's message as it goes to the server."""
        view = message.view
        if len(view) >= TAIL and self._dialect >= Dialect.SMB_3_0:
            protocol, size, _, _, command, _, flags, following, message_id = _HEAD.unpack_from(view)
            plain = protocol == _SMB2 and size == HEADER_SIZE and not following and not flags & (_SIGNED | _RELATED)
            if plain and message_id not in self._exposed:
                if command == Command.WRITE:
                    return self._write(message, message_id) or Outgoing([view], message.release)
                if command == Command.READ:
                    return self._read(message, message_id) or Outgoing([view], message.release)
        return Outgoing([view], message.release)

    def response(self, message: InboundMessage) -> Outgoing:
        """Return the server's message as it goes to the client."""
        view = message.view
        if len(view) >= HEADER_SIZE:
            protocol, _, _, status, command, _, flags, _, message_id = _HEAD.unpack_from(view)
            if protocol == _SMB2 and flags & _RESPONSE:
                if command == Command.NEGOTIATE and not status and len(view) >= HEADER_SIZE + 6:
                    (dialect,) = struct.unpack_from("<H", view, HEADER_SIZE + 4)
                    self._dialect = 0 if dialect == Dialect.WILDCARD else dialect
                elif command in (Command.READ, Command.WRITE) and status != _PENDING and message_id in self._exposed:
                    return self._answered(message, self._exposed.pop(message_id))
        return Outgoing([view], message.release)

    def close(self) -> None:
        """Discard the exposed memory when the connection to the server has ended."""
        for exposed in self._exposed.values():
            exposed.region.deregister()
            exposed.owner.release()
        self._exposed.clear()
        self.held_bytes = 0

    def _channel(self) -> Channel:
        possible = self._dialect >= Dialect.SMB_3_0_2 and self._server.rdma.regions_invalidatable
        return Channel.RDMA_V1_INVALIDATE if possible else Channel.RDMA_V1

    def _fits(self, length: int) -> bool:
        return THRESHOLD <= length <= self._server.rdma.max_read_write_size

    def _expose(self, message_id: int, view: memoryview, owner: InboundMessage | PooledBuffer, reading: bool) -> bytes:
        """Register ``view`` and return its descriptors. Raises ``ProviderError``."""
        region = self._server.rdma.register(view, readable=not reading, writable=reading)
        self._exposed[message_id] = _Exposed(region, owner, reading)
        self.held_bytes += len(view)
        return pack_descriptors(region.descriptors)

    def _write(self, message: InboundMessage, message_id: int) -> Outgoing | None:
        view = message.view
        record = WRITE_REQUEST.unpack(view, HEADER_SIZE)
        end = record.data_offset + record.length
        if record.channel or not self._fits(record.length) or record.data_offset < TAIL or end > len(view):
            return None
        try:
            described = self._expose(message_id, view[record.data_offset : end], message, reading=False)
        except ProviderError:
            return None
        record = record._replace(
            data_offset=0,
            length=0,
            channel=self._channel(),
            remaining_bytes=record.length,
            channel_info_offset=TAIL,
            channel_info_length=len(described),
        )
        return Outgoing([view[:HEADER_SIZE], WRITE_REQUEST.pack(record), described], _nothing)

    def _read(self, message: InboundMessage, message_id: int) -> Outgoing | None:
        view = message.view
        record = READ_REQUEST.unpack(view, HEADER_SIZE)
        if record.channel or not self._fits(record.length):
            return None
        buffer = self._server.acquire(record.length)
        try:
            described = self._expose(message_id, buffer.view, buffer, reading=True)
        except ProviderError:
            buffer.release()
            return None
        record = record._replace(
            padding=0, channel=self._channel(), channel_info_offset=TAIL, channel_info_length=len(described)
        )
        return Outgoing([view[:HEADER_SIZE], READ_REQUEST.pack(record), described], message.release)

    def _answered(self, message: InboundMessage, exposed: _Exposed) -> Outgoing:
        """End the server's access, and put a READ's data where a client without RDMA expects it."""
        region, owner, reading = exposed
        region.deregister()
        self.held_bytes -= len(region.view)
        view = message.view
        record = READ_RESPONSE.unpack(view, HEADER_SIZE) if len(view) >= _DATA_OFFSET else ReadResponse(0)
        if not reading or record.structure_size != _READ_RESPONSE_SIZE or record.data_length:
            # Nothing was put into the memory: the response is an error, or has a pipe's data in the message.
            owner.release()
            return Outgoing([view], message.release)
        length = min(record.data_remaining, len(region.view))

        def on_sent() -> None:
            owner.release()
            message.release()

        answer = READ_RESPONSE.pack(ReadResponse(data_offset=_DATA_OFFSET, data_length=length, flags=record.flags))
        return Outgoing([view[:HEADER_SIZE], answer, region.view[:length] if length else b"\0"], on_sent)


def _nothing() -> None:
    """Do nothing: the message is released when the server has answered."""
