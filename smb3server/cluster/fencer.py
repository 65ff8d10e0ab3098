"""Running the cluster's ``fence_command``: it makes sure that a node which fell silent writes no more.

A lease only shows that a node must have stopped. A machine that was paused, or whose system call hangs, may still
finish a write that it had begun. Only somebody else can prevent that: whoever controls its power or its storage.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class Fencer:
    """The helper process that runs the command. Make it before the server gives up privileges. ``close`` it last."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        """``timeout``: seconds that the command may take."""
        self.timeout = timeout
        self._lock = asyncio.Lock()
        """Held while the helper has a request: it takes one at a time."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("fence_helper.py")), json.dumps(list(command))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    async def fence(self, values: Mapping[str, str], before: float) -> str:
        """Run the command. Return why it failed; empty if the node is fenced.

        ``values``: what stands in the command in braces: the silent node, its first own address, and the service, as
        ``node``, ``address`` and ``service``. ``before``: the CLOCK_BOOTTIME after which it must not begin."""
        request = json.dumps({"values": dict(values), "timeout": self.timeout, "before": before})
        async with self._lock:
            return await asyncio.to_thread(self._ask, request)

    def _ask(self, request: str) -> str:
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise ValueError("the helper has pipes")
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except (OSError, ValueError) as error:
            return f"the helper process is gone: {error}"
        return str(json.loads(answer)["problem"]) if answer else "the helper process is gone"

    def close(self) -> None:
        """End the helper, and the command if it is running."""
        process = self._process
        if process.stdin is not None:
            process.stdin.close()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
