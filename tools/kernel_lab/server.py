"""The server under test, in its own process, with its log in a file."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.kernel_lab.wishes import answering
from tools.support import own_user

TCP_PORT, RDMA_PORT = 445, 5445
"""Linux 6.12 ignores ``port=`` on RDMA mounts, so the server must use these ports."""
SNAPSHOT = "@GMT-2024.01.01-10.00.00"
"""guest/snapshot.sh has its time as a FILETIME."""
READY_SECONDS, STOP_SECONDS = 30.0, 20.0


class ServerError(Exception):
    """The server did not start, died or did not stop."""


def check_ports() -> None:
    """Raise ``ServerError`` if a port is in use or may not be bound."""
    for port in (TCP_PORT, RDMA_PORT):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise ServerError(f"TCP port {port} on 127.0.0.1: {error.strerror}") from error


def wait_ready(process: subprocess.Popen[bytes], log: Path, since: int = 0) -> None:
    """Wait until the server logs that it is ready, after the first ``since`` bytes of the log. Raises
    ``ServerError``.
    """
    deadline = time.monotonic() + READY_SECONDS
    poller = select.poll()
    pidfd = os.pidfd_open(process.pid)
    try:
        poller.register(pidfd, select.POLLIN)
        while not log.read_bytes()[since:].startswith(b"ready") and b"\nready" not in log.read_bytes()[since:]:
            if poller.poll(100):  # The process ended.
                raise ServerError(f"the server ended at once with status {process.wait()}")
            if time.monotonic() > deadline:
                raise ServerError(f"the server is not ready after {READY_SECONDS:.0f} s")
    finally:
        os.close(pidfd)


class Server:
    """A running ``smb3server``."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, state: Path) -> None:
        self.process = process
        self.log = log
        self.state = state

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def report(self, path: Path) -> None:
        """Write the output of ``smb3server status --json`` to ``path``; an empty file if it fails."""
        command = [sys.executable, "-m", "smb3server", "status", "--json", "--state", str(self.state)]
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
        path.write_bytes(run.stdout if run.returncode == 0 else b"")

    @contextlib.contextmanager
    def answering(self, out: Path) -> Iterator[None]:
        """While the block runs, answer the guest's requests for the server's status: ``out/CASE/ask-status`` gets
        ``status.json``.
        """

        def answer(wish: Path) -> None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.report(wish.with_name("status.json"))

        with answering(out, "ask-status", answer):
            yield

    def stop(self) -> None:
        """Send SIGTERM; the exit status must be 0. Raises ``ServerError``."""
        if not self.alive:
            raise ServerError(f"the server died with status {self.process.returncode}")
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise ServerError(f"the server ignored SIGTERM for {STOP_SECONDS:.0f} s") from None
        if status:
            raise ServerError(f"the server exited with status {status} after SIGTERM")


def fill_snapshot(share: Path) -> None:
    """Put a snapshot into a share, and what the guest compares with: ``expected`` has what is in the snapshot."""
    past = share / ".snapshots" / SNAPSHOT
    (past / "dir" / "deep").mkdir(parents=True)
    (past / "big").write_bytes(os.urandom(24 << 20))
    (past / "changed").write_text("then\n")
    (past / "dir" / "deep" / "gone").write_text("gone by now\n")
    shutil.copytree(past, share / "expected")
    (share / "changed").write_text("now\n")
    (share / "big").write_bytes(b"another one")


@contextlib.contextmanager
def running_server(
    share: Path,
    log: Path,
    addresses: Sequence[str] = ("127.0.0.1",),
    fabric: str = "iwarp",
    prefix: Sequence[str] = (),
    keys: str = "",
    more: str = "",
) -> Iterator[Server]:
    """Run ``smb3server`` with ``share`` on ``addresses`` until the block ends. ``more``: sections of its file.

    ``prefix`` is a command that starts it elsewhere, for example in a network namespace. ``keys``: lines for the
    share's section of the configuration. Raises ``ServerError``.
    """
    if not prefix:
        check_ports()
    command = list(prefix)
    command += [sys.executable, "-c", "import sys; from smb3server.cli.main import main; sys.exit(main())"]
    sections = more
    if keys:
        sections = f'[[share]]\nname = "share"\npath = "{share}"\n{own_user.LINE}{keys}{more}'
    else:
        command += ["--share", own_user.option("share", share)]
    if sections:
        config = log.with_suffix(".toml")
        config.write_text(sections)
        command += ["--config", str(config)]
    command += ["--user", "u:pw", f"--rdma={fabric}"]
    for address in addresses:
        command += ["--listen", address]
    state = log.with_suffix(".state")
    command += ["--state", str(state)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    try:
        wait_ready(process, log)
        yield Server(process, log, state)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def log_complaints(log: Path) -> list[str]:
    """Return tracebacks and similar lines in the server's log."""
    marks = ("Traceback (most recent call last)", "never retrieved", "was never awaited", "CRITICAL")
    lines = log.read_text(errors="replace").splitlines()
    found = []
    for number, line in enumerate(lines):
        if any(mark in line for mark in marks):
            end = next((text for text in lines[number + 1 :] if text and not text.startswith((" ", "\t"))), "")
            found.append(f"server log line {number + 1}: {line.strip()} {end.strip()}".rstrip())
    return found
