"""Connections (MS-SMB2 3.3.1.7): state only; ``dispatcher`` moves it."""

from __future__ import annotations

import asyncio

import time
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from smb3server.request import Buffer, Interim, Pending, Request, Response
from smb3server.status import StatusError
from smb3server.wire.header import Command

if TYPE_CHECKING:
    from smb3server.server import Server
    from smb3server.session import Session
    from smbdirect.message_transport import MessageTransport


class Connection:
    """3.3.1.7. Fields that the negotiation sets have their value before it."""

    def __init__(self, server: Server, transport: MessageTransport) -> None:
        self.server = server
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self.client_name = transport.peer_address[0]
        self.creation_time = time.time()
        self.dialect = 0
        """0: not negotiated; 0x02FF: multi-protocol negotiate answered; else 0x0202 ... 0x0311."""
        self.client_guid = bytes(16)
        self.client_capabilities = 0
        self.client_security_mode = 0
        self.client_dialects: tuple[int, ...] = ()
        self.server_capabilities = 0
        self.server_security_mode = 0
        self.supports_multi_credit = False
        self.max_transact_size = 65536
        self.max_read_size = 65536
        self.max_write_size = 65536
        self.session_table: dict[int, Session] = {}
        self.preauth_integrity_hash = b""
        self.preauth_session_table: dict[int, bytes] = {}
        self.cipher_id = 0
        self.signing_algorithm_id = 0
        self.closed = False
