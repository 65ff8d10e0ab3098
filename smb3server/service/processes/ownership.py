"""The file that says which process serves which share: ``processes.json`` in the state directory.

Process 1 alone writes it. A process serves nothing that the file does not give it, so no share has two owners: neither
when the configuration was edited meanwhile, nor when a process did not hear of a reload.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from smb3server.config.error import ConfigError
from smb3server.config.processes import Owned
from smb3server.process.own_files import replace_file

FILE_NAME = "processes.json"


def read(state: Path) -> list[Owned]:
    """Return what the file has: nothing if there is none. Raises ``ConfigError``."""
    path = state / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Owned])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: {error}; remedy: stop the server and remove the file") from error


def write(state: Path, owned: Iterable[Owned]) -> None:
    """Write the file. Raises ``ConfigError``."""
    path = state / FILE_NAME
    try:
        replace_file(path, msgspec.json.format(msgspec.json.encode(list(owned))) + b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
