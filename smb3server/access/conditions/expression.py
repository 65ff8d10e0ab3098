"""The encoding of conditions: tokens in postfix order. [MS-DTYP 2.4.4.17.4]

Decoding raises ``ValueError`` for malformed input, and nothing else.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from smb3server.access.claims import ClaimValue
from smb3server.access.descriptor import Sid

SIGNATURE = b"artx"
"""Begins the ApplicationData of an ACE that has a condition. [MS-DTYP 2.4.4.17.4]"""
MAX_TOKENS = 2048
"""Tokens of a condition, with the elements of its composites."""

_U32 = struct.Struct("<I")
_INTEGER = struct.Struct("<qBB")


class Code(enum.IntEnum):
    """Byte-codes of tokens. [MS-DTYP 2.4.4.17.5 to 2.4.4.17.8]"""

    PADDING = 0x00
    INT8 = 0x01
    INT16 = 0x02
    INT32 = 0x03
    INT64 = 0x04
    UNICODE_STRING = 0x10
    OCTET_STRING = 0x18
    COMPOSITE = 0x50
    SID = 0x51
    EQUAL = 0x80
    NOT_EQUAL = 0x81
    LESS = 0x82
    LESS_OR_EQUAL = 0x83
    GREATER = 0x84
    GREATER_OR_EQUAL = 0x85
    CONTAINS = 0x86
    EXISTS = 0x87
    ANY_OF = 0x88
    MEMBER_OF = 0x89
    DEVICE_MEMBER_OF = 0x8A
    MEMBER_OF_ANY = 0x8B
    DEVICE_MEMBER_OF_ANY = 0x8C
    NOT_EXISTS = 0x8D
    NOT_CONTAINS = 0x8E
    NOT_ANY_OF = 0x8F
    NOT_MEMBER_OF = 0x90
    NOT_DEVICE_MEMBER_OF = 0x91
    NOT_MEMBER_OF_ANY = 0x92
    NOT_DEVICE_MEMBER_OF_ANY = 0x93
    AND = 0xA0
    OR = 0xA1
    NOT = 0xA2
    LOCAL_ATTRIBUTE = 0xF8
    USER_ATTRIBUTE = 0xF9
    RESOURCE_ATTRIBUTE = 0xFA
    DEVICE_ATTRIBUTE = 0xFB


class Sign(enum.IntEnum):
    """How the sign of an integer was written. [MS-DTYP 2.4.4.17.5]"""

    PLUS = 1
    MINUS = 2
    NONE = 3


class Base(enum.IntEnum):
    """In which base an integer was written. [MS-DTYP 2.4.4.17.5]"""

    OCTAL = 1
    DECIMAL = 2
    HEXADECIMAL = 3


_CODES = frozenset(map(int, Code))
_BITS = {Code.INT8: 8, Code.INT16: 16, Code.INT32: 32, Code.INT64: 64}
ATTRIBUTES = frozenset((Code.LOCAL_ATTRIBUTE, Code.USER_ATTRIBUTE, Code.RESOURCE_ATTRIBUTE, Code.DEVICE_ATTRIBUTE))
SCALARS = frozenset((*_BITS, Code.UNICODE_STRING, Code.OCTET_STRING, Code.SID))
LITERALS = SCALARS | {Code.COMPOSITE}
BINARY = frozenset(
    (
        Code.EQUAL,
        Code.NOT_EQUAL,
        Code.LESS,
        Code.LESS_OR_EQUAL,
        Code.GREATER,
        Code.GREATER_OR_EQUAL,
        Code.CONTAINS,
        Code.ANY_OF,
        Code.NOT_CONTAINS,
        Code.NOT_ANY_OF,
        Code.AND,
        Code.OR,
    )
)
"""Operators that have two operands. All others have one."""


class Term(NamedTuple):
    """One token."""

    code: Code
    value: ClaimValue | tuple[Term, ...] | None = None
    """The value of a literal, the elements of a composite, or the name of an attribute. None of operators."""
    sign: int = Sign.NONE
    base: int = Base.DECIMAL


def size_of(term: Term) -> int:
    """Return how many tokens a term counts for."""
    return 1 + (len(term.value) if term.code == Code.COMPOSITE and isinstance(term.value, tuple) else 0)


def unpack(data: bytes) -> tuple[Term, ...]:
    """Decode the ApplicationData of a callback ACE. Raises ``ValueError`` if it has no well-formed condition.

    The operators have as many operands as they need, and one result is left over.
    """
    if data[:4] != SIGNATURE:
        raise ValueError("no condition")
    terms: list[Term] = []
    count = depth = 0
    position = len(SIGNATURE)
    while position < len(data):
        term, position = _unpack_term(data, position, len(data))
        if term.code == Code.PADDING:
            if any(data[position:]):
                raise ValueError("padding within a condition")
            break
        count += size_of(term)
        if count > MAX_TOKENS:
            raise ValueError("condition of too many tokens")
        if term.code not in LITERALS and term.code not in ATTRIBUTES:
            depth -= 2 if term.code in BINARY else 1
            if depth < 0:
                raise ValueError("operator without operand")
        depth += 1
        terms.append(term)
    if depth != 1:
        raise ValueError("condition without one result")
    return tuple(terms)


def pack(terms: tuple[Term, ...]) -> bytes:
    """Return the encoded condition with its signature, padded to 4 bytes."""
    data = SIGNATURE + b"".join(map(_pack_term, terms))
    return data + bytes(-len(data) % 4)


def _unpack_term(data: bytes, position: int, end: int) -> tuple[Term, int]:
    """Decode the token at ``position``. Returns where the next one begins."""
    kind = data[position]
    if kind not in _CODES:
        raise ValueError("unknown token")
    code = Code(kind)
    position += 1
    if code in _BITS:
        return _unpack_integer(code, data, position, end)
    if code not in LITERALS and code not in ATTRIBUTES:
        return Term(code), position
    if end - position < _U32.size:
        raise ValueError("token cut short")
    (size,) = _U32.unpack_from(data, position)
    position += _U32.size
    if size > end - position:
        raise ValueError("token cut short")
    after = position + size
    if code == Code.COMPOSITE:
        return Term(code, _unpack_elements(data, position, after)), after
    body = data[position:after]
    if code == Code.OCTET_STRING:
        return Term(code, body), after
    if code == Code.SID:
        sid = Sid.unpack(body)
        if sid.size != size:
            raise ValueError("SID of another length")
        return Term(code, sid), after
    return Term(code, body.decode("utf-16-le")), after


def _unpack_integer(code: Code, data: bytes, position: int, end: int) -> tuple[Term, int]:
    if end - position < _INTEGER.size:
        raise ValueError("token cut short")
    value, sign, base = _INTEGER.unpack_from(data, position)
    if not -1 << _BITS[code] - 1 <= value < 1 << _BITS[code] - 1:
        raise ValueError("integer out of range")
    if not Sign.PLUS <= sign <= Sign.NONE or not Base.OCTAL <= base <= Base.HEXADECIMAL:
        raise ValueError("unknown form of an integer")
    return Term(code, value, sign, base), position + _INTEGER.size


def _unpack_elements(data: bytes, position: int, end: int) -> tuple[Term, ...]:
    elements: list[Term] = []
    while position < end:
        if len(elements) == MAX_TOKENS:
            raise ValueError("condition of too many tokens")
        # A composite in a composite would be recursion without a bound.
        if data[position] not in SCALARS:
            raise ValueError("composite of something else than values")
        element, position = _unpack_term(data, position, end)
        elements.append(element)
    return tuple(elements)


def _pack_term(term: Term) -> bytes:
    head, value = bytes((term.code,)), term.value
    if isinstance(value, int):
        return head + _INTEGER.pack(value, term.sign, term.base)
    if isinstance(value, str):
        body = value.encode("utf-16-le")
    elif isinstance(value, bytes):
        body = value
    elif isinstance(value, Sid):
        body = value.pack()
    elif value is not None:
        body = b"".join(map(_pack_term, value))
    else:
        return head
    return head + _U32.pack(len(body)) + body
