"""A server process, as an operator starts it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from smb3server.admin.socket import SOCKET_NAME, ask
from smb3server.cli.main import main
from smb3server.client.protocol import Client, Tree, open_tcp
from tests.lab.slow_shares import python_path

ROOT = Path(__file__).parents[2]


def open_up(folder: Path) -> None:
    """Let other users reach a test's folder."""
    for directory in (folder, *folder.parents):
        if directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o755)


class Served:
    def __init__(self, process: subprocess.Popen[str], lines: list[str], state: Path) -> None:
        self.process = process
        self.lines = lines
        self.state = state
        ready = next(line for line in lines if line.startswith("ready"))
        self.port = int(ready.split("tcp 127.0.0.1:")[1].split(",")[0])

    def status(self, thread: str = "") -> dict[str, str]:
        """Of the process or one thread (proc(5))."""
        place = Path(f"/proc/{self.process.pid}") / (f"task/{thread}" if thread else "")
        return dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())

    def log(self) -> str:
        """What the server has written to its log."""
        return (self.state.parent / "log").read_text()

    def threads(self) -> list[dict[str, str]]:
        return [self.status(task.name) for task in Path(f"/proc/{self.process.pid}/task").iterdir()]

    def report(self) -> dict[str, object]:
        found = ask(self.state / SOCKET_NAME, "status")["process"]
        assert isinstance(found, dict)
        return found

    @contextlib.asynccontextmanager
    async def tree(self, user: str, password: str = "pw", share: str = "data") -> AsyncIterator[Tree]:
        client = await Client.connect(await open_tcp("127.0.0.1", self.port))
        try:
            yield await (await client.log_on(user, password)).tree_connect(share)
        finally:
            await client.close()


def command(*arguments: str, prefix: Sequence[str] = ()) -> list[str]:
    return [*prefix, sys.executable, "-m", "smb3server", *arguments]


@contextlib.contextmanager
def served(
    folder: Path, *arguments: str, prefix: Sequence[str] = (), environment: dict[str, str] | None = None
) -> Iterator[Served]:
    """With state in ``folder``/state, on any port of 127.0.0.1. Its log is ``folder``/log."""
    state = folder / "state"
    options = ["--listen", "127.0.0.1", "--port", "0", "--state", str(state), *arguments]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command(*options, prefix=prefix),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": python_path(ROOT)} | (environment or {}),
        ) as process,
    ):
        try:
            lines = []
            for line in process.stdout or ():
                lines.append(line.strip())
                if line.startswith("ready"):
                    break
            else:
                raise AssertionError((folder / "log").read_text())
            yield Served(process, lines, state)
        finally:
            process.terminate()
            process.wait(30)
    assert "Traceback" not in (folder / "log").read_text()


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A server that is to end by itself."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": python_path(ROOT)} | (environment or {}),
        timeout=60,
        check=False,
    )


def in_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``smb3server`` to its end in this process: one of its own would take a third of a second for its imports.
    It runs on a thread of its own, since the caller may have an event loop; but one at a time, since what it prints is
    what the process prints."""
    said, complained = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
        ThreadPoolExecutor(1) as thread,
    ):
        status = thread.submit(main, arguments).result()
    return subprocess.CompletedProcess(arguments, status, said.getvalue(), complained.getvalue())


def run_command(server: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``smb3server`` for a running server, as its operator does."""
    return in_process(*arguments, "--state", str(server.state))


def done(server: Served, *arguments: str) -> str:
    found = run_command(server, *arguments)
    assert found.returncode == 0, found.stderr
    return found.stdout


def refused(server: Served, *arguments: str) -> str:
    found = run_command(server, *arguments)
    assert found.returncode == 1, found.stdout
    return found.stderr
