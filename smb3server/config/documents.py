"""What people and programs read about the configuration file, from ``schema``: tables, examples, the JSON schema."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from smb3server.config import toml
from smb3server.config.schema import Document, Homes, ShareOptions
from smb3server.config.sections import Key, keys_of
from smb3server.settings.declaring import Effect, Section

WIDTH = 100
COMMON = {
    "server": ("name", "rdma", "state", "run_as", "require_encryption", "hosts_allow", "admins"),
    "groups": (),
    "share": ("name", "path", "comment", "read_only", "users", "read_list", "encrypt", "guest", "hide_dot_files"),
    "user": ("name", "password_file", "unix_user"),
}
"""Sections and keys of the short example."""
MORE: Mapping[str, tuple[Mapping[str, object], ...]] = {
    "site": ({"name": "paris", "networks": ["198.51.100.0/24"]},),
    "user": (
        {"name": "bob", "nt_hash": "878d8014606cda29677a44efa1353fc7"},
        {"name": "carol", "password": "correct horse battery staple"},
    ),
}
"""Further sections of the full example: for keys that exclude one another, and what others name."""
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def table(section: type[Section]) -> str:
    """Return the table of a section's keys, in Markdown."""
    lines = ["| key | default | means |", "| --- | --- | --- |"]
    # [homes] has the keys of [[share]], which have a table already.
    known = keys_of(ShareOptions) if section is Homes else {}
    lines += [
        f"| `{key.name}` | {_default(key)} | {key.description} |"
        for key in keys_of(section).values()
        if key.name not in known
    ]
    return "\n".join(lines) + "\n"


def effects(*parts: type[Section]) -> str:
    """Return the table that says when changed keys of these sections count, in Markdown."""
    known = sorted(key.name for part in parts for key in keys_of(part).values())
    by_name = {name: key.effect for part in parts for name, key in keys_of(part).items()}
    lines = ["| from when | settings |", "|---|---|"]
    for effect in Effect:
        names = ", ".join(f"`{name}`" for name in known if by_name[name] is effect)
        lines += [f"| {effect.value} | {names} |"] if names else []
    return "\n".join(lines) + "\n"


def sections() -> Mapping[str, type[Section]]:
    """Return the sections that have tables, by their headers: ``[server]``, ``[[share]]``, ``[[namespace.link]]``."""
    found = {header(key): key.section for key in keys_of(Document).values() if key.section is not None}
    for title, section in list(found.items()):
        for key in keys_of(section).values():
            if key.section is not None:
                found[f"[[{title.strip('[]')}.{key.name}]]"] = key.section
    return found


def header(key: Key) -> str:
    """Return the header of a section."""
    return f"[[{key.name}]]" if key.repeated else f"[{key.name}]"


def _default(key: Key) -> str:
    if key.needed:
        return "needed"
    if key.unset:
        return key.unset
    text = toml.literal(key.default)
    return text if re.fullmatch(r"[0-9.]+", text) else f"`{text}`"


class _Block(NamedTuple):
    """One section of an example."""

    header: str
    about: str
    lines: list[tuple[Key | None, str, object]]
    """Keys with their values. The declaration is None for keys of the operator's choice."""


def _blocks() -> Iterator[_Block]:
    for top in keys_of(Document).values():
        if isinstance(top.example, Mapping):
            yield _Block(header(top), top.description, [(None, name, value) for name, value in top.example.items()])
        elif top.section is not None:
            yield from _blocks_of(top.section, header(top))
            for values in MORE.get(top.name, ()):
                keys = keys_of(top.section)
                yield _Block(header(top), "", [(keys[name], name, value) for name, value in values.items()])


def _blocks_of(section: type[Section], title: str) -> Iterator[_Block]:
    keys = keys_of(section).values()
    values = [(key, key.name, key.example) for key in keys if key.section is None and key.example is not None]
    yield _Block(title, section.__doc__ or "", list(values))
    for key in keys:
        if key.section is not None:
            yield from _blocks_of(key.section, f"[[{title.strip('[]')}.{key.name}]]")


def everything() -> str:
    """Return an example with every key."""
    blocks = (
        [block.header, *(f"{toml.key(name)} = {toml.literal(value)}" for _, name, value in block.lines)]
        for block in _blocks()
    )
    return "\n\n".join(map("\n".join, blocks)) + "\n"


def example(full: bool) -> str:
    """Return a commented file to begin with, in which every setting is switched off by a ``#``.

    ``full``: with every key, not only with those that most servers need.
    """
    lines = list(
        _prose(
            "Configuration of smb3server. Lines that begin with # and a blank explain. Take the # away from a "
            "line of another kind to set what it says, and from the header of its section. Test the file with: "
            "smb3server check."
        )
    )
    for block in _blocks():
        name = block.header.strip("[]")
        if full or (name in COMMON and block.about):
            lines += ["", *_prose(block.about), f"#{block.header}"]
            for key, key_name, value in block.lines:
                if full or key is None or key_name in COMMON[name]:
                    lines += _prose(_explained(key)) if key is not None else []
                    lines.append(f"#{toml.key(key_name)} = {toml.literal(value)}")
    return "\n".join(lines) + "\n"


def _explained(key: Key) -> str:
    """Return a description without links, and with the default."""
    text = _LINK.sub(lambda found: found[1], key.description).replace("`", "")
    default = "It is needed." if key.needed else f"Default: {_default(key)}.".replace("`", "")
    return f"{text[:1].upper()}{text[1:]}. {default}"


def _prose(text: str) -> Iterator[str]:
    plain = " ".join(_LINK.sub(lambda found: found[1], text).replace("`", "").split())
    yield from (f"# {line}" for line in textwrap.wrap(plain, WIDTH - 2))


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the file, for editors."""
    found: dict[str, Any] = _without_null(msgspec.json.schema(Document))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "smb3server.toml", **found}


def _without_null(schema: Any) -> Any:
    """Leave out null, which TOML does not have: it stands for keys that are not given."""
    if isinstance(schema, list):
        return [_without_null(entry) for entry in schema if entry != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    found = {name: _without_null(entry) for name, entry in schema.items() if not (name == "default" and entry is None)}
    choices = found.get("anyOf")
    return {**{name: entry for name, entry in found.items() if name != "anyOf"}, **choices[0]} if choices else found
