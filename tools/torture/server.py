"""The server under test, started as by its users: the command with a configuration file.

With a fabric, ``smb3server proxy`` carries smbtorture's TCP over SMB Direct.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

USER, SECOND_USER, PASSWORD = "games", "news", "Passw0rd"
SERVER_OPTIONS = {"test_fsctls": True, "anonymous": True, "min_dialect": "2.0.2", "rdma_min_dialect": "2.0.2"}
_START_SECONDS = 30
_STOP_SECONDS = 10


class ServerError(Exception):
    """The server did not start."""


def configuration(
    shares: dict[str, Path],
    share_options: dict[str, dict[str, object]],
    server: dict[str, object],
) -> str:
    """Return a TOML configuration with two users and ``shares`` by name."""
    options = {"listen": ["127.0.0.1"], "port": 0, **SERVER_OPTIONS, **server}
    return "[server]\n" + settings(options) + sections(shares, share_options)


def settings(options: Mapping[str, object]) -> str:
    """Return lines of TOML."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in options.items())


def sections(shares: Mapping[str, Path], share_options: Mapping[str, Mapping[str, object]]) -> str:
    """Return the sections of shares and users."""
    text = ""
    for name, path in shares.items():
        text += "[[share]]\n" + settings({"name": name, "path": str(path), **share_options.get(name, {})})
    for user in (USER, SECOND_USER):
        text += "[[user]]\n" + settings({"name": user, "password": PASSWORD})
    return text


def _toml(value: object) -> str:
    return json.dumps(value)


@contextlib.contextmanager
def running_server(folder: Path, config: str, fabric: str | None = None) -> Iterator[tuple[str, int]]:
    """Run the server and yield its address, or that of a proxy in front of its SMB Direct.

    ``fabric`` is iwarp, loopback or mixed, and requests the proxy. With mixed, every other connection uses TCP, and the
    rest iWARP. The output is in ``folder``/server.log. Raises ``ServerError``.
    """
    file, log = folder / "server.toml", folder / "server.log"
    file.touch(0o600)
    file.write_text(config, encoding="utf-8")
    options = ["--config", str(file), "--state", str(folder / "state")]
    if fabric is None:
        with _running(["smb3server", *options], log) as process:
            yield _address(process, log, "tcp")
    elif fabric == "loopback":
        with _running(["smb3server", "proxy", "--fabric", fabric, "--", *options], log) as process:
            yield _address(process, log, "tcp")
    else:
        with contextlib.ExitStack() as stack:
            name = "iwarp" if fabric == "mixed" else fabric
            process = stack.enter_context(_running(["smb3server", *options, "--rdma", name, "--rdma-port", "0"], log))
            host, port = _address(process, log, name)
            proxy_log = folder / "proxy.log"
            arguments = ["smb3server", "proxy", "--fabric", name, "--server", f"{host}:{port}"]
            if fabric == "mixed":
                arguments += ["--tcp-server", "{}:{}".format(*_address(process, log, "tcp"))]
            proxy = stack.enter_context(_running(arguments, proxy_log))
            yield _address(proxy, proxy_log, "tcp")


@contextlib.contextmanager
def _running(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path, kind: str) -> tuple[str, int]:
    """Return the address at which ``kind`` is served, from the line that starts with "ready"."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("ready "):
                for address in line.removeprefix("ready ").split(", "):
                    if address.startswith(kind + " "):
                        host, _, port = address.split()[-1].rpartition(":")
                        return host, int(port)
        time.sleep(0.1)
    raise ServerError(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")
