"""Two hosts with nothing wrong yet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.two_hosts import TwoHosts
from tools.cluster.network import why_not


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoHosts]:
    """The doctor is impatient in these tests: what it waits for for seconds, it waits for for a moment."""
    reason = why_not()
    if reason is None and shutil.which("nft") is None:
        reason = "nft is not installed (Debian: nftables)"
    if reason is not None:
        pytest.skip(reason)
    for name, seconds in (
        ("network.TIMEOUT", 0.5),
        ("network.BANNER_TIMEOUT", 0.3),
        ("share.CONNECT_TIMEOUT", 0.5),
        ("fabrics.ATTEMPT_TIMEOUT", 0.5),
        ("share.LOGON_TIMEOUT", 5.0),
        ("transfer.STALL_TIMEOUT", 0.5),
    ):
        monkeypatch.setattr(f"smb3server.doctor.{name}", seconds)
    monkeypatch.setattr("smb3server.admin.socket.runtime_directory", lambda: tmp_path / "run")
    lab = TwoHosts(tmp_path)
    try:
        lab.up()
        yield lab
    finally:
        lab.network.down()
