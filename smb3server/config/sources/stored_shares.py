"""The file of the shares and links that were added at run time, and of the permissions that administrators have given
shares.

It is ``shares.toml`` in the state directory, and has the keys of the configuration file:

    [[share]]
    name = "projects"
    path = "/srv/projects"
    read_only = true

    [[link]]
    namespace = "files"
    path = "projects"
    targets = ["//files1/projects"]

    [permissions]
    projects = "D:(A;;FA;;;S-1-5-21-1-2-3-1001)(A;;FR;;;AU)"

The server writes it anew with each change. A file that was edited by hand is read at the next start. It must keep its
last line, which shows that nothing was cut off. The file ``shares.toml.kept`` beside it shows that there was one: a
server that lost the permissions would let everybody in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from smb3server.access import sddl
from smb3server.access.descriptor import SecurityDescriptor
from smb3server.config import toml
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.reader import read_link, read_share
from smb3server.dfs.namespace import Link
from smb3server.process.own_files import replace_file
from smb3server.process.presence import exists

FILE_NAME = "shares.toml"
_FOOTER = "# The end."
_HEADER = f'# Written by smb3server: change it with "smb3server share". The last line is "{_FOOTER}"\n'
_KEPT = ".kept"
"""Added to the file's name: the name of a file that shows that there was one."""

Value = str | bool | int | float | list[str]
Table = dict[str, Value]
"""One share or link, as a table of the configuration file."""


@dataclass(slots=True)
class StoredShares:
    """The content of the file. Names are case-folded."""

    tables: dict[str, Table] = field(default_factory=dict)
    links: dict[str, Table] = field(default_factory=dict)
    """By namespace and path with a slash between them."""
    permissions: dict[str, SecurityDescriptor] = field(default_factory=dict)
    """Of these and of other shares."""


def read(path: Path) -> StoredShares:
    """Read the file; nothing is stored if there is none. Raises ``ConfigError``."""
    stored = StoredShares()
    try:
        text = path.read_text()
        _check_whole(text)
        document = tomllib.loads(text)
    except FileNotFoundError as error:
        kept = Path(f"{path}{_KEPT}")
        if exists(kept):
            raise ConfigError(
                f"{path} is missing, and with it the shares of run time and the permissions of shares; remedy: take it "
                f"from a backup, or remove {kept} to go on without them"
            ) from error
        return stored
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}; remedy: mend it, or move it away to forget these shares") from error
    for table in document.get("share", []):
        name = table.get("name") if isinstance(table, dict) else None
        if not isinstance(name, str):
            raise ConfigError(f"{path}: [[share]]: a name is missing")
        stored.tables[name.casefold()] = table
    for table in document.get("link", []):
        if not isinstance(table, dict) or not all(isinstance(table.get(key), str) for key in ("namespace", "path")):
            raise ConfigError(f"{path}: [[link]]: a namespace or a path is missing")
        stored.links[f"{table['namespace']}/{table['path']}".casefold()] = table
    for name, text in document.get("permissions", {}).items():
        try:
            stored.permissions[name.casefold()] = sddl.parse(str(text))
        except ValueError as error:
            raise ConfigError(f"{path}: [permissions] {name}: {error}") from error
    return stored


def _check_whole(text: str) -> None:
    """Raise ``ValueError`` if a part of the file is missing. Earlier versions wrote it without a last line."""
    if not text.strip():
        raise ValueError("it is empty")
    first, rest = text.partition("\n")[::2]
    whole = _FOOTER not in first and (rest or not _HEADER.startswith(first))
    if not whole and text.rstrip().rpartition("\n")[2] != _FOOTER:
        raise ValueError(f'it is cut off: the last line "{_FOOTER}" is missing')


def write(path: Path, stored: StoredShares) -> None:
    """Replace the file: whoever reads it, after a crash at any time, finds the old or the new content.

    Raises ``OSError``."""
    replace_file(path, text_of(stored).encode())
    replace_file(Path(f"{path}{_KEPT}"), b"")


def text_of(stored: StoredShares) -> str:
    """Return the content of the file."""
    lines = [_HEADER]
    for header, tables in (("[[share]]", stored.tables), ("[[link]]", stored.links)):
        for table in tables.values():
            lines += [header, *(f"{key} = {toml.literal(value)}" for key, value in table.items()), ""]
    if stored.permissions:
        lines.append("[permissions]")
        lines += [
            f"{toml.literal(name)} = {toml.literal(sddl.show(found))}" for name, found in stored.permissions.items()
        ]
    return "\n".join(lines).rstrip("\n") + f"\n\n{_FOOTER}\n"


def from_options(name: str, path: str, options: Mapping[str, object]) -> Table:
    """Make the table of a share from options that came as JSON. Raises ``ConfigError`` for values of other types."""
    table: Table = {"name": name, "path": path}
    for key, value in options.items():
        if isinstance(value, str | bool | int | float):
            table[key] = value
        elif isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            table[key] = [str(entry) for entry in value]
        else:
            raise ConfigError(f"share {name}: {key}: text, a number, true, false or a list of texts is needed")
    return table


def link_of(where: str, table: Table) -> Link:
    """Return the link that a table describes. Raises ``ConfigError``."""
    return read_link(where, {key: value for key, value in table.items() if key != "namespace"})


def share_of(where: str, table: Table, config: Config) -> ShareConfig:
    """Return the share that a table describes, with the groups of ``config``. Raises ``ConfigError``."""
    return read_share(where, table, config)
