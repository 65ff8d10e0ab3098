"""Files that clients read and write by RDMA without requests: tickets, the RDMA connections of sessions, and loans.

A session gets a ticket by a request. An RDMA connection that shows it belongs to the session from then on: its line.
What is lent to the session is registered on its line alone, so no other peer can use it: each line is a trust domain of
its own. Lent files are reached by the fabric in software, by system calls on a descriptor.

A loan ends before anybody may rely on the file: ``Caching.end_loans`` and the end of the open, of the session and of
the line see to that. When ``Loan.end`` returns, no byte of the file moves any more. docs/flashnet.md has all events.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import NamedTuple

from smb3server.files.caching import READ, WRITE, Lease, Oplock
from smb3server.state.objects import Open, Session
from smb3server.wire import one_sided as wire
from smb3server.wire.one_sided import LendRights
from smbdirect import rdma
from smbdirect.errors import ConnectionLost, DecodeError, ProviderError
from smbdirect.providers.base import CloseCause, ConnectionRequest
from smbdirect.rdma.endpoints import answer
from smbdirect.rdma.messages import MIN_RECEIVES, pack_terms, unpack_terms
from smbdirect.rdma.pool import BufferPool

log = logging.getLogger(__name__)

TICKET_LIFE = 30.0
"""Seconds in which the client has to connect."""
_MESSAGE_SIZE = 16
"""Bytes of a message on a line, of which there are none."""


class Traffic(NamedTuple):
    """What a line has, and what moved over it."""

    fabric: str
    files: int
    """Files that are lent now."""
    bytes_read: int
    """Bytes of files that the client has read."""
    bytes_written: int


class Loan:
    """One open that is lent. Implements ``caching.Loan``."""

    def __init__(self, line: Line, opened: Open, holder: Oplock[Open] | Lease[Open], region: rdma.Region) -> None:
        self.holder = holder
        self.needs = READ | WRITE if region.handle.rights & rdma.Rights.WRITE else READ
        self.opened = opened
        self.handle = region.handle
        self._line = line
        self._region = region
        self._closing = lambda: self.end("the open is closed")
        holder.caching.loans.append(self)
        line.loans[opened] = self
        opened.on_close.append(self._closing)

    def end(self, why: str) -> None:
        """See ``caching.Loan``. Idempotent."""
        self._region.close()
        if self._line.loans.get(self.opened) is self:
            del self._line.loans[self.opened]
        if self in self.holder.caching.loans:
            self.holder.caching.loans.remove(self)
            log.debug("%s is lent no longer: %s", "/".join(self.opened.path), why)
        if self._closing in self.opened.on_close:
            self.opened.on_close.remove(self._closing)


class Line:
    """The RDMA connection of a session, and what is lent over it."""

    def __init__(self, connection: rdma.Connection, session: Session) -> None:
        self.connection = connection
        self.loans: dict[Open, Loan] = {}
        self._timer: asyncio.TimerHandle | None = None
        if session.expiration_time is not None:
            # A request would be refused from then on, and no transfer is one.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(session.expiration_time, self.end, "the session has expired")

    def lend(
        self, opened: Open, holder: Oplock[Open] | Lease[Open], descriptor: int, length: int, rights: LendRights
    ) -> Loan:
        """Lend the first ``length`` bytes of an open's file; an earlier loan of the open ends. Raise ``RdmaError`` or
        ``ProviderError`` if the fabric or the descriptor does not allow it."""
        region = self.connection.register_file(
            descriptor, 0, length, readable=LendRights.READ in rights, writable=LendRights.WRITE in rights
        )
        before = self.loans.get(opened)
        if before is not None:
            before.end("it is lent again")
        return Loan(self, opened, holder, region)

    def end(self, why: str) -> None:
        """End all loans and the connection. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        for loan in list(self.loans.values()):
            loan.end(why)
        self.connection.abort(why)

    @property
    def traffic(self) -> Traffic:
        """What moved so far."""
        return Traffic(self.connection.fabric, len(self.loans), *self.connection.served)


class OneSided:
    """The tickets and lines of all sessions."""

    def __init__(self) -> None:
        self.lines: dict[Session, Line] = {}
        self._tickets: dict[bytes, tuple[Session, asyncio.TimerHandle]] = {}
        """Each with the timer that ends it."""
        self._pool = BufferPool()
        self._tasks: set[asyncio.Task[None]] = set()

    def ticket(self, session: Session) -> bytes:
        """Return a ticket for one connection within ``TICKET_LIFE``, to be called after ``session_ends``."""
        ticket = secrets.token_bytes(wire.TICKET_LENGTH)
        timer = asyncio.get_running_loop().call_later(TICKET_LIFE, self._take, ticket)
        self._tickets[ticket] = session, timer
        return ticket

    def _take(self, ticket: bytes) -> Session | None:
        """Return whose ticket it is, and end it; None if there is no such ticket."""
        session, timer = self._tickets.pop(ticket, (None, None))
        if timer is not None:
            timer.cancel()
        return session

    def session_ends(self, session: Session, why: str = "the session has ended") -> None:
        """End the line of a session, and its ticket."""
        line = self.lines.pop(session, None)
        if line is not None:
            line.end(why)
        for ticket in [ticket for ticket, (owner, _) in self._tickets.items() if owner is session]:
            self._take(ticket)

    def on_request(self, request: ConnectionRequest) -> bool:
        """See ``SmbDirectListener.divert``. A request that shows no valid ticket is rejected."""
        try:
            _, private_data = unpack_terms(request.private_data)
            ticket = wire.ticket_of(private_data)
        except DecodeError:
            return False
        session = self._take(ticket)
        if session is None:
            log.info("%s: connection for one-sided transfers refused: no such ticket", request.peer_address)
            request.reject()
            return True
        try:
            connection = answer(request, self._pool, None, MIN_RECEIVES, _MESSAGE_SIZE)
        except (ConnectionLost, DecodeError, ProviderError) as error:
            log.warning("%s: connection for one-sided transfers refused: %s", request.peer_address, error)
            request.reject()
            return True
        line = self.lines[session] = Line(connection, session)
        task = asyncio.get_running_loop().create_task(self._attend(request, session, line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _attend(self, request: ConnectionRequest, session: Session, line: Line) -> None:
        """Establish a line, and end its loans with it."""
        why = "the line was lost"
        try:
            await request.accept(pack_terms(MIN_RECEIVES, _MESSAGE_SIZE, b""))
            reason = await line.connection.wait_closed()
            if reason is not None and reason.cause is not CloseCause.PEER:
                log.info("%s: line closed: %s", request.peer_address, reason)
        except (ConnectionLost, ProviderError) as error:
            log.info("%s: line not established: %s", request.peer_address, error)
        finally:
            if self.lines.get(session) is line:
                del self.lines[session]
            line.end(why)
            await line.connection.close()

    async def close(self) -> None:
        """End all lines, and return when nothing is left of them."""
        for session in list(self.lines):
            self.session_ends(session, "the server stops")
        await asyncio.gather(*self._tasks)
