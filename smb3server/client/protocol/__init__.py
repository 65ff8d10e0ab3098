"""Offer a small asynchronous SMB client over any ``MessageTransport``, TCP and SMB Direct alike. [MS-SMB2 3.2]

Reading order: ``messages`` (requests, responses, and the ways of data) -> ``negotiation`` and ``silence`` (how long an
answer may take) -> ``exposed`` (memory for RDMA) -> ``connection`` (requests, chains, credits) -> ``payloads`` (how
data travels) -> ``steps`` (requests on an open, alone or in chains) -> ``tree`` (the operations on files) -> ``ntlm``
and ``kerberos`` -> ``session`` (logon, trees, further channels) -> ``interfaces`` and
``referrals`` -> ``transports`` (TCP and SMB Direct).

    connection = await Client.connect(await open_tcp("server", 445))
    session = await connection.log_on("user", "password")
    tree = await session.tree_connect("share")
    file = await tree.create("a.txt")
    data = await tree.read(file, 0, 65536)

Over SMB Direct, ``read`` and ``write`` move 4096 bytes and more by RDMA. Where the session signs or the share encrypts,
RDMA transforms protect the data; if they were not negotiated it travels in messages. ``tree.choice`` says which.
"""

from __future__ import annotations

from smb3server.client.protocol.messages import Reply, ServerError
from smb3server.client.protocol.session import Client, ClientSession
from smb3server.client.protocol.transports import open_rdma, open_tcp
from smb3server.client.protocol.tree import RemoteFile, Tree

__all__ = ["Client", "ClientSession", "RemoteFile", "Reply", "ServerError", "Tree", "open_rdma", "open_tcp"]
