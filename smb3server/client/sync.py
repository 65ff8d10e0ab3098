"""Use shares from code that is not asynchronous.

    from smb3server.client.sync import connect

    with connect("smb://alice@nas/data") as share:
        with share.open("table.csv", "r") as file:
            print(file.readline())

The names are those of ``smb3server.client``. Files are file objects of ``io``: ``shutil``, ``zipfile`` and ``csv`` take
them. All shares of a process use one event loop on a thread of its own. They may be used from any other thread:
``progress`` functions, which are called on that one, get a ``RuntimeError`` from a share.

What a program leaves open is closed when it ends, within seconds; what cannot be written is told on stderr. A child
process that was forked cannot use its parent's shares (``RuntimeError``): it connects for itself.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import IO, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from smb3server.client import connecting
from smb3server.client.background import Background
from smb3server.client.entries import Entry
from smb3server.client.file import File
from smb3server.client.options import ConnectKeywords, CopyKeywords
from smb3server.client.share import Share as AsyncShare
from smb3server.client.share import StrPath
from smb3server.client.transfers import Transfer

P = ParamSpec("P")
T = TypeVar("T")
BUFFER = 1 << 20
"""Bytes that a file object reads ahead, and collects before it writes."""
TextMode = Literal["r", "w", "a", "x", "r+", "w+", "a+", "x+", "rt", "wt", "at", "xt"]
BinaryMode = Literal["rb", "wb", "ab", "xb", "r+b", "w+b", "a+b", "x+b", "rb+", "wb+", "ab+", "xb+"]
OPTIONS = frozenset(ConnectKeywords.__annotations__)
"""The names of the options of ``connect``."""


_loop = Background()


class _Outer:
    """A file object that is closed when the program drops it."""

    key: File | None = None
    """The file, once this is the object that the program gets."""

    def __del__(self) -> None:
        if self.key is not None and isinstance(self, io.IOBase):
            _loop.dropped(self.key, self)


class RawFile(_Outer, io.RawIOBase):
    """A file of a share without a buffer. ``Share.open`` puts the buffers of ``io`` around it."""

    def __init__(self, file: File) -> None:
        self._file = self.key = file
        self.name = file.name
        self.mode = file.mode

    def __repr__(self) -> str:
        return f"<RawFile of {self._file!r}>"

    def readable(self) -> bool:
        """Return whether the mode allows reading."""
        return self._file.readable()

    def writable(self) -> bool:
        """Return whether the mode allows writing."""
        return self._file.writable()

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer`` and return the number of bytes."""
        return _loop.run(self._file.readinto(buffer))

    def readall(self) -> bytes:
        """Read to the end of the file."""
        return _loop.run(self._file.read())

    def write(self, data: Any) -> int:
        """Write all of ``data`` and return the number of bytes."""
        _loop.check_file()
        return _loop.run(self._file.write(data))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position and return it."""
        return _loop.run(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def truncate(self, size: int | None = None) -> int:
        """Cut or extend the file."""
        return _loop.run(self._file.truncate(size))

    def sync(self) -> None:
        """Let the server write to its disk what it has cached of the file."""
        _loop.run(self._file.flush())

    def close(self) -> None:
        """Close the file. Idempotent."""
        if not self.closed:
            _loop.check_file()
            super().close()
            if _loop.closed(self._file):
                _loop.run(self._file.close())


class Reader(_Outer, io.BufferedReader):
    """A binary file of a share that is read."""


class Writer(_Outer, io.BufferedWriter):
    """A binary file of a share that is written."""


class Random(_Outer, io.BufferedRandom):
    """A binary file of a share that is read and written."""


class Text(_Outer, io.TextIOWrapper):
    """A text file of a share."""


def _blocking(method: Callable[Concatenate[AsyncShare, P], Awaitable[T]]) -> Callable[Concatenate[Share, P], T]:
    """Return a method that does the same, and waits for it."""

    @functools.wraps(method)
    def call(self: Share, /, *args: P.args, **options: P.kwargs) -> T:
        async def work() -> T:
            return await method(self.asynchronous, *args, **options)

        return _loop.run(work())

    return call


def _each(
    method: Callable[Concatenate[AsyncShare, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Share, P], Iterator[T]]:
    """Return a method that yields the same; each step waits for the next item."""

    @functools.wraps(method)
    def call(self: Share, /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        return _steps(method(self.asynchronous, *args, **options))

    return call


def _steps(items: AsyncGenerator[T, None]) -> Iterator[T]:
    async def step() -> tuple[bool, T | None]:
        async for item in items:
            return True, item
        return False, None

    process = os.getpid()
    try:
        while True:
            more, item = _loop.run(step())
            if not more or item is None:
                return
            yield item
    finally:
        # Where nobody can wait, the loop ends what it began when the generator is collected.
        if _loop.can_wait and process == os.getpid():
            _loop.run(items.aclose())


class Share:
    """A connected share; ``connect`` makes one. The methods are those of ``smb3server.client.Share``, and wait.

    ``progress`` functions are called on the thread of the event loop.
    """

    def __init__(self, share: AsyncShare) -> None:
        self.asynchronous = share
        """The same share for asynchronous code on the loop of this module."""
        _loop.connected(share)

    def __repr__(self) -> str:
        return repr(self.asynchronous)

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Log off and close the connections. Idempotent; in a child process the parent's share stays open."""
        _loop.disconnect(self.asynchronous)

    @property
    def transport(self) -> str:
        """How data travels, for people."""
        return self.asynchronous.transport

    @property
    def uses_rdma(self) -> bool:
        """Whether data travels by RDMA."""
        return self.asynchronous.uses_rdma

    @property
    def why_not_rdma(self) -> str:
        """Why data does not travel by RDMA; empty if it does."""
        return self.asynchronous.why_not_rdma

    @property
    def why_not_one_sided(self) -> str:
        """Why no file is read and written without requests; empty if the server lends files."""
        return self.asynchronous.why_not_one_sided

    @property
    def compressed(self) -> tuple[int, int]:
        """Bytes that travelled compressed so far, and how many they were on the way."""
        return self.asynchronous.compressed

    @property
    def followed(self) -> list[AsyncShare]:
        """The shares to which links of a namespace have led: their transports, and what they moved."""
        return self.asynchronous.followed

    @property
    def moved(self) -> dict[str, tuple[int, int]]:
        """Bytes of file data written and read so far, by what carried them."""
        return self.asynchronous.moved

    @overload
    def open(
        self,
        path: StrPath,
        mode: TextMode = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[str]: ...

    @overload
    def open(self, path: StrPath, mode: BinaryMode, buffering: int = -1) -> IO[bytes]: ...

    @overload
    def open(
        self,
        path: StrPath,
        mode: str,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]: ...

    def open(
        self,
        path: StrPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Open a file as the built-in ``open`` does; text is UTF-8 without an ``encoding``."""
        text = "b" not in mode
        binary = mode.replace("t", "") + "b" if text else mode
        if text and buffering == 0:
            raise ValueError("text needs a buffer")
        if not text and (encoding is not None or errors is not None or newline is not None):
            raise ValueError("a binary file has no encoding, errors or newline")
        file = _loop.run(self.asynchronous.open(path, binary))
        raw = RawFile(file)
        _loop.opened(file, file.name, raw)
        if buffering == 0:
            return raw  # type: ignore[return-value]
        size = buffering if buffering > 1 else BUFFER
        buffered: Random | Reader | Writer
        if raw.readable() and raw.writable():
            buffered = Random(raw, size)
        elif raw.readable():
            buffered = Reader(raw, size)
        else:
            buffered = Writer(raw, size)
        if not text:
            buffered.key = file
            _loop.opened(file, file.name, buffered, raw)
            return buffered
        wrapped = Text(buffered, encoding or "utf-8", errors, newline, line_buffering=buffering == 1)
        wrapped.key = file
        _loop.opened(file, file.name, wrapped, buffered, raw)
        return wrapped

    stat = _blocking(AsyncShare.stat)
    file_id = _blocking(AsyncShare.file_id)
    exists = _blocking(AsyncShare.exists)
    is_dir = _blocking(AsyncShare.is_dir)
    is_file = _blocking(AsyncShare.is_file)
    listing = _blocking(AsyncShare.listing)
    listdir = _blocking(AsyncShare.listdir)
    walk = _each(AsyncShare.walk)
    glob = _blocking(AsyncShare.glob)
    disk_usage = _blocking(AsyncShare.disk_usage)
    file_system = _blocking(AsyncShare.file_system)
    read_bytes = _blocking(AsyncShare.read_bytes)
    write_bytes = _blocking(AsyncShare.write_bytes)
    read_text = _blocking(AsyncShare.read_text)
    write_text = _blocking(AsyncShare.write_text)
    download = _blocking(AsyncShare.download)
    upload = _blocking(AsyncShare.upload)
    mkdir = _blocking(AsyncShare.mkdir)
    remove = _blocking(AsyncShare.remove)
    remove_listed = _blocking(AsyncShare.remove_listed)
    rmdir = _blocking(AsyncShare.rmdir)
    rmtree = _blocking(AsyncShare.rmtree)
    rename = _blocking(AsyncShare.rename)
    replace = _blocking(AsyncShare.replace)
    utime = _blocking(AsyncShare.utime)
    set_attributes = _blocking(AsyncShare.set_attributes)
    watch = _each(AsyncShare.watch)

    def scandir(self, path: StrPath = "") -> list[Entry]:
        """Return the entries of a folder, in the server's order; names that no entry can have are left out."""

        async def collect() -> list[Entry]:
            return [entry async for entry in self.asynchronous.scandir(path)]

        return _loop.run(collect())

    def copy(
        self,
        source: StrPath,
        target: StrPath,
        *,
        to: Share | None = None,
        exact: bool = False,
        replace: bool = True,
        **how: Unpack[CopyKeywords],
    ) -> Transfer:
        """Copy a file to another name on this share, or to the share ``to``; see ``smb3server.client.Share.copy``."""
        other = to.asynchronous if to is not None else None
        return _loop.run(self.asynchronous.copy(source, target, to=other, exact=exact, replace=replace, **how))


def connect(url: str, **options: Unpack[ConnectKeywords]) -> Share:
    """Connect to a share; see ``smb3server.client.connect``."""

    async def connected() -> AsyncShare:
        return await connecting.connect(url, **options)

    return Share(_loop.run(connected()))
