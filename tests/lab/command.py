"""The command as a process of its own, for clients that nobody here wrote."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from tools.support import own_user


@dataclass
class Served:
    port: int
    share: Path
    process: subprocess.Popen[str]
    ready: str = ""
    """The line that says what is served where."""


def serve(folder: Path, *options: str) -> Served:
    share = folder / "share"
    share.mkdir(exist_ok=True)
    if "--config" not in options:
        (folder / "serve.toml").write_text('[server]\nmin_dialect = "2.0.2"\n')
        options = (*options, "--config", str(folder / "serve.toml"))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "smb3server",
                    "--share",
                    own_user.option("share", share),
                    "--user",
                    "u:pw",
                ),
                *("--listen", "127.0.0.1", "--port", "0", *options),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    watchdog = threading.Timer(30, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            found = re.match(r"ready tcp 127\.0\.0\.1:(\d+)", line)
            if found:
                return Served(int(found[1]), share, process, line.rstrip())
    finally:
        watchdog.cancel()
    raise AssertionError((folder / "log").read_text())


def stop(served: Served) -> int:
    served.process.send_signal(signal.SIGTERM)
    try:
        status = served.process.wait(15)
    except subprocess.TimeoutExpired:
        served.process.kill()
        status = served.process.wait()
    if served.process.stdout is not None:
        served.process.stdout.close()
    return status
