"""One RDMA connection to the server under test, on which anything may be sent at any time.

A peer keeps no rule by itself. It counts the credits of both directions, so that cases know what they break, and hands
every received message to ``on_message`` or keeps it for ``receive``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict, Unpack

from smb3server.lab.conformance.target import Target
from smb3server.lab.conformance.verdict import Inconclusive
from smbdirect.codec import Buffer
from smbdirect.core.constants import DATA_OFFSET, VERSION_1_0
from smbdirect.core.messages import (
    DATA_TRANSFER,
    NEGOTIATE_REQUEST,
    NEGOTIATE_RESPONSE,
    DataTransfer,
    NegotiateRequest,
    NegotiateResponse,
)
from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.providers.base import (
    Access,
    CloseCause,
    CloseReason,
    Completion,
    Endpoint,
    MemoryRegion,
    Operation,
    Send,
    Status,
)

SPARE_RECEIVES = 4
"""Receives that are posted and never granted, so that a message without a credit arrives and can be judged."""
LARGEST_RECEIVE = 65536
"""Bytes of a receive for a peer that says it takes messages of any length."""
SMALLEST_RECEIVE = 8192
SMALLEST_BUFFER = 1024


class Silence(Exception):
    """Nothing came in time."""


class Ended(Exception):
    """The connection ended while something was expected."""


@dataclass(slots=True, eq=False)
class _Buffer:
    """Memory of a peer's own Sends and receives, and the context of both."""

    memory: memoryview


class Received(NamedTuple):
    """One message of the server, and what the peer knew when it came."""

    data: bytes
    invalidated: int | None
    credits: int
    """Credits that the server held before it sent this message."""
    negotiated: bool
    """Whether it came after the Negotiate Response."""


class Record(TypedDict, total=False):
    """The fields of a Negotiate Request that a case sets. [MS-SMBD 2.2.1]"""

    min_version: int
    max_version: int
    reserved: int
    credits_requested: int
    preferred_send_size: int
    max_receive_size: int
    max_fragmented_size: int


class Fields(Record, total=False):
    """What a case sets of a Negotiate Request: ``length`` cuts it off or fills it up with zeros."""

    length: int


_GOOD = NegotiateRequest(
    min_version=VERSION_1_0,
    max_version=VERSION_1_0,
    reserved=0,
    credits_requested=10,
    preferred_send_size=1024,
    max_receive_size=1024,
    max_fragmented_size=1 << 20,
)

Observer = Callable[["Peer", Received], None]


class Peer:
    """The client's end of one connection. Make it with ``Trial.connect``."""

    def __init__(
        self, target: Target, note: Callable[[str], None], observe: Observer, notify: Callable[[CloseReason], None]
    ) -> None:
        """``observe`` is called with every message, and ``notify`` when the connection has ended."""
        self.target = target
        self._notify = notify
        self._note = note
        self._observe = observe
        self.endpoint: Endpoint | None = None
        self.request: NegotiateRequest | None = None
        """The last Negotiate Request that was sent."""
        self.response: NegotiateResponse | None = None
        self.send_credits = 0
        """Granted by the server and not used; negative after overdrawing."""
        self.receive_credits = 0
        """Granted to the server and not used; negative if it overdraws."""
        self.reason: CloseReason | None = None
        """Why the connection ended; None while it stands."""
        self.on_message: Callable[[Received], None] | None = None
        """Takes received messages; ``receive`` gets them while it is None."""
        self.on_ended: Callable[[CloseReason], None] = lambda reason: None
        self.quiet = False
        """Leave Data Transfer messages out of the evidence: there are many."""
        self._queue: deque[Received] = deque()
        self._news = asyncio.Event()
        self._spare: dict[int, list[_Buffer]] = {}
        """Memory that is not in use, by its size."""
        self._closed: asyncio.Future[CloseReason] = asyncio.get_running_loop().create_future()

    # -- the connection ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, with a receive for the Negotiate Response. Raises ``Inconclusive`` if that fails."""
        target = self.target

        def prepare(endpoint: Endpoint) -> None:
            self.endpoint = endpoint
            endpoint.on_completions = self._completed
            endpoint.on_closed = self._ended
            self.post_receives(1 + SPARE_RECEIVES, LARGEST_RECEIVE)

        try:
            await target.provider.connect(target.host, target.port, prepare, timeout=target.timing.setup)
        except (ConnectionLost, ProviderError, OSError) as error:
            raise Inconclusive(f"no connection to {target.host} port {target.port}: {error}") from error
        self._note("connected")

    @property
    def alive(self) -> bool:
        """Whether the connection has not ended."""
        return self.reason is None

    def _end(self) -> Endpoint:
        if self.endpoint is None:
            raise Inconclusive("not connected")
        return self.endpoint

    def _ended(self, reason: CloseReason) -> None:
        self.reason = reason
        if reason.cause is not CloseCause.LOCAL:
            self._note(f"<- the connection ended: {reason}")
        self._news.set()
        if not self._closed.done():
            self._closed.set_result(reason)
        self.on_ended(reason)
        self._notify(reason)

    async def ended(self, seconds: float) -> bool:
        """Return whether the connection has ended, or ends within ``seconds``."""
        done, _ = await asyncio.wait([self._closed], timeout=seconds)
        return bool(done)

    async def close(self) -> None:
        """Abort, and return when the endpoint has reported its end."""
        if self.endpoint is not None and self.alive:
            self.endpoint.abort()
            await asyncio.wait([self._closed], timeout=self.target.timing.patience)

    def disconnect(self) -> None:
        """End the connection as the fabric does it in good order."""
        self._note("-> disconnect")
        self._end().disconnect()

    # -- memory --------------------------------------------------------------------------------------------------

    def _take_buffer(self, size: int) -> _Buffer:
        """Return memory of at least ``size`` bytes that the fabric can use. What is no longer in use is used again:
        some fabrics need a registration for it."""
        capacity = 1 << max(size - 1, SMALLEST_BUFFER - 1).bit_length()
        spare = self._spare.setdefault(capacity, [])
        if spare:
            return spare.pop()
        memory = memoryview(bytearray(capacity))
        if self._end().capabilities.requires_registration:
            self._end().register(memory, Access.LOCAL_WRITE)
        return _Buffer(memory)

    def register(self, view: memoryview, access: Access) -> MemoryRegion:
        """Expose memory to the server. [MS-SMBD 3.1.4.3]"""
        return self._end().register(view, access)

    # -- sending -------------------------------------------------------------------------------------------------

    def send(self, data: Buffer, what: str = "", invalidate: int | None = None) -> None:
        """Send ``data`` as one RDMA Send. ``what`` names it in the evidence."""
        if what:
            self._note(f"-> {what}")
        buffer = self._take_buffer(len(data))
        segment = buffer.memory[: len(data)]
        segment[:] = data
        try:
            self._end().post([Send([segment], buffer, invalidate)])
        except ProviderError as error:
            raise Inconclusive(f"the fabric cannot send this: {error}") from error

    def request_negotiation(self, *, length: int = NEGOTIATE_REQUEST.size, **fields: Unpack[Record]) -> None:
        """Send a Negotiate Request: a good one, but for ``fields``; ``length`` is that of ``Fields``."""
        self.request = _GOOD._replace(**fields)
        data = NEGOTIATE_REQUEST.pack(self.request)[:length].ljust(length, b"\0")
        self.send(data, f"{describe(self.request)}, {len(data)} bytes")

    async def negotiate(self, **fields: Unpack[Fields]) -> NegotiateResponse:
        """Send a Negotiate Request and return the response, whatever it says."""
        self.request_negotiation(**fields)
        return await self.negotiate_response()

    async def negotiate_response(self) -> NegotiateResponse:
        """Wait for the Negotiate Response. Raises ``Silence`` or ``Ended``."""
        await self.receive()
        if self.response is None:
            raise Ended("the answer is too short for a Negotiate Response")
        return self.response

    def send_data(
        self,
        payload: Buffer = b"",
        *,
        credits_requested: int = 10,
        grant: int = 0,
        flags: int = 0,
        reserved: int = 0,
        remaining: int = 0,
        offset: int | None = None,
        length: int | None = None,
        at: int = DATA_OFFSET,
        padding: bytes = b"",
        size: int = 0,
    ) -> None:
        """Send a Data Transfer message.

        ``grant`` receives are posted and granted. ``payload`` lies ``at`` this offset, and the fields DataOffset and
        DataLength tell the truth unless ``offset`` and ``length`` say otherwise. The message is filled up with zeros to
        ``size`` bytes.
        """
        self.grant(grant)
        header = DataTransfer(
            credits_requested,
            grant,
            flags,
            reserved,
            remaining,
            (at if payload else 0) if offset is None else offset,
            len(payload) if length is None else length,
        )
        data = DATA_TRANSFER.pack(header)
        if payload:
            data = data + padding.ljust(at - len(data), b"\0") + bytes(payload)
        data = data.ljust(size, b"\0")
        self.send_credits -= 1
        self.send(data, "" if self.quiet else f"{describe(header)}, {len(data)} bytes")

    def grant(self, count: int) -> None:
        """Post ``count`` receives that the next message grants."""
        self.post_receives(count, self.receive_size)
        self.receive_credits += count

    # -- receiving -----------------------------------------------------------------------------------------------

    @property
    def receive_size(self) -> int:
        """Bytes of a posted receive: what the server may send, and more, so that a longer message can be judged."""
        stated = 0 if self.request is None else self.request.max_receive_size
        return max(min(stated, LARGEST_RECEIVE), SMALLEST_RECEIVE)

    def post_receives(self, count: int, size: int) -> None:
        """Post receives of ``size`` bytes."""
        for _ in range(count):
            buffer = self._take_buffer(size)
            self._end().post_receive(buffer.memory, buffer)

    def _completed(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            buffer = completion.context
            if not isinstance(buffer, _Buffer):
                continue  # of a case's own work request
            data = bytes(buffer.memory[: completion.length])
            self._spare[len(buffer.memory)].append(buffer)
            if completion.operation is Operation.RECEIVE and completion.status is Status.OK:
                self._arrived(data, completion.invalidated)

    def _arrived(self, data: bytes, invalidated: int | None) -> None:
        received = Received(data, invalidated, self.receive_credits, self.response is not None)
        if received.negotiated:
            self.receive_credits -= 1
            if len(data) >= DATA_TRANSFER.size:
                header = DATA_TRANSFER.unpack(data)
                self.send_credits += header.credits_granted
                if not self.quiet:
                    self._note(f"<- {describe(header)}, {len(data)} bytes")
        elif len(data) >= NEGOTIATE_RESPONSE.size:
            self.response = NEGOTIATE_RESPONSE.unpack(data)
            self.send_credits = self.response.credits_granted
            self._note(f"<- {describe(self.response)}, {len(data)} bytes")
        else:
            self._note(f"<- {len(data)} bytes: {data.hex()}")
        self._observe(self, received)
        if self.on_message is not None:
            self.on_message(received)
        else:
            self._queue.append(received)
            self._news.set()

    async def receive(self, seconds: float | None = None) -> Received:
        """Return the next message. Raises ``Silence`` if none comes within ``seconds`` (patience by default), and
        ``Ended``."""
        limit = self.target.timing.patience if seconds is None else seconds
        try:
            async with asyncio.timeout(limit):
                while not self._queue:
                    if self.reason is not None:
                        raise Ended(f"the connection ended: {self.reason}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise Silence(f"nothing came within {limit:g} s") from None
        return self._queue.popleft()


def parse(data: bytes) -> tuple[DataTransfer, bytes]:
    """Return header and payload of a Data Transfer message. Raises ``DecodeError`` if it has no header."""
    header = DATA_TRANSFER.unpack(data)
    return header, data[header.data_offset : header.data_offset + header.data_length]


def describe(message: NegotiateRequest | NegotiateResponse | DataTransfer) -> str:
    """Return one line for the evidence."""
    if isinstance(message, NegotiateRequest):
        return (
            f"Negotiate Request {message.min_version:#06x}-{message.max_version:#06x}, CreditsRequested "
            f"{message.credits_requested}, PreferredSendSize {message.preferred_send_size}, MaxReceiveSize "
            f"{message.max_receive_size}, MaxFragmentedSize {message.max_fragmented_size}"
            + (f", Reserved {message.reserved:#x}" if message.reserved else "")
        )
    if isinstance(message, NegotiateResponse):
        return (
            f"Negotiate Response {message.min_version:#06x}-{message.max_version:#06x}, NegotiatedVersion "
            f"{message.negotiated_version:#06x}, Status {message.status:#010x}, CreditsRequested "
            f"{message.credits_requested}, CreditsGranted {message.credits_granted}, MaxReadWriteSize "
            f"{message.max_read_write_size}, PreferredSendSize {message.preferred_send_size}, MaxReceiveSize "
            f"{message.max_receive_size}, MaxFragmentedSize {message.max_fragmented_size}"
        )
    return (
        f"Data Transfer CreditsRequested {message.credits_requested}, CreditsGranted {message.credits_granted}, Flags "
        f"{message.flags:#x}, RemainingDataLength {message.remaining_data_length}, DataOffset {message.data_offset}, "
        f"DataLength {message.data_length}" + (f", Reserved {message.reserved:#x}" if message.reserved else "")
    )
