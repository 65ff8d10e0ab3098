"""The value of a condition for a token and a file: TRUE, FALSE or UNKNOWN. [MS-DTYP 2.5.3.1.5]

TRUE and FALSE are Python's, UNKNOWN is None. An error of an operator makes the whole condition UNKNOWN, an attribute
that nobody has makes a single operator UNKNOWN. [MS-DTYP 2.4.4.17.6, 2.4.4.17.7]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

from smb3server.access.claims import Claim, ClaimFlag, Claims, ClaimValue
from smb3server.access.conditions.expression import ATTRIBUTES, BINARY, LITERALS, Code, Term, unpack
from smb3server.access.descriptor import Sid
from smb3server.wire.upcase import upcase

_INVERSES = {
    Code.NOT_EQUAL: Code.EQUAL,
    Code.NOT_CONTAINS: Code.CONTAINS,
    Code.NOT_ANY_OF: Code.ANY_OF,
    Code.NOT_EXISTS: Code.EXISTS,
    Code.NOT_MEMBER_OF: Code.MEMBER_OF,
    Code.NOT_DEVICE_MEMBER_OF: Code.DEVICE_MEMBER_OF,
    Code.NOT_MEMBER_OF_ANY: Code.MEMBER_OF_ANY,
    Code.NOT_DEVICE_MEMBER_OF_ANY: Code.DEVICE_MEMBER_OF_ANY,
}
"""Operators that say the opposite of others."""
_OF_DEVICE = frozenset((Code.DEVICE_MEMBER_OF, Code.DEVICE_MEMBER_OF_ANY))
_OF_ANY = frozenset((Code.MEMBER_OF_ANY, Code.DEVICE_MEMBER_OF_ANY))


class _ConditionError(Exception):
    """An operator cannot process its operands."""


class _Operand:
    """The values of a literal or of an attribute, all of one type unless it is a literal."""

    __slots__ = ("_exact", "_folded", "case_sensitive", "is_literal", "is_set", "values")

    def __init__(
        self, values: tuple[ClaimValue, ...], *, is_set: bool, is_literal: bool, case_sensitive: bool = False
    ) -> None:
        self.values = values
        self.is_set = is_set
        self.is_literal = is_literal
        self.case_sensitive = case_sensitive
        self._exact: frozenset[ClaimValue] | None = None
        self._folded: frozenset[ClaimValue] | None = None

    def keys(self, fold: bool) -> frozenset[ClaimValue]:
        """Return the values in the form in which equal ones are the same. A condition may ask many times."""
        if fold:
            if self._folded is None:
                self._folded = frozenset(upcase(one) if isinstance(one, str) else one for one in self.values)
            return self._folded
        if self._exact is None:
            self._exact = frozenset(self.values)
        return self._exact


class _Missing(NamedTuple):
    """An attribute that nobody has."""


_MISSING = _Missing()
_Item = _Operand | _Missing | bool | None
"""What the stack holds: operands and results."""


class Facts:
    """What the conditions of one descriptor are evaluated with, for one token."""

    __slots__ = ("_attributes", "device_groups", "sids")

    def __init__(self, sids: frozenset[Sid], claims: Claims | None, resource: Iterable[Claim]) -> None:
        claims = claims or Claims()
        self.sids = sids
        self.device_groups = claims.device_groups
        # No token has local attributes (MS-DTYP 2.5.2).
        self._attributes = {
            Code.USER_ATTRIBUTE: _by_name(claims.user),
            Code.DEVICE_ATTRIBUTE: _by_name(claims.device),
            Code.RESOURCE_ATTRIBUTE: _by_name(resource),
        }

    def find(self, kind: Code, name: str, denying: bool) -> _Operand | _Missing:
        """Return an attribute."""
        flags, found = self._attributes.get(kind, {}).get(upcase(name), (0, None))
        if found is None or flags & ClaimFlag.DISABLED or (flags & ClaimFlag.USE_FOR_DENY_ONLY and not denying):
            return _MISSING
        return found


def _by_name(claims: Iterable[Claim]) -> dict[str, tuple[int, _Operand]]:
    found: dict[str, tuple[int, _Operand]] = {}
    for claim in claims:
        if claim.values:
            sensitive = bool(claim.flags & ClaimFlag.VALUE_CASE_SENSITIVE)
            operand = _Operand(claim.values, is_set=len(claim.values) > 1, is_literal=False, case_sensitive=sensitive)
            found.setdefault(upcase(claim.name), (claim.flags, operand))
    return found


def evaluate(data: bytes, facts: Facts, denying: bool) -> bool | None:
    """Return the value of the condition in the ApplicationData of an ACE. A malformed one is UNKNOWN.

    ``denying``: the ACE denies, so that claims which are for denying alone count. [MS-DTYP 2.4.10.1]
    """
    try:
        return value_of(unpack(data), facts, denying)
    except ValueError:
        return None


def value_of(terms: tuple[Term, ...], facts: Facts, denying: bool) -> bool | None:
    """Return the value of a condition that ``expression.unpack`` has returned."""
    stack: list[_Item] = []
    try:
        for term in terms:
            code = term.code
            if code in LITERALS:
                stack.append(_literal(term))
            elif code in ATTRIBUTES:
                stack.append(facts.find(code, str(term.value), denying))
            elif code in BINARY:
                right, left = stack.pop(), stack.pop()
                stack.append(_binary(code, left, right))
            else:
                stack.append(_unary(code, stack.pop(), facts))
        return _truth(stack.pop())
    except _ConditionError:
        return None


def _literal(term: Term) -> _Operand:
    value = term.value
    elements = value if term.code == Code.COMPOSITE and isinstance(value, tuple) else (term,)
    values = tuple(one.value for one in elements if isinstance(one, Term))
    return _Operand(cast("tuple[ClaimValue, ...]", values), is_set=term.code == Code.COMPOSITE, is_literal=True)


def _truth(item: _Item) -> bool | None:
    """Return the logical value of an operand. [MS-DTYP 2.4.4.17.7]"""
    if isinstance(item, _Operand):
        value = item.values[0] if item.values else None
        if item.is_literal or item.is_set or not isinstance(value, int | str):
            raise _ConditionError
        return bool(value)
    return None if isinstance(item, _Missing) else item


def _unary(code: Code, item: _Item, facts: Facts) -> bool | None:
    if code == Code.NOT:
        return _opposite(_truth(item))
    if code in _INVERSES:
        return _opposite(_unary(_INVERSES[code], item, facts))
    if code == Code.EXISTS:
        if isinstance(item, _Missing):
            return False
        if not isinstance(item, _Operand) or item.is_literal:
            raise _ConditionError
        return True
    if not isinstance(item, _Operand) or not item.is_literal or not item.values:
        raise _ConditionError
    if not all(isinstance(value, Sid) for value in item.values):
        raise _ConditionError
    sids = facts.device_groups if code in _OF_DEVICE else facts.sids
    return (any if code in _OF_ANY else all)(value in sids for value in item.values)


def _opposite(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _binary(code: Code, left: _Item, right: _Item) -> bool | None:
    if code in (Code.AND, Code.OR):
        decisive = code == Code.OR
        truths = (_truth(left), _truth(right))
        return decisive if decisive in truths else None if None in truths else not decisive
    if code in _INVERSES:
        return _opposite(_binary(_INVERSES[code], left, right))
    if not isinstance(left, _Operand | _Missing) or not isinstance(right, _Operand | _Missing):
        raise _ConditionError
    if isinstance(left, _Operand) and left.is_literal:
        raise _ConditionError
    if isinstance(left, _Missing) or isinstance(right, _Missing):
        return None
    kind = type(left.values[0])
    if any(type(value) is not kind for value in right.values):
        raise _ConditionError
    return _compare(code, left, right)


def _compare(code: Code, left: _Operand, right: _Operand) -> bool:
    """Compare values of one type. [MS-DTYP 2.4.4.17.6]"""
    fold = not (left.case_sensitive or right.case_sensitive)
    ours, others = left.keys(fold), right.keys(fold)
    if code == Code.CONTAINS:
        if not others:
            raise _ConditionError
        return ours >= others
    if code == Code.ANY_OF:
        # The section asks for a superset. Its example, and Windows, ask for one value that both have.
        return not ours.isdisjoint(others)
    if left.is_set != right.is_set:
        raise _ConditionError
    if code == Code.EQUAL:
        return ours == others
    if left.is_set or isinstance(left.values[0], Sid):
        raise _ConditionError
    (one,), (other,) = ours, others
    if code in (Code.GREATER, Code.LESS_OR_EQUAL):
        one, other = other, one
    less = bool(one < other)  # type: ignore[operator]
    return less == (code in (Code.LESS, Code.GREATER))
