"""One connection's load of READ or WRITE requests, made with as little as possible of the client's processor time."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import NamedTuple, TypeVar

from smb3server.client.protocol import Client, ClientSession, RemoteFile, Tree
from smb3server.client.protocol.messages import Way
from smb3server.client.protocol.payloads import expose, reveal, transform_of_response
from smb3server.crypto.encryption import TAG_SIZE, TRANSFORM_PROTOCOL_ID, TRANSFORM_SIZE
from smb3server.wire.header import HEADER, HEADER_SIZE, SIGNATURE_OFFSET, Command, Header, HeaderFlags
from smb3server.wire.rdma_transform import pack_transforms
from smb3server.wire.read_write import (
    READ_DATA_OFFSET,
    READ_REQUEST,
    TAIL,
    WRITE_REQUEST,
    Channel,
    ReadRequest,
    WriteRequest,
    pack_descriptors,
    parse_read_response,
)
from smb3server.wire.status import NtStatus
from smbdirect.message_transport import InboundMessage, MessageTransport, RemoteBuffer, room_of

_SIGNED = int(HeaderFlags.SIGNED)
_OFFSET = slice(HEADER_SIZE + 8, HEADER_SIZE + 16)
"""Where READ and WRITE requests have the offset in the file. [MS-SMB2 2.2.19, 2.2.21]"""
R = TypeVar("R")


def run(main: Coroutine[None, None, R]) -> R:
    """Run ``main`` on the kind of event loop that the server uses."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    found: R = uvloop.run(main)
    return found


class Case(NamedTuple):
    """One kind of request."""

    write: bool
    size: int
    direct: bool
    """Whether the server moves the data by RDMA."""


class Load:
    """Keeps requests of one kind in flight on a connection that a ``Client`` has set up.

    The requests go through the first ``file_size`` bytes of the file, or anywhere in them if they are ``scattered``.
    With ``touch``, data that was read by RDMA is copied out of the buffer into which it came, as applications do. Data
    that must be signed or encrypted is, and what was read is verified: always a copy of it.
    """

    def __init__(
        self, client: Client, session: ClientSession, tree: Tree, file: RemoteFile, message_id: int, file_size: int
    ) -> None:
        self._transport: MessageTransport = client.transport
        self._numbers = client.payloads.numbers
        self._way = Way.INLINE
        self._session = session
        self._tree = tree
        self._file = file
        self._next_id = message_id
        self._charge = 1
        self._requests: list[bytearray] = []
        self._slots: dict[int, int] = {}
        """By MessageId: the number of the request in flight."""
        self._file_size = file_size
        self._memories: list[memoryview] = []
        self._buffers: list[Sequence[RemoteBuffer]] = []
        self._data = memoryview(b"")
        """What a WRITE by RDMA writes."""
        self._sent: dict[int, float] = {}
        self.latencies: list[float] = []
        """Seconds from each request of the last run to its answer."""
        self.scattered = False
        self.touch = False
        self._block = -1
        self._case = Case(False, 0, False)
        self._left = self._most = 0
        self._deadline = 0.0
        self._done = asyncio.Event()
        self.operations = 0

    def request(self, case: Case) -> bytearray:
        """Return one request, without its MessageId, its place in the file and its signature."""
        rdma = self._transport.rdma
        offset = 0
        persistent, volatile = self._file.file_id
        direct = rdma if case.direct else None
        described = b"\0"
        if direct is not None:
            memory = memoryview(bytearray(case.size))
            region = direct.register(memory, readable=case.write, writable=not case.write)
            self._memories.append(memory)
            self._buffers.append(region.descriptors)
            described = self._described(len(self._memories) - 1, case)
        channel = Channel.RDMA_V1 if direct is not None else Channel.NONE
        if case.write and self._way.transform:
            channel = Channel.RDMA_TRANSFORM
        where = (TAIL, len(described)) if direct is not None else (0, 0)
        body = READ_REQUEST.pack(
            ReadRequest(49, READ_DATA_OFFSET, 0, case.size, offset, persistent, volatile, 0, channel, 0, *where)
        )
        if case.write:
            length, remaining = (0, case.size) if direct is not None else (case.size, 0)
            body = WRITE_REQUEST.pack(
                WriteRequest(
                    49, length and TAIL, length, offset, persistent, volatile, channel, remaining, *where, flags=0
                )
            )
            described = described if direct is not None else bytes(case.size)
        self._charge = max(1, (case.size - 1) // 65536 + 1)
        encrypts = self._session.encrypts(self._tree.tree_id)
        signed = self._session.signer is not None and self._session.sign and not encrypts
        header = Header(
            credit_charge=self._charge,
            command=Command.WRITE if case.write else Command.READ,
            credits=self._charge,
            flags=_SIGNED if signed else 0,
            tree_id=self._tree.tree_id,
            session_id=self._session.session_id,
        )
        return bytearray(HEADER.pack(header) + body + described)

    def _described(self, slot: int, case: Case) -> bytes:
        """Return the channel data of a request by RDMA, with data that is protected again if it must be."""
        if case.write and self._way.transform:
            transform = expose(self._way, self._session, self._numbers, self._data, self._memories[slot])
            if transform is not None:
                return pack_transforms(transform, Channel.RDMA_V1, self._buffers[slot])
        return pack_descriptors(self._buffers[slot])

    async def run(self, case: Case, depth: int, seconds: float, most: int = sys.maxsize) -> float:
        """Make requests for ``seconds``, but ``most`` of them; return how many seconds it took.

        ``operations`` counts them.
        """
        depth = min(depth, most)
        self._most = most
        self._transport.start(self._received, self._lost)
        self._case, self._memories, self._buffers, self._sent, self.latencies = case, [], [], {}, []
        self._way = self._tree.choice.way if case.direct else Way.INLINE
        self._data = memoryview(bytes(case.size))
        self._requests = [self.request(case) for _ in range(depth)]
        self._left, self.operations = depth, 0
        self._done.clear()
        began = time.perf_counter()
        self._deadline = began + seconds
        for slot in range(depth):
            self._send(slot)
        await self._done.wait()
        return time.perf_counter() - began

    def _send(self, slot: int) -> None:
        request, number = self._requests[slot], self._next_id
        request[24:32] = number.to_bytes(8, "little")
        request[_OFFSET] = self._next_offset().to_bytes(8, "little")
        if self._case.write and self._way.transform:
            request[TAIL:] = self._described(slot, self._case)
        if request[16] & _SIGNED and self._session.signer is not None:
            request[SIGNATURE_OFFSET : SIGNATURE_OFFSET + 16] = bytes(16)
            signature = self._session.signer.expect(memoryview(request))
            request[SIGNATURE_OFFSET : SIGNATURE_OFFSET + 16] = signature
        self._next_id += self._charge
        self._slots[number] = slot
        self._sent[number] = time.perf_counter()
        cipher = self._session.cipher
        if cipher is None or not self._session.encrypts(self._tree.tree_id):
            self._transport.send((request,))
            return
        length = len(request)
        buffer = self._transport.acquire(TRANSFORM_SIZE + length + TAG_SIZE)
        cipher.encrypt((request,), length, buffer.view)
        self._transport.send((buffer.view[: TRANSFORM_SIZE + length],), None, buffer.release)

    def _next_offset(self) -> int:
        blocks = max(1, self._file_size // self._case.size)
        self._block = random.randrange(blocks) if self.scattered else (self._block + 1) % blocks
        return self._block * self._case.size

    def _received(self, inbound: InboundMessage) -> None:
        view, encrypted = inbound.view, False
        cipher = self._session.cipher
        if view[:4] == TRANSFORM_PROTOCOL_ID and cipher is not None:
            plain = cipher.decrypt(view, room_of(inbound))
            if plain is None:
                raise RuntimeError("a response is not authentic")
            view, encrypted = plain, True
        header = HEADER.unpack(view)
        if header.status == NtStatus.PENDING:
            inbound.release()
            return
        if header.status != NtStatus.SUCCESS:
            raise RuntimeError(f"status 0x{header.status:08X}")
        if self._way.transform and not self._case.write:
            self._verify(view, encrypted, self._memories[self._slots[header.message_id]])
        inbound.release()
        slot = self._slots.pop(header.message_id)
        self.operations += 1
        now = time.perf_counter()
        self.latencies.append(now - self._sent.pop(header.message_id))
        if self.touch and self._case.direct and not self._case.write:
            bytes(self._memories[slot])
        if now < self._deadline and self.operations + len(self._slots) < self._most:
            self._send(slot)
            return
        self._left -= 1
        if not self._left:
            self._done.set()

    def _verify(self, view: memoryview, encrypted: bool, memory: memoryview) -> None:
        """Verify what a READ has brought, and decrypt it."""
        response, data = parse_read_response(view)
        transform = transform_of_response(self._way, self._session, response, data, encrypted)
        if transform is not None:
            reveal(self._session, transform, memoryview(bytearray(memory[: response.data_remaining])))

    def _lost(self, error: BaseException | None) -> None:
        if not self._done.is_set():
            raise RuntimeError(f"the connection was lost: {error}")


async def last_message_id(client: Client) -> int:
    """Make one more request of ``client``, wait for its answer and return its MessageId."""
    call = await client.start(Command.ECHO, [b"\4\0\0\0"])
    (await client.finish(call)).release()
    return call.header.message_id
