"""Open files of a share whose files are retained: each change asks first whether the file is still free.

So it does not matter when, with which rights and by which request a file was opened. Folders are free, but those with
retained files cannot be renamed: the files would get other paths.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat as stat_module
from collections.abc import Sequence
from typing import Any

from smb3server.backends.base import Handle, Kind, Path, Retained, User
from smb3server.backends.local import kept_files, syscalls
from smb3server.backends.local.handle import LocalHandle
from smb3server.backends.local.retention import Retention, State
from smb3server.backends.local.syscalls import Statx
from smbdirect.codec import Buffer
from smbdirect.message_transport import Payload

MOST = 1000
"""Entries below a folder that are looked at before it is renamed. If there are more, it cannot be renamed."""


def refusal(name: str = "") -> PermissionError:
    """Return the error for a change of a retained file."""
    return PermissionError(errno.EACCES, "the file is retained", name)


class RetainedHandle(LocalHandle):
    """A file, stream or directory of a share whose files are retained."""

    __slots__ = ("_free_until",)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of ``LocalHandle``."""
        super().__init__(*args, **options)
        self._free_until = 0

    @property
    def _rule(self) -> Retention:
        rule = self._backend.retention
        assert rule is not None
        return rule

    def _state(self) -> State:
        stat = syscalls.statx(self._descriptor())
        if self.kind == Kind.FILE:
            return self._rule.look(self._backend.store, self._ref, stat)
        # Symlinks and devices cannot have our attribute.
        return self._rule.judge(None, stat.ctime)

    def _check_free(self) -> None:
        """Raise PermissionError if the file is retained."""
        if self.kind == Kind.DIRECTORY or self._rule.clock.latest() < self._free_until:
            return
        found = self._state()
        if found.retained:
            raise refusal()
        self._free_until = found.since + self._rule.grace

    def _check_deletable(self) -> None:
        if self.kind != Kind.DIRECTORY:
            found = self._state()
            if found.retained and (self.stream or not self._rule.may_delete(found)):
                raise refusal()

    def retained(self) -> Retained | None:
        if self.kind == Kind.DIRECTORY:
            return None
        found = self._state()
        return Retained(self._rule.may_delete(found)) if found.retained else None

    # -- changes

    def _changing(self) -> None:
        self._check_free()
        super()._changing()

    def _deleting(self) -> None:
        self._check_deletable()
        super()._changing()

    def _changed(self) -> None:
        """Make a change of a stream count as one of its file."""
        if self.stream and self.kind == Kind.FILE:
            rule = self._rule
            if rule.clock.latest() + rule.grace // 2 > self._free_until:
                # Without the right to do so the file is retained earlier.
                with contextlib.suppress(OSError):
                    self._backend.store.touch(self._ref, syscalls.statx(self._descriptor()))
                    self._free_until = 0

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._check_free()
        written = super().write_from(buffers, offset)
        self._changed()
        return written

    def take_in(self, payload: Payload, offset: int) -> None:
        self._check_free()
        super().take_in(payload, offset)
        self._changed()

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._changed()

    def zero_range(self, offset: int, length: int, deallocate: bool = False) -> None:
        super().zero_range(offset, length, deallocate)
        self._changed()

    def copy_range(self, source: Handle, source_offset: int, offset: int, length: int) -> int:
        self._check_free()
        copied = super().copy_range(source, source_offset, offset, length)
        self._changed()
        return copied

    def clone_range(self, source: Handle, source_offset: int, offset: int, length: int) -> None:
        self._check_free()
        super().clone_range(source, source_offset, offset, length)
        self._changed()

    def rename_stream(self, name: str, replace: bool) -> None:
        self._check_free()
        super().rename_stream(name, replace)
        self._changed()

    def check_unlink(self) -> None:
        self._check_deletable()
        super().check_unlink()

    def unlink(self) -> None:
        if self.stream:
            self._check_deletable()
        super().unlink()

    # -- names

    def rename(self, target: Path, replace: bool, user: User | None = None) -> None:
        self._check_free()
        if self.kind == Kind.DIRECTORY and not self.stream:
            self._check_below()
        self._check_target(target)
        super().rename(target, replace, user)

    def link(self, target: Path, replace: bool, user: User | None = None) -> None:
        self._check_free()
        self._check_target(target)
        super().link(target, replace, user)

    def _check_target(self, target: Path) -> None:
        """Raise PermissionError if a retained file has the name."""
        try:
            descriptor, stat = self._backend.resolver.open_path(target, False)
        except FileNotFoundError:
            return
        try:
            if not stat_module.S_ISDIR(stat.mode) and self._is_retained(f"/proc/self/fd/{descriptor}", stat):
                raise refusal(target[-1] if target else "")
        finally:
            os.close(descriptor)

    def _is_retained(self, reference: str, stat: Statx) -> bool:
        if (stat.dev, stat.ino) == self.key or not stat_module.S_ISREG(stat.mode):
            return self._rule.judge(None, stat.ctime).retained
        return self._rule.look(self._backend.store, reference, stat).retained

    def _check_below(self) -> None:
        """Raise PermissionError if a file below the directory is retained, or if there are too many to look at."""
        pending: list[list[str]] = [[]]
        seen = 0
        while pending:
            inside = pending.pop()
            place = kept_files.enter(self._backend.resolver, self._descriptor(), inside)
            try:
                reading = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
                try:
                    with os.scandir(reading) as entries:
                        names = [entry.name for entry in itertools.islice(entries, MOST - seen + 1)]
                finally:
                    os.close(reading)
                seen += len(names)
                if seen > MOST:
                    raise PermissionError(errno.EACCES, f"more than {MOST} entries: some may be retained")
                pending += [[*inside, name] for name in names if self._is_free_folder(place, name)]
            finally:
                os.close(place)

    def _is_free_folder(self, place: int, name: str) -> bool:
        """Return whether an entry is a folder. Raises PermissionError for a retained file."""
        raw = os.fsencode(name)
        stat = syscalls.statx_at(place, raw)
        if stat_module.S_ISDIR(stat.mode):
            return True
        stamp = None
        if stat_module.S_ISREG(stat.mode):
            stamp = self._backend.store.retention_of_entry(place, raw)
        if self._rule.judge(stamp, stat.ctime).retained:
            raise refusal(name)
        return False
