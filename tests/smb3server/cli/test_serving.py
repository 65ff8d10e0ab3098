"""What a start says that fails, and how a start or stop ends that hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.cli.exits import EXIT_INTERRUPTED
from smb3server.cli.server import serving
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


HANGING = """
import asyncio, sys
from smb3server.cli.main import main
from smb3server.cli.server import serving
from smb3server.net.interfaces import InterfaceList
serving.STOP_PATIENCE = 0.5

async def hang(listed):
    print("hangs", flush=True)
    await asyncio.sleep(600)

setattr(InterfaceList, sys.argv.pop(1), hang)
sys.exit(main(sys.argv[1:]))
"""


@contextlib.contextmanager
def hanging(folder: Path, where: str) -> Iterator[subprocess.Popen[str]]:
    """Start a server whose start or stop hangs. ``where``: in which of the two."""
    (folder / "share").mkdir()
    options = ["--share", f"data={folder / 'share'}", "--user", "alice:secret-secret", "--listen", "127.0.0.1"]
    options += ["--port", "0", "--rdma", "off", "--allow-root", "--state", str(folder)]
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, where, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        yield server


def wait_for(server: subprocess.Popen[str], text: str) -> str:
    assert server.stdout is not None
    return next(line for line in server.stdout if text in line)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_that_hangs_says_so_and_ends_at_a_second_signal(tmp_path: Path, second: int) -> None:
    with hanging(tmp_path, "stop") as server:
        wait_for(server, "ready")
        server.send_signal(signal.SIGTERM)
        server.send_signal(signal.SIGINT)  # At once: that is the same stop.
        said = wait_for(server, "the stop waits for the list of interfaces")
        assert "once more ends it" in said
        time.sleep(serving.TWICE)
        server.send_signal(second)
        wait_for(server, "a second signal ended the server, which waited for the list of interfaces")
    assert server.returncode == EXIT_INTERRUPTED


def test_a_start_that_hangs_ends_at_a_second_signal(tmp_path: Path) -> None:
    with hanging(tmp_path, "start") as server:
        wait_for(server, "hangs")
        server.send_signal(signal.SIGINT)
        time.sleep(serving.TWICE + 0.1)
        server.send_signal(signal.SIGINT)
        wait_for(server, "a second signal ended the server, which waited for its start")
    assert server.returncode == EXIT_INTERRUPTED
