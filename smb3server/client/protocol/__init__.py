"""Offer a small asynchronous SMB client over any ``MessageTransport``, TCP and SMB Direct alike. [MS-SMB2 3.2]

Reading order: ``messages`` (requests, responses, and the protocols between connection, session and tree) -> ``ways``
and ``exposed`` (by which data can travel; memory for RDMA) -> ``payloads`` (how data travels) -> ``tree`` (the
operations of a tree) -> ``anonymous``, ``validation`` and ``session`` (logon, trees) -> ``negotiation``, ``silence``
and ``connection`` (messages, credits) -> ``transports`` (TCP and SMB Direct) -> ``interfaces`` and ``channels`` (more
connections of one session).

    connection = await Client.connect(await open_tcp("server", 445))
    session = await connection.log_on("user", "password")
    tree = await session.tree_connect("share")
    file = await tree.create("a.txt")
    data = await tree.read(file, 0, 65536)

Over SMB Direct, ``read`` and ``write`` move 4096 bytes and more by RDMA. Where the session signs or the share encrypts,
RDMA transforms protect the data; if they were not negotiated it travels in messages. ``tree.choice`` says which.
"""

from __future__ import annotations

from smb3server.client.protocol.connection import Client
from smb3server.client.protocol.messages import Reply, ServerError
from smb3server.client.protocol.session import ClientSession
from smb3server.client.protocol.transports import open_rdma, open_tcp
from smb3server.client.protocol.tree import RemoteFile, Tree

__all__ = ["Client", "ClientSession", "RemoteFile", "Reply", "ServerError", "Tree", "open_rdma", "open_tcp"]
