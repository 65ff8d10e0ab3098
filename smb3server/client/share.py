"""A share, or a folder of one, as a tree of files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fnmatch
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace as changed_copy
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar, Unpack

from smb3server.client import entries, errors, names
from smb3server.client.credentials import Login
from smb3server.client.entries import Entry, filetime_of
from smb3server.client.link import Link
from smb3server.client.options import CopyKeywords, CopyOptions
from smb3server.client.protocol import steps
from smb3server.client.protocol.steps import Step
from smb3server.client.protocol.tree import READ, SHARE_ALL, RemoteFile, Tree
from smb3server.process.log_lines import printable
from smb3server.wire import attributes as attr
from smb3server.wire.create import Access, CreateDisposition, CreateOptions, ShareAccess
from smb3server.wire.info_class import FileInfoClass
from smb3server.wire.query_info import InfoType
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError

if TYPE_CHECKING:
    # Who copies or opens no file does not pay for these modules.
    from smb3server.client.file import File
    from smb3server.client.handle import Handle
    from smb3server.client.links import Links
    from smb3server.client.small_files import Content
    from smb3server.client.transfers import Transfer
    from smb3server.wire.file_info import BasicInformation

log = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")
StrPath = str | os.PathLike[str]
AT_ONCE = 32
"""Files that are removed at the same time."""
MAX_DEPTH = 256
"""Folders within folders; deeper ones are taken for a folder that contains itself. This server allows as many."""
MAX_ENTRIES = 1 << 20
"""Entries of one folder, which are kept in memory."""
REPLACED = "it was changed or replaced since it was listed, and stays"
_LOOK = int(Access.READ_ATTRIBUTES | Access.SYNCHRONIZE)
_FOLDER = int(CreateOptions.DIRECTORY_FILE)
_NO_FOLDER = int(CreateOptions.NON_DIRECTORY_FILE)
_ITSELF = int(CreateOptions.OPEN_REPARSE_POINT)
_MARK = steps.remove()
"""Lets the server remove a file when it is closed. [MS-FSCC 2.4.11]"""
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class Change(NamedTuple):
    """One change in a folder that is watched."""

    action: str
    """added, removed, modified, renamed_from, renamed_to, or overflow: more happened than the server could report."""
    path: str


Walked = tuple[str, list[Entry], list[Entry]]
"""A folder, the folders in it, and its other entries."""


class Listing(NamedTuple):
    """What a folder has."""

    entries: list[Entry]
    unusable: list[str]
    """Names that no entry can have. The server chose them: they may contain anything."""


class Usage(NamedTuple):
    """The size of the volume that a share lies on, in bytes, as ``shutil.disk_usage`` has it."""

    total: int
    used: int
    free: int


_TO_WATCH = int(Access.READ_DATA | Access.READ_ATTRIBUTES | Access.SYNCHRONIZE)


_Method = Callable[Concatenate["Share", str, P], Coroutine[object, object, T]]
"""A method of a share that takes a cleaned path."""


def _where_it_lies(repeats: bool) -> Callable[[_Method[P, T]], _Method[P, T]]:
    """Do something with a path where it lies: on this share, or where a link of a namespace above it leads.

    ``repeats``: whether it may be repeated at another target of the link."""

    def decorate(method: _Method[P, T]) -> _Method[P, T]:
        async def there(share: Share, path: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
            if share._links is None:
                return await method(share, path, *args, **kwargs)

            async def here() -> T:
                return await method(share, path, *args, **kwargs)

            async def beyond(other: Share, rest: str) -> T:
                return await there(other, rest, *args, **kwargs)

            return await share._links.follow(path, share._on_share(path), here, beyond, repeats)

        return there

    return decorate


class Share:
    """A connected share; ``connect`` makes one.

    Paths are relative to the folder that was connected to, with slashes. Every operation raises ``RemoteError``: an
    ``OSError`` with errno and file name, which is a ``FileNotFoundError``, ``PermissionError`` ... as for local files.
    """

    def __init__(self, link: Link, login: Login, *, map_names: bool = True, links_before: int = 0) -> None:
        """``links_before``: the links of namespaces that led here."""
        self.link = link
        self.address = link.address
        self.left_out = 0
        """Entries that were left out of listings, because no entry can have their name."""
        self._login = login
        self._map_names = map_names
        self._links: Links[Share] | None = None
        """None if the share is no namespace."""
        if link.is_dfs and link.options.follow:
            from smb3server.client.links import Links

            self._links = Links(
                link,
                login,
                lambda link, login, depth: Share(link, login, map_names=map_names, links_before=depth),
                links_before,
            )

    def __repr__(self) -> str:
        return f"<Share {self.address}, {self.transport}>"

    # The connection

    @property
    def transport(self) -> str:
        """How data travels, for people: "iwarp (RDMA, signed)", "tcp, 2 channels", "iwarp (RDMA), one-sided"."""
        channels = self.link.channels
        if not channels:
            return "not connected"
        first = channels[0]
        way = f" ({first.tree.choice.way.value})" if first.by_rdma else ""
        packed = f", {self.link.compression}" if self.link.compression else ""
        lent = ", one-sided" if self.link.line is not None and self.link.line.is_open else ""
        return f"{first.fabric}{way}{f', {len(channels)} channels' if len(channels) > 1 else ''}{packed}{lent}"

    @property
    def why_not_one_sided(self) -> str:
        """Why no file is read and written without requests; empty if the server lends files."""
        line = self.link.line
        return "it was not asked for (one_sided=auto)" if line is None else "" if line.is_open else line.why_not

    @property
    def uses_rdma(self) -> bool:
        """Whether data travels by RDMA."""
        return any(channel.by_rdma for channel in self.link.channels)

    @property
    def why_not_rdma(self) -> str:
        """Why data does not travel by RDMA; empty if it does."""
        return "" if self.uses_rdma else self.link.why_not_rdma

    @property
    def moved(self) -> dict[str, tuple[int, int]]:
        """Bytes of file data written and read so far, by what carried them: ``iwarp``, ``roce``, ``verbs`` (by RDMA),
        ``messages`` (in messages over SMB Direct), ``tcp``, ``one-sided`` (by RDMA without requests).
        """
        return self.link.moved

    @property
    def compressed(self) -> tuple[int, int]:
        """Bytes that travelled compressed so far, and how many they were on the way."""
        counts = self.link.compressed
        return counts.sent + counts.received, counts.sent_compressed + counts.received_compressed

    @property
    def followed(self) -> list[Share]:
        """The shares to which links of a namespace have led, each with connections of its own."""
        found = self._links.shares if self._links is not None else []
        return [share for one in found for share in (one, *one.followed)]

    async def close(self) -> None:
        """Log off and close the connections. Idempotent."""
        if self._links is not None:
            await self._links.close()
        await self.link.close()

    async def __aenter__(self) -> Share:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Names

    def _on_share(self, path: str) -> str:
        """Return a cleaned path as it travels: from the share's root, with backslashes."""
        whole = names.join(self.address.path, path)
        parts = whole.split("/") if whole else []
        return "\\".join(map(names.to_share, parts) if self._map_names else parts)

    def _from_share(self, name: str) -> str:
        return names.from_share(name) if self._map_names else name

    def _named(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Give errors of a block the path; the folder that was connected to has an address only."""
        return errors.named(path or str(self.address))

    @_where_it_lies(repeats=True)
    async def _handle(
        self,
        path: str,
        access: int,
        disposition: int = CreateDisposition.OPEN,
        options: int = 0,
        attributes: int = 0,
        share: int = SHARE_ALL,
    ) -> Handle:
        from smb3server.client.handle import open_handle

        name = self._on_share(path)
        return await open_handle(self.link, path, name, access, disposition, options, attributes, share)

    async def _with_open(
        self, path: str, access: int, options: int, work: Callable[[Tree, RemoteFile], Awaitable[T]]
    ) -> T:
        """Open a file, do something once, and close the file."""

        async def open_work_close(tree: Tree) -> T:
            file = await tree.create(self._on_share(path), access, CreateDisposition.OPEN, options)
            try:
                return await work(tree, file)
            finally:
                if tree.client.closed is None:
                    await tree.close(file)

        return await self.link.once(open_work_close)

    async def _change(self, path: str, access: int, options: int, step: Step[int]) -> None:
        """Change something of a file once, in one message."""
        await self.link.once(lambda tree: tree.with_open(self._on_share(path), access, [step], options=options))

    # Looking

    async def stat(self, path: StrPath = "") -> Entry:
        """Return what is known of a file or folder. A symbolic link that the server does not follow is told as such."""
        clean = names.clean(path)
        return changed_copy(await self._stat(clean), name=names.split(clean)[1], path=clean)

    @_where_it_lies(repeats=True)
    async def _stat(self, clean: str) -> Entry:
        async def look(tree: Tree, options: int = 0) -> Entry:
            file, _ = await tree.with_open(self._on_share(clean), _LOOK, (), options=options)
            return entries.of_open(file.response, names.split(clean)[1], clean)

        with self._named(clean):
            try:
                return await self.link.again(look)
            except StatusError as error:
                if error.status != NtStatus.STOPPED_ON_SYMLINK:
                    raise
            return await self.link.again(lambda tree: look(tree, _ITSELF))

    async def file_id(self, path: StrPath = "") -> int:
        """Return the number that a file or folder has on its volume; 0 if the server has none."""
        return await self._file_id(names.clean(path))

    @_where_it_lies(repeats=True)
    async def _file_id(self, clean: str) -> int:
        async def look(tree: Tree) -> int:
            _, (found,) = await tree.with_open(self._on_share(clean), _LOOK, [steps.query_info(FileInfoClass.INTERNAL)])
            return _number_in(found)

        with self._named(clean):
            return entries.known_id(await self.link.again(look))

    async def exists(self, path: StrPath) -> bool:
        """Return whether there is a file or folder of this name."""
        return await self._kind(path) is not None

    async def is_dir(self, path: StrPath) -> bool:
        """Return whether there is a folder of this name."""
        found = await self._kind(path)
        return found is not None and found.is_dir()

    async def is_file(self, path: StrPath) -> bool:
        """Return whether there is a file of this name."""
        found = await self._kind(path)
        return found is not None and found.is_file()

    async def _kind(self, path: StrPath) -> Entry | None:
        try:
            return await self.stat(path)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return None

    async def scandir(self, path: StrPath = "") -> AsyncGenerator[Entry, None]:
        """Yield the entries of a folder, in the server's order.

        A name that no entry of a folder can have is left out, with a line in the log: it might lead elsewhere.
        """
        clean = names.clean(path)
        for entry in await self._list(clean):
            yield entry

    async def _list(self, path: str) -> list[Entry]:
        found = await self.listing(path)
        if found.unusable:
            log.warning(
                "%s: the server lists %s, which cannot be the name of an entry; left out: %d",
                printable(path or str(self.address), 1024),
                printable(repr(found.unusable[0]), 1024),
                len(found.unusable),
            )
            self.left_out += len(found.unusable)
        return found.entries

    async def listing(self, path: StrPath = "", file_id: int = 0) -> Listing:
        """Return the entries of a folder, and the names that no entry can have.

        With ``file_id`` the folder must be that one (ESTALE). A folder too deep to be true (ELOOP) is refused, and
        one with more entries than this machine should keep (EFBIG): a hostile server can list for ever.
        """
        clean = names.clean(path)
        if clean.count("/") >= MAX_DEPTH:
            raise errors.make(errno.ELOOP, clean, reason=f"more than {MAX_DEPTH} folders within each other")
        found = await self._listing(clean, file_id)
        return Listing(
            [changed_copy(entry, path=names.join(clean, entry.name)) for entry in found.entries]
            if self._links is not None
            else found.entries,
            found.unusable,
        )

    @_where_it_lies(repeats=True)
    async def _listing(self, clean: str, file_id: int) -> Listing:
        async def read(tree: Tree) -> Listing:
            folder = await tree.create(self._on_share(clean), READ, CreateDisposition.OPEN, _FOLDER)
            found: list[Entry] = []
            unusable: list[str] = []
            try:
                if file_id and await _id_of(tree, folder) != file_id:
                    raise _another(clean)
                async with contextlib.aclosing(tree.entries(folder)) as listed:
                    async for one in listed:
                        if one.name in (".", ".."):
                            continue
                        if len(found) + len(unusable) >= MAX_ENTRIES:
                            raise errors.make(errno.EFBIG, clean, reason=f"a folder of more than {MAX_ENTRIES} entries")
                        # A backslash separates names on the wire, so no name may have one before it is translated.
                        name = self._from_share(one.name)
                        if "\\" in one.name or not names.is_listable(name):
                            unusable.append(one.name)
                            continue
                        found.append(entries.of_listing(one, name, names.join(clean, name)))
                for number, entry in enumerate(found):
                    if names.may_be_substitute(entry.name):
                        found[number] = await self._with_true_name(tree, entry)
            finally:
                if tree.client.closed is None:
                    await tree.close(folder)
            return Listing(found, unusable)

        with self._named(clean):
            return await self.link.again(read)

    async def _with_true_name(self, tree: Tree, entry: Entry) -> Entry:
        """Return an entry that a server may have listed under a substitute, with its own name if that can be opened.

        Samba lists CON as CSHOFG~F. [MS-FSCC 2.4.2]
        """
        try:
            file = await tree.create(self._on_share(entry.path), _LOOK, options=_ITSELF)
            try:
                from smb3server.wire.file_info import decode_all

                _, whole = decode_all(await tree.query_info(file, FileInfoClass.ALL))
            finally:
                await tree.close(file)
        except (StatusError, DecodeError):
            return entry
        name = whole.rpartition("\\")[2]
        if not names.can_travel(name):
            return entry
        name = self._from_share(name)
        return changed_copy(entry, name=name, path=names.join(names.split(entry.path)[0], name))

    async def listdir(self, path: StrPath = "") -> list[str]:
        """Return the names in a folder."""
        return [entry.name for entry in await self._list(names.clean(path))]

    async def walk(
        self, path: StrPath = "", *, topdown: bool = True
    ) -> AsyncGenerator[tuple[str, list[Entry], list[Entry]], None]:
        """Yield (folder, its folders, its other entries) for a folder and all below it, sorted by name.

        With ``topdown`` a caller may remove folders from the list that it gets, to leave them out. Symbolic links are
        not followed; links of a namespace are.
        """
        async with contextlib.aclosing(self._walk(names.clean(path), topdown=topdown)) as walk:
            async for item in walk:
                yield item

    async def _walk(self, clean: str, *, topdown: bool, through_links: bool = True) -> AsyncGenerator[Walked, None]:
        """Walk through a folder. Without ``through_links``, links of a namespace are among the other entries."""
        found = sorted(await self._list(clean), key=lambda entry: entry.name)
        folders = [entry for entry in found if entry.is_dir() and (through_links or not entry.is_link)]
        others = [entry for entry in found if entry not in folders]
        if topdown:
            yield clean, folders, others
        for folder in folders:
            below_it = self._walk(folder.path, topdown=topdown, through_links=through_links)
            async with contextlib.aclosing(below_it) as below:
                async for item in below:
                    yield item
        if not topdown:
            yield clean, folders, others

    async def glob(self, pattern: str) -> list[Entry]:
        """Return what matches a pattern with ``*``, ``?``, ``[...]`` and ``**`` (any folders), sorted by path.

        Letters match in the case in which they are written.
        """
        parts = names.clean(pattern).split("/")
        found = {entry.path: entry for entry in await self._match("", parts)}
        return [found[path] for path in sorted(found)]

    async def _match(self, folder: str, parts: Sequence[str]) -> list[Entry]:
        first, rest = parts[0], parts[1:]
        if first == "**":
            below = [entry for entry in await self._list(folder) if entry.is_dir()]
            found = await self._match(folder, rest) if rest else below
            for entry in below:
                found += await self._match(entry.path, parts)
            return found
        if not is_pattern(first):
            here = await self._kind(names.join(folder, first))
            matching = [here] if here is not None else []
        else:
            matches = re.compile(fnmatch.translate(first)).match
            matching = [entry for entry in await self._list(folder) if matches(entry.name)]
        if not rest:
            return matching
        return [found for entry in matching if entry.is_dir() for found in await self._match(entry.path, rest)]

    async def disk_usage(self) -> Usage:
        """Return the size of the share's volume, and what this user may still use of it. [MS-FSCC 2.5.4]"""
        from smb3server.wire.fs_info import FULL_SIZE, FsInfoClass

        with self._named(""):
            data = await self.link.again(partial(self._volume, level=FsInfoClass.FULL_SIZE))
        size = FULL_SIZE.unpack(data)
        unit = size.sectors_per_unit * size.bytes_per_sector
        total, free = size.total_units * unit, size.caller_available_units * unit
        return Usage(total, total - size.actual_available_units * unit, free)

    async def file_system(self) -> str:
        """Return the name that the server has for its file system, as NTFS or FAT32. [MS-FSCC 2.5.1]"""
        from smb3server.wire.fs_info import FsInfoClass, decode_attribute

        with self._named(""):
            return decode_attribute(await self.link.again(partial(self._volume, level=FsInfoClass.ATTRIBUTE)))

    async def _volume(self, tree: Tree, level: int) -> bytes:
        asked = steps.query_info(level, InfoType.FILESYSTEM)
        _, (found,) = await tree.with_open(self._on_share(""), _LOOK, [asked])
        assert isinstance(found, bytes)
        return found

    # Files

    async def open(self, path: StrPath, mode: str = "rb") -> File:
        """Open a file in a binary mode of the built-in ``open``."""
        from smb3server.client.file import MODES, File, normal_mode

        clean, mode = names.clean(path), normal_mode(mode)
        access, disposition = MODES[mode]
        return File(await self._handle(clean, access, disposition, _NO_FOLDER), mode)

    async def read_bytes(self, path: StrPath) -> bytes:
        """Return the content of a file."""
        async with await self.open(path) as file:
            return await file.read()

    async def write_bytes(self, path: StrPath, data: Buffer) -> int:
        """Make or replace a file with this content; return the number of bytes."""
        async with await self.open(path, "wb") as file:
            return await file.write(data)

    async def read_text(self, path: StrPath, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the content of a file as text, with line ends as they are."""
        return (await self.read_bytes(path)).decode(encoding, errors)

    async def write_text(self, path: StrPath, text: str, encoding: str = "utf-8", errors: str = "strict") -> int:
        """Make or replace a file with this text; return the number of bytes."""
        return await self.write_bytes(path, text.encode(encoding, errors))

    async def download(
        self, path: StrPath, local: StrPath, *, exact: bool = False, **how: Unpack[CopyKeywords]
    ) -> Transfer:
        """Copy a file of the share to a local file, or into a local folder.

        The data goes to a file beside it (``NAME.*.part``), which takes its name when it is complete. With ``resume``
        such a file of an interrupted download of the same version is continued. Holes stay holes with ``sparse``.
        ``verify`` reads both files again and compares them. The file gets the time of its source, and the mode of the
        file that it replaces; a symbolic link is written through, as by ``open``. ``exact`` refuses a folder that has
        the name of the target, and replaces a link.
        """
        from smb3server.client import small_files, transfers

        clean = names.clean(path)
        target = Path(local)
        if not exact:
            if target.is_dir():
                target /= names.split(clean)[1]
            if target.is_symlink():
                target = target.resolve(strict=True)
        options = CopyOptions(**how)
        if options.expected >= 0 and not options.verify and small_files.goes_by_chain(self.link, options.expected):
            began = time.monotonic()
            content = await self._content(clean)
            if content is not None:
                return transfers.save(content, self.link, clean, target, options, began)
        source = await self._handle(clean, int(Access.GENERIC_READ), options=_NO_FOLDER)
        try:
            return await transfers.download(source, target, options)
        finally:
            await source.close()

    @_where_it_lies(repeats=True)
    async def _content(self, clean: str) -> Content | None:
        """Return a small file; None if it turns out to be a large one."""
        from smb3server.client import small_files

        with self._named(clean):
            return await small_files.read(self.link, self._on_share(clean))

    async def upload(
        self,
        local: StrPath,
        path: StrPath = "",
        *,
        attributes: int = 0,
        exact: bool = False,
        replace: bool = True,
        **how: Unpack[CopyKeywords],
    ) -> Transfer:
        """Copy a local file to a file of the share, or into a folder of it; see ``download``.

        ``attributes`` are FILE_ATTRIBUTE_* that the file gets when it is complete. Without ``replace`` a name that is
        taken then is an error (EEXIST).
        """
        from smb3server.client import transfers

        source, clean = os.fspath(local), names.clean(path)
        if not exact and (not clean or str(path).endswith("/") or await self.is_dir(clean)):
            clean = names.join(clean, Path(source).name)
        share, there = (self, clean) if self._links is None else await self._place(clean)
        return await transfers.upload(_Target(share, there, replace), source, CopyOptions(**how), attributes)

    async def copy(
        self,
        source: StrPath,
        target: StrPath,
        *,
        to: Share | None = None,
        exact: bool = False,
        replace: bool = True,
        **how: Unpack[CopyKeywords],
    ) -> Transfer:
        """Copy a file to another name on this share, or to the share ``to``; see ``upload``.

        On one share the server copies, and no data travels [MS-SMB2 3.2.4.20.2]; if it cannot, and between shares, the
        data goes through this machine. Times and attributes are kept.
        """
        from smb3server.client import copying

        clean, other = names.clean(source), to or self
        clean_target = names.clean(target)
        if not exact and (not clean_target or await other.is_dir(clean_target)):
            clean_target = names.join(clean_target, names.split(clean)[1])
        share, there = await other._place(clean_target)
        mine, path = await self._place(clean)
        if mine is share and names.key(path) == names.key(there):
            raise errors.make(errno.EINVAL, clean, reason="source and target are the same file", to=clean_target)
        handle = await self._handle(clean, int(Access.GENERIC_READ), options=_NO_FOLDER)
        try:
            return await copying.copy(handle, _Target(share, there, replace), CopyOptions(**how))
        finally:
            await handle.close()

    # Changing names

    async def _place(self, path: str) -> tuple[Share, str]:
        """Return the share that a path lies on, and the path there. The file itself need not be there."""
        if self._links is None:
            return self, path
        with contextlib.suppress(OSError):
            # Whoever opens the path learns of a link above it.
            await self._stat(path)
        found = await self._links.place(path)
        return (self, path) if found is None else await found[0]._place(found[1])

    async def mkdir(self, path: StrPath, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Make a folder; with ``parents`` those above it, too."""
        clean = names.clean(path)
        try:
            await self._make_directory(clean)
        except FileExistsError:
            if not exist_ok or not await self.is_dir(clean):
                raise
        except FileNotFoundError:
            above = names.split(clean)[0]
            if not parents or not above:
                raise
            await self.mkdir(above, parents=True, exist_ok=True)
            await self.mkdir(clean, exist_ok=exist_ok)

    @_where_it_lies(repeats=False)
    async def _make_directory(self, path: str) -> None:
        with self._named(path):
            await self.link.once(lambda tree: tree.make_directory(self._on_share(path)))

    async def remove(self, path: StrPath, *, force: bool = False) -> None:
        """Remove a file, or a symbolic link; with ``force`` a READONLY one, too."""
        clean = names.clean(path)
        try:
            await self._remove(clean, _NO_FOLDER)
        except PermissionError:
            if not force or not (await self.stat(clean)).read_only:
                raise
            await self._remove(clean, _NO_FOLDER, clear_read_only=True)

    async def rmdir(self, path: StrPath) -> None:
        """Remove an empty folder."""
        await self._remove(names.clean(path), _FOLDER)

    @_where_it_lies(repeats=False)
    async def _remove(self, path: str, options: int, clear_read_only: bool = False) -> None:
        """Mark for deletion rather than open with DELETE_ON_CLOSE: errors are told then. [MS-FSA 2.1.5.15.3]"""
        if not path:
            raise errors.make(errno.EBUSY, str(self.address), reason="it is the folder that was connected to")
        with self._named(path):
            if clear_read_only:
                access = int(Access.DELETE | Access.WRITE_ATTRIBUTES)
                await self._with_open(path, access, options | _ITSELF, partial(_mark, clear_read_only=True))
            else:
                await self._change(path, int(Access.DELETE), options | _ITSELF, _MARK)

    async def remove_listed(self, entry: Entry, *, force: bool = False) -> None:
        """Remove an entry of a listing if it still is what was listed; a folder must be empty.

        Another file of that name, or a file that was changed, stays (ESTALE). ``force`` removes READONLY ones, too.
        """
        await self._remove_listed(entry.path, entry, force)

    @_where_it_lies(repeats=False)
    async def _remove_listed(self, path: str, entry: Entry, force: bool) -> None:
        if not path:
            raise errors.make(errno.EBUSY, str(self.address), reason="it is the folder that was connected to")

        async def compare_and_mark(tree: Tree, file: RemoteFile) -> None:
            now = entries.of_open(file.response, entry.name, entry.path)
            changed = entry.is_file() and (now.size, now.modified_ns) != (entry.size, entry.modified_ns)
            if changed or (entry.file_id and await _id_of(tree, file) != entry.file_id):
                raise _another(entry.path)
            await _mark(tree, file, clear)

        clear = force and entry.read_only
        access = int(Access.DELETE | Access.READ_ATTRIBUTES) | (int(Access.WRITE_ATTRIBUTES) if clear else 0)
        with self._named(path):
            await self._with_open(path, access, _kind_of(entry) | _ITSELF, compare_and_mark)

    async def rmtree(self, path: StrPath, *, ignore_missing: bool = False, force: bool = False) -> int:
        """Remove a folder and everything below it; return how many entries. Symbolic links are not followed.

        ``force`` removes READONLY files, too.
        """
        clean = names.clean(path)
        if (place := await self._place(clean))[0] is not self and not place[1]:
            raise errors.make(errno.EBUSY, clean, reason="it is a link of a namespace; name what is in it")
        count = 0
        try:
            async with contextlib.aclosing(self._walk(clean, topdown=False, through_links=False)) as walk:
                async for folder, _, others in walk:
                    for at in range(0, len(others), AT_ONCE):
                        batch = others[at : at + AT_ONCE]
                        await together(
                            self._remove(entry.path, _kind_of(entry), force and entry.read_only) for entry in batch
                        )
                    if folder:
                        await self._remove(folder, _FOLDER, force and (await self.stat(folder)).read_only)
                    count += len(others) + 1
        except FileNotFoundError:
            if not ignore_missing:
                raise
        return count

    async def rename(self, source: StrPath, target: StrPath) -> None:
        """Rename a file or folder; fail if the new name is taken."""
        await self._rename(names.clean(source), names.clean(target), False)

    async def replace(self, source: StrPath, target: StrPath) -> None:
        """Rename a file or folder; a file that has the new name is replaced."""
        await self._rename(names.clean(source), names.clean(target), True)

    async def _rename(self, source: str, target: str, replace: bool) -> None:
        share, name = await self._place(source)
        other, new = await self._place(target)
        if share is not other:
            raise errors.make(errno.EXDEV, source, reason="they lie on different shares; copy it", to=target)
        with errors.named(source, target):
            step = steps.rename(share._on_share(new), replace)
            await share._change(name, int(Access.DELETE | Access.SYNCHRONIZE), _ITSELF, step)

    async def utime(self, path: StrPath, modified_ns: int, *, created_ns: int = 0) -> None:
        """Set the time of the last change of a file or folder, and the time when it was made if that is not 0."""
        created = filetime_of(created_ns) if created_ns else 0
        await self._set_basic(names.clean(path), steps.set_basic(created, filetime_of(modified_ns)))

    async def set_attributes(self, path: StrPath, attributes: int) -> None:
        """Set the attributes READONLY, HIDDEN, SYSTEM and ARCHIVE, and clear those that are not given. [MS-FSCC 2.6]"""
        await self._set_basic(names.clean(path), steps.set_basic(attributes=attributes or attr.NORMAL))

    @_where_it_lies(repeats=False)
    async def _set_basic(self, path: str, step: Step[int]) -> None:
        with self._named(path):
            await self._change(path, int(Access.WRITE_ATTRIBUTES | Access.SYNCHRONIZE), 0, step)

    # Watching

    async def watch(self, path: StrPath = "", *, recursive: bool = False) -> AsyncGenerator[Change, None]:
        """Yield the changes in a folder as they happen. [MS-SMB2 3.2.4.18]

        If the connection is lost, or more happens than the server can report, a change ``overflow`` says that some were
        missed: list the folder then. Of a namespace, changes beyond its links are not reported.
        """
        from smb3server.client.watching import ACTIONS, WATCHED

        clean = names.clean(path)
        share, there = await self._place(clean)
        if share is not self:
            async with contextlib.aclosing(share.watch(there, recursive=recursive)) as changes:
                async for change in changes:
                    yield Change(change.action, names.join(clean, change.path[len(there) :].lstrip("/")))
            return
        while True:
            with self._named(clean):
                channel = await self.link.ready()
                tree = channel.tree
                folder = await self.link.answered(
                    tree, lambda tree: tree.create(self._on_share(clean), _TO_WATCH, CreateDisposition.OPEN, _FOLDER)
                )
            try:
                while True:
                    with self._named(clean):
                        found = await tree.changes(await tree.watch(folder, WATCHED, recursive))
                    if found is None:
                        yield Change("overflow", clean)
                    for action, name in found or ():
                        below = "/".join(map(self._from_share, name.split("\\")))
                        yield Change(ACTIONS.get(action, "modified"), names.join(clean, below))
            except errors.RemoteConnectionError:
                if self.link.is_current(channel):
                    raise
                yield Change("overflow", clean)
            finally:
                if tree.client.closed is None:
                    await tree.close(folder)


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """Do several things at the same time, and raise the first error when all have ended."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def is_pattern(name: str) -> bool:
    """Return whether a name has characters of a pattern."""
    return any(character in name for character in "*?[")


def _another(path: str) -> errors.RemoteError:
    """Return the error for a name that something else has than what was listed."""
    return errors.make(errno.ESTALE, path, reason=REPLACED)


async def _id_of(tree: Tree, file: RemoteFile) -> int:
    """Return a file's number on its volume. [MS-FSCC 2.4.26]"""
    return _number_in(await tree.query_info(file, FileInfoClass.INTERNAL))


def _number_in(found: bytes) -> int:
    from smb3server.wire.file_info import INTERNAL

    return INTERNAL.unpack(found).index_number


async def _mark(tree: Tree, file: RemoteFile, clear_read_only: bool = False) -> None:
    """Let the server remove a file when it is closed. [MS-FSCC 2.4.11]"""
    before = file.response.file_attributes
    if clear_read_only:
        await tree.set_info(file, FileInfoClass.BASIC, _with_attributes(before & ~attr.READONLY))
    try:
        await tree.set_info(file, FileInfoClass.DISPOSITION, b"\1")
    except StatusError:
        if clear_read_only:
            await tree.set_info(file, FileInfoClass.BASIC, _with_attributes(before))
        raise


def _with_attributes(attributes: int) -> bytes:
    from smb3server.wire.file_info import BASIC, BasicInformation

    return BASIC.pack(BasicInformation(attributes=attributes & attr.SETTABLE or attr.NORMAL))


def _kind_of(entry: Entry) -> int:
    return _FOLDER if entry.attributes & attr.DIRECTORY else _NO_FOLDER


def _of_part(error: errors.RemoteError, path: str) -> errors.RemoteError:
    """Return the error for a part that could not be opened."""
    if error.status not in (NtStatus.SHARING_VIOLATION, NtStatus.FILE_NOT_AVAILABLE):
        return error
    reason = "another copy is writing this file, or was ended a moment ago; try again when it is done"
    return errors.make(errno.EBUSY, path, status=error.status, reason=reason)


class _Target:
    """A file of a share that is to be written: what ``transfers`` needs of it."""

    def __init__(self, share: Share, path: str, replace: bool) -> None:
        self.share = share
        self.path = path
        self._replace = replace

    @property
    def link(self) -> Link:
        return self.share.link

    async def is_readonly(self) -> bool:
        try:
            found = await self.share._kind(self.path)
        except PermissionError:
            # Who may not look may still be allowed to write.
            return False
        return found is not None and not found.is_dir() and bool(found.attributes & attr.READONLY)

    async def open_part(self, name: str, access: int, disposition: int) -> Handle:
        path = names.join(names.split(self.path)[0], name)
        try:
            with self.share._named(self.path):
                return await self.share._handle(path, access, disposition, _NO_FOLDER, share=int(ShareAccess.READ))
        except errors.RemoteError as error:
            raise _of_part(error, self.path) from error

    async def rename_part(self, part: Handle) -> None:
        """Give the complete file its name. Repeated, it does no harm: the open is that of the file itself."""
        with self.share._named(self.path):
            await part.rename(self.share._on_share(self.path), self._replace)

    async def write_small(
        self, part: str, data: bytes, times: BasicInformation, is_unchanged: Callable[[], bool]
    ) -> bool:
        from smb3server.client import small_files

        share, path = self.share, self.path
        file = small_files.Written(
            share._on_share(names.join(names.split(path)[0], part)),
            share._on_share(path),
            self._replace,
            data,
            times,
            is_unchanged,
        )
        try:
            with share._named(path):
                return await small_files.write(share.link, file)
        except errors.RemoteError as error:
            raise _of_part(error, path) from error

    async def open_complete(self) -> Handle:
        return await self.share._handle(self.path, int(Access.GENERIC_READ), options=_NO_FOLDER)
