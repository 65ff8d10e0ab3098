"""A node of a cluster: a server process that can be killed, stopped and started again."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

USER, PASSWORD = "u", "pw"
PROGRAM = ("-m", "smb3server")
_EXIT_SECONDS = 20


class NodeError(Exception):
    """The node did not start."""


class Node:
    """A server process that is a node of a cluster."""

    def __init__(
        self,
        folder: Path,
        name: str,
        url: str,
        sections: str,
        *,
        port: int,
        listen: Sequence[str] = ("127.0.0.1",),
        prefix: Sequence[str] = (),
        ttl: int = 2,
        options: str = "",
        cluster_options: str = "",
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Write the node's configuration.

        ``sections`` are added to its server, cluster and user sections; ``options`` and ``cluster_options`` are lines
        of [server] and [cluster]. ``prefix`` holds the first words of the command, ``program`` the arguments of Python.
        Without a secret_file in ``cluster_options`` records are not sealed: no one else can reach the lab's etcd.
        """
        if "secret_file" not in cluster_options:
            cluster_options += "\nunauthenticated_store = true"
        self.name = name
        self.folder = folder
        self.port = port
        self.prefix = list(prefix)
        self.program = list(program)
        self.config = folder / f"{name}.toml"
        self.config.touch(0o600)
        self.config.write_text(
            f'[server]\nname = "CLU"\nlisten = {json.dumps(list(listen))}\nport = {port}\n'
            f'state = "{folder / name}"\nlog_level = "info"\n{options}\n'
            f"[cluster]\nttl = {ttl}\n{cluster_options}\n{sections}\n"
            f'[[user]]\nname = "{USER}"\npassword = "{PASSWORD}"\n'
        )
        self.arguments = ["--config", str(self.config), "--cluster", url, "--node", name]
        self.process: subprocess.Popen[str] | None = None
        self.witness_port = 0
        """Port of the Witness service once the node is started, if it has one."""

    def start(self) -> None:
        """Start the node and return when it is ready. Raises ``NodeError``."""
        with (self.folder / f"{self.name}.log").open("a") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, *self.program, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        if self.process.stdout is None:
            raise NodeError("no output")
        for line in self.process.stdout:
            if line.startswith("ready"):
                found = re.search(r"witness \S+:(\d+)", line)
                self.witness_port = int(found[1]) if found else 0
                return
        raise NodeError(f"node {self.name} did not start:\n{self.log()[-3000:]}")

    def log(self) -> str:
        """Return the node's log. It is empty before the node's first start."""
        log = self.folder / f"{self.name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def send(self, number: int) -> None:
        """Send a signal. Raises ``NodeError`` if the node is not running."""
        if self.process is None:
            raise NodeError(f"node {self.name} is not running")
        self.process.send_signal(number)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the process with this signal, even if it is stopped, and wait for its end."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        process.wait(_EXIT_SECONDS)
        if process.stdout is not None:
            process.stdout.close()


def admin(url: str, *arguments: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run ``smb3server cluster`` for the cluster at ``url``."""
    return subprocess.run(
        [*prefix, sys.executable, "-m", "smb3server", "cluster", "--cluster", url, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
