"""What clients see of a file beyond what the store says: the delayed last write time, names that a share hides."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from smb3server.files import write_times
from smb3server.wire import attributes as attr

if TYPE_CHECKING:
    from smb3server.backends.base import FileInfo
    from smb3server.state.objects import Open

Hides = Callable[[str], bool]


def hider(patterns: Iterable[str], dot_files: bool) -> Hides | None:
    """Whether a name (its last component) is shown as hidden: shell patterns, regardless of case; None: none ever."""
    expressions = [fnmatch.translate(pattern) for pattern in patterns]
    if dot_files:
        expressions.append(r"\.[^.].*")
    if not expressions:
        return None
    matcher = re.compile("|".join(expressions), re.IGNORECASE | re.DOTALL)
    return lambda name: matcher.fullmatch(name) is not None


def hidden(info: FileInfo) -> FileInfo:
    return info._replace(attributes=info.attributes & ~attr.NORMAL | attr.HIDDEN)


def shown(opened: Open, info: FileInfo) -> FileInfo:
    """``info`` of the open's file as its client is to see it."""
    if opened.file is not None and opened.file.write_time is not None:
        info = write_times.visible(opened.file, info)
    hides = opened.tree.share.hides
    if hides is not None and opened.handle is not None:
        path = opened.handle.path
        if path and hides(path[-1]):
            return hidden(info)
    return info
