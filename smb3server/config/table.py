"""A section of the configuration file, in which every key must be known and every value of the right type."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smb3server.config.error import ConfigError

SECRETS = ("password", "nt_hash")
"""Keys whose values never appear in errors."""


class Table:
    """A TOML table in which every key must be known and of the right type.

    Each key is taken once; ``finish`` then refuses the remaining keys. All methods raise ``ConfigError`` with a text
    that begins with ``where``.
    """

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self._where = where
        self._values = dict(values)

    def take(self, key: str, kind: type[Any], default: Any = None) -> Any:
        """Take the value of ``key``, which must be of type ``kind``."""
        if key not in self._values:
            return default
        value = self._values.pop(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = type(value).__name__ if key in SECRETS else repr(value)
            raise ConfigError(f"{self._where}: {key} must be of type {kind.__name__}, not {found}")
        return value

    def has(self, key: str) -> bool:
        """Return whether the section has ``key`` and nothing has taken it yet."""
        return key in self._values

    def number(self, key: str, kinds: tuple[type[Any], ...], default: float) -> float:
        """Take a number of one of the types ``kinds``."""
        value = self._values.pop(key, default)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ConfigError(f"{self._where}: {key} must be a number, not {value!r}")
        return value  # type: ignore[no-any-return]

    def strings(self, key: str) -> list[str] | None:
        """Take a list of strings; return None if the key is missing."""
        values = self.take(key, list)
        if values is not None and not all(isinstance(value, str) for value in values):
            raise ConfigError(f"{self._where}: {key} must be a list of strings")
        return values  # type: ignore[no-any-return]

    def finish(self) -> None:
        """Refuse the keys that were not taken."""
        if self._values:
            raise ConfigError(f"{self._where}: unknown key {', '.join(sorted(self._values))}")


def read_document(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raises ``ConfigError``."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def take_table(path: Path, document: dict[str, Any], key: str) -> Mapping[str, Any]:
    """Take the section ``[key]`` out of the document; return an empty one if it is missing. Raises ``ConfigError``."""
    value = document.pop(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {key} must be a section: [{key}]")
    return value


def take_tables(path: Path, document: dict[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Take the sections ``[[key]]`` out of the document. Raises ``ConfigError``."""
    values = document.pop(key, [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ConfigError(f"{path}: {key} must be a list of sections: [[{key}]]")
    return values
