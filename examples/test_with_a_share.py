"""Test a program against a real share, with pytest: ``pytest test_with_a_share.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.client.sync import Share, connect
from smb3server.testing import serve


@pytest.fixture
def share(tmp_path: Path) -> Iterator[Share]:
    with serve(tmp_path) as url, connect(url, password=url.password) as found:
        yield found


def test_what_is_written_can_be_read(share: Share, tmp_path: Path) -> None:
    share.write_text("notes.txt", "hello")
    assert share.read_text("notes.txt") == "hello"
    assert (tmp_path / "notes.txt").read_text() == "hello"
