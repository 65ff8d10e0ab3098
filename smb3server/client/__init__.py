"""Use shares as folders: over SMB Direct where the server has it, else over TCP.

    async with connect("smb://alice@nas/data", rdma="auto") as share:
        text = await share.read_text("notes/today.txt")
        await share.download("films/big.mkv", "/tmp", progress=print)

``smb3server.client.sync`` has the same for code that is not asynchronous, and ``smb3server.client.filesystem`` the file
system ``smbd://`` of fsspec.

Reading order: ``options`` (how to connect and copy) -> ``address`` and ``credentials`` (where, who) -> ``errors``,
``names`` and ``entries`` (used by all) -> ``protocol`` (connections and requests) -> ``silent`` and ``fabrics``
(finding RDMA) -> ``one_sided`` and ``link`` (the connections to a share) -> ``lasting`` and ``handle`` (one open file
over connections that may be lost) -> ``links`` (of namespaces) -> ``file``, ``watching``, ``share`` and ``share_list``
(what users see) -> ``connecting`` -> ``local_modes``, ``small_files``, ``transfers`` and ``copying`` (whole files) ->
``places``, ``sameness`` and ``mirror`` (whole folders) -> ``background`` and ``sync`` (without asyncio) ->
``filesystem`` (fsspec).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smb3server.client.connecting import connect
    from smb3server.client.credentials import CredentialsError
    from smb3server.client.entries import Entry
    from smb3server.client.errors import (
        RemoteConnectionError,
        RemoteError,
        RemoteFileExistsError,
        RemoteFileNotFoundError,
        RemoteIsADirectoryError,
        RemoteNotADirectoryError,
        RemotePermissionError,
        RemoteTimeoutError,
    )
    from smb3server.client.file import File
    from smb3server.client.share import Change, Share, Usage
    from smb3server.client.share_list import ListedShare, list_shares
    from smb3server.client.transfers import Transfer

__all__ = [
    "Change",
    "CredentialsError",
    "Entry",
    "File",
    "ListedShare",
    "RemoteConnectionError",
    "RemoteError",
    "RemoteFileExistsError",
    "RemoteFileNotFoundError",
    "RemoteIsADirectoryError",
    "RemoteNotADirectoryError",
    "RemotePermissionError",
    "RemoteTimeoutError",
    "Share",
    "Transfer",
    "Usage",
    "connect",
    "list_shares",
]

_MODULES = {
    "Change": "share",
    "CredentialsError": "credentials",
    "Entry": "entries",
    "File": "file",
    "ListedShare": "share_list",
    "RemoteConnectionError": "errors",
    "RemoteError": "errors",
    "RemoteFileExistsError": "errors",
    "RemoteFileNotFoundError": "errors",
    "RemoteIsADirectoryError": "errors",
    "RemoteNotADirectoryError": "errors",
    "RemotePermissionError": "errors",
    "RemoteTimeoutError": "errors",
    "Share": "share",
    "Transfer": "transfers",
    "Usage": "share",
    "connect": "connecting",
    "list_shares": "share_list",
}
"""Where the names are. Each is imported when it is used: a command needs few of them."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
