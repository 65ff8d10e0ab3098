"""What cannot be looked at is not taken for missing. Path.exists() is made to be that of CPython 3.14."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from smb3server.auth.users_file import UsersFileError, change_users
from smb3server.config.checks import check_folder
from smb3server.config.error import ConfigError
from smb3server.config.sources import stored_shares
from smb3server.process.presence import exists, is_folder
from smb3server.service.state_directory import _guid


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of a disk that fails."""
    path = tmp_path / "file"
    path.write_text("what was there")
    look = os.stat

    def stat(at: int | str | os.PathLike[str], **options: object) -> os.stat_result:
        if isinstance(at, str | os.PathLike) and Path(at).name.startswith(path.name):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))
        return look(at, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    for name in ("exists", "is_dir"):
        monkeypatch.setattr(Path, name, os.path.exists)
    return path


def test_what_there_is_and_is_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert (exists(file), is_folder(file)) == (True, False)
    assert (exists(tmp_path), is_folder(tmp_path)) == (True, True)
    for missing in (tmp_path / "no", file / "below", tmp_path / "a\0b"):
        assert (exists(missing), is_folder(missing)) == (False, False)


@pytest.mark.parametrize(
    ("use", "raised"),
    [
        (exists, OSError),
        (is_folder, OSError),
        (lambda path: change_users(path, lambda users: None), UsersFileError),
        (check_folder, ConfigError),
        (_guid, OSError),
    ],
    ids=["exists", "is_folder", "users file", "folder of a share", "server-guid"],
)
def test_a_disk_that_fails_is_said(failing: Path, use: Callable[[Path], object], raised: type[Exception]) -> None:
    with pytest.raises(raised, match="Input/output error"):
        use(failing)
    assert failing.read_text() == "what was there"


def test_shares_of_run_time_are_not_given_up(failing: Path) -> None:
    """Without their permissions everybody would get in."""
    failing.unlink()
    with pytest.raises(OSError, match="Input/output error"):
        stored_shares.read(failing)
