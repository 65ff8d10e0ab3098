"""Registered memory and files in user space: the regions of an endpoint, whose tokens, ranges and rights the provider
checks itself, and a protection domain without a device."""

from __future__ import annotations

import array
import asyncio
import enum
import errno
import fcntl
import itertools
import os
import secrets
import stat
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from smbdirect.codec import Buffer
from smbdirect.errors import ProviderError
from smbdirect.providers import base
from smbdirect.providers.base import ATOMIC_SIZE, Access, DomainUser, ignore

_NUMBER = struct.Struct("=Q")


class Fault(enum.Enum):
    """Why a peer's access is refused."""

    TOKEN = "no such valid token"
    RANGE = "outside the region"
    RIGHT = "right not granted"
    FILE = "not in the file, or the disk failed"
    ALIGNMENT = "not on a multiple of 8"


class AccessRefused(Exception):
    """The peer named memory that it may not access; each provider reports the fault by its own error on the wire."""

    def __init__(self, fault: Fault, detail: str = "") -> None:
        super().__init__(detail or fault.value)
        self.fault = fault


def as_bytes_view(buffer: Buffer) -> memoryview:
    """Return a flat byte view. Raise ``ProviderError`` if the memory is not contiguous."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ProviderError("memory is not contiguous")
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


_TOKENS = 64
"""How many tokens are drawn at once."""
_NOTHING = memoryview(b"")
_NOWHERE = 0, 0
_IOV_MAX = 1024
"""Most buffers per system call (Linux UIO_MAXIOV)."""


def _duplicate(descriptor: int, offset: int, length: int, access: Access) -> int:
    """Return a duplicate of the descriptor of a file that has the range and is open for ``access``. Raise
    ``ProviderError`` if it is not."""
    try:
        status, flags = os.fstat(descriptor), fcntl.fcntl(descriptor, fcntl.F_GETFL)
        mode = flags & os.O_ACCMODE
        if not stat.S_ISREG(status.st_mode):
            raise ProviderError("not a regular file")
        if offset < 0 or length <= 0 or offset + length > status.st_size:
            raise ProviderError(f"{length} bytes at {offset} are not all in the file, which has {status.st_size}")
        if access & Access.REMOTE_READ and mode == os.O_WRONLY:
            raise ProviderError("the descriptor is not open for reading")
        # In such a mode Linux ignores the offset of pwrite.
        if access & Access.REMOTE_WRITE and (mode == os.O_RDONLY or flags & os.O_APPEND):
            raise ProviderError("the descriptor is not open for writing at any offset")
        if flags & getattr(os, "O_PATH", 0):
            raise ProviderError("the descriptor is not open for data")
        return os.dup(descriptor)
    except OSError as error:
        raise ProviderError(f"the file cannot be registered: {error.strerror}") from error


class NotCached(Exception):
    """Data of a file is not in the page cache: to read it may take as long as the disk wants."""

    def __init__(self, file: FileRange, position: int, length: int) -> None:
        super().__init__("not in the page cache")
        self._file, self._position, self._length = file, position, length

    def fetch(self, loop: asyncio.AbstractEventLoop, done: Callable[[], None]) -> None:
        """Have a worker thread read the data, then call ``done`` on ``loop``: it can be read at once then. Raise
        ``AccessRefused`` if the range was closed."""
        work = self._file.warm(self._position, self._length)
        loop.run_in_executor(None, work).add_done_callback(lambda _: done())


class FileRange:
    """A range of an open file. Every access is a system call on its descriptor, so a file that becomes shorter is an
    error of that call, and no signal."""

    __slots__ = ("_descriptor", "_no_wait", "_start", "_warm", "length")

    def __init__(self, descriptor: int, start: int, length: int, access: Access) -> None:
        """Duplicate the descriptor. Raise ``ProviderError`` if its file does not have the range, or is not open for
        ``access``."""
        self._descriptor = _duplicate(descriptor, start, length, access)
        self._start = start
        self.length = length
        self._no_wait = True
        """Whether the file system can tell what is in the page cache."""
        self._warm = _NOWHERE
        """Begin and end of what was read from the disk last, for a ``read`` to come."""

    def read(self, position: int, length: int, wait: bool = False) -> memoryview:
        """Return ``length`` bytes from ``position``. Raise ``AccessRefused`` if the file does not have all of them any
        longer, or cannot be read, and ``NotCached`` if the disk must be waited for, unless ``wait`` allows that."""
        data = memoryview(bytearray(length))
        first, end = self._warm
        waits = wait or not self._no_wait or (first <= position and position + length <= end)
        if waits:
            self._warm = _NOWHERE
        done = 0
        try:
            while done < length:
                at = self._start + position + done
                more = os.preadv(self._open(), [data[done:]], at, 0 if waits else os.RWF_NOWAIT)
                if not more and waits:
                    raise AccessRefused(Fault.FILE, "the file is shorter than its region")
                done += more
                if done < length and not waits:
                    # The end of the file, or of what is in the page cache.
                    raise NotCached(self, position, length)
        except BlockingIOError:
            raise NotCached(self, position, length) from None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or waits:
                raise AccessRefused(Fault.FILE, error.strerror or str(error)) from error
            # A file system without RWF_NOWAIT: tmpfs of older kernels, network file systems.
            self._no_wait = False
            return self.read(position, length)
        return data

    def warm(self, position: int, length: int) -> Callable[[], None]:
        """Return what reads a range from the disk, on a worker thread. ``read`` of this range does not raise
        ``NotCached`` next time. The range may be closed meanwhile."""
        descriptor, at = os.dup(self._open()), self._start + position
        self._warm = position, position + length

        def read() -> None:
            try:
                os.pread(descriptor, length, at)
            except OSError:
                pass  # the next ``read`` meets it, too
            finally:
                os.close(descriptor)

        return read

    def write(self, position: int, pieces: Sequence[memoryview]) -> None:
        """Write ``pieces``, one behind the other, at ``position``. Raise ``AccessRefused`` if the file does not take
        them all."""
        at = self._start + position
        try:
            for first in range(0, len(pieces), _IOV_MAX):
                some = pieces[first : first + _IOV_MAX]
                size = sum(map(len, some))
                if os.pwritev(self._open(), some, at) != size:
                    raise AccessRefused(Fault.FILE, "the file did not take all data")
                at += size
        except OSError as error:
            raise AccessRefused(Fault.FILE, error.strerror or str(error)) from error

    def _open(self) -> int:
        if self._descriptor < 0:
            raise AccessRefused(Fault.TOKEN)
        return self._descriptor

    def close(self) -> None:
        """End all access. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Region:
    """One registered region. Implements ``base.MemoryRegion``."""

    __slots__ = ("_owner", "access", "address", "file", "length", "memory", "token", "valid")

    def __init__(
        self,
        owner: RegionTable | LocalDomain,
        token: int,
        address: int,
        memory: memoryview,
        access: Access,
        file: FileRange | None = None,
    ) -> None:
        self._owner = owner
        self.token = token
        self.address = address
        self.memory = memory
        self.file = file
        """Where the bytes are if they are not in ``memory``, which is empty then. None for memory."""
        self.length = len(memory) if file is None else file.length
        self.access = access
        self.valid = True

    def invalidate(self) -> None:
        if self.valid:
            self.valid = False
            self._owner.forget(self)

    def deregister(self) -> None:
        """See ``base.MemoryRegion.deregister``. No view of the memory is kept."""
        self.invalidate()
        self.memory = _NOTHING
        if self.file is not None:
            self.file.close()


def _new_address() -> int:
    """Return an address for a region. It is opaque to the peer: a random page of the 47-bit space reveals nothing about
    this process."""
    return (secrets.randbits(35) + 1) << 12


class RegionTable:
    """The regions that the peer of one endpoint may name: its own, and those that it shares with other endpoints."""

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}
        """The endpoint's own, by token. Invariant: contains the valid regions and no others."""
        self._random = array.array("I")
        """Random numbers for tokens to come. To ask the system for each would cost a call for each RDMA Read."""
        self._shared: SharedRegions | None = None
        self.on_invalidated: Callable[[Region], None] = ignore
        """Called with each region that becomes invalid while the connection exists: a transfer may be using it."""

    def __len__(self) -> int:
        return len(self._regions)

    def __iter__(self) -> Iterator[Region]:
        return itertools.chain(self._regions.values(), self._shared or ())

    def share(self, shared: SharedRegions) -> None:
        """Let the peer name the regions of ``shared``, too."""
        self._shared = shared
        shared.tables.add(self)

    def register(self, memory: memoryview, access: Access) -> Region:
        """Register ``memory`` under a new token. Raise ``ProviderError`` if it is not contiguous, or read-only although
        ``access`` allows writing."""
        view = as_bytes_view(memory)
        if view.readonly and access & (Access.REMOTE_WRITE | Access.LOCAL_WRITE | Access.REMOTE_ATOMIC):
            raise ProviderError("read-only memory registered for writing")
        token = self.new_token()
        region = Region(self, token, _new_address(), view, access)
        self._regions[token] = region
        return region

    def register_file(self, descriptor: int, offset: int, length: int, access: Access) -> Region:
        """Register a range of a file under a new token: see ``base.Endpoint.register_file``."""
        file = FileRange(descriptor, offset, length, access)
        token = self.new_token()
        region = self._regions[token] = Region(self, token, _new_address(), _NOTHING, access, file)
        return region

    def new_token(self) -> int:
        """Return an unpredictable token that no region of this endpoint has."""
        while True:
            if not self._random:
                self._random = array.array("I", secrets.token_bytes(_TOKENS * 4))
            token = self._random.pop()
            shared = self._shared
            if token and token not in self._regions and (shared is None or shared.get(token) is None):
                return token

    def forget(self, region: Region) -> None:
        """Remove a region; only its ``invalidate`` calls this."""
        if self._regions.get(region.token) is region:
            del self._regions[region.token]
        self.on_invalidated(region)

    def invalidate_all(self) -> None:
        """Make every token of the endpoint's own regions invalid: the connection has ended."""
        regions, self._regions = self._regions, {}
        for region in regions.values():
            region.valid = False
            if region.file is not None:
                region.deregister()
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.tables.discard(self)

    def get(self, token: int) -> Region | None:
        """Return the valid region that ``token`` names, or None."""
        region = self._regions.get(token)
        return region if region is not None or self._shared is None else self._shared.get(token)

    def find(self, token: int, address: int, length: int, right: Access) -> tuple[Region, int]:
        """Return the region with ``length`` bytes at ``address`` and where they start in it. Raise ``AccessRefused``
        for a bad token, range or right."""
        region = self.get(token)
        if region is None:
            raise AccessRefused(Fault.TOKEN)
        start = address - region.address
        if start < 0 or start + length > region.length:
            raise AccessRefused(Fault.RANGE)
        if right not in region.access:
            raise AccessRefused(Fault.RIGHT)
        return region, start

    def change(self, token: int, address: int, compare: int | None, operand: int) -> int:
        """Carry out an ``Atomic`` of the peer, and return the number that was there. Raise ``AccessRefused``; nothing
        has changed then."""
        if address % ATOMIC_SIZE:
            raise AccessRefused(Fault.ALIGNMENT)
        region, start = self.find(token, address, ATOMIC_SIZE, Access.REMOTE_ATOMIC)
        found: int = _NUMBER.unpack_from(region.memory, start)[0]
        if compare is None:
            _NUMBER.pack_into(region.memory, start, (found + operand) & 0xFFFFFFFFFFFFFFFF)
        elif found == compare:
            _NUMBER.pack_into(region.memory, start, operand)
        return found

    def remote_invalidate(self, token: int) -> None:
        """Invalidate the region that the peer's Send with Invalidate names. Raise ``AccessRefused`` if the token is not
        that of a valid region of this endpoint alone: no peer takes away what others use."""
        region = self._regions.get(token)
        if region is None:
            raise AccessRefused(Fault.TOKEN)
        region.invalidate()


class SharedRegions(RegionTable):
    """Regions that the peers of several endpoints may name. Implements ``base.SharedRegions``.

    The peers are one trust domain: each of them may access what any of them is given."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: weakref.WeakSet[RegionTable] = weakref.WeakSet()
        """Those of the endpoints whose peers may name these regions."""

    def get(self, token: int) -> Region | None:
        return self._regions.get(token)

    def new_token(self) -> int:
        """Return an unpredictable token that no region of the endpoints has."""
        while True:
            token = super().new_token()
            if all(table.get(token) is None for table in self.tables):
                return token

    def forget(self, region: Region) -> None:
        super().forget(region)
        for table in tuple(self.tables):
            table.on_invalidated(region)

    def close(self) -> None:
        """Deregister every region."""
        for region in tuple(self._regions.values()):
            region.deregister()


class LocalDomain:
    """A protection domain without a device. Implements ``base.ProtectionDomain``. No peer can name its registrations,
    whose tokens are 0."""

    def __init__(self) -> None:
        self.live: set[Region] = set()
        self.closed = False
        self._owners: Counter[int] = Counter()
        """By the ``id`` of the object behind the memory: how many of ``live`` register it. Invariant: no count is 0."""
        self._users: weakref.WeakSet[DomainUser] = weakref.WeakSet()

    def add_user(self, user: DomainUser) -> None:
        self._users.add(user)

    def register(self, memory: memoryview, access: Access) -> Region:
        """See ``base.ProtectionDomain``. Raise ``ProviderError`` if ``access`` has a remote right, which only regions
        of one endpoint may give, or if the domain is closed."""
        if self.closed:
            raise ProviderError("the protection domain is closed")
        if access & (Access.REMOTE_READ | Access.REMOTE_WRITE | Access.REMOTE_ATOMIC):
            raise ProviderError("a remote right in a domain that endpoints share")
        registration = Region(self, 0, 0, memory, access)
        self.live.add(registration)
        self._owners[id(memory.obj)] += 1
        return registration

    def forget(self, registration: Region) -> None:
        """Remove a registration; only its ``invalidate`` calls this."""
        self.live.discard(registration)
        owner = id(registration.memory.obj)
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]

    def covers(self, segment: Buffer) -> bool:
        """Return whether the object behind ``segment`` is registered here."""
        return id(memoryview(segment).obj) in self._owners

    def close(self) -> None:
        """Notify the users, then end every registration."""
        self.closed = True
        for user in list(self._users):
            user.domain_closed()
        for registration in list(self.live):
            registration.deregister()


def share(table: RegionTable, regions: base.SharedRegions) -> None:
    """Let the peer of the endpoint with ``table`` name ``regions``. Raise ``ProviderError`` if they are a device's."""
    if not isinstance(regions, SharedRegions):
        raise ProviderError("the regions belong to another fabric")
    table.share(regions)
