"""What the host does to a share's directory, and what smbclient then gets."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.lab.command import Served, serve, stop

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed"),
]


def smbclient(served: Served, commands: str) -> str:
    ended = subprocess.run(
        ["smbclient", "//127.0.0.1/share", "-p", str(served.port), "-U", "u%pw"],
        input=commands,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.stdout + ended.stderr


def test_a_removed_directory_is_no_empty_share(tmp_path: Path) -> None:
    """And one that is made in its place is served without a restart."""
    served = serve(tmp_path)
    try:
        (served.share / "old").write_bytes(b"1")
        # In one session: the directory goes between two commands of it.
        shown = smbclient(served, f"ls\n!rm -r {served.share}\nls\n")
        assert " old " in shown
        assert "NT_STATUS_OBJECT_NAME_NOT_FOUND" in shown or "NT_STATUS_NO_SUCH_FILE" in shown
        assert "NT_STATUS_BAD_NETWORK_NAME" in smbclient(served, "ls\n")
        served.share.mkdir()
        (served.share / "new").write_bytes(b"2")
        shown = smbclient(served, "ls\n")
        assert " new " in shown
        assert " old " not in shown
    finally:
        assert stop(served) == 0
    assert (tmp_path / "log").read_text().count("no client can connect until it is back") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_server_in_order(tmp_path: Path, number: signal.Signals) -> None:
    served = serve(tmp_path, "--state", str(tmp_path / "state"))
    try:
        served.process.send_signal(number)
        assert served.process.wait(15) == 0
    finally:
        stop(served)
    assert not (tmp_path / "state" / "admin.sock").exists()
