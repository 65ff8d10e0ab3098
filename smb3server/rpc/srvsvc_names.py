"""Whether a name may be that of a user, a share and so on. [MS-SRVS 2.2.2.8]"""

from __future__ import annotations

from typing import NamedTuple

from smb3server.rpc.ndr import ERROR_INVALID_NAME, ERROR_INVALID_PARAMETER

_USUAL = frozenset('"/\\[]:|<>+=;,?') | frozenset(map(chr, range(1, 0x20)))


class _Rule(NamedTuple):
    least: int
    most: int
    forbidden: frozenset[str] = _USUAL


_COMPUTER, _MESSAGE_DESTINATION = 4, 11
_RULES = {
    1: _Rule(1, 256),
    2: _Rule(0, 256, frozenset()),
    3: _Rule(1, 256),
    _COMPUTER: _Rule(1, 260, _USUAL | {"*"}),
    5: _Rule(1, 16),
    6: _Rule(1, 15, _USUAL | {"*", " "}),
    7: _Rule(1, 80),
    8: _Rule(1, 260),
    9: _Rule(1, 80),
    10: _Rule(1, 15),
    _MESSAGE_DESTINATION: _Rule(1, 260),
    12: _Rule(0, 8, frozenset()),
    13: _Rule(1, 15),
}
"""By NAMETYPE. Passwords may have any characters."""


def name_error(name: str, kind: int, flags: int) -> int:
    """Return what NetprNameValidate answers: 0 if the name is valid. [MS-SRVS 3.1.4.32]"""
    rule = _RULES.get(kind)
    if rule is None or flags:
        return ERROR_INVALID_PARAMETER
    wrong = not rule.least <= len(name) <= rule.most or not rule.forbidden.isdisjoint(name)
    if rule.forbidden and not name.strip(". "):
        wrong = True
    if kind == _COMPUTER and name != name.strip():
        wrong = True
    if kind == _MESSAGE_DESTINATION:
        wrong = wrong or "*" in name[:-1] or (len(name) == rule.most and name[-1] != "*")
    return ERROR_INVALID_NAME if wrong else 0
