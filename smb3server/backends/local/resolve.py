"""Resolves clients' paths to descriptors without ever leaving the share's root.

Results are O_PATH descriptors. Opening one runs no driver and does not block on a FIFO. Checks on such a descriptor
stay valid when names change. With openat2(2) the kernel keeps the resolution beneath the root (RESOLVE_BENEATH:
absolute symlinks and ``..`` above the root are refused, atomically with renames). Without it a walk opens one component
after the other with O_NOFOLLOW, and interprets symlinks itself with a stack of open directories.

Exact names are tried first, in one call. If that fails, a walk ignores case and follows symlinks.
"""

from __future__ import annotations

import copy
import errno
import os
import stat as stat_module
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from smb3server.backends import names
from smb3server.backends.base import FolderNotRead, Path, PathNotFound, User
from smb3server.backends.local import impersonate, syscalls
from smb3server.backends.local.case_cache import CaseCache, ExactNames, Patience
from smb3server.backends.local.impersonate import LookAs
from smb3server.backends.local.syscalls import Statx

_PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_STRICT = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_SYMLINKS
_FOLLOWING = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS
_LOOK_CLOSER = frozenset((errno.ENOENT, errno.ELOOP, errno.ENOTDIR))
"""Errors of a look-up by exact names without symlinks, after which others may succeed."""
MAX_LINKS = 40
"""Symlinks that are followed in one path. The kernel has the same limit."""
_MAX_BYTES = 4000
"""Bytes. Longer paths are walked: PATH_MAX limits a single call of the kernel, but not the depth of a path."""


def _refused(path: Sequence[str]) -> OSError:
    return OSError(errno.ELOOP, "symlink not followed", "/".join(path))


def _excluding(vetoes: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda name: names.is_private(name) or vetoes(names.to_wire(name))


def _missing(path: Sequence[str], last: bool) -> FileNotFoundError:
    name = "/".join(path)
    if last:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return PathNotFound(errno.ENOENT, "no such directory", name)


class LookedUp(NamedTuple):
    """A file that a path leads to."""

    descriptor: int
    """O_PATH. The caller closes it."""
    stat: Statx
    is_folder: bool = False
    """The file is missing, and this is its folder."""
    path: Path | None = None
    """The path that it has on disk. None means that the look-up does not show it."""
    has_data: bool = False
    """Whether ``descriptor`` was opened for data: it is not O_PATH."""


class Resolver:
    """Resolves the paths of one share. ``root`` is the share's root. The caller keeps it open, and closes it."""

    def __init__(
        self,
        root: int,
        *,
        follow_symlinks: bool = True,
        openat2: bool | None = None,
        patience: Patience | None = None,
        case_sensitive: bool = False,
        vetoes: Callable[[str], bool] | None = None,
    ) -> None:
        """Create a resolver. ``openat2``: whether to use it; None means if the kernel has it. ``patience``: as for
        ``CaseCache``. ``vetoes``: as in ``LocalOptions``."""
        self._root = root
        self.follow_symlinks = follow_symlinks
        self.openat2 = syscalls.have_openat2() if openat2 is None else openat2
        self.cache: CaseCache | ExactNames
        self._any_case = self.cache = CaseCache(patience=patience)
        self.excludes: Callable[[str], bool]
        """Returns whether an on-disk name exists for no client."""
        self.set_names(case_sensitive, vetoes)
        self.lookups = 0
        """The number of paths resolved so far."""
        self._stops_at_links = False
        """Whether a symlink is what its own name leads to, and nothing is found by way of it (``for_posix``)."""

    def set_names(self, case_sensitive: bool, vetoes: Callable[[str], bool] | None) -> None:
        """Set which names exist for clients."""
        self.has_vetoes = vetoes is not None
        self.excludes = names.is_private if vetoes is None else _excluding(vetoes)
        self._any_case.exact = case_sensitive
        self._any_case.excludes = self.excludes

    def for_posix(self) -> Resolver:
        """Return a resolver of the same share for which case matters, and which follows no symlink: one as the last
        component is found itself. It has its own setting of what exists for clients (``set_names``)."""
        made = copy.copy(self)
        made._stops_at_links = True
        made.follow_symlinks = False
        made.cache = ExactNames(self._any_case)
        return made

    # -- descriptors to paths

    def disk_path(self, descriptor: int) -> list[str]:
        """Return the components below the root as they are on disk now. Raises FileNotFoundError if the descriptor has
        no name, or one outside."""
        full = os.readlink(f"/proc/self/fd/{descriptor}")
        root = os.readlink(f"/proc/self/fd/{self._root}")
        if full == root:
            return []
        prefix = root if root.endswith("/") else root + "/"
        if not full.startswith(prefix):
            raise FileNotFoundError(errno.ENOENT, "outside the share", full)
        components = full[len(prefix) :].split("/")
        if full.endswith(" (deleted)"):
            # The kernel appends this to the path of a deleted file, but a name can also end in it. Look the name up.
            try:
                parent = self.open_exact(components[:-1])
                try:
                    named = syscalls.statx_at(parent, os.fsencode(components[-1]))
                finally:
                    os.close(parent)
            except OSError:
                named = None
            stat = syscalls.statx(descriptor)
            if named is None or (named.dev, named.ino) != (stat.dev, stat.ino):
                raise FileNotFoundError(errno.ENOENT, "the file no longer has a name", full)
        return components

    # -- paths to descriptors

    def open_exact(self, components: Sequence[str]) -> int:
        """Return an O_PATH descriptor of on-disk components, without following symlinks. The caller closes it."""
        self.lookups += 1
        if not components:
            return os.open(".", _PATH_FLAGS, dir_fd=self._root)
        joined = os.fsencode("/".join(components))
        if self.openat2 and len(joined) < _MAX_BYTES:
            return syscalls.openat2(self._root, joined, _PATH_FLAGS, _STRICT)
        descriptor = os.open(".", _PATH_FLAGS, dir_fd=self._root)
        for component in components:
            try:
                child = self._step(descriptor, component)
            finally:
                os.close(descriptor)
            descriptor = child
        return descriptor

    def open_path(self, path: Path, follow: bool = True) -> tuple[int, Statx]:
        """Return an O_PATH descriptor (the caller closes it) and its stat.

        ``follow``: whether a symlink as the last component is followed, or returned itself. Raises FileNotFoundError if
        the last component is missing, PathNotFound if an ancestor is missing or no directory, and ``OSError`` (ELOOP)
        for a symlink that leads outside the root or must not be followed.
        """
        self.lookups += 1
        disk = names.to_disk_path(path)
        excluded = next((index for index, component in enumerate(disk) if self.excludes(component)), None)
        if excluded is not None:
            raise _missing(path, excluded == len(disk) - 1)
        joined = os.fsencode("/".join(disk)) or b"."
        missing = False
        if self.openat2 and len(joined) < _MAX_BYTES:
            try:
                descriptor, stat = syscalls.openat2_stat(self._root, joined, _PATH_FLAGS, _STRICT)
            except OSError as error:
                if error.errno not in _LOOK_CLOSER:
                    raise
                missing = error.errno == errno.ENOENT
            else:
                if not (follow and stat_module.S_ISLNK(stat.mode)):
                    return descriptor, stat
                os.close(descriptor)
        return self._search(disk, follow, missing)

    def look_up(
        self, path: Path, follow: bool, or_folder: bool, user: User | None, data_flags: int = -1, folder: bool = False
    ) -> LookedUp:
        """Do ``open_path`` as the user. With ``or_folder``, return the folder of the file if the file is missing: then
        a file whose name differs in case may count as missing. Raises PathNotFound if the folder is missing as well.

        ``data_flags``, ``folder``: as for ``syscalls.find_file``, which opens the data only where the names are exact.
        """
        joined = names.plain_on_disk(path)
        ids = impersonate.ids_of(user)
        if ids is True or joined is None or len(joined) >= _MAX_BYTES or not self.openat2 or self.has_vetoes:
            with LookAs(user):
                return self._look_closer(path, follow, or_folder)
        self.lookups += 1
        paths = (joined, os.path.dirname(joined) or b".") if or_folder else (joined,)
        try:
            place, descriptor, has_data, stat = syscalls.find_file(
                self._root, paths, _PATH_FLAGS, _STRICT, data_flags, folder, ids or None
            )
        except OSError as error:
            if error.errno not in _LOOK_CLOSER:
                raise
            if not or_folder:
                with LookAs(user):
                    return LookedUp(*self._search(list(path), follow, error.errno == errno.ENOENT))
        else:
            if place:
                if stat_module.S_ISDIR(stat.mode):
                    return LookedUp(descriptor, stat, True)
            elif not (follow and stat_module.S_ISLNK(stat.mode)):
                # As ``LookedUp(…)``, for a third of its time.
                found: LookedUp = tuple.__new__(LookedUp, (descriptor, stat, False, path, has_data))
                return found
            os.close(descriptor)
        with LookAs(user):
            return self._look_closer(path, follow, or_folder)

    def _look_closer(self, path: Path, follow: bool, or_folder: bool) -> LookedUp:
        """Do ``look_up`` for any path."""
        try:
            return LookedUp(*self.open_path(path, follow))
        except PathNotFound:
            raise
        except FileNotFoundError:
            if not or_folder:
                raise
            return LookedUp(*self.open_parent(path), True)

    def open_parent(self, path: Path) -> tuple[int, Statx]:
        """Return an O_PATH descriptor (the caller closes it) of the directory that ``path`` is or would be in, and its
        stat. Raises ``PathNotFound`` if there is none."""
        try:
            descriptor, stat = self.open_path(path[:-1])
        except FileNotFoundError:
            raise _missing(path, False) from None
        if not stat_module.S_ISDIR(stat.mode):
            os.close(descriptor)
            raise _missing(path, False)
        return descriptor, stat

    @staticmethod
    def _stat(descriptor: int) -> Statx:
        try:
            return syscalls.statx(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def _step(self, directory: int, component: str) -> int:
        """Open one component; a symlink itself. ``component`` has no '/' and is not '..', so it cannot lead outside."""
        if component in ("", ".", "..") or "/" in component:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), component)
        return os.open(component, _PATH_FLAGS, dir_fd=directory)

    def _search(self, disk: list[str], follow: bool, missing: bool) -> tuple[int, Statx]:
        """Find a file without regard to case, and follow symlinks. ``missing``: nothing has exactly this path."""
        if missing and len(disk) > 1:
            found = self._walk_last(disk, follow)
            if found is not None:
                return found
        return self._walk(disk, follow)

    def _walk_last(self, disk: list[str], follow: bool) -> tuple[int, Statx] | None:
        """Do ``_walk`` in one step if the parent exists under exactly the given name. None means that it does not."""
        try:
            parent = self.open_exact(disk[:-1])
        except OSError:
            return None
        try:
            stat = syscalls.statx(parent)
            return None if stat_module.S_ISLNK(stat.mode) else self._enter(parent, stat, disk, len(disk) - 1, follow)
        finally:
            os.close(parent)

    def _walk(self, disk: list[str], follow: bool) -> tuple[int, Statx]:
        descriptor = self.open_exact(())
        try:
            stat = syscalls.statx(descriptor)
            for index in range(len(disk)):
                child, child_stat = self._enter(descriptor, stat, disk, index, follow)
                os.close(descriptor)
                descriptor, stat = child, child_stat
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, stat

    def _enter(self, directory: int, stat: Statx, disk: list[str], index: int, follow: bool) -> tuple[int, Statx]:
        """Do one step of a walk: from ``directory``, whose stat is ``stat``, to component ``index``."""
        last = index == len(disk) - 1
        if not stat_module.S_ISDIR(stat.mode):
            raise _missing(disk, False)
        try:
            child, name = self._step_any_case(directory, stat, disk[index])
        except FileNotFoundError:
            raise _missing(disk, last) from None
        child_stat = self._stat(child)
        if stat_module.S_ISLNK(child_stat.mode) and (not last or (follow and not self._stops_at_links)):
            os.close(child)
            try:
                child = self._follow(directory, name)
            except (FileNotFoundError, NotADirectoryError):
                raise _missing(disk, last) from None
            child_stat = self._stat(child)
        return child, child_stat

    def find_ancestor(self, path: Path, matches: Callable[[int, Statx], bool]) -> int | None:
        """Return how many components of ``path`` lead to its first ancestor, from the top, that ``matches`` (it gets an
        O_PATH descriptor and its stat). This takes one walk. None means that there is no such ancestor before the first
        missing one."""
        disk = [names.to_disk(component) for component in path]
        descriptor = self.open_exact(())
        try:
            stat = syscalls.statx(descriptor)
            for index in range(len(disk) - 1):
                # To the resolver of ``for_posix`` a symlink is an ancestor like any other.
                way = disk[: index + 1] if self._stops_at_links else disk
                child, stat = self._enter(descriptor, stat, way, index, True)
                os.close(descriptor)
                descriptor = child
                if matches(descriptor, stat):
                    return index + 1
        except FolderNotRead:
            raise
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return None

    def _step_any_case(self, directory: int, stat: Statx, component: str) -> tuple[int, str]:
        try:
            return self._step(directory, component), component
        except FileNotFoundError:
            actual = self.cache.find(directory, component, stat)
            if actual is None or self.excludes(actual):
                raise
            return self._step(directory, actual), actual

    def follow(self, directory: int, name: str) -> tuple[int, Statx]:
        """Return an O_PATH descriptor (the caller closes it) and the stat of the target of symlink ``name`` in
        ``directory``."""
        descriptor = self._follow(directory, name)
        return descriptor, self._stat(descriptor)

    def _follow(self, directory: int, name: str) -> int:
        """Open the target of symlink ``name`` in ``directory``."""
        if not self.follow_symlinks:
            raise _refused((name,))
        components = [*self.disk_path(directory), name]
        if self.openat2:
            joined = os.fsencode("/".join(components))
            try:
                descriptor = syscalls.openat2(self._root, joined, os.O_PATH, _FOLLOWING)
            except OSError as error:
                if error.errno == errno.EXDEV:
                    raise _refused(components) from None
                raise
        else:
            descriptor = self._follow_by_hand(components)
        try:
            if any(map(self.excludes, self.disk_path(descriptor))):
                raise _refused(components)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _follow_by_hand(self, components: Sequence[str]) -> int:
        todo = deque(components)
        links = 0
        stack = [os.open(".", _PATH_FLAGS, dir_fd=self._root)]
        try:
            while todo:
                component = todo.popleft()
                if component in ("", "."):
                    continue
                if component == "..":
                    if len(stack) == 1:
                        raise _refused(components)
                    os.close(stack.pop())
                    continue
                child = self._step(stack[-1], component)
                stack.append(child)
                mode = syscalls.statx(child).mode
                if stat_module.S_ISLNK(mode):
                    links += 1
                    target = os.readlink("", dir_fd=child)
                    os.close(stack.pop())
                    if links > MAX_LINKS or target.startswith("/"):
                        raise _refused(components)
                    todo.extendleft(reversed(target.split("/")))
                elif todo and not stat_module.S_ISDIR(mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), component)
            return stack.pop()
        finally:
            for descriptor in stack:
                os.close(descriptor)
