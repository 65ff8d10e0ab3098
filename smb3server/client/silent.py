"""What RDMA addresses gave no answer, remembered for a while: a firewall that swallows them costs seconds each time."""

from __future__ import annotations

import os
import time
from pathlib import Path

TIME_TO_LIVE = 86400.0
"""Seconds for which an address is not tried again."""
MAX_ENTRIES = 256


def _file() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "smb3server" / "silent.json"


class SilentAddresses:
    """The addresses, in a file of the user's cache. What cannot be read or written there is not remembered."""

    def __init__(self) -> None:
        self._until: dict[str, float] | None = None

    def __contains__(self, name: str) -> bool:
        return self._read().get(name, 0.0) > time.time()

    def add(self, *names: str) -> None:
        """Remember addresses for ``TIME_TO_LIVE`` seconds."""
        until = time.time() + TIME_TO_LIVE
        # Another process may have added something meanwhile.
        self._until = None
        self._read().update(dict.fromkeys(names, until))
        self._write()

    def remove(self, name: str) -> None:
        """Forget an address, which answered."""
        if self._read().pop(name, None) is not None:
            self._write()

    def _read(self) -> dict[str, float]:
        if self._until is None:
            import json

            self._until = {}
            try:
                found = json.loads(_file().read_bytes())
            except (OSError, RuntimeError, ValueError):
                return self._until
            now = time.time()
            if isinstance(found, dict):
                # A clock that was set back must not make a day of a year.
                self._until = {
                    str(name): float(until)
                    for name, until in list(found.items())[-MAX_ENTRIES:]
                    if isinstance(until, int | float) and now < until <= now + TIME_TO_LIVE
                }
        return self._until

    def _write(self) -> None:
        """Replace the file. Where that is impossible the next command tries the addresses again."""
        import json
        import secrets

        try:
            path = _file()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            try:
                part.write_text(json.dumps(self._until))
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        except (OSError, RuntimeError):
            return
