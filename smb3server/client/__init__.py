"""Use shares as folders: over SMB Direct where the server has it, else over TCP.

    async with connect("smb://alice@nas/data", rdma="auto") as share:
        text = await share.read_text("notes/today.txt")
        await share.download("films/big.mkv", "/tmp", progress=print)

``smb3server.client.sync`` has the same for code that is not asynchronous, and ``smb3server.client.filesystem`` the file
system ``smbd://`` of fsspec.

Reading order: ``address`` and ``credentials`` (where, who) -> ``link`` (connections, channels; ``fabrics`` finds RDMA)
-> ``handle`` (one open file over connections that may be lost) -> ``file``, ``share`` (what users see) ->
``transfers``, ``copying`` (whole files; ``local_modes``) -> ``places``, ``sameness``, ``mirror`` (whole folders).
``errors`` and ``names`` are used by all.
"""

from __future__ import annotations

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
