"""READ and WRITE of one file by RDMA, with requests that may break every rule. [MS-SMB2 2.2.19 to 2.2.22]"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from smb3server.client.protocol import ClientSession, RemoteFile, ServerError, Tree
from smb3server.client.protocol.messages import CREDIT_SIZE, Reply
from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.lab.conformance.conversation import Conversation
from smb3server.lab.conformance.peer import Ended, Peer, Silence
from smb3server.lab.conformance.trial import DIALECTS, Session, Trial
from smb3server.lab.conformance.verdict import Inconclusive, NotApplicable
from smb3server.lab.content import FILLING
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.header import Command
from smb3server.wire.negotiate import Dialect
from smb3server.wire.read_write import (
    READ_DATA_OFFSET,
    READ_REQUEST,
    TAIL,
    WRITE_REQUEST,
    Channel,
    ReadRequest,
    ReadResponse,
    WriteRequest,
    WriteResponse,
    pack_descriptors,
    parse_read_response,
    parse_write_response,
)
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import ConnectionLost, SmbDirectError
from smbdirect.message_transport import RemoteBuffer
from smbdirect.providers.base import Access

INLINE = 65536
"""Bytes that one READ or WRITE carries in its message."""
_NEXT_COMMAND = struct.Struct("<I")
NEXT_COMMAND_OFFSET = 20
"""Where NextCommand is in the header. [MS-SMB2 2.2.1.2]"""
MOST_CREDITS = 128
"""A request never pays more than the client holds, whatever length it claims."""


class Exposed:
    """Memory that the server may access, and its descriptor."""

    def __init__(self, peer: Peer, size: int, content: bytes | None = None) -> None:
        """Expose ``size`` bytes for RDMA Write, or for RDMA Read if there is ``content``."""
        self.view = memoryview(bytearray(FILLING * size if content is None else content.ljust(size, b"\0")))
        remote = Access.REMOTE_WRITE if content is None else Access.REMOTE_READ
        self.region = peer.register(self.view, Access.LOCAL_WRITE | remote)

    @property
    def buffer(self) -> RemoteBuffer:
        """The descriptor that tells the truth."""
        return RemoteBuffer(self.region.address, self.region.token, self.region.length)

    def part(self, begin: int, length: int) -> RemoteBuffer:
        """Return the descriptor of a part."""
        return RemoteBuffer(self.region.address + begin, self.region.token, length)

    @property
    def info(self) -> bytes:
        """The channel information that tells the truth."""
        return pack_descriptors([self.buffer])

    def untouched(self, begin: int = 0) -> bool:
        """Return whether the server has written nothing from ``begin`` on, to memory that it may write to."""
        rest = self.view[begin:]
        return rest == FILLING * len(rest)


@dataclass(frozen=True, slots=True)
class Read:
    """A READ that says what its fields say. What is None here tells the truth. [MS-SMB2 2.2.19]"""

    length: int
    info: bytes = b""
    offset: int = 0
    channel: int = Channel.RDMA_V1
    remaining: int | None = None
    info_offset: int | None = None
    info_length: int | None = None
    minimum: int = 0


@dataclass(frozen=True, slots=True)
class Write:
    """A WRITE request as the case wants it. A field that is None gets its correct value. [MS-SMB2 2.2.21]"""

    remaining: int
    info: bytes = b""
    offset: int = 0
    channel: int = Channel.RDMA_V1
    length: int = 0
    data_offset: int = 0
    info_offset: int | None = None
    info_length: int | None = None
    data: bytes = b""
    """Lies behind ``info``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request, and what came with it."""

    status: int
    read: ReadResponse | None = None
    """None unless the request was a READ and succeeded."""
    write: WriteResponse | None = None
    data: bytes = b""
    """Data in the message."""
    invalidated: int | None = None
    """The token that came with the response."""


class DataFile:
    """One open file on one connection."""

    def __init__(self, trial: Trial, tree: Tree, file: RemoteFile, conversation: Conversation | None) -> None:
        """``conversation`` is None on a connection over TCP."""
        self.trial = trial
        self.tree = tree
        self.file = file
        self._conversation = conversation

    @property
    def peer(self) -> Peer:
        """The RDMA connection. Raises ``Inconclusive`` over TCP."""
        return self.conversation.peer

    @property
    def session(self) -> ClientSession:
        """The session, whose keys protect payloads."""
        assert isinstance(self.tree.session, ClientSession)
        return self.tree.session

    @property
    def conversation(self) -> Conversation:
        """The connection over SMB Direct. Raises ``Inconclusive`` over TCP."""
        if self._conversation is None:
            raise Inconclusive("the connection has no RDMA")
        return self._conversation

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Leave Data Transfer messages out of the evidence."""
        peer = self._conversation.peer if self._conversation is not None else None
        before = peer is not None and peer.quiet
        if peer is not None:
            peer.quiet = True
        try:
            yield
        finally:
            if peer is not None:
                peer.quiet = before

    @property
    def largest(self) -> int:
        """Bytes of the largest READ and WRITE by RDMA. [MS-SMB2 2.2.4, MS-SMBD 2.2.2]"""
        negotiated, response = self.tree.client.negotiated, self.peer.response
        limit = min(negotiated.max_read_size, negotiated.max_write_size, MOST_CREDITS * CREDIT_SIZE)
        return limit if response is None else min(limit, response.max_read_write_size)

    def expose(self, size: int, content: bytes | None = None) -> Exposed:
        """Expose memory on the file's connection: see ``Exposed``."""
        return Exposed(self.peer, size, content)

    async def fill(self, content: bytes) -> None:
        """Give the file this content, which goes in messages."""
        with self._quietly():
            try:
                for at in range(0, len(content), INLINE):
                    await self.tree.write(self.file, at, content[at : at + INLINE])
            except (StatusError, SmbDirectError) as error:
                raise Inconclusive(f"cannot write {len(content)} bytes in messages: {error}") from error
        self.trial.note(f"wrote {len(content)} bytes in messages")

    async def content(self, length: int) -> bytes:
        """Return up to ``length`` bytes from the beginning of the file, which come in messages."""
        found = bytearray()
        with self._quietly():
            while len(found) < length:
                piece = await self.tree.read(self.file, len(found), min(INLINE, length - len(found)))
                found += piece
                if not piece:
                    break
        self.trial.note(f"read {len(found)} bytes in messages")
        return bytes(found)

    async def read(self, request: Read) -> Answer:
        """Send a READ and return the answer. Raises ``Ended`` if the connection ends instead, and ``Silence``."""
        persistent, volatile = self.file.file_id
        length, info = request.length, request.info
        record = ReadRequest(
            padding=READ_DATA_OFFSET,
            length=length,
            offset=request.offset,
            persistent=persistent,
            volatile=volatile,
            minimum_count=request.minimum,
            channel=request.channel,
            remaining_bytes=_or(request.remaining, length if request.channel else 0),
            channel_info_offset=_or(request.info_offset, TAIL if info else 0),
            channel_info_length=_or(request.info_length, len(info)),
        )
        self.trial.note(
            f"-> READ Length {length}, Offset {request.offset}, Channel {request.channel:#x}, RemainingBytes "
            f"{record.remaining_bytes}, ReadChannelInfoOffset {record.channel_info_offset}, ReadChannelInfoLength "
            f"{record.channel_info_length}"
        )
        reply = await self._call(Command.READ, READ_REQUEST.pack(record), info, length)
        if reply.status != NtStatus.SUCCESS:
            return self._answer(reply)
        body, data = parse_read_response(reply.message)
        self.trial.note(
            f"<- READ DataOffset {body.data_offset}, DataLength {body.data_length}, DataRemaining "
            f"{body.data_remaining}, Flags {body.flags:#x}"
        )
        return self._answer(reply, read=body, data=bytes(data))

    async def write(self, request: Write) -> Answer:
        """Send a WRITE and return the answer. Raises ``Ended`` if the connection ends instead, and ``Silence``."""
        persistent, volatile = self.file.file_id
        info = request.info
        record = WriteRequest(
            data_offset=request.data_offset,
            length=request.length,
            offset=request.offset,
            persistent=persistent,
            volatile=volatile,
            channel=request.channel,
            remaining_bytes=request.remaining,
            channel_info_offset=_or(request.info_offset, TAIL if info else 0),
            channel_info_length=_or(request.info_length, len(info)),
        )
        self.trial.note(
            f"-> WRITE Length {request.length}, DataOffset {request.data_offset}, Offset {request.offset}, Channel "
            f"{request.channel:#x}, RemainingBytes {request.remaining}, WriteChannelInfoOffset "
            f"{record.channel_info_offset}, WriteChannelInfoLength {record.channel_info_length}"
        )
        paid = max(request.length, request.remaining)
        reply = await self._call(Command.WRITE, WRITE_REQUEST.pack(record), info + request.data, paid)
        if reply.status != NtStatus.SUCCESS:
            return self._answer(reply)
        body = parse_write_response(reply.message)
        self.trial.note(f"<- WRITE Count {body.byte_count}, Remaining {body.remaining}")
        return self._answer(reply, write=body)

    @contextlib.asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Restart the server's Idle Connection Timer now and then with an empty message. [MS-SMBD 3.1.5.5]

        Its keepalive would wait behind the RDMA Reads of a long WRITE, and a short timer would end the connection."""
        conversation, peer = self.conversation, self.peer

        async def speak() -> None:
            while True:
                await asyncio.sleep(self.trial.timing.keepalive / 4)
                if peer.alive and peer.send_credits > 1:
                    peer.send_data(credits_requested=conversation.credits_requested, grant=1)

        speaking = asyncio.get_running_loop().create_task(speak())
        try:
            yield
        finally:
            speaking.cancel()

    async def compounded(self, requests: Sequence[Read | Write]) -> list[Answer]:
        """Send requests in one message and return their answers. Raises as ``read`` does. [MS-SMB2 3.2.4.1.4]"""
        messages: list[bytes] = []
        self.conversation.captured = messages
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self.read(each) if isinstance(each, Read) else self.write(each)) for each in requests]
        while len(messages) < len(tasks) and not any(task.done() for task in tasks):
            await asyncio.sleep(0)
        self.conversation.captured = None
        if len(messages) < len(tasks):
            raise Inconclusive("the client did not make all requests")
        compound = bytearray()
        for message in messages[:-1]:
            begin = len(compound)
            compound += message.ljust(len(message) + 7 & -8, b"\0")
            _NEXT_COMMAND.pack_into(compound, begin + NEXT_COMMAND_OFFSET, len(compound) - begin)
        self.trial.note(f"-> {len(messages)} requests in one message")
        self.conversation.send_fragments(self.conversation.cut(bytes(compound) + messages[-1]))
        return list(await asyncio.gather(*tasks))

    async def _call(self, command: int, fixed: bytes, tail: bytes, length: int) -> Reply:
        tree = self.tree
        payload = min(length, MOST_CREDITS * CREDIT_SIZE)
        # The variable part has at least one byte, which StructureSize 49 counts.
        body = [fixed, tail or b"\0"]
        limit = self.trial.timing.patience
        try:
            with self._quietly():
                async with asyncio.timeout(limit):
                    started = await tree.client.start(command, body, tree.session, tree.tree_id, payload=payload)
                    reply = await asyncio.shield(started.future)
        except TimeoutError:
            raise Silence(f"no answer within {limit:g} s") from None
        except ConnectionLost as error:
            raise Ended(str(error)) from error
        token = self._token
        self.trial.note(f"<- {status_name(reply.status)}" + ("" if token is None else f", invalidates {token:#010x}"))
        return reply

    @property
    def _token(self) -> int | None:
        """The token that came with the last message."""
        return None if self._conversation is None else self._conversation.invalidated[-1]

    def _answer(
        self, reply: Reply, read: ReadResponse | None = None, write: WriteResponse | None = None, data: bytes = b""
    ) -> Answer:
        return Answer(reply.status, read, write, data, self._token)


def check_read(trial: Trial, answer: Answer, count: int) -> None:
    """Require a successful response that says that ``count`` bytes went by RDMA. [MS-SMB2 3.3.5.12]"""
    trial.require(answer.status == NtStatus.SUCCESS, f"READ failed with {status_name(answer.status)}")
    body = answer.read
    assert body is not None
    trial.require(body.data_offset == READ_DATA_OFFSET, f"DataOffset is {body.data_offset}, not {READ_DATA_OFFSET}")
    trial.require(body.data_length == 0, f"DataLength is {body.data_length}: data is in the response")
    trial.require(body.data_remaining == count, f"DataRemaining is {body.data_remaining}, not {count}")


def check_write(trial: Trial, answer: Answer, count: int) -> None:
    """Require a successful response that says that ``count`` bytes were written. [MS-SMB2 3.3.5.13]"""
    trial.require(answer.status == NtStatus.SUCCESS, f"WRITE failed with {status_name(answer.status)}")
    body = answer.write
    assert body is not None
    trial.require(body.byte_count == count, f"Count is {body.byte_count}, not {count}")
    rest = (body.remaining, body.channel_info_offset, body.channel_info_length)
    trial.require(rest == (0, 0, 0), f"Remaining, WriteChannelInfoOffset and WriteChannelInfoLength are {rest}")


def new_name() -> str:
    """Return the name of a file that is not there."""
    return f"conformance-{os.getpid()}-{secrets.token_hex(6)}"


async def open_file(
    trial: Trial, content: bytes = b"", *, name: str = "", dialects: Sequence[int] = DIALECTS
) -> DataFile:
    """Log on over SMB Direct, without RDMA transforms, and open a file as ``open_on`` does.

    Raises ``NotApplicable`` if the server chose a dialect without RDMA."""
    session = await trial.log_on(dialects=dialects, offer=Offer(rdma_transforms=()))
    if session.client.dialect < Dialect.SMB_3_0:
        raise NotApplicable(f"the server chose dialect {session.client.dialect:#06x}, and RDMA needs 3.0")
    return await open_on(trial, session, content, name=name)


async def open_on(trial: Trial, session: Session, content: bytes = b"", *, name: str = "") -> DataFile:
    """Create a file with ``content``, which goes away when it is closed; or open or create the file ``name``."""
    options = 0 if name else int(CreateOptions.DELETE_ON_CLOSE)
    quiet, session.peer.quiet = session.peer.quiet, True
    try:
        async with asyncio.timeout(trial.timing.patience):
            made = await session.tree.create(name or new_name(), READ_WRITE, CreateDisposition.OPEN_IF, options)
    except (ServerError, SmbDirectError, TimeoutError) as error:
        raise Inconclusive(f"cannot create a file in {session.tree.path}: {error or 'no answer'}") from error
    session.peer.quiet = quiet
    file = DataFile(trial, session.tree, made, session.conversation)
    if content:
        await file.fill(content)
    return file


def _or(value: int | None, truth: int) -> int:
    return truth if value is None else value


def status_name(status: int) -> str:
    """Return the name of a status, or its number if it has none here."""
    try:
        return f"STATUS_{NtStatus(status).name}"
    except ValueError:
        return f"{status:#010x}"
