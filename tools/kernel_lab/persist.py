"""A server that fails while the kernel client has persistent handles, and recovers.

This module carries out the guest's requests, and measures the time until the copy continues.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tools.kernel_lab.server import Server, ServerError, check_ports, wait_ready
from tools.kernel_lab.wishes import answering
from tools.support import own_user

PROGRESS_SECONDS = 150.0
"""Seconds for the copy to reach its target, before the failure and after it. Over SMB Direct, Linux may notice a silent
server only after two minutes (docs/kernel-lab.md).
"""

_CONFIGURATION = """[server]
listen = ["127.0.0.1"]
rdma = "iwarp"
log_level = "info"
[[share]]
name = "share"
path = "{share}"
{forced}continuous_availability = true
[[user]]
name = "u"
password = "pw"
"""

Action = Callable[[Path, list[str]], None]


class Failing(ABC):
    """A server, or a cluster, that can be made to fail. ``share`` is the directory that it serves as "share"."""

    share: Path

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether everything that should run does."""

    @abstractmethod
    def fail(self, how: str) -> None:
        """Begin the failure, and return without waiting for it. Raises ``ServerError``."""

    @abstractmethod
    def recover(self, how: str) -> dict[str, float]:
        """Do what an operator would do next; return measured times by name. Raises ``ServerError``."""

    @abstractmethod
    def settle(self, how: str) -> None:
        """Let the failed part return after the copy has continued. Raises ``ServerError`` if it does harm."""

    @abstractmethod
    def stop(self) -> None:
        """Stop everything in order. Raises ``ServerError``."""

    @abstractmethod
    def report(self, path: Path) -> None:
        """Write the status of the server that serves the share to ``path``."""

    # What the guest asks for

    def failure(self, folder: Path, words: list[str]) -> None:
        """Let the server fail once every file has so many bytes: ``fail HOW BYTES FILE MORE...``.

        Measure how long the first file does not grow.
        """
        how, size, files = words[0], int(words[1]), [self.share / name for name in words[2:]]
        path = files[0]
        _await(lambda: all(_size(file) >= size for file in files), f"the files do not get to {size} bytes")
        self.fail(how)
        failed = time.monotonic()
        (folder / "happened").touch()
        times: dict[str, float] = {}
        problems: list[str] = []

        def recover() -> None:
            try:
                times.update(self.recover(how))
            except ServerError as error:
                problems.append(str(error))

        thread = threading.Thread(target=recover)
        thread.start()
        try:
            resumed, still = _progress(path, failed, lambda: not thread.is_alive())
        finally:
            thread.join()
        if problems:
            raise ServerError(problems[0])
        times["stood still for"] = still
        found = {"how": how, "resumed": round(resumed, 2), **{key: round(value, 2) for key, value in times.items()}}
        (folder / "failure.json").write_text(json.dumps(found))
        print(f"  {folder.name}: {describe(found)}", flush=True)
        self.settle(how)

    def status(self, folder: Path, words: list[str]) -> None:
        self.report(folder / "status.json")
        names = sorted(entry.name for entry in self.share.iterdir())
        (folder / "names.json").write_text(json.dumps(names))

    @contextlib.contextmanager
    def answering(self, out: Path) -> Iterator[None]:
        """While the block runs, do what the guest requests in ``out/CASE/ask-WHAT``; write errors to
        ``failed-WHAT``.
        """
        actions: dict[str, Action] = {"fail": self.failure, "status": self.status}

        def answer(wish: Path) -> None:
            what = wish.name.removeprefix("ask-")
            try:
                actions[what](wish.parent, wish.read_text().split())
            except (ServerError, OSError, KeyError, ValueError, IndexError) as error:
                wish.with_name(f"failed-{what}").write_text(f"host: {what}: {error}\n")

        with answering(out, "ask-*", answer):
            yield


def _size(path: Path) -> int:
    """Return the bytes written, at any place in the file."""
    return path.stat().st_blocks * 512 if path.exists() else 0


def _await(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + PROGRESS_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(complaint)
        time.sleep(0.005)


def _progress(path: Path, failed: float, recovered: Callable[[], bool]) -> tuple[float, float]:
    """Return the seconds from the failure until the file grows after the recovery, and the longest time without growth.

    Raises ``ServerError``.
    """
    size, last, longest = _size(path), failed, 0.0
    while True:
        behind = recovered()
        found, now = _size(path), time.monotonic()
        if found > size:
            longest = max(longest, now - last)
            size, last = found, now
            if behind:
                return now - failed, longest
        if now - last > PROGRESS_SECONDS:
            raise ServerError(f"{path.name} grows no more")
        time.sleep(0.005)


def describe(found: dict[str, object]) -> str:
    """Describe ``failure.json`` for people."""
    more = "".join(f", {name} {value} s" for name, value in found.items() if name not in ("how", "resumed"))
    return f"the copy went on {found['resumed']} s after the {found['how']}{more}"


class Node(Server):
    """A server with a configuration of its own, which may be killed and started again with the same state."""

    def __init__(self, name: str, folder: Path, configuration: str, prefix: Sequence[str] = ()) -> None:
        """Write ``folder``/NAME.toml; log and state are beside it. ``prefix`` is as for ``running_server``."""
        self.name = name
        self.log = folder / f"server-{name}.log"
        self.state = folder / f"state-{name}"
        path = folder / f"{name}.toml"
        path.touch(0o600)
        path.write_text(configuration)
        self._command = [
            *prefix,
            sys.executable,
            "-c",
            "import sys; from smb3server.cli.main import main; sys.exit(main())",
        ]
        self._command += ["--config", str(path), "--state", str(self.state)]
        self._started = False

    def start(self) -> None:
        """Start the server. Raises ``ServerError``."""
        since = self.log.stat().st_size if self.log.exists() else 0
        self._started = True
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        wait_ready(self.process, self.log, since)

    def kill(self) -> None:
        """Kill the server, even if it is stopped; do nothing if it is not running."""
        if self._started:
            self.process.kill()
            self.process.wait()


class Restarting(Failing):
    """One server, killed and started again."""

    def __init__(self, share: Path, log: Path) -> None:
        self.share = share
        self.server = Node(
            log.stem.removeprefix("server-"), log.parent, _CONFIGURATION.format(share=share, forced=own_user.LINE)
        )

    @property
    def alive(self) -> bool:
        return self.server.alive

    def fail(self, how: str) -> None:
        if how != "kill":
            raise ServerError(f"nothing helps a single server after {how}")
        self.server.kill()

    def recover(self, how: str) -> dict[str, float]:
        start = time.monotonic()
        self.server.start()
        return {"server ready after": time.monotonic() - start}

    def settle(self, how: str) -> None:
        if not self.alive:
            raise ServerError("the server that was started again is dead")

    def report(self, path: Path) -> None:
        self.server.report(path)

    def stop(self) -> None:
        """Stop the server. Raises ``ServerError``."""
        self.server.stop()


@contextlib.contextmanager
def restarting_server(share: Path, log: Path) -> Iterator[Restarting]:
    """Run a server on 127.0.0.1 that can be made to fail. Raises ``ServerError``."""
    check_ports()
    found = Restarting(share, log)
    try:
        found.server.start()
        yield found
    finally:
        found.server.kill()
