"""The process that runs a cluster's ``fence_command``. It starts before the server gives up its privileges and enters
its sandbox, which allows no programs, and ends with the server.

It is run as a script, by ``fencer``, and imports nothing of this project. Its argument is the command as JSON. Each
line of its input is a JSON object with the values of the placeholders (``values``), the seconds that the command may
take (``timeout``), and the CLOCK_BOOTTIME after which it must not begin (``before``). Each line of its output is a JSON
object: ``problem``, which is empty if the command returned 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

_SHOWN = 200
"""Characters of the command's output that are reported."""


def fill(words: list[str], values: dict[str, str]) -> list[str]:
    """Return the command with its placeholders replaced, as in ``{node}``."""
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    return words


def end(process: subprocess.Popen[str]) -> None:
    """Kill a command and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run(words: list[str], request: dict[str, Any], running: list[subprocess.Popen[str]]) -> str:
    """Run the command once. Return why it failed; empty if it did not. ``running`` has the process meanwhile."""
    if time.clock_gettime(time.CLOCK_BOOTTIME) >= request["before"]:
        return "this node is no longer a member"
    try:
        process = subprocess.Popen(
            fill(words, request["values"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return f"{words[0]}: {error.strerror}"
    running.append(process)
    try:
        output, _ = process.communicate(timeout=request["timeout"])
    except subprocess.TimeoutExpired:
        end(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # What has left the command's process group may keep the pipe open.
            process.communicate(timeout=1)
        return f"no result after {request['timeout']:g} s"
    finally:
        running.remove(process)
    if process.returncode == 0:
        return ""
    said = " ".join(output.split())[-_SHOWN:]
    return f"exit status {process.returncode}" + (f": {said}" if said else "")


def main() -> None:
    """Serve requests until the input ends."""
    words: list[str] = json.loads(sys.argv[1])
    running: list[subprocess.Popen[str]] = []
    requests: list[str] = []
    more = threading.Semaphore(0)

    def read() -> None:
        for line in sys.stdin:
            requests.append(line)
            more.release()
        for process in list(running):
            end(process)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        more.acquire()
        problem = run(words, json.loads(requests.pop(0)), running)
        print(json.dumps({"problem": problem}), flush=True)


if __name__ == "__main__":
    main()
