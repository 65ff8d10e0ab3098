"""The operations on a tree connect: files, directories, information, controls. [MS-SMB2 3.2.4]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from smb3server.client.protocol import steps
from smb3server.client.protocol.connection import Requests
from smb3server.client.protocol.exposed import LARGEST, ExposedBuffer, ExposedPool
from smb3server.client.protocol.messages import CREDIT_SIZE, Call, Part, Protection, Reply, ServerError, Way
from smb3server.client.protocol.payloads import Choice, choose, expose, reveal, transform_of_response
from smb3server.client.protocol.steps import FileId, Step
from smb3server.compression.benefit import Benefit
from smb3server.wire import close as close_wire
from smb3server.wire import create as create_wire
from smb3server.wire import directory_info
from smb3server.wire import query_directory as directory_wire
from smb3server.wire import query_info as query_wire
from smb3server.wire import read_write as io_wire
from smb3server.wire.attributes import MAX_OFFSET
from smb3server.wire.create import Access, CreateDisposition, CreateOptions, CreateResponse, ShareAccess
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.info_class import FileInfoClass
from smb3server.wire.query_info import InfoType
from smb3server.wire.rdma_transform import CryptoTransform, pack_transforms
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer
from smbdirect.errors import ConnectionLost, DecodeError
from smbdirect.message_transport import RemoteBuffer

if TYPE_CHECKING:
    # Most commands need none of these modules, and each takes its time to load.
    from smb3server.compression.transform import Packed
    from smb3server.wire.change_notify import Notification
    from smb3server.wire.create_contexts import RawContext
    from smb3server.wire.lock import LockElement
    from smb3server.wire.oplock_break import OplockBreak

READ = int(Access.GENERIC_READ)
READ_WRITE = int(Access.GENERIC_READ | Access.GENERIC_WRITE | Access.DELETE)
SHARE_ALL = int(ShareAccess.READ | ShareAccess.WRITE | ShareAccess.DELETE)
_SUCCESS = (NtStatus.SUCCESS,)
_BACKSLASH = "\\"
_FOUND = (NtStatus.SUCCESS, NtStatus.END_OF_FILE)
_CLOSE = steps.close()
_OVERHEAD = 512
"""Bytes around the data of a READ or WRITE: transform header, header, body and padding, rounded up."""
_NOT_UNDERSTOOD = frozenset(
    [
        NtStatus.FILE_CLOSED,
        NtStatus.INVALID_PARAMETER,
        NtStatus.INVALID_HANDLE,
        NtStatus.NOT_SUPPORTED,
        NtStatus.NOT_IMPLEMENTED,
        NtStatus.INVALID_DEVICE_REQUEST,
    ]
)
SHARE_TYPE_DISK, SHARE_TYPE_PIPE = 1, 2
"""SMB2_SHARE_TYPE_DISK and SMB2_SHARE_TYPE_PIPE. [MS-SMB2 2.2.10]"""
SHARE_CAP_DFS = 0x00000008
"""SMB2_SHARE_CAP_DFS. [MS-SMB2 2.2.10]"""
RDMA_THRESHOLD = 4096
"""Bytes from which a NIC moves data by RDMA; less costs more by RDMA than in the message. Linux has the same."""
SOFTWARE_RDMA_THRESHOLD = 65536
"""The same for RDMA in software, where a registration and a further message cost more than a copy."""
R = TypeVar("R")


class TreeSession(Protection, Protocol):
    """The part of a session that its trees use."""

    client: Requests


@dataclass(slots=True, eq=False, repr=False)
class RemoteFile:
    """An open of this client on the server."""

    file_id: tuple[int, int]
    response: CreateResponse
    contexts: list[RawContext]
    benefit: Benefit | None = None
    """Whether compressing what is written pays."""

    @property
    def size(self) -> int:
        """End of file in bytes when the file was opened."""
        return self.response.end_of_file


def _end_loan(exposed: ExposedPool, buffer: ExposedBuffer, request: asyncio.Future[R]) -> None:
    """Take ``buffer`` back once its request is answered.

    A request goes on when its caller stops waiting, and the server may use the buffer until it has answered. Revoking
    the token earlier would end the connection.
    """
    if not request.done():
        request.add_done_callback(partial(_end_loan, exposed, buffer))
        return
    error = asyncio.CancelledError() if request.cancelled() else request.exception()
    if error is None or isinstance(error, ServerError):
        exposed.give_back(buffer)
    else:
        exposed.drop(buffer)


def _is_not_understood(result: object) -> bool:
    """Return whether a server that does not know related requests may answer so."""
    return isinstance(result, ServerError) and result.status in _NOT_UNDERSTOOD


def _check_range(offset: int, length: int) -> None:
    """Raise ``ValueError`` unless a file can have these bytes: offsets are 64-bit signed numbers. [MS-FSA 2.1.5.2]"""
    if offset < 0 or length < 0 or offset + length > MAX_OFFSET:
        raise ValueError(f"no file has {length} bytes from offset {offset} on")


class Tree:
    """A tree connect. All methods raise ``ServerError`` and ``ConnectionLost``.

    ``read`` and ``write`` use RDMA where the transport has it, signed or encrypted as their requests are; ``choice``
    says so, and gives the reason when they do not. What they read by RDMA and cannot verify is a ``StatusError``.
    """

    def __init__(
        self,
        session: TreeSession,
        tree_id: int,
        path: str,
        maximal_access: int,
        capabilities: int = 0,
        share_type: int = SHARE_TYPE_DISK,
    ) -> None:
        self.session = session
        self.client = session.client
        self.tree_id = tree_id
        self.path = path
        self.maximal_access = maximal_access
        self.capabilities = capabilities
        """SMB2_SHARE_CAP_*."""
        self.is_pipe = share_type == SHARE_TYPE_PIPE
        self.rdma_from = RDMA_THRESHOLD
        """Bytes from which ``read`` and ``write`` move data by RDMA."""
        self.is_dfs = bool(capabilities & SHARE_CAP_DFS)
        """TreeConnect.IsDfsShare."""

    def on(self, session: TreeSession) -> Tree:
        """Return the same tree connect on another channel of its session."""
        share_type = SHARE_TYPE_PIPE if self.is_pipe else SHARE_TYPE_DISK
        return Tree(session, self.tree_id, self.path, self.maximal_access, self.capabilities, share_type)

    async def call(
        self,
        command: int,
        body: Sequence[Buffer],
        *,
        payload: int = 0,
        accept: Sequence[int] = _SUCCESS,
        flags: int = 0,
    ) -> Reply:
        """Send any command on this tree; see ``Client.call``."""
        return await self.client.call(
            command, body, self.session, self.tree_id, payload=payload, accept=accept, flags=flags
        )

    async def _ask(
        self,
        command: int,
        body: Sequence[Buffer],
        parse: Callable[[memoryview], R],
        payload: int = 0,
        accept: Sequence[int] = _SUCCESS,
        flags: int = 0,
        packed: Packed | None = None,
    ) -> R:
        """Send a command, and return what ``parse`` makes of its response, which it has to copy."""
        reply = await self.client.call(
            command, body, self.session, self.tree_id, payload=payload, accept=accept, flags=flags, packed=packed
        )
        try:
            return parse(reply.message)
        finally:
            if reply.inbound is not None:
                reply.release()

    async def disconnect(self) -> None:
        """Disconnect the tree. [MS-SMB2 3.2.4.22]"""
        await self._ask(Command.TREE_DISCONNECT, [b"\4\0\0\0"], len)

    # Opens

    async def create(
        self,
        name: str,
        access: int = READ,
        disposition: int = CreateDisposition.OPEN,
        options: int = 0,
        share: int = SHARE_ALL,
        attributes: int = 0,
        contexts: Sequence[RawContext] = (),
        oplock: int = 0,
        replay: bool = False,
    ) -> RemoteFile:
        """Open or create a file. [MS-SMB2 3.2.4.3]

        ``name`` is relative to the share, with backslashes between components and none at the beginning. Servers of a
        namespace get it with server and share before it. ``replay`` marks a request that was sent before and whose
        response was lost.
        """
        flags, body = self._create_request(name, access, disposition, options, share, attributes, contexts, oplock)
        if replay:
            flags |= HeaderFlags.REPLAY_OPERATION
        response, found = await self._ask(Command.CREATE, body, create_wire.parse_response, flags=flags)
        return RemoteFile((response.persistent, response.volatile), response, found)

    def _create_request(
        self,
        name: str,
        access: int,
        disposition: int,
        options: int,
        share: int,
        attributes: int,
        contexts: Sequence[RawContext] = (),
        oplock: int = 0,
    ) -> tuple[int, list[Buffer]]:
        """Return the header's flags and the body of a CREATE."""
        record = create_wire.CreateRequest(
            requested_oplock_level=oplock,
            desired_access=access,
            file_attributes=attributes,
            share_access=share,
            create_disposition=disposition,
            create_options=options,
        )
        flags = 0
        if self.is_dfs:
            flags = int(HeaderFlags.DFS_OPERATIONS)
            name = f"{self.path.lstrip(_BACKSLASH)}\\{name}".rstrip(_BACKSLASH)
        return flags, [create_wire.pack_request(record, name, contexts)]

    async def close(self, file: RemoteFile, flags: int = 0) -> close_wire.CloseResponse:
        """Close an open. With POSTQUERY_ATTRIB among the ``flags``, the response has the file's times and size, if the
        server has set that flag there, too. [MS-SMB2 3.2.4.5]
        """
        return await self._do(steps.close(flags), file.file_id)

    async def lock(self, file: RemoteFile, elements: Sequence[LockElement], sequence: int = 0) -> None:
        """Lock or unlock byte ranges. [MS-SMB2 3.2.4.19]

        ``sequence`` holds LockSequenceNumber and LockSequenceIndex, so that the request can be repeated; 0 means none.
        """
        from smb3server.wire import lock as lock_wire

        record = lock_wire.LockRequest(lock_sequence=sequence, persistent=file.file_id[0], volatile=file.file_id[1])
        await self._ask(Command.LOCK, [lock_wire.pack_request(record, elements)], len)

    async def flush(self, file: RemoteFile) -> None:
        """Write the file's cached data to disk. [MS-SMB2 3.2.4.10]"""
        await self._do(steps.flush(), file.file_id)

    async def make_directory(self, name: str) -> None:
        """Create a directory; ``name`` is as for ``create``."""
        options = int(CreateOptions.DIRECTORY_FILE)
        await self.with_open(name, READ, (), CreateDisposition.CREATE, options)

    async def delete(self, name: str) -> None:
        """Delete a file or an empty directory."""
        options = int(CreateOptions.DELETE_ON_CLOSE | CreateOptions.OPEN_REPARSE_POINT)
        await self.with_open(name, int(Access.DELETE), (), CreateDisposition.OPEN, options)

    async def rename(self, file: RemoteFile, target: str, replace: bool = False) -> None:
        """Rename the file to ``target``, a path from the share's root. The open needs DELETE access."""
        await self._do(steps.rename(target, replace), file.file_id)

    # Chains

    async def with_open(
        self,
        name: str,
        access: int,
        wanted: Sequence[Step[Any]],
        disposition: int = CreateDisposition.OPEN,
        options: int = 0,
    ) -> tuple[RemoteFile, list[Any]]:
        """Open or create a file, do what is ``wanted`` on it, and close it, all in one message if the server takes
        that. Return the file, which is closed, and the results.

        What follows a failed request is done all the same, unless CREATE failed: so nothing may be wanted that relies
        on what is before it. [MS-SMB2 3.2.4.1.4, 3.3.5.2.7.2]
        """
        file, results = await self.open_and(name, access, [*wanted, _CLOSE], disposition, options)
        for result in results:
            if isinstance(result, ServerError):
                raise result
        return file, results[:-1]

    async def open_and(
        self,
        name: str,
        access: int,
        wanted: Sequence[Step[Any]],
        disposition: int = CreateDisposition.OPEN,
        options: int = 0,
        share: int = SHARE_ALL,
    ) -> tuple[RemoteFile, list[Any]]:
        """Do ``with_open`` without closing the file. Errors of what is ``wanted`` are among the results."""
        flags, body = self._create_request(name, access, disposition, options, share, 0)
        first = Part(Command.CREATE, body)
        parts = [first, *(Part(step.command, step.body(steps.RELATED), step.payload) for step in wanted)]
        chains = self.client.chains
        if chains.allowed and self.client.can_chain(parts):
            try:
                replies = await self._chain(parts, flags)
            except ConnectionLost:
                # A server that ends the connection for a chain would do it for each.
                chains.allowed = chains.proven
                raise
            created = self._result(replies[0], create_wire.parse_response, steps.SUCCESS)
            results = [
                self._result(reply, step.parse, step.accept) for reply, step in zip(replies[1:], wanted, strict=True)
            ]
            if not isinstance(created, ServerError):
                file = RemoteFile((created[0].persistent, created[0].volatile), *created)
                if chains.proven or not all(map(_is_not_understood, results)):
                    chains.proven = True
                    return file, results
                chains.allowed = False
                return file, await self.do_all(file, wanted)
            if chains.proven or not _is_not_understood(created):
                raise created
            chains.allowed = False
        file = RemoteFile((0, 0), *(await self._ask(Command.CREATE, body, create_wire.parse_response, flags=flags)))
        file.file_id = file.response.persistent, file.response.volatile
        return file, await self.do_all(file, wanted)

    async def do_all(self, file: RemoteFile, wanted: Sequence[Step[Any]]) -> list[Any]:
        """Do all that is ``wanted`` on an open, in order; errors are among the results."""
        parts = [Part(step.command, step.body(file.file_id), step.payload) for step in wanted]
        if self.client.chains.allowed and self.client.chains.proven and self.client.can_chain(parts):
            replies = await self._chain(parts, 0)
            return [self._result(reply, step.parse, step.accept) for reply, step in zip(replies, wanted, strict=True)]
        results: list[Any] = []
        for step in wanted:
            try:
                results.append(await self._do(step, file.file_id))
            except ServerError as error:
                results.append(error)
        return results

    async def _do(self, step: Step[R], file_id: FileId) -> R:
        return await self._ask(step.command, step.body(file_id), step.parse, step.payload, step.accept)

    async def _chain(self, parts: Sequence[Part], flags: int) -> list[Reply]:
        """Send related requests, and return their responses."""
        calls = await self.client.start_chain(parts, self.session, self.tree_id, flags)
        return await self.client.finish_chain(calls)

    def _result(self, reply: Reply, parse: Callable[[memoryview], R], accept: Sequence[int]) -> R | ServerError:
        try:
            return parse(self.client.check(reply, accept).message)
        except ServerError as error:
            return error
        finally:
            reply.release()

    # Data

    @property
    def choice(self) -> Choice:
        """The way of data that is large enough for RDMA. [MS-SMB2 3.2.4.6, 3.2.4.7]"""
        return choose(self.client, self.session, self.tree_id, self.is_pipe)

    @property
    def max_read(self) -> int:
        """Largest number of bytes that one READ requests; ``read`` splits longer transfers."""
        room = self.client.transport.max_message_size - _OVERHEAD
        return min(self.client.negotiated.max_read_size, self._rdma_limit() or room)

    @property
    def max_write(self) -> int:
        """Largest number of bytes that one WRITE carries; ``write`` splits longer transfers."""
        room = self.client.transport.max_outbound_message_size - _OVERHEAD
        return min(self.client.negotiated.max_write_size, self._rdma_limit() or room)

    def _rdma_limit(self) -> int:
        """Return the largest number of bytes of one RDMA transfer; 0 if data travels in messages."""
        rdma = self.client.transport.rdma
        return min(rdma.max_read_write_size, LARGEST) if rdma is not None and self.choice.way is not Way.INLINE else 0

    async def read(self, file: RemoteFile, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes; fewer at the end of the file, none at or behind it.

        More than ``max_read`` bytes take several READs, which are not a snapshot of the file. Raises ``ValueError`` for
        a range that no file can have and ``ProviderError`` if memory cannot be registered for RDMA.
        """
        _check_range(offset, length)
        pieces: list[bytes] = []
        while True:
            wanted = self._piece(length, self.max_read)
            pieces.append(await self._read_piece(file, offset, wanted))
            got = len(pieces[-1])
            offset += got
            length -= got
            # One READ returns one message of a pipe; another READ might wait forever.
            if got < wanted or length <= 0 or self.is_pipe:
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _piece(self, length: int, limit: int) -> int:
        """Return the bytes of the next request of a transfer with ``length`` bytes left."""
        return length if length <= CREDIT_SIZE and length <= limit else min(length, limit, self.client.payload_limit)

    async def _read_piece(self, file: RemoteFile, offset: int, length: int) -> bytes:
        exposed = self.client.exposed
        way = Way.INLINE if exposed is None or length < self.rdma_from else self.choice.way
        if exposed is None or way is Way.INLINE:
            data = await self._read_inline(file, offset, length)
            self.client.payloads.read[Way.INLINE] += len(data)
            return data
        buffer = exposed.take(length, writable=True)
        reading = asyncio.ensure_future(
            self._read_by_rdma(file, offset, buffer.descriptors(length), length, io_wire.Channel.RDMA_V1, way)
        )
        try:
            count, transform = await asyncio.shield(reading)
            # A copy is verified and decrypted: the server can still write to the buffer.
            found = bytearray(buffer.view[:count]) if way is Way.RDMA_ENCRYPTED else bytes(buffer.view[:count])
        finally:
            _end_loan(exposed, buffer, reading)
        if transform is not None:
            reveal(self.session, transform, memoryview(found))
        self.client.payloads.read[way] += count
        return bytes(found)

    async def _read_inline(self, file: RemoteFile, offset: int, length: int) -> bytes:
        compressed = self._asks_for_compression(length)
        record = io_wire.ReadRequest(
            padding=io_wire.READ_DATA_OFFSET,
            flags=int(io_wire.ReadFlags.REQUEST_COMPRESSED) if compressed else 0,
            length=length,
            offset=offset,
            persistent=file.file_id[0],
            volatile=file.file_id[1],
        )
        reply = await self.call(
            Command.READ,
            [io_wire.READ_REQUEST.pack_fields(*record), b"\0"],
            payload=length,
            accept=(*_FOUND, NtStatus.BUFFER_OVERFLOW),
        )
        try:
            if reply.header.status == NtStatus.END_OF_FILE:
                return b""
            response, data = io_wire.parse_read_response(reply.message)
            if response.flags & io_wire.ReadResponseFlags.RDMA_TRANSFORM:
                raise StatusError(NtStatus.INVALID_NETWORK_RESPONSE)
            return bytes(data)
        finally:
            if reply.inbound is not None:
                reply.release()

    def _asks_for_compression(self, length: int) -> bool:
        if self.client.negotiated.compression is None:
            return False
        from smb3server.compression.transform import COMPRESSED_FROM

        return length >= COMPRESSED_FROM

    def _channel(self, invalidate: bool) -> io_wire.Channel:
        """Choose whether the server may invalidate the buffer's token. [MS-SMB2 2.2.19, 2.2.21]

        Invalidating a token of a fabric that does not allow it would end the connection.
        """
        rdma = self.client.transport.rdma
        possible = rdma is not None and rdma.regions_invalidatable
        return io_wire.Channel.RDMA_V1_INVALIDATE if invalidate and possible else io_wire.Channel.RDMA_V1

    async def read_into(
        self, file: RemoteFile, offset: int, remote: Sequence[RemoteBuffer], length: int, *, invalidate: bool = True
    ) -> int:
        """Let the server write up to ``length`` bytes by RDMA to the memory that ``remote`` describes, as they are;
        return the bytes read.

        ``remote`` is a buffer registered with this connection's transport. With ``invalidate`` its first token is
        invalid afterwards, if the fabric lets a peer invalidate our regions. Where data must be signed or encrypted the
        server refuses this, or its response is a ``StatusError``: use ``read``.
        """
        channel = self._channel(invalidate)
        return (await self._read_by_rdma(file, offset, remote, length, channel, Way.RDMA))[0]

    async def _read_by_rdma(
        self,
        file: RemoteFile,
        offset: int,
        remote: Sequence[RemoteBuffer],
        length: int,
        channel: io_wire.Channel,
        way: Way,
    ) -> tuple[int, CryptoTransform | None]:
        """Return how many bytes the server wrote, and the transform by which to verify them."""
        described = io_wire.pack_descriptors(remote)
        record = io_wire.ReadRequest(
            length=length,
            offset=offset,
            persistent=file.file_id[0],
            volatile=file.file_id[1],
            channel=channel,
            channel_info_offset=io_wire.TAIL,
            channel_info_length=len(described),
        )
        reply = await self.call(
            Command.READ, [io_wire.READ_REQUEST.pack(record), described], payload=length, accept=_FOUND
        )
        try:
            if reply.header.status == NtStatus.END_OF_FILE:
                return 0, None
            response, data = io_wire.parse_read_response(reply.message)
            if response.data_remaining > length:
                raise StatusError(NtStatus.INVALID_NETWORK_RESPONSE)
            return response.data_remaining, transform_of_response(way, self.session, response, data, reply.encrypted)
        except DecodeError as error:
            raise StatusError(NtStatus.INVALID_NETWORK_RESPONSE) from error
        finally:
            reply.release()

    async def write(self, file: RemoteFile, offset: int, data: Buffer) -> int:
        """Write all of ``data`` and return the number of bytes written.

        More than ``max_write`` bytes take several WRITEs; if one of them fails, the earlier ones have been done. Raises
        ``TypeError`` for data that is not contiguous bytes, ``ValueError`` for a range that no file can have, and
        ``ProviderError`` if memory cannot be registered for RDMA.
        """
        view = memoryview(data).cast("B")
        _check_range(offset, len(view))
        done = 0
        while True:
            piece = view[done : done + self._piece(len(view) - done, self.max_write)]
            count = await self._write_piece(file, offset + done, piece)
            done += count
            if done >= len(view) or not count:
                return done

    async def _write_piece(self, file: RemoteFile, offset: int, data: memoryview) -> int:
        exposed, length = self.client.exposed, len(data)
        way = Way.INLINE if exposed is None or length < self.rdma_from else self.choice.way
        if exposed is None or way is Way.INLINE:
            count = await self._write_inline(file, offset, data)
            self.client.payloads.written[Way.INLINE] += count
            return count
        buffer = exposed.take(length, writable=False)
        transform = expose(way, self.session, self.client.payloads.numbers, data, buffer.view[:length])
        writing = asyncio.ensure_future(
            self._write_by_rdma(file, offset, buffer.descriptors(length), length, io_wire.Channel.RDMA_V1, transform)
        )
        try:
            count = min(await asyncio.shield(writing), length)
        finally:
            _end_loan(exposed, buffer, writing)
        self.client.payloads.written[way] += count
        return count

    async def _write_inline(self, file: RemoteFile, offset: int, data: Buffer) -> int:
        record = io_wire.WriteRequest(
            data_offset=io_wire.TAIL,
            length=len(data),
            offset=offset,
            persistent=file.file_id[0],
            volatile=file.file_id[1],
        )
        body = [io_wire.WRITE_REQUEST.pack(record), data if len(data) else b"\0"]
        return await self._written(body, len(data), await self._packed(file, data))

    async def _packed(self, file: RemoteFile, data: Buffer) -> Packed | None:
        """Compress data, on a worker thread if that takes long. None: it is sent as it is, as compression was not
        agreed upon, or does not pay. [MS-SMB2 3.1.4.4]
        """
        agreed, length = self.client.negotiated.compression, len(data)
        if agreed is None:
            return None
        from smb3server.compression.transform import COMPRESSED_FROM, ON_THREAD_FROM

        if length < COMPRESSED_FROM or self.is_pipe:
            return None
        if file.benefit is None:
            file.benefit = Benefit()
        if not file.benefit.tries(length):
            return None
        packed = agreed.pack(data) if length < ON_THREAD_FROM else await asyncio.to_thread(agreed.pack, data)
        file.benefit.judge(packed is not None, length)
        return packed

    async def write_from(
        self, file: RemoteFile, offset: int, remote: Sequence[RemoteBuffer], length: int, *, invalidate: bool = True
    ) -> int:
        """Let the server fetch ``length`` bytes by RDMA, as they are, from the memory that ``remote`` describes; return
        the bytes written. The server refuses it where data must be signed or encrypted: use ``write``.
        """
        return await self._write_by_rdma(file, offset, remote, length, self._channel(invalidate), None)

    async def _write_by_rdma(
        self,
        file: RemoteFile,
        offset: int,
        remote: Sequence[RemoteBuffer],
        length: int,
        channel: io_wire.Channel,
        transform: CryptoTransform | None,
    ) -> int:
        if transform is None:
            described = io_wire.pack_descriptors(remote)
        else:
            described = pack_transforms(transform, channel, remote)
        record = io_wire.WriteRequest(
            offset=offset,
            persistent=file.file_id[0],
            volatile=file.file_id[1],
            channel=channel if transform is None else io_wire.Channel.RDMA_TRANSFORM,
            remaining_bytes=length,
            channel_info_offset=io_wire.TAIL,
            channel_info_length=len(described),
        )
        return await self._written([io_wire.WRITE_REQUEST.pack(record), described], length)

    async def _written(self, body: Sequence[Buffer], length: int, packed: Packed | None = None) -> int:
        response = await self._ask(Command.WRITE, body, io_wire.parse_write_response, length, packed=packed)
        return response.byte_count

    # Directories

    async def entries(
        self, directory: RemoteFile, pattern: str = "*", level: int = FileInfoClass.ID_BOTH_DIRECTORY
    ) -> AsyncGenerator[directory_info.ListedEntry, None]:
        """Yield the entries of an open directory from its beginning. [MS-SMB2 3.2.4.17]"""
        size = min(self.client.negotiated.max_transact_size, 1 << 20 if self.client.supports_multi_credit else 65536)
        flags = int(directory_wire.QueryDirectoryFlags.REOPEN)
        while True:
            record = directory_wire.QueryDirectoryRequest(
                info_class=level,
                flags=flags,
                persistent=directory.file_id[0],
                volatile=directory.file_id[1],
                output_buffer_length=size,
            )
            reply = await self.call(
                Command.QUERY_DIRECTORY,
                [directory_wire.build_query_directory_request(record, pattern)],
                payload=size,
                accept=(NtStatus.SUCCESS, NtStatus.NO_MORE_FILES, NtStatus.NO_SUCH_FILE),
            )
            try:
                if reply.status != NtStatus.SUCCESS:
                    return
                found = directory_info.decode_directory(level, query_wire.parse_output_response(reply.message))
            finally:
                reply.release()
            for entry in found:
                yield entry
            flags = 0

    async def watch(self, directory: RemoteFile, completion_filter: int, recursive: bool = False) -> Call:
        """Start one CHANGE_NOTIFY; pass the result to ``changes`` to wait for it. [MS-SMB2 3.2.4.18]"""
        from smb3server.wire import change_notify

        record = change_notify.ChangeNotifyRequest(
            flags=change_notify.WATCH_TREE if recursive else 0,
            output_buffer_length=65536,
            persistent=directory.file_id[0],
            volatile=directory.file_id[1],
            completion_filter=completion_filter,
        )
        body = change_notify.CHANGE_NOTIFY_REQUEST.pack(record)
        return await self.client.start(Command.CHANGE_NOTIFY, [body], self.session, self.tree_id)

    async def changes(self, watching: Call) -> list[Notification] | None:
        """Wait for a watch and return the changes; None if there were too many to report."""
        reply = await self.client.finish(watching)
        self.client.check(reply, (NtStatus.SUCCESS, NtStatus.NOTIFY_ENUM_DIR))
        try:
            if reply.status == NtStatus.NOTIFY_ENUM_DIR:
                return None
            from smb3server.wire.change_notify import decode_notifications

            return decode_notifications(query_wire.parse_output_response(reply.message))
        finally:
            reply.release()

    # Information

    async def query_info(
        self,
        file: RemoteFile,
        info_class: int,
        info_type: int = InfoType.FILE,
        *,
        size: int = 65536,
        additional: int = 0,
        data: bytes = b"",
    ) -> bytes:
        """Query information and return the output buffer. [MS-SMB2 3.2.4.8]

        ``size`` is the largest output accepted, in bytes; ``additional`` is AdditionalInformation.
        """
        return await self._do(steps.query_info(info_class, info_type, size, additional, data), file.file_id)

    async def set_info(
        self, file: RemoteFile, info_class: int, data: bytes, info_type: int = InfoType.FILE, additional: int = 0
    ) -> None:
        """Set information. ``additional`` is AdditionalInformation. [MS-SMB2 3.2.4.9]"""
        await self._do(steps.set_info(info_class, data, info_type, additional), file.file_id)

    async def ioctl(
        self,
        code: int,
        data: bytes = b"",
        file: RemoteFile | None = None,
        *,
        max_output: int = 65536,
        accept: Sequence[int] = (NtStatus.SUCCESS,),
    ) -> bytes:
        """Send an FSCTL and return its output. Without ``file`` it is not sent on an open. [MS-SMB2 3.2.4.20]"""
        from smb3server.wire import ioctl as ioctl_wire

        persistent, volatile = file.file_id if file is not None else (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
        record = ioctl_wire.IoctlRequest(
            ctl_code=code,
            persistent=persistent,
            volatile=volatile,
            max_output_response=max_output,
            flags=ioctl_wire.IOCTL_IS_FSCTL,
        )
        body = [ioctl_wire.build_ioctl_request(record, data)]
        payload = max(len(data), max_output)
        return await self._ask(
            Command.IOCTL, body, lambda message: bytes(ioctl_wire.parse_ioctl_response(message)[1]), payload, accept
        )

    # Breaks

    async def acknowledge_oplock_break(self, notification: OplockBreak) -> None:
        """Acknowledge an oplock break with the level that the server named. [MS-SMB2 3.2.5.19.1]"""
        from smb3server.wire.oplock_break import OPLOCK_BREAK

        await self._ask(Command.OPLOCK_BREAK, [OPLOCK_BREAK.pack(notification)], len)

    async def acknowledge_lease_break(self, lease_key: bytes, lease_state: int) -> None:
        """Acknowledge a lease break with ``lease_state``. [MS-SMB2 3.2.5.19.2]"""
        from smb3server.wire.oplock_break import LEASE_BREAK, LeaseBreak

        body = LEASE_BREAK.pack(LeaseBreak(lease_key=lease_key, lease_state=lease_state))
        await self._ask(Command.OPLOCK_BREAK, [body], len)
