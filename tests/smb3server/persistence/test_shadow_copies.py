"""Sets of shadow copies, as bytes and back."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from smb3server.persistence import shadow_copies as stored
from smb3server.state.shadow_copies import ShadowCopy, ShadowCopySet, Stage


def _set(stage: Stage) -> ShadowCopySet:
    copies = [ShadowCopy(uuid.uuid4(), "data", "\\\\server\\Data", "1:256", 1704067200.5, 1704067201, "@GMT-x")]
    return ShadowCopySet(uuid.uuid4(), 0x19, stage, copies)


def test_sets_come_back(tmp_path: Path) -> None:
    sets = [_set(Stage.COMMITTED), _set(Stage.RECOVERED)]
    (tmp_path / stored.FILE_NAME).write_bytes(stored.encode(sets))
    for before, after in zip(sets, stored.read(tmp_path), strict=True):
        assert (before.id, before.context, before.stage) == (after.id, after.context, after.stage)
        for name in ("id", "share", "unc", "volume", "created", "seconds", "snapshot"):
            assert getattr(before.copies[0], name) == getattr(after.copies[0], name)
    assert stored.held(tmp_path, "DATA") == {"@GMT-x"}
    assert stored.held(tmp_path, "other") == set()


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert stored.read(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{}x", b"[1]", b"{}", b'[{"id": "x"}]', b"\xff", b"null"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / stored.FILE_NAME).write_bytes(content)
    if content == b"{}":
        assert stored.read(tmp_path) == []
        return
    with pytest.raises(ValueError, match=r"shadow-copies\.json is damaged"):
        stored.read(tmp_path)
