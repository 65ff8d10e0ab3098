"""The data that a server keeps between runs, in the configured directory."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

from smb3server.config.error import ConfigError
from smb3server.persistence.sqlite import SqliteStore
from smb3server.persistence.store import Store, StoreError
from smb3server.process.own_files import check_planted_folder, replace_file
from smb3server.process.presence import exists
from smb3server.process.state_lock import StateLock

_GUID_FILE = "server-guid"
_STORE_FILE = "handles.db"
_OTHERS = (_STORE_FILE, "users", "shares.toml", "sidecar")
"""Files that show that the directory was in use."""

log = logging.getLogger(__name__)


class StateDirectory:
    """A state directory that no other server uses between ``__init__`` and ``release``."""

    def __init__(self, path: Path) -> None:
        """Create the directory if necessary, lock it, and read or make the server's GUID. Raises ``ConfigError``."""
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_planted_folder(path)
            self._lock = StateLock(path)
        except BlockingIOError as error:
            raise ConfigError(f"state directory {path}: {error.strerror}") from error
        except OSError as error:
            raise ConfigError(f"state directory {path}: {error}") from error
        try:
            self.guid = _guid(path / _GUID_FILE)
        except (OSError, ValueError) as error:
            self._lock.release()
            raise ConfigError(f"state directory {path}: {error}") from error

    async def open_store(self) -> Store:
        """Open the store of persistent opens. Raises ``ConfigError``."""
        try:
            return await SqliteStore.open(self._path / _STORE_FILE)
        except StoreError as error:
            raise self.unusable(error) from error

    def unusable(self, error: StoreError) -> ConfigError:
        """Return the error for a directory whose store cannot be used."""
        return ConfigError(f"state directory {self._path}: {error}")

    def release(self) -> None:
        """Unlock the directory for other servers."""
        self._lock.release()


def read_guid(path: Path) -> uuid.UUID:
    """Return the ServerGuid that a state directory keeps. Raises ``ConfigError``."""
    try:
        return _guid(path / _GUID_FILE)
    except (OSError, ValueError) as error:
        raise ConfigError(f"state directory {path}: {error}") from error


def _guid(file: Path) -> uuid.UUID:
    """Read the ServerGuid, which stays the same over restarts; make it in the first run. [MS-SMB2 3.3.1.5]"""
    if exists(file):
        try:
            return uuid.UUID(file.read_text().strip())
        except ValueError as error:
            raise ValueError(
                f"{file.name} is damaged; remedy: take it from a backup. If there is none, remove it: permissions that "
                "name users of this server name nobody then"
            ) from error
    guid = uuid.uuid4()
    used = [name for name in _OTHERS if exists(file.parent / name)]
    if used:
        log.warning(
            "%s is missing, although there is %s: it is made anew, so permissions that name users of this server name "
            "nobody, and clients see another server; remedy: stop the server and take it from a backup",
            file,
            ", ".join(used),
        )
    # A full disk or a killed server leaves no empty file, with which the server would not start.
    replace_file(file, f"{guid}\n".encode())
    return guid
