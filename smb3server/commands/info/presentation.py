"""Attributes that clients see different from the store: a last write time that a client has set, and hidden names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable

from smb3server.backends.base import FileInfo, Path
from smb3server.commands.info import posix
from smb3server.files import write_times
from smb3server.state.objects import Open
from smb3server.wire import attributes as attr

NameTest = Callable[[str], bool]


def name_test(patterns: Iterable[str]) -> NameTest | None:
    """Return a function that returns whether a name matches one of ``patterns``, or None if there are none."""
    return hidden_name_test(patterns, False)


def hidden_name_test(patterns: Iterable[str], dot_files: bool) -> NameTest | None:
    """Return a function that returns whether a name (a last component) is to be hidden, or None if no name is.

    ``patterns`` are shell patterns, matched without regard to case. ``dot_files``: hide names that begin with a dot."""
    expressions = [fnmatch.translate(pattern) for pattern in patterns]
    if dot_files:
        expressions.append(r"\.[^.].*")
    if not expressions:
        return None
    matcher = re.compile("|".join(expressions), re.IGNORECASE | re.DOTALL)
    return lambda name: matcher.fullmatch(name) is not None


def hidden(info: FileInfo) -> FileInfo:
    """Return ``info`` with the attribute HIDDEN."""
    return info._replace(attributes=info.attributes & ~attr.NORMAL | attr.HIDDEN)


def shown(opened: Open, info: FileInfo, on_disk: Path | None = None) -> FileInfo:
    """Return ``info`` of the open's file as its client sees it. ``on_disk``: the file's path, if that is known."""
    if opened.store is not None and opened.store.posix:
        info = posix.shown(info)
    if opened.file is not None and opened.file.write_time is not None:
        info = write_times.visible(opened.file, info)
    hides = opened.tree.share.hides
    if hides is not None and info.link_count:
        # Without a link it was unlinked while it was open.
        path = opened.handle.path if on_disk is None and opened.handle is not None else on_disk
        if path and hides(path[-1]):
            return hidden(info)
    return info
