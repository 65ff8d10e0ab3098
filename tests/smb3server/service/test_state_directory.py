"""A state directory belongs to one server, and keeps its GUID."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from smb3server.config.error import ConfigError
from smb3server.service.state_directory import StateDirectory


def test_the_guid_stays(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "new" / "state")
    guid = state.guid
    state.release()
    again = StateDirectory(tmp_path / "new" / "state")
    assert again.guid == guid
    again.release()


def test_a_second_server_is_refused(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    with pytest.raises(ConfigError, match="another server uses it"):
        StateDirectory(tmp_path)
    state.release()


def test_a_guid_that_is_none_leaves_the_directory_free(tmp_path: Path) -> None:
    (tmp_path / "server-guid").write_text("nonsense\n")
    with pytest.raises(ConfigError, match="server-guid is damaged; remedy: take it from a backup"):
        StateDirectory(tmp_path)
    (tmp_path / "server-guid").unlink()
    StateDirectory(tmp_path).release()


def test_a_full_disk_leaves_no_empty_guid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(ConfigError, match="No space left"):
            StateDirectory(tmp_path)
    StateDirectory(tmp_path).release()
