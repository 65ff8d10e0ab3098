"""A strict reader of SOAP messages from strangers.

It refuses document types, and so all entities (no file is read, nothing expands), and limits size, depth, elements
and namespaces. It keeps the prefixes in scope, because WS-Discovery has names with prefixes in its text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

MAX_SIZE = 8192
"""Bytes of a message. Windows' are below 1.5 KiB; a UDP message must not be longer than 4 KiB. [SOAP-over-UDP 2.4]"""
MAX_DEPTH = 16
MAX_ELEMENTS = 256
MAX_NAMESPACES = 64
_SEPARATOR = " "
"""Between namespace and local name. It cannot be part of either."""

Name = tuple[str, str]
"""Namespace and local name."""


@dataclass(slots=True)
class Element:
    """One element, with its text and children. Attributes are dropped: no message here depends on one."""

    name: Name
    prefixes: dict[str, str]
    """The namespaces in scope."""
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def find(self, name: Name) -> Element | None:
        """Return the first child of that name."""
        return next((child for child in self.children if child.name == name), None)

    def text_of(self, name: Name) -> str:
        """Return the text of the first child of that name; empty if there is none."""
        found = self.find(name)
        return "" if found is None else found.text.strip()

    def names(self) -> list[Name]:
        """Return the text as a list of names with prefixes. Raises ``ValueError`` for an unknown prefix."""
        found = []
        for word in self.text.split():
            prefix, separator, local = word.rpartition(":")
            if separator and prefix not in self.prefixes:
                raise ValueError("unknown prefix")
            found.append((self.prefixes.get(prefix, ""), local))
        return found


class _Reader:
    """Builds the tree from the parser's events."""

    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0
        self._prefixes: dict[str, str] = {}
        self._shadowed: list[tuple[str, str | None]] = []

    def start_namespace(self, prefix: str | None, uri: str | None) -> None:
        if len(self._shadowed) >= MAX_NAMESPACES:
            raise ValueError("too many namespaces")
        key = prefix or ""
        self._shadowed.append((key, self._prefixes.get(key)))
        # A new mapping: elements that are open keep theirs.
        self._prefixes = {**self._prefixes, key: uri or ""}

    def end_namespace(self, prefix: str | None) -> None:
        key, before = self._shadowed.pop()
        self._prefixes = {name: uri for name, uri in self._prefixes.items() if name != key}
        if before is not None:
            self._prefixes[key] = before

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > MAX_ELEMENTS or len(self._open) >= MAX_DEPTH:
            raise ValueError("too many elements")
        uri, _, local = name.rpartition(_SEPARATOR)
        element = Element((uri, local), self._prefixes)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, name: str) -> None:
        self._open.pop()

    def characters(self, text: str) -> None:
        self._open[-1].text += text


def _refuse(*_: object) -> None:
    raise ValueError("document types are refused")


def parse(data: bytes) -> Element:
    """Return the root element of a message. Raises ``ValueError``."""
    if len(data) > MAX_SIZE:
        raise ValueError("too long")
    reader = _Reader()
    parser = expat.ParserCreate(namespace_separator=_SEPARATOR)
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse
    parser.EntityDeclHandler = _refuse
    parser.StartNamespaceDeclHandler = reader.start_namespace
    parser.EndNamespaceDeclHandler = reader.end_namespace
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.characters
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError) as error:
        # LookupError: an encoding that Python does not know.
        raise ValueError(f"not XML: {error}") from error
    if reader.root is None:
        raise ValueError("no element")
    return reader.root
