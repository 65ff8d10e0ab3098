"""The file of the shares that were added at run time, and of the permissions that administrators have given shares.

It is ``shares.toml`` in the state directory, and has the keys of the configuration file:

    [[share]]
    name = "projects"
    path = "/srv/projects"
    read_only = true

    [permissions]
    projects = "D:(A;;FA;;;S-1-5-21-1-2-3-1001)(A;;FR;;;AU)"

The server writes it anew with each change. A file that was edited by hand is read at the next start.
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
from smb3server.config.reader import read_share
from smb3server.process.own_files import replace_file

FILE_NAME = "shares.toml"
_HEADER = '# Written by smb3server: change it with "smb3server share".\n'

Value = str | bool | int | float | list[str]
Table = dict[str, Value]
"""One share, as a table of the configuration file."""


@dataclass(slots=True)
class StoredShares:
    """The content of the file. Names are case-folded."""

    tables: dict[str, Table] = field(default_factory=dict)
    permissions: dict[str, SecurityDescriptor] = field(default_factory=dict)
    """Of these and of other shares."""


def read(path: Path) -> StoredShares:
    """Read the file; nothing is stored if there is none. Raises ``ConfigError``."""
    stored = StoredShares()
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return stored
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}; remedy: mend it, or move it away to forget these shares") from error
    for table in document.get("share", []):
        name = table.get("name") if isinstance(table, dict) else None
        if not isinstance(name, str):
            raise ConfigError(f"{path}: [[share]]: a name is missing")
        stored.tables[name.casefold()] = table
    for name, text in document.get("permissions", {}).items():
        try:
            stored.permissions[name.casefold()] = sddl.parse(str(text))
        except ValueError as error:
            raise ConfigError(f"{path}: [permissions] {name}: {error}") from error
    return stored


def write(path: Path, stored: StoredShares) -> None:
    """Replace the file: whoever reads it, after a crash at any time, finds the old or the new content.

    Raises ``OSError``."""
    replace_file(path, text_of(stored).encode())


def text_of(stored: StoredShares) -> str:
    """Return the content of the file."""
    lines = [_HEADER]
    for table in stored.tables.values():
        lines.append("[[share]]")
        lines += [f"{key} = {toml.literal(value)}" for key, value in table.items()]
        lines.append("")
    if stored.permissions:
        lines.append("[permissions]")
        lines += [
            f"{toml.literal(name)} = {toml.literal(sddl.show(found))}" for name, found in stored.permissions.items()
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


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


def share_of(where: str, table: Table, config: Config) -> ShareConfig:
    """Return the share that a table describes, with the groups of ``config``. Raises ``ConfigError``."""
    return read_share(where, table, config)
