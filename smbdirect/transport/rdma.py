"""RDMA Read and Write by buffer descriptors. [MS-SMBD 3.1.4.3-3.1.4.6]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from smbdirect.core.connection import Connection
from smbdirect.providers.base import Endpoint
from smbdirect.rdma.pool import BufferPool
from smbdirect.rdma.registrations import Counters
from smbdirect.rdma.transfers import Transfers


class Rdma(Transfers):
    """The RDMA operations of one SMB Direct connection. Implements ``message_transport.RdmaOperations``."""

    def __init__(
        self,
        endpoint: Endpoint,
        connection: Connection,
        pool: BufferPool,
        counters: Counters,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
    ) -> None:
        """See ``Transfers``. ``connection`` knows the size of transfers that was negotiated."""
        super().__init__(endpoint, pool, counters, loop, wake)
        self._connection = connection

    @property
    def max_read_write_size(self) -> int:
        return self._connection.max_read_write_size
