"""A handle that passes everything on to another one: the base of handles that do a few things in their own way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence

from smb3server.backends.base import (
    DataVersion,
    Described,
    DirectoryEntry,
    FileInfo,
    FinderData,
    Handle,
    Path,
    Retained,
    Search,
    StreamInfo,
    User,
)
from smb3server.wire.file_info import EaEntry
from smbdirect.codec import Buffer
from smbdirect.message_transport import FileRange, Payload


class ForwardingHandle(Handle):
    """A handle in front of another one, whose methods it calls."""

    __slots__ = ()

    @abstractmethod
    def open(self) -> Handle:
        """Return the handle that the methods are passed on to. Raises ``OSError``."""

    @property
    def path(self) -> Path:
        return self.open().path

    def fileno(self) -> int | None:
        return self.open().fileno()

    def describe(self) -> Described:
        return self.open().describe()

    def info(self) -> FileInfo:
        return self.open().info()

    def data_version(self) -> DataVersion:
        return self.open().data_version()

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        return self.open().read_into(buffers, offset)

    def cached(self, offset: int, length: int) -> FileRange | None:
        return self.open().cached(offset, length)

    def storage_failed(self) -> None:
        self.open().storage_failed()

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> int:
        return self.open().write_from(buffers, offset)

    def take_in(self, payload: Payload, offset: int) -> None:
        self.open().take_in(payload, offset)

    def flush(self) -> None:
        self.open().flush()

    def shrinking(self, size: int) -> Callable[[], None] | None:
        return self.open().shrinking(size)

    def allocating(self, size: int) -> Iterator[None] | None:
        return self.open().allocating(size)

    def zeroing(self, offset: int, length: int, deallocate: bool = False) -> Iterator[None] | None:
        return self.open().zeroing(offset, length, deallocate)

    def filling(self) -> Iterator[None] | None:
        return self.open().filling()

    def truncate(self, size: int) -> None:
        self.open().truncate(size)

    def allocate(self, size: int) -> None:
        self.open().allocate(size)

    def zero_range(self, offset: int, length: int, deallocate: bool = False) -> None:
        self.open().zero_range(offset, length, deallocate)

    def allocated_ranges(self, offset: int, length: int, limit: int = 65536) -> list[tuple[int, int]]:
        return self.open().allocated_ranges(offset, length, limit)

    def copy_range(self, source: Handle, source_offset: int, offset: int, length: int) -> int:
        return self.open().copy_range(source, source_offset, offset, length)

    def clone_range(self, source: Handle, source_offset: int, offset: int, length: int) -> None:
        self.open().clone_range(source, source_offset, offset, length)

    def set_times(
        self,
        creation: int | None = None,
        last_access: int | None = None,
        last_write: int | None = None,
        change: int | None = None,
    ) -> None:
        self.open().set_times(creation, last_access, last_write, change)

    def set_attributes(self, attributes: int) -> None:
        self.open().set_attributes(attributes)

    def set_compressed(self, compressed: bool) -> None:
        self.open().set_compressed(compressed)

    def eas(self) -> list[EaEntry]:
        return self.open().eas()

    def set_ea(self, name: bytes, value: bytes) -> None:
        self.open().set_ea(name, value)

    def set_eas(self, changes: Sequence[EaEntry], replace: bool = False) -> None:
        self.open().set_eas(changes, replace)

    def security_descriptor(self) -> bytes | None:
        return self.open().security_descriptor()

    def set_security_descriptor(self, descriptor: bytes) -> None:
        self.open().set_security_descriptor(descriptor)

    def set_permissions(
        self, uid: int | None, gid: int | None, mode: int | None = None, acl: bytes | None = None
    ) -> None:
        self.open().set_permissions(uid, gid, mode, acl)

    def set_mode(self, mode: int) -> None:
        self.open().set_mode(mode)

    def streams(self) -> list[StreamInfo]:
        return self.open().streams()

    def listing_streams(self, found: list[StreamInfo]) -> Iterator[None] | None:
        return self.open().listing_streams(found)

    def finder_data(self) -> FinderData:
        return self.open().finder_data()

    def lasting_number(self) -> int:
        return self.open().lasting_number()

    def removing_streams(self, spared: Collection[str], removed: list[str]) -> Iterator[None] | None:
        return self.open().removing_streams(spared, removed)

    def rename(self, target: Path, replace: bool, user: User | None = None) -> None:
        self.open().rename(target, replace, user)

    def rename_stream(self, name: str, replace: bool) -> None:
        self.open().rename_stream(name, replace)

    def link(self, target: Path, replace: bool, user: User | None = None) -> None:
        self.open().link(target, replace, user)

    def check_unlink(self) -> None:
        self.open().check_unlink()

    def unlink(self) -> None:
        self.open().unlink()

    def retained(self) -> Retained | None:
        return self.open().retained()

    def note_deletion(self) -> None:
        self.open().note_deletion()

    def reparse_point(self) -> bytes | None:
        return self.open().reparse_point()

    def set_reparse_point(self, data: bytes | None) -> None:
        self.open().set_reparse_point(data)

    def scan(self) -> Iterator[DirectoryEntry]:
        return self.open().scan()

    def has_vetoed(self) -> bool:
        return self.open().has_vetoed()

    def search(self, matches: Callable[[str], bool], only: str | None = None) -> Search:
        return self.open().search(matches, only)
