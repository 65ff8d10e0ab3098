"""Files with secrets are read only if nobody else could have read or written them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smb3server.process.secret_files import MAX_SECRET, SecretFileError, read_secret


def made(path: Path, content: bytes = b"secret", mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o700])
def test_the_owners_own_file_is_read(tmp_path: Path, mode: int) -> None:
    assert read_secret(made(tmp_path / "f", mode=mode)) == b"secret"


@pytest.mark.parametrize("mode", [0o620, 0o610, 0o604, 0o602, 0o601])
def test_any_right_of_others_is_too_much(tmp_path: Path, mode: int) -> None:
    path = made(tmp_path / "f", mode=mode)
    with pytest.raises(SecretFileError, match=f"{mode:04o}.*chmod 600"):
        read_secret(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(SecretFileError, match="chmod 600"):
        read_secret(link)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_somebody_elses_file_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "f")
    os.chown(path, 60001, 60001)
    with pytest.raises(SecretFileError, match=r"uid 60001.*chown"):
        read_secret(path)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_group_may_read_only_if_it_is_the_servers(tmp_path: Path) -> None:
    path = made(tmp_path / "f", mode=0o600)
    os.chown(path, 0, 60001)
    assert read_secret(path) == b"secret"
    path.chmod(0o640)
    with pytest.raises(SecretFileError, match="chmod 600"):
        read_secret(path)


def test_what_is_no_file_or_too_large_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(SecretFileError, match="not a regular file"):
            read_secret(path)
    assert len(read_secret(made(tmp_path / "largest", b"x" * MAX_SECRET))) == MAX_SECRET
    with pytest.raises(SecretFileError, match="longer"):
        read_secret(made(tmp_path / "larger", b"x" * (MAX_SECRET + 1)))
    with pytest.raises(SecretFileError, match="No such file"):
        read_secret(tmp_path / "nothing")
