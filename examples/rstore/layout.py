"""Where the bytes of a region are: striped over columns, each column copied to several servers.

A region of ``size`` bytes is cut into units. Unit ``u`` lies in column ``u % columns``, at row ``u // columns``. A
column is one extent: a piece of one server's memory, registered by itself. Each copy of a column is an extent, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

UNIT = 64 << 10
"""Bytes of a unit, unless a client asks for another size."""

CREATING, READY, FREEING, LOST = "creating", "ready", "freeing", "lost"


@dataclass
class Extent:
    """One copy of one column."""

    server: str
    name: str
    """Of the extent, at its server."""
    handle: str = ""
    """A packed ``rdma.Handle`` in hexadecimal digits; empty until the server has registered it."""


@dataclass
class Layout:
    """The record of a region: what the master stores, and what a client needs."""

    name: str
    size: int
    unit: int = UNIT
    state: str = CREATING
    generation: int = 1
    """Grows with every change of the extents. Handles of an older generation may be refused."""
    columns: list[list[Extent]] = field(default_factory=list)
    """The copies of each column; the first one is read."""
    addresses: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Of the servers. Not stored: the master adds them for clients."""

    @property
    def extent_size(self) -> int:
        """Bytes of each extent."""
        units = -(-self.size // self.unit)
        return -(-units // len(self.columns)) * self.unit

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Layout:
        fields = json.loads(data)
        fields["columns"] = [[Extent(**extent) for extent in copies] for copies in fields["columns"]]
        fields["addresses"] = {server: tuple(address) for server, address in fields["addresses"].items()}
        return cls(**fields)


class Piece(NamedTuple):
    """What a transfer does in one column."""

    column: int
    offset: int
    """In the column's extents."""
    views: list[memoryview]
    """The local memory, in the order of the extent's bytes."""


def pieces(layout: Layout, offset: int, view: memoryview) -> Iterator[Piece]:
    """Cut a transfer by columns. The bytes of one column lie side by side in its extents. Raise ``IndexError`` for what
    lies outside the region."""
    if offset < 0 or offset + len(view) > layout.size:
        raise IndexError(f"{len(view)} bytes at {offset} of a region of {layout.size}")
    unit, columns = layout.unit, len(layout.columns)
    found: dict[int, Piece] = {}
    position = 0
    while position < len(view):
        number, within = divmod(offset + position, unit)
        row, column = divmod(number, columns)
        count = min(unit - within, len(view) - position)
        part = view[position : position + count]
        if column in found:
            found[column].views.append(part)
        else:
            found[column] = Piece(column, row * unit + within, [part])
        position += count
    yield from found.values()
