"""Servers of this project that run on this machine, according to their admin sockets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from smb3server.admin.socket import ask, running
from smb3server.net.host_lists import is_loopback

ANSWER_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class OwnServer:
    """One such server, and the addresses that it serves."""

    pid: int
    rdma: str
    """The value of its ``rdma`` option."""
    served: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """Fabric, host and ports."""
    problems: tuple[str, ...] = field(default=())
    """Why it does not serve other fabrics."""

    def __str__(self) -> str:
        return f"smb3server (process {self.pid})"

    @property
    def fabrics(self) -> list[str]:
        """Fabrics served at addresses that other machines can reach."""
        return list(dict.fromkeys(fabric for fabric, host, _ in self.served if not is_loopback(host)))


def own_servers(directory: Path | None = None) -> list[OwnServer]:
    """Return the servers whose admin sockets this user may use: the user's own, or all for root.

    Blocks while they answer.
    """
    found: list[OwnServer] = []
    for path in running(directory):
        try:
            pid = ask(path, "ping", ANSWER_TIMEOUT)["pid"]
            report = ask(path, "status", ANSWER_TIMEOUT)["server"]
            choices = report["rdma_choices"]
            server = OwnServer(
                int(pid),
                str(report["rdma"]),
                tuple((entry["fabric"], entry["host"], tuple(entry["ports"])) for entry in choices if entry["served"]),
                tuple(
                    f"no {entry['fabric']} on {entry['host'] or 'any address'}: {entry['reason']}"
                    for entry in choices
                    if not entry["served"]
                ),
            )
        except (OSError, ValueError, KeyError, TypeError):
            # The server is ending, or is of another version: its ports are reported as belonging to an unknown program.
            continue
        if all(known.pid != server.pid for known in found):
            found.append(server)
    return found
