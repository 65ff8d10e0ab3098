"""Read sections of the file as ``schema`` declares them, key by key, so that all mistakes are found at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from smb3server.config import toml
from smb3server.config.error import Place, Problem, Problems, label
from smb3server.config.positions import KeyPath, Positions
from smb3server.config.schema import Document
from smb3server.settings.declaring import Effect, Section
from smb3server.settings.limits import Limits
from smb3server.settings.server import Settings

AnySection = TypeVar("AnySection", bound=Section)

ELSEWHERE = {
    "browseable": "write hidden = true instead of browseable = false",
    "browsable": "write hidden = true instead of browsable = false",
    "create_mode": "write create_mask",
    "directory_mode": "write directory_mask",
    "directory": "write path",
    "follow_symlinks": 'write symlinks = "beneath" or "never"',
    "guest_ok": "write guest",
    "public": "write guest",
    "guest_only": "write guest = true and force_user",
    "hide_unreadable": "write access_based_enumeration",
    "hosts": "write hosts_allow and hosts_deny",
    "interfaces": "write listen",
    "netbios_name": "write name",
    "server_string": "write comment",
    "smb_encrypt": "write encrypt",
    "valid_users": "write users",
    "admin_users": "write admins in [server], or force_user",
    "write_ok": "write read_only, which says the opposite",
    "writable": "write read_only, which says the opposite",
    "writeable": "write read_only, which says the opposite",
}
"""Names that other servers have for what is written differently here. [smb.conf(5)]"""


@dataclass(frozen=True)
class Key:
    """A key of a section, as declared."""

    name: str
    declared: Any
    """The whole declaration of its type."""
    kind: Any
    """The type of its value, without what describes it."""
    description: str = ""
    example: object = None
    unset: str = ""
    """What it means not to give it, in words. Empty if the default says it."""
    is_path: bool = False
    secret: bool = False
    other_name: str = ""
    field: str = ""
    """The name of the setting that it becomes. Empty if it is its own."""
    effect: Effect = Effect.RESTART
    default: object = None
    """None if it has none, or is needed."""
    needed: bool = False

    @property
    def section(self) -> type[Section] | None:
        """The section that this key stands for, if it is one: ``[key]`` or ``[[key]]``."""
        inner = get_args(self.kind)[0] if self.repeated else self.kind
        return inner if isinstance(inner, type) and issubclass(inner, Section) else None

    @property
    def repeated(self) -> bool:
        """Whether its value is a list."""
        return get_origin(self.kind) is list

    @property
    def free(self) -> bool:
        """Whether it is a section with keys of the operator's choice."""
        return get_origin(self.kind) is dict


def _parts(declared: Any) -> tuple[Any, list[msgspec.Meta]]:
    """Return the type without what describes it and without None, and the descriptions."""
    metas: list[msgspec.Meta] = []
    while get_origin(declared) in (Annotated, Union, UnionType):
        if get_origin(declared) is Annotated:
            declared, *found = get_args(declared)
            metas += found
        else:
            declared = next(entry for entry in get_args(declared) if entry is not NoneType)
    return declared, metas


@cache
def keys_of(section: type[Section]) -> Mapping[str, Key]:
    """Return the keys of a section by name, in the order of their declaration."""
    found = {}
    for entry in msgspec.structs.fields(section):
        kind, metas = _parts(entry.type)
        about = next((meta for meta in metas if meta.extra), msgspec.Meta(extra={}))
        default = entry.default if entry.default is not msgspec.NODEFAULT else None
        if entry.default_factory is not msgspec.NODEFAULT:
            default = entry.default_factory()
        found[entry.name] = Key(
            entry.name,
            entry.type,
            kind,
            about.description or "",
            about.examples[0] if about.examples else default,
            **(about.extra or {}),
            default=default,
            needed=entry.required,
        )
    return found


def wanted(declared: Any) -> str:
    """Say in words what a value has to be."""
    kind, metas = _parts(declared)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is list:
        return 'a list, as in ["one", "two"]'
    words = {bool: "true or false", int: "an integer", float: "a number", str: "text in quotes"}[kind]
    for meta in metas:
        if meta.title is not None:
            return meta.title
        if meta.ge is not None and meta.le is not None:
            return f"{words} from {meta.ge} to {meta.le}"
        if meta.ge is not None:
            return f"{words}, at least {meta.ge}"
        if meta.gt is not None:
            return f"{words} greater than {meta.gt}"
    return words


def shown(value: object) -> str:
    """Return a wrong value as the file has it."""
    return "a section" if isinstance(value, Mapping) else toml.literal(value)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that names the likely intention; empty if there is none."""
    by_name = {name.casefold(): name for name in known}
    close = get_close_matches(given.casefold(), by_name, n=1)
    return f"; did you mean {by_name[close[0]]}?" if close else ""


class SectionReader:
    """Reads the sections of one file."""

    def __init__(self, file: Path, positions: Positions | None, problems: Problems) -> None:
        """``positions`` are those of the text of ``file``. None means that the sections do not come from its text."""
        self._file = file
        self._folder = file.absolute().parent
        self._positions = positions
        self._problems = problems
        self._names: dict[str, str] = {}
        """Owners by their case-folded names: no two shares have names that differ by case only."""

    def document(self, values: Mapping[str, object]) -> Document:
        """Read the whole file."""
        return self._keys(Document, values, (), "") or Document()

    def section(self, kind: type[AnySection], values: object, path: KeyPath) -> AnySection | None:
        """Read one section. Return None if it is not one, or if a key that it needs is missing or wrong.

        Keys whose values are wrong have their defaults in the result.
        """
        owner = _owner(path, values)
        if not owner.startswith("[") and owner.casefold() in self._names:
            first = self._problems.place(self._names[owner.casefold()])
            said = f"given twice, first in line {first.line}" if first.line else "given twice"
            self._problems.found.append(Problem(said, owner, self._place(path)))
            return None
        self._names[owner.casefold()] = owner
        self._problems.places[owner, ""] = self._place(path)
        if isinstance(values, Mapping):
            return self._keys(kind, values, path, owner)
        self._problems.add(owner, "", f"must be a section: write {_header(path)}")
        return None

    def _place(self, path: KeyPath) -> Place:
        return Place() if self._positions is None else Place(str(self._file), *self._positions.find(path))

    def _keys(
        self, kind: type[AnySection], values: Mapping[str, object], path: KeyPath, owner: str
    ) -> AnySection | None:
        known = keys_of(kind)
        others = {key.other_name: key for key in known.values() if key.other_name}
        found: dict[str, object] = {}
        for name, value in values.items():
            here = (*path, name)
            self._problems.places[owner, name] = self._place(here)
            key = known.get(name) or others.get(name)
            if key is not None and key.name in found:
                self._problems.add(owner, name, f"given twice: {name} and {key.name} are the same")
            elif key is None:
                self._unknown(name, value, kind, here, owner)
            elif key.section is not None:
                inner = self._sections(key, value, here) if key.repeated else self.section(key.section, value, here)
                if inner is not None:
                    found[key.name] = inner
            elif key.free:
                found[key.name] = self._lists(value, here)
            elif (read := self._value(key, value, here, owner)) is not None:
                found[key.name] = read
        if missing := [name for name, key in known.items() if key.needed and name not in values]:
            self._problems.add(owner, "", f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} needed")
        if any(key.needed and name not in found for name, key in known.items()):
            return None
        return kind(**found)

    def _sections(self, key: Key, value: object, path: KeyPath) -> list[Section] | None:
        """Read the tables ``[[key]]``. Those that cannot be read are left out."""
        assert key.section is not None
        if not isinstance(value, list):
            self._problems.places[f"[[{key.name}]]", ""] = self._place(path)
            self._problems.add(f"[[{key.name}]]", "", f"must be a list of sections: write [[{key.name}]]")
            return None
        read = [self.section(key.section, entry, (*path, index)) for index, entry in enumerate(value)]
        return [entry for entry in read if entry is not None]

    def _lists(self, value: object, path: KeyPath) -> dict[str, object]:
        """Read a section whose keys are names that the operator chooses, and whose values are lists of texts."""
        owner = _header(path)
        self._problems.places[owner, ""] = self._place(path)
        if not isinstance(value, Mapping):
            self._problems.add(owner, "", f"must be a section: write {owner}")
            return {}
        found = {}
        for name, entry in value.items():
            self._problems.places[owner, name] = self._place((*path, name))
            read = self._value(Key(name, list[str], list[str]), entry, (*path, name), owner)
            if read is not None:
                found[name] = read
        return found

    def _value(self, key: Key, value: object, path: KeyPath, owner: str) -> object:
        """Return a value of the declared type; None if it is wrong."""
        if key.repeated and isinstance(value, list):
            kind = get_args(key.kind)[0]
            read = [self._convert(entry, kind, key, owner, (*path, index)) for index, entry in enumerate(value)]
            return None if None in read else read
        found = self._convert(value, key.declared, key, owner, path)
        if not key.is_path or found is None:
            return found
        try:
            named = Path(str(found)).expanduser()
        except RuntimeError as error:
            self._problems.add(owner, key.name, f"{found}: {error}".rstrip("."))
            return None
        whole = self._folder / named
        if not named.is_absolute():
            text = f"{found} is relative: it counts from the folder of this file, so it is {whole}"
            self._problems.warnings.append(Problem(text, label(owner, key.name), self._place(path)))
        return str(whole)

    def _convert(self, value: object, declared: Any, key: Key, owner: str, path: KeyPath) -> object:
        found: object = None
        with suppress(msgspec.ValidationError, OverflowError):
            found = msgspec.convert(value, declared)
        if isinstance(found, float) and not math.isfinite(found):
            found = None
        if found is None:
            what = wanted(declared) if key.secret else f"{wanted(declared)}, not {shown(value)}"
            choices = get_args(_parts(declared)[0]) if isinstance(value, str) else ()
            self._problems.places[owner, key.name] = self._place(path)
            self._problems.add(owner, key.name, f"must be {what}{did_you_mean(str(value), choices)}")
        return found

    def _unknown(self, name: str, value: object, kind: type[Section], path: KeyPath, owner: str) -> None:
        if kind is Document:
            title = f"[[{name}]]" if isinstance(value, list) else f"[{name}]" if isinstance(value, Mapping) else name
            self._problems.places[title, ""] = self._place(path)
            self._problems.add(title, "", f"unknown section{did_you_mean(name, keys_of(Document))}")
            return
        remedy = ELSEWHERE.get(name.casefold().replace(" ", "_").replace("-", "_"))
        homes = [
            _header((section.name, 0) if section.repeated else (section.name,))
            for section in keys_of(Document).values()
            if section.section not in (None, kind) and name in keys_of(section.section)
        ]
        if kind is Limits and not homes and name in Settings.__struct_fields__:
            hint = f": it cannot be set; the server uses {getattr(Settings(), name)}"
        elif remedy:
            hint = f"; {remedy}"
        elif close := did_you_mean(name, keys_of(kind)):
            hint = close
        else:
            hint = f"; it is a key of {homes[0]}" if homes else ""
        self._problems.add(owner, name, f"unknown key{hint}")


def _header(path: KeyPath) -> str:
    """Return the header of a section, as written in the file."""
    name = ".".join(str(entry) for entry in path if isinstance(entry, str))
    return f"[[{name}]]" if isinstance(path[-1], int) else f"[{name}]"


def _owner(path: KeyPath, values: object) -> str:
    """Name a section in messages: ``[server]``, ``share data``; ``[[share]]`` if the share has no name."""
    name = values.get("name") if isinstance(values, Mapping) else None
    header = _header(path)
    return f"{header.strip('[]')} {name}" if header.startswith("[[") and isinstance(name, str) else header
