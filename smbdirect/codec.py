"""Codecs of fixed wire layouts, each declared once as an annotated NamedTuple.

    class Hello(NamedTuple):
        version: Annotated[int, Int16ul] = 1
        token: Annotated[bytes, Bytes(8)] = bytes(8)

    HELLO = Codec(Hello)

From that declaration ``Codec`` derives two codecs, which a property test compares:

``layout``
    the construct ``Struct``, for dumps, documentation and as the test oracle (tens of microseconds);
``unpack`` / ``pack``
    a ``struct.Struct`` over the NamedTuple, for the hot path (under half a microsecond).

Variable tails are not described here: the peer chooses their offsets, so each message module checks these against the
length of the message before it slices. All fields of one record share a byte order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, get_type_hints

from smbdirect.errors import DecodeError
from smbdirect.fields import Field

Buffer = bytes | bytearray | memoryview
"""The types that codecs read from. Views are not copied, except for ``Bytes`` fields."""

R = TypeVar("R", bound=tuple[Any, ...])

new_record = tuple.__new__
"""Makes a NamedTuple from its class and a tuple of all its fields, without a call of Python code: for the hot path."""


class Codec(Generic[R]):
    """The codec of one fixed record; ``size`` is its length in bytes."""

    def __init__(self, record: type[R]) -> None:
        hints = record.__annotations__
        if not all(hasattr(hint, "__metadata__") for hint in hints.values()):
            # Annotations of the record's module are text. To evaluate what is no text takes a command's start long.
            hints = get_type_hints(record, include_extras=True)
        codes: list[str] = []
        orders: set[str] = set()
        fields: list[tuple[str, Field]] = []
        for name in record._fields:  # type: ignore[attr-defined]
            (field,) = hints[name].__metadata__
            if not isinstance(field, Field):
                raise TypeError(f"field {name}: {field!r} is none of smbdirect.fields")
            codes.append(field.code)
            orders.add(field.order)
            fields.append((name, field))
        orders.discard("")
        if len(orders) > 1:
            raise TypeError(f"{record.__name__}: mixed byte orders")
        self.record = record
        self._fields = fields
        self._struct = struct.Struct((orders.pop() if orders else "<") + "".join(codes))
        self.size = self._struct.size
        self._unpack_from = self.fields_from = self._struct.unpack_from
        """``fields_from`` returns the bare tuple of fields, for callers that have checked the bounds."""
        self.pack_fields = self._struct.pack
        """Returns the bytes of fields that are passed one by one, in order."""
        self.iter_fields = self._struct.iter_unpack
        """Yields the bare tuples of consecutive records."""
        self.make: Callable[[Iterable[Any]], R] = record._make  # type: ignore[attr-defined]
        """Returns the record with the given fields."""

    @property
    def layout(self) -> Any:
        """The layout as a ``Struct`` of construct."""
        import construct

        made = []
        for name, field in self._fields:
            kind = getattr(construct, field.name)
            made.append(name / (kind(int(field.code[:-1])) if field.name == "Bytes" else kind))
        return construct.Struct(*made)

    def unpack(self, buffer: Buffer, offset: int = 0) -> R:
        """Return the record at ``offset``. Raise ``DecodeError`` if the buffer ends before the record does."""
        try:
            return self.make(self._unpack_from(buffer, offset))
        except struct.error:
            raise DecodeError(
                f"{self.record.__name__} needs {self.size} bytes at {offset}, message has {len(buffer)}"
            ) from None

    def pack(self, record: R) -> bytes:
        """Return the record's bytes. Raise ``struct.error`` for a value out of its field's range (a defect of ours)."""
        return self._struct.pack(*record)

    def pack_into(self, buffer: bytearray | memoryview, offset: int, record: R) -> None:
        """Write the record's bytes at ``offset`` of ``buffer``."""
        self._struct.pack_into(buffer, offset, *record)
