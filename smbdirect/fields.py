"""Fields of fixed wire layouts, by the names that construct has for them.

Programs start faster without construct, which is only needed for dumps and as the test oracle: see
``codec.Codec.layout``.
"""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """One field."""

    name: str
    """Its name in construct."""
    code: str
    """The code of ``struct``."""
    order: str
    """The byte order, as in ``struct``; empty if it has none."""


def Bytes(length: int) -> Field:  # construct's name
    """Return the field of so many bytes, which are copied."""
    return Field("Bytes", f"{length}s", "")


Int8ul, Int8ub = Field("Int8ul", "B", ""), Field("Int8ub", "B", "")
Int16ul, Int16ub = Field("Int16ul", "H", "<"), Field("Int16ub", "H", ">")
Int32ul, Int32ub = Field("Int32ul", "L", "<"), Field("Int32ub", "L", ">")
Int64ul, Int64ub = Field("Int64ul", "Q", "<"), Field("Int64ub", "Q", ">")
Int64sl = Field("Int64sl", "q", "<")
