"""The file with the shares that were made while the server ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from smb3server.config.error import ConfigError
from smb3server.config.sources import stored_shares
from smb3server.config.sources.stored_shares import StoredShares


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shares.toml"
    stored = StoredShares()
    stored.tables["more"] = {"name": "more", "path": "/srv/more", "users": ["alice"]}
    stored_shares.write(path, stored)
    whole = path.read_bytes()
    assert stored_shares.read(path).tables == stored.tables
    end = len(whole.rstrip())
    for size in range(end):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"shares\.toml"):
            stored_shares.read(path)
