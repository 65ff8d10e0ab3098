"""The server under test, as its users start it: the command with a configuration file."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

USER, SECOND_USER, PASSWORD = "games", "news", "Passw0rd"
_START_SECONDS = 30
_STOP_SECONDS = 10


class ServerError(Exception):
    """It did not start."""


def configuration(
    shares: dict[str, Path],
    share_options: dict[str, dict[str, object]],
    server: dict[str, object],
) -> str:
    """TOML with two users and ``shares`` by name."""
    options = {"listen": ["127.0.0.1"], "port": 0, "test_fsctls": True, "anonymous": True, **server}
    lines = ["[server]", *(f"{key} = {_toml(value)}" for key, value in options.items())]
    for name, path in shares.items():
        lines += ["[[share]]", f'name = "{name}"', f'path = "{path}"']
        lines += [f"{key} = {_toml(value)}" for key, value in share_options.get(name, {}).items()]
    for user in (USER, SECOND_USER):
        lines += ["[[user]]", f'name = "{user}"', f'password = "{PASSWORD}"']
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return json.dumps(value)


@contextlib.contextmanager
def running_server(folder: Path, config: str) -> Iterator[tuple[str, int]]:
    """Its address. What it writes is in ``folder``/server.log."""
    file, log = folder / "server.toml", folder / "server.log"
    file.write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "smb3server", "--config", str(file), "--state", str(folder / "state")]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield _address(process, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> tuple[str, int]:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("ready "):
                host, _, port = line.split(",")[0].split()[-1].rpartition(":")
                return host, int(port)
        time.sleep(0.1)
    raise ServerError(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")
