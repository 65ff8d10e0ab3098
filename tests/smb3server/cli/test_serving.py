"""What a start says that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.served import open_up, run

HOLDER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as held:
    print(held.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("options", [[], ["--drop-privileges"]])
def test_whose_the_port_is(tmp_path: Path, options: list[str]) -> None:
    """Also if the server gives up what it takes to see that. Another start may succeed, so the status is 1."""
    open_up(tmp_path)
    share = tmp_path / "share"
    share.mkdir()
    os.chown(share, 65534, -1)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=1
    ) as other:
        assert other.stdout is not None
        port = other.stdout.readline().strip()
        ended = run("--share", f"data={share}", "--user", "alice:secret-secret", "--listen", "127.0.0.1",
                    "--port", port, *options)  # fmt: skip
        other.communicate("")
    assert ended.returncode == 1
    assert (
        f"TCP port {port} on 127.0.0.1 belongs to python" in ended.stderr and f"(process {other.pid})" in ended.stderr
    )
