"""Memory that peers may access, and the values that name it."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Int8ul, Int16ul, Int32ul, Int64ul
from smbdirect.message_transport import RemoteBuffer
from smbdirect.providers.base import Access, Capabilities, MemoryRegion, SharedRegions
from smbdirect.rdma.errors import NotSupported, OutOfRange

_VERSION = 1


class Rights(enum.IntFlag):
    """What a peer may do with a region."""

    READ = 1
    WRITE = 2
    ATOMIC = 4


_WORDS = {Rights.READ: "read", Rights.WRITE: "write", Rights.ATOMIC: "change by atomic operations"}


class _Packed(NamedTuple):
    version: Annotated[int, Int8ul]
    rights: Annotated[int, Int8ul]
    reserved: Annotated[int, Int16ul]
    token: Annotated[int, Int32ul]
    address: Annotated[int, Int64ul]
    length: Annotated[int, Int64ul]


_PACKED = Codec(_Packed)


@dataclass(frozen=True, slots=True)
class Handle:
    """A region of a peer, as a value: send it in a message, store it, hand on a part of it.

    It gives a right only to the peers for whom the region was registered. ``handle[4096:8192]`` names a part.
    """

    address: int
    """Of the first byte. It is opaque: not zero-based, and no address of this process."""
    token: int
    length: int
    """Bytes."""
    rights: Rights

    SIZE = _PACKED.size
    """Bytes of a packed handle."""

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> Handle:
        """Return the handle of a part. Raise ``ValueError`` for a step."""
        start, stop, step = part.indices(self.length)
        if step != 1:
            raise ValueError("a part of a region has no step")
        return Handle(self.address + start, self.token, max(stop - start, 0), self.rights)

    def pack(self) -> bytes:
        """Return the handle in ``Handle.SIZE`` bytes."""
        return _PACKED.pack(_Packed(_VERSION, int(self.rights), 0, self.token, self.address, self.length))

    @classmethod
    def unpack(cls, data: Buffer) -> Handle:
        """Decode a packed handle. Raise ``DecodeError`` if it is none."""
        if len(data) != cls.SIZE:
            raise DecodeError(f"a handle has {cls.SIZE} bytes, not {len(data)}")
        version, rights, _, token, address, length = _PACKED.unpack(data)
        if version != _VERSION:
            raise DecodeError(f"handle of version {version}")
        if rights & ~int(Rights.READ | Rights.WRITE | Rights.ATOMIC) or address + length > 1 << 64:
            raise DecodeError("not a handle")
        return cls(address, token, length, Rights(rights))

    def remote(self, offset: int, length: int, right: Rights) -> RemoteBuffer:
        """Return the range of a transfer. Raise ``OutOfRange`` if the handle does not give it."""
        if right not in self.rights:
            raise OutOfRange(f"the handle gives no right to {_WORDS[right]}")
        if offset < 0 or length > self.length - offset:
            raise OutOfRange(f"{length} bytes at {offset} of a region of {self.length}")
        return RemoteBuffer(self.address + offset, self.token, length)


class Region:
    """Registered memory, or a registered range of a file. A context manager, which closes it."""

    def __init__(self, registration: MemoryRegion, memory: memoryview, rights: Rights) -> None:
        self.memory = memory
        """Empty for a file."""
        self.handle = Handle(registration.address, registration.token, registration.length, rights)
        self._registration = registration

    @property
    def valid(self) -> bool:
        """Whether peers may still access it."""
        return self._registration.valid

    def close(self) -> None:
        """End all access by peers. The memory or the file is theirs no longer when this returns: a transfer under way
        ends with its connection. Idempotent."""
        self._registration.deregister()

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def access_of(rights: Rights) -> Access:
    """Return the access to register memory with, so that peers have ``rights``."""
    access = Access.LOCAL_WRITE if rights & (Rights.WRITE | Rights.ATOMIC) else Access(0)
    if rights & Rights.READ:
        access |= Access.REMOTE_READ
    if rights & Rights.WRITE:
        access |= Access.REMOTE_WRITE
    if rights & Rights.ATOMIC:
        access |= Access.REMOTE_ATOMIC
    return access


def rights_of(capabilities: Capabilities, readable: bool, writable: bool, atomic: bool) -> Rights:
    """Return the rights that the words mean. Raise ``ValueError`` if there are none, and ``NotSupported`` if the fabric
    does not have them."""
    rights = (Rights.READ if readable else Rights(0)) | (Rights.WRITE if writable else Rights(0))
    if atomic:
        check_atomics(capabilities)
        rights |= Rights.ATOMIC
    if not rights:
        raise ValueError("a region is readable, writable, atomic, or several of these")
    return rights


class HasDescriptor(Protocol):
    """An open file of Python's."""

    def fileno(self) -> int: ...


FileLike = int | HasDescriptor
"""A descriptor, or an object that has one."""


class Files(Protocol):
    """Who registers ranges of files."""

    def register_file(self, descriptor: int, offset: int, length: int, access: Access) -> MemoryRegion: ...


def registered_file(
    where: Files,
    capabilities: Capabilities,
    file: FileLike,
    offset: int,
    length: int | None,
    readable: bool,
    writable: bool,
) -> Region:
    """Register a range of a file: see ``Domain.register_file``. Raise ``NotSupported`` where the fabric is a device,
    which reaches memory only."""
    if not capabilities.registers_files:
        raise NotSupported(f"{capabilities.name} reaches memory only, not files")
    rights = rights_of(capabilities, readable, writable, False)
    descriptor = file if isinstance(file, int) else file.fileno()
    if length is None:
        length = max(os.fstat(descriptor).st_size - offset, 0)
    access = access_of(rights)
    return Region(where.register_file(descriptor, offset, length, access), memoryview(b""), rights)


def check_atomics(capabilities: Capabilities) -> None:
    """Raise ``NotSupported`` if there are no atomic operations."""
    if capabilities.atomics:
        return
    if capabilities.name == "iwarp":
        raise NotSupported("iWARP has no atomic operations (RFC 5040; those of RFC 7306 are not spoken here)")
    raise NotSupported(f"this device ({capabilities.name}) has no atomic operations")


class Domain:
    """Regions for all connections that are made with it: registered once, not once per connection.

    **Its peers are one trust domain**: whatever one of them is given a handle for, each of them may access with it. Use
    one domain per tenant.
    """

    def __init__(self, regions: SharedRegions, capabilities: Capabilities) -> None:
        self.regions = regions
        self._capabilities = capabilities

    def register(
        self, memory: Buffer, *, readable: bool = False, writable: bool = False, atomic: bool = False
    ) -> Region:
        """Register ``memory`` for the peers of the domain. Raise ``ProviderError`` if that is impossible, and
        ``NotSupported`` for ``atomic`` if the fabric has no atomic operations."""
        rights = rights_of(self._capabilities, readable, writable, atomic)
        view = memoryview(memory)
        return Region(self.regions.register(view, access_of(rights)), view, rights)

    def register_file(
        self,
        file: FileLike,
        offset: int = 0,
        length: int | None = None,
        *,
        readable: bool = False,
        writable: bool = False,
    ) -> Region:
        """Register ``length`` bytes from ``offset`` of an open file, all the rest without a length. Peers read and
        write the file itself, by system calls of the fabric: no byte of it is mapped. The caller may close the file.

        The range must be in the file already: no write makes it longer. If somebody makes it shorter meanwhile, a read
        of what is gone is refused, and a write puts it back, as that of any program. Raise ``ProviderError`` if it is
        no regular file, does not have the range, or is not open for this."""
        return registered_file(self.regions, self._capabilities, file, offset, length, readable, writable)

    def close(self) -> None:
        """Close every region. Idempotent."""
        self.regions.close()

    def __enter__(self) -> Domain:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
