"""The doctor's verdict, and addresses, for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from smb3server.admin import socket as admin_socket
from smb3server.cli.running_server import ServerChoice
from smb3server.cli.status.tables import short_addresses
from smb3server.doctor.findings import verdict_lines


def test_a_long_verdict_has_short_lines() -> None:
    text = (
        "RDMA is not used, because no answer from TCP port 5445 at 192.0.2.7: a firewall drops it; no answer from UDP "
        "port 4791 at 192.0.2.7: a firewall on one of the two machines drops it, or the server does not serve RoCE, "
        "which its log would say"
    )
    lines = verdict_lines(text).splitlines()
    assert lines[0] == "verdict: RDMA is not used, because"
    assert lines[1] == "  - no answer from TCP port 5445 at 192.0.2.7: a firewall drops it"
    assert max(map(len, lines)) <= 100
    words = " ".join(line.removeprefix("  - ").strip() for line in lines).removeprefix("verdict: ")
    assert words == text.replace(";", ""), "nothing is lost"
    assert verdict_lines("RDMA is used: iwarp (4 MiB written)") == "verdict: RDMA is used: iwarp (4 MiB written)"


def test_both_families_are_one_entry() -> None:
    served = ["tcp 0.0.0.0:445", "tcp [::]:445", "iwarp 0.0.0.0:5445", "roce 192.0.2.1:4791", "roce [2001:db8::1]:4791"]
    assert short_addresses(served) == ["tcp *:445", "iwarp 0.0.0.0:5445", *served[3:]]


def test_a_server_with_several_names_is_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "admin.sock").touch()
    for name in ("1.sock", "2.sock"):
        (tmp_path / name).symlink_to("admin.sock")
    found = [tmp_path / name for name in ("1.sock", "2.sock", "admin.sock")]
    monkeypatch.setattr(admin_socket, "running", lambda directory=None: list(found) if directory is None else [])
    assert ServerChoice().find_all() == [found[0]]
