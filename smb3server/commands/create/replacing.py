"""Overwrites an existing file: removes data and extended attributes, and sets attributes. [MS-FSA 2.1.5.1.2.1]"""

from __future__ import annotations

from collections.abc import Sequence

from smb3server.backends.base import FileInfo, Handle
from smb3server.wire import attributes as attr
from smb3server.wire.create import CreateAction, CreateDisposition

SETTABLE = attr.SETTABLE & ~attr.SPARSE
"""The attributes that a CREATE may set."""


def action_of(disposition: int) -> CreateAction:
    """Return the CreateAction of an overwriting with this disposition."""
    superseded = disposition == CreateDisposition.SUPERSEDE
    return CreateAction.SUPERSEDED if superseded else CreateAction.OVERWRITTEN


def replace(handle: Handle, attributes: int, eas: Sequence[tuple[bytes, bytes]]) -> FileInfo:
    """Truncate the file or stream to 0 bytes, and return its metadata after that. Other streams are kept. Raises
    ``OSError``.

    ``attributes`` and ``eas`` are those of the request; a stream has none of its own."""
    handle.truncate(0)
    if not handle.stream:
        handle.set_attributes(attributes & SETTABLE | attr.ARCHIVE)
        if eas or handle.info().ea_size:
            handle.set_eas(eas, replace=True)
    return handle.info()
