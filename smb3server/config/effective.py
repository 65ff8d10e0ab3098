"""The values that a configuration has in effect, as TOML and as plain data. Secrets are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from smb3server.config import toml
from smb3server.config.documents import header
from smb3server.config.schema import Cluster, Document, Server
from smb3server.config.sections import Key, keys_of
from smb3server.settings.declaring import Section
from smb3server.settings.limits import Limits

HIDDEN = "(hidden)"


class _Table(NamedTuple):
    title: str
    values: list[tuple[Key, object]]


def as_toml(document: Document, everything: bool) -> str:
    """Return the values in effect. ``everything``: also those that are the defaults.

    Secrets, and keys that are not given and have no value, are comments.
    """
    blocks = []
    for table in _tables(document, everything):
        lines = [table.title]
        for key, value in table.values:
            if value is None:
                lines.append(f"# {key.name}: {key.unset or 'not given'}")
            elif key.secret:
                lines.append(f"# {key.name} = {HIDDEN}")
            else:
                lines.append(f"{toml.key(key.name)} = {toml.literal(value)}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def as_data(document: Document) -> dict[str, Any]:
    """Return all values in effect, with the sections and keys of the file."""
    return {key.name: _plain(key, getattr(document, key.name)) for key in keys_of(Document).values()}


def _plain(key: Key, value: object) -> object:
    if isinstance(value, Section):
        return {inner.name: _plain(inner, getattr(value, inner.name)) for inner in keys_of(type(value)).values()}
    if isinstance(value, list):
        return [_plain(key, entry) for entry in value]
    return HIDDEN if key.secret and value is not None else value


def _tables(document: Document, everything: bool) -> Iterator[_Table]:
    for key in keys_of(Document).values():
        value = getattr(document, key.name)
        if isinstance(value, dict):
            if value:
                yield _Table(header(key), [(_free(name), names) for name, names in value.items()])
            continue
        for section in value if isinstance(value, list) else [value]:
            if isinstance(section, Section):
                yield from _of_section(section, header(key), everything)


def _of_section(section: Section, title: str, everything: bool) -> Iterator[_Table]:
    keys = keys_of(type(section)).values()
    values = [(key, getattr(section, key.name)) for key in keys if key.section is None]
    changed = [(key, value) for key, value in values if everything or value != key.default]
    # [web] alone switches the page on, so it is shown although it has defaults only.
    if changed or not isinstance(section, Server | Limits | Cluster):
        yield _Table(title, changed)
    for key in keys:
        if key.section is not None:
            for inner in getattr(section, key.name):
                yield from _of_section(inner, f"[[{title.strip('[]')}.{key.name}]]", everything)


def _free(name: str) -> Key:
    return Key(name, list[str], list[str])
