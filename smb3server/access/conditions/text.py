"""Conditions as text: ``(@User.Title == "PM" && Member_of {SID(BA)})``. [MS-DTYP 2.5.1.1]"""

from __future__ import annotations

import re

from smb3server.access.conditions.expression import (
    ATTRIBUTES,
    BINARY,
    LITERALS,
    MAX_TOKENS,
    Base,
    Code,
    Sign,
    Term,
    size_of,
)
from smb3server.access.descriptor import Sid
from smb3server.access.sid_names import show_sid
from smb3server.access.text_reader import Reader, escape, unescape

MAX_DEPTH = 64
"""Brackets and negations in each other."""

_SYMBOLS = {
    "==": Code.EQUAL,
    "!=": Code.NOT_EQUAL,
    "<=": Code.LESS_OR_EQUAL,
    "<": Code.LESS,
    ">=": Code.GREATER_OR_EQUAL,
    ">": Code.GREATER,
}
_WORDS = {
    "Contains": Code.CONTAINS,
    "Any_of": Code.ANY_OF,
    "Not_Contains": Code.NOT_CONTAINS,
    "Not_Any_of": Code.NOT_ANY_OF,
}
_PREFIXES = {
    "Exists": Code.EXISTS,
    "Not_Exists": Code.NOT_EXISTS,
    "Member_of": Code.MEMBER_OF,
    "Device_Member_of": Code.DEVICE_MEMBER_OF,
    "Member_of_Any": Code.MEMBER_OF_ANY,
    "Device_Member_of_Any": Code.DEVICE_MEMBER_OF_ANY,
    "Not_Member_of": Code.NOT_MEMBER_OF,
    "Not_Device_Member_of": Code.NOT_DEVICE_MEMBER_OF,
    "Not_Member_of_Any": Code.NOT_MEMBER_OF_ANY,
    "Not_Device_Member_of_Any": Code.NOT_DEVICE_MEMBER_OF_ANY,
}
_KINDS = {"@User.": Code.USER_ATTRIBUTE, "@Resource.": Code.RESOURCE_ATTRIBUTE, "@Device.": Code.DEVICE_ATTRIBUTE}
_LOGICAL = {"&&": Code.AND, "||": Code.OR}
_SHOWN = {code: text for table in (_SYMBOLS, _WORDS, _PREFIXES, _KINDS, _LOGICAL) for text, code in table.items()}
_BY_WORD = {text.casefold(): code for table in (_WORDS, _PREFIXES) for text, code in table.items()}
_EXISTENCE = frozenset((Code.EXISTS, Code.NOT_EXISTS))

_NO_TEXT = "condition without a text"
_WORD = re.compile(r"[\w:./][\w:./@]*")
_NAME = re.compile(r"(?:[\w#$'*+./:;?@\[\\\]^`{}~-]|%[0-9a-fA-F]{4})+")
_RELATION = re.compile(r"==|!=|<=|>=|<|>|[A-Za-z_]+")


def parse_condition(text: str, domain: Sid | None = None) -> tuple[Term, ...]:
    """Read a condition. Raises ``ValueError``. ``domain``: of which domain the accounts are that letters name."""
    reader = Reader(text, domain)
    terms = read_condition(reader)
    reader.blanks()
    if not reader.at_end:
        raise reader.wrong("the end")
    return terms


def read_condition(reader: Reader) -> tuple[Term, ...]:
    """Read a condition up to where it ends."""
    terms: list[Term] = []
    _Parser(reader, terms).either(0)
    if sum(map(size_of, terms)) > MAX_TOKENS:
        raise ValueError("condition of too many tokens")
    return tuple(terms)


class _Parser:
    """Appends the tokens of a condition in postfix order."""

    def __init__(self, reader: Reader, terms: list[Term]) -> None:
        self._reader = reader
        self._terms = terms

    def either(self, depth: int) -> None:
        """Read terms with || between them."""
        self._all(depth)
        while self._sign("||"):
            self._all(depth)
            self._terms.append(Term(Code.OR))

    def _all(self, depth: int) -> None:
        self._term(depth)
        while self._sign("&&"):
            self._term(depth)
            self._terms.append(Term(Code.AND))

    def _sign(self, token: str) -> bool:
        self._reader.blanks()
        return self._reader.take(token)

    def _term(self, depth: int) -> None:
        if depth == MAX_DEPTH:
            raise ValueError("condition of too many brackets")
        if self._sign("("):
            self.either(depth + 1)
            self._reader.blanks()
            self._reader.expect(")")
        elif self._reader.take("!"):
            self._term(depth + 1)
            self._terms.append(Term(Code.NOT))
        elif (attribute := self._prefixed()) is not None:
            self._relation(attribute)
        else:
            self._word()

    def _prefixed(self) -> Term | None:
        """Read the name of an attribute that says whose it is."""
        for prefix, code in _KINDS.items():
            if self._reader.take(prefix):
                name = self._reader.match(_NAME)
                if name is None:
                    raise self._reader.wrong("the name of an attribute")
                return Term(code, unescape(name[0]))
        return None

    def _word(self) -> None:
        word = self._reader.match(_WORD)
        if word is None:
            raise self._reader.wrong("a condition")
        code = _BY_WORD.get(word[0].casefold())
        if code is None:
            self._relation(Term(Code.LOCAL_ATTRIBUTE, word[0]))
            return
        self._reader.blanks()
        if code in _EXISTENCE:
            attribute = self._prefixed()
            if attribute is None:
                name = self._reader.match(_WORD)
                if name is None:
                    raise self._reader.wrong("the name of an attribute")
                attribute = Term(Code.LOCAL_ATTRIBUTE, name[0])
            self._terms.append(attribute)
        elif code in _PREFIXES.values():
            self._terms.append(self._literal())
        else:
            raise ValueError(f"{word[0]} without an attribute before it")
        self._terms.append(Term(code))

    def _relation(self, attribute: Term) -> None:
        """Read what follows the name of an attribute. It may be nothing."""
        self._terms.append(attribute)
        self._reader.blanks()
        found = self._reader.match(_RELATION)
        if found is None:
            return
        code = _SYMBOLS.get(found[0]) or _BY_WORD.get(found[0].casefold())
        if code not in BINARY:
            raise ValueError(f"{found[0]} is no operator")
        self._reader.blanks()
        self._terms.append(self._prefixed() or self._literal())
        self._terms.append(Term(code))

    def _literal(self) -> Term:
        if not self._reader.take("{"):
            return self._scalar()
        elements: list[Term] = []
        self._reader.blanks()
        while not self._reader.take("}"):
            if elements:
                self._reader.expect(",")
                self._reader.blanks()
            elements.append(self._scalar())
            self._reader.blanks()
        return Term(Code.COMPOSITE, tuple(elements))

    def _scalar(self) -> Term:
        if self._reader.take("SID("):
            sid = self._reader.sid()
            self._reader.expect(")")
            return Term(Code.SID, sid)
        if self._reader.take("#"):
            return Term(Code.OCTET_STRING, self._reader.octets())
        if self._reader.text.startswith('"', self._reader.position):
            return Term(Code.UNICODE_STRING, self._reader.quoted())
        value, text = self._reader.integer()
        if not -1 << 63 <= value < 1 << 63:
            raise ValueError("number too large")
        digits = text.lstrip("+-")
        octal = digits[0] == "0" and len(digits) > 1
        base = Base.HEXADECIMAL if digits[1:2] in ("x", "X") else Base.OCTAL if octal else Base.DECIMAL
        return Term(Code.INT64, value, {"+": Sign.PLUS, "-": Sign.MINUS}.get(text[0], Sign.NONE), base)


def show_condition(terms: tuple[Term, ...]) -> str:
    """Return a condition as text, in brackets. Raises ``ValueError`` if there is no text for it."""
    stack: list[tuple[str, Code]] = []
    for term in terms:
        code = term.code
        if code in LITERALS:
            shown = _show_literal(term)
        elif code in ATTRIBUTES:
            shown = _show_attribute(code, str(term.value))
        elif code in BINARY:
            right, left = stack.pop(), stack.pop()
            shown = _show_binary(code, left, right)
        else:
            shown = _show_unary(code, *stack.pop())
        stack.append((shown, code))
    return f"({_without_brackets(*stack[-1])})"


def _without_brackets(text: str, code: Code) -> str:
    if code in LITERALS:
        raise ValueError(_NO_TEXT)
    return text


def _show_attribute(code: Code, name: str) -> str:
    if code != Code.LOCAL_ATTRIBUTE and name:
        return _SHOWN[code] + escape(name)
    if not _WORD.fullmatch(name) or name.casefold() in _BY_WORD:
        raise ValueError(_NO_TEXT)
    return name


def _show_unary(code: Code, text: str, operand: Code) -> str:
    if code == Code.NOT:
        return f"!({_without_brackets(text, operand)})"
    if operand not in (ATTRIBUTES if code in _EXISTENCE else LITERALS):
        raise ValueError(_NO_TEXT)
    return f"{_SHOWN[code]} {text}"


def _show_binary(code: Code, left: tuple[str, Code], right: tuple[str, Code]) -> str:
    if code in _LOGICAL.values():
        return f"{_bracketed(*left)} {_SHOWN[code]} {_bracketed(*right)}"
    if left[1] not in ATTRIBUTES or right[1] not in LITERALS | ATTRIBUTES or right[1] == Code.LOCAL_ATTRIBUTE:
        raise ValueError(_NO_TEXT)
    return f"{left[0]} {_SHOWN[code]} {right[0]}"


def _bracketed(text: str, code: Code) -> str:
    return f"({text})" if code in _LOGICAL.values() else _without_brackets(text, code)


def _show_literal(term: Term) -> str:
    value = term.value
    if isinstance(value, int):
        sign = "-" if value < 0 or (term.sign == Sign.MINUS and not value) else "+" if term.sign == Sign.PLUS else ""
        digits = {Base.OCTAL: f"0{abs(value):o}", Base.HEXADECIMAL: f"0x{abs(value):x}"}
        return sign + digits.get(Base(term.base), str(abs(value)))
    if isinstance(value, str):
        if '"' in value:
            raise ValueError("quotation mark in a text")
        return f'"{value}"'
    if isinstance(value, bytes):
        return f"#{value.hex()}"
    if isinstance(value, Sid):
        return f"SID({show_sid(value)})"
    return "{" + ", ".join(map(_show_literal, value or ())) + "}"
