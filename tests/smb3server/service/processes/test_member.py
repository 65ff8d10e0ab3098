"""What one of several processes serves, and what the operator is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from smb3server.config.model import Config, ShareConfig
from smb3server.config.processes import Owned
from smb3server.service.processes import ownership
from smb3server.service.processes.member import Member

LOST = "persistent handles that waited for their clients are lost"


@pytest.mark.parametrize("last", [None, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_start_says_which_handles_are_lost(tmp_path: Path, last: int | None, persistent: bool) -> None:
    """``last``: the process that had the share; None before there were several, when the first one had it."""
    share = ShareConfig(name="data", path=tmp_path / "data", process=2, continuous_availability=persistent)
    if last is not None:
        ownership.write(tmp_path, [Owned("data", str(share.path), str(share.path), last)])
    member = Member(1, ["192.0.2.1", "192.0.2.2"], tmp_path, True)
    notes = member.config(Config(shares=[share], processes=2)).notes
    assert any(LOST in note for note in notes) is (persistent and last != 2)
