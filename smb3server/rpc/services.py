"""The services of Windows that this process stands for, by the names that Windows gives them.

Only what runs is here: a service that is not served has no entry.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

from smb3server.rpc.srvsvc_lists import shown_path
from smb3server.state.server_state import ServerState

SHARE_PROCESS, AUTO_START, ERROR_NORMAL = 0x20, 2, 1
"""Type, start and error control of each: they are one process. [MS-SCMR 2.2.15]"""


class Service(NamedTuple):
    """One service."""

    name: str
    display_name: str
    description: str


SERVER = Service("LanmanServer", "Server", "Serves files over SMB: smb3server itself.")
_REGISTRY = Service("RemoteRegistry", "Remote Registry", "Shows settings of this server as a registry, read only.")
_EVENT_LOG = Service("EventLog", "Windows Event Log", "Shows the latest events of this server, from memory.")
_DFS = Service("Dfs", "DFS Namespace", "Serves the DFS namespaces of this server.")
_NETLOGON = Service("Netlogon", "Netlogon", "Keeps the secure channel to the controllers of the domain.")
_WITNESS = Service("SmbWitness", "SMB Witness", "Tells clients when a node of the cluster has gone or come.")


def running(server: ServerState) -> Iterator[Service]:
    """Return the services that run now."""
    yield from (SERVER, _REGISTRY, _EVENT_LOG)
    if server.serves_dfs:
        yield _DFS
    if server.settings.home is not None:
        yield _NETLOGON
    if server.serves_witness:
        yield _WITNESS


def find(server: ServerState, name: str) -> Service | None:
    """Return the service of this name, in any case."""
    return next((one for one in running(server) if one.name.casefold() == name.casefold()), None)


def program() -> str:
    """Return the path of the program that runs them. Its options may have secrets."""
    return shown_path(sys.executable)


def account() -> str:
    """Return the account that they run as. Windows calls the one that may do everything LocalSystem."""
    return "LocalSystem" if os.geteuid() == 0 else f"uid {os.geteuid()}"
