"""What the failover bench shows of the nodes' logs when a takeover was slow."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from smb3server.cluster import service_owner
from smb3server.process.log_lines import FORMAT, LineFormatter
from tools.bench.failover import show_logs


class Setup:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes = ["a"]


def test_lines_of_the_cluster_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the server writes them."""
    record = logging.LogRecord(service_owner.__name__, logging.INFO, "", 0, "service %s is served here", ("one",), None)
    other = logging.LogRecord("smb3server.net.listener", logging.INFO, "", 0, "something else", (), None)
    formatter = LineFormatter(FORMAT)
    (tmp_path / "node0.log").write_text("".join(f"{formatter.format(entry)}\n" for entry in (record, other)))
    show_logs(cast("Any", Setup(tmp_path)))
    shown = capsys.readouterr().err
    assert "service one is served here" in shown and "something else" not in shown
