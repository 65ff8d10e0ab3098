"""RDMA for programs: memory of another process, read and written without its help, on any fabric.

    async with rdma.listen("iwarp", "127.0.0.1", 4000) as listener:
        async for connection in listener: ...

    async with rdma.connect("iwarp", "127.0.0.1", 4000) as connection:
        await connection.read(handle, into)

What programs and SMB Direct both need of a connection lies here as well: memory, registrations, chains of work
requests, and transfers of any length. The rules of MS-SMBD (``core``, ``transport``) and the individual fabrics
(``providers``) do not.

Reading order: ``pool`` (buffers) -> ``registrations`` and ``receives`` -> ``chain_calls`` and ``chains`` ->
``work_queue`` -> ``transfers`` -> ``errors``
-> ``regions`` (handles, domains) -> ``messages`` (credits) -> ``connection`` -> ``endpoints`` (listening and
connecting).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smbdirect.errors import ConnectionLost, DecodeError, ProviderError
    from smbdirect.rdma.connection import Batch, Connection
    from smbdirect.rdma.endpoints import Listener, connect, domain, listen, open_connection
    from smbdirect.rdma.errors import AccessRefused, MessageTooLong, NotSupported, OutOfRange, RdmaError
    from smbdirect.rdma.regions import Domain, Handle, Region, Rights


__all__ = [
    "AccessRefused",
    "Batch",
    "Connection",
    "ConnectionLost",
    "DecodeError",
    "Domain",
    "Handle",
    "Listener",
    "MessageTooLong",
    "NotSupported",
    "OutOfRange",
    "ProviderError",
    "RdmaError",
    "Region",
    "Rights",
    "connect",
    "domain",
    "listen",
    "open_connection",
]
_HOMES = {
    "AccessRefused": "smbdirect.rdma.errors",
    "Batch": "smbdirect.rdma.connection",
    "Connection": "smbdirect.rdma.connection",
    "ConnectionLost": "smbdirect.errors",
    "DecodeError": "smbdirect.errors",
    "Domain": "smbdirect.rdma.regions",
    "Handle": "smbdirect.rdma.regions",
    "Listener": "smbdirect.rdma.endpoints",
    "MessageTooLong": "smbdirect.rdma.errors",
    "NotSupported": "smbdirect.rdma.errors",
    "OutOfRange": "smbdirect.rdma.errors",
    "ProviderError": "smbdirect.errors",
    "RdmaError": "smbdirect.rdma.errors",
    "Region": "smbdirect.rdma.regions",
    "Rights": "smbdirect.rdma.regions",
    "connect": "smbdirect.rdma.endpoints",
    "domain": "smbdirect.rdma.endpoints",
    "listen": "smbdirect.rdma.endpoints",
    "open_connection": "smbdirect.rdma.endpoints",
}
"""Where each name is. Its module is loaded when it is used: who needs ``pool`` alone does not pay for the others."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
