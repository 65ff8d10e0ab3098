"""Named pipes of IPC$: an RPC endpoint behind each open, in message mode. [MS-SMB2 3.3.5.10, 3.3.5.12, 3.3.5.13]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from smb3server.dispatch.request import SessionRequest
from smb3server.process.turns import call_in_own_turn
from smb3server.rpc.association import Association, AssociationGroups
from smb3server.rpc.dcerpc import Interface, RpcEndpoint
from smb3server.state.objects import Session
from smb3server.state.server_state import ServerState
from smb3server.wire.status import NtStatus, StatusError

InterfaceFactory = Callable[[ServerState, Session], list[Interface]]


def _srvsvc(server: ServerState, session: Session) -> list[Interface]:
    from smb3server.rpc import srvsvc

    return [srvsvc.interface(server, session)]


def _wkssvc(server: ServerState, session: Session) -> list[Interface]:
    from smb3server.rpc import wkssvc

    return [wkssvc.interface(server, session)]


def _netdfs(server: ServerState, session: Session) -> list[Interface]:
    from smb3server.rpc import netdfs

    return [netdfs.interface(server, session)] if server.serves_dfs else []


def _lsarpc(server: ServerState, session: Session) -> list[Interface]:
    from smb3server.rpc import dssetup, lsacap, lsarpc, samr

    accounts = server.accounts
    return [
        lsarpc.interface(accounts, session),
        samr.interface(server, session),
        dssetup.interface(),
        lsacap.interface(accounts, session),
    ]


def _fsrvp(server: ServerState, session: Session) -> list[Interface]:
    agent = server.shadow_copies
    if agent is None or not any(share.rules.shadow_copies for share in server.share_list.values()):
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    from smb3server.rpc import fsrvp

    return [fsrvp.interface(server, session, agent)]


def _svcctl(server: ServerState, session: Session) -> list[Interface]:
    from smb3server.rpc import svcctl

    return [svcctl.interface(server, session)]


def _winreg(server: ServerState, session: Session) -> list[Interface]:
    from smb3server.rpc import winreg

    return [winreg.interface(server, session)]


def _eventlog(server: ServerState, session: Session) -> list[Interface]:
    from smb3server.rpc import eventlog

    return [eventlog.interface(server, session)]


PIPES: dict[str, InterfaceFactory] = {
    "srvsvc": _srvsvc,
    "wkssvc": _wkssvc,
    "netdfs": _netdfs,
    # All interfaces of LSASS are available on each of its pipes, because the bind chooses the interface (MS-RPCE).
    "lsarpc": _lsarpc,
    "samr": _lsarpc,
    "lsass": _lsarpc,
    "fssagentrpc": _fsrvp,
    "svcctl": _svcctl,
    "winreg": _winreg,
    "eventlog": _eventlog,
}
"""Services by the name of their pipe without ``\\pipe\\``. impacket's NDR is imported on first use."""

MAX_WRITE = 65536
"""Bytes of one write. Clients write fragments."""
MAX_STUB = 32768
"""Bytes of one call's arguments."""
MAX_SHORT_STUB = 2048
"""Bytes of one call's arguments, for services that use the state of the server and so run on the event loop. None of
their calls needs more, except those that set security descriptors, which only administrators may."""
MAX_OUTPUT = 8 << 20
"""Bytes of unread answers. A client that only writes gets PIPE_BUSY."""


class RpcPipe:
    """One open of a pipe: implements ``smb3server.state.objects.Pipe``."""

    def __init__(self, endpoint: RpcEndpoint, on_worker: bool) -> None:
        """Connect a pipe to its association.

        ``on_worker`` means that calls run on a worker. They may only read and change accounts, and may query the host's
        user database.
        """
        self._endpoint = endpoint
        self._on_worker = on_worker
        self._rest = memoryview(b"")
        # Invariant: while a worker writes (busy), close only sets closed, and end then closes the association.
        self._busy = False
        self._closed = False
        self._waiting: list[Callable[[], None]] = []
        """Readers to be called when there may be something to read."""
        self.turn = asyncio.Lock()

    def is_slow(self, size: int) -> bool:
        """Return whether a write must run on a worker, because its calls may take long."""
        return self._on_worker

    def begin(self) -> bool:
        """Keep the association for a worker that is going to write, until ``end``. Return False if the pipe is
        closed."""
        self._busy = not self._closed
        return self._busy

    def end(self) -> None:
        """Note that the worker has written, and close the association if the pipe was closed meanwhile."""
        self._busy = False
        if self._closed:
            self._close()
        self.wake()

    @property
    def is_empty(self) -> bool:
        """Whether a read has to wait for a message."""
        return not (self._closed or self._rest or self._endpoint.output or self._endpoint.broken)

    @property
    def answers_later(self) -> bool:
        """Whether a call waits for its answer."""
        return self._endpoint.has_pending_calls

    def wait(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, in a turn of its own, when the pipe has a message or is closed."""
        self._waiting.append(callback)

    def unwait(self, callback: Callable[[], None]) -> None:
        """Undo ``wait``."""
        if callback in self._waiting:
            self._waiting.remove(callback)

    def wake(self) -> None:
        """Call those who wait if the pipe is no longer empty. While a worker writes, ``end`` does so."""
        if self._busy or self.is_empty:
            return
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            call_in_own_turn(callback)

    def write(self, data: bytes) -> int:
        """Pass all of ``data`` to the association and return its size.

        Raises ``StatusError``: INSUFFICIENT_RESOURCES for more than ``MAX_WRITE`` bytes, PIPE_BUSY for too many unread
        answers, PIPE_DISCONNECTED after the client violated the protocol.
        """
        if len(data) > MAX_WRITE:
            raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
        if sum(map(len, self._endpoint.output)) > MAX_OUTPUT:
            raise StatusError(NtStatus.PIPE_BUSY)
        self._endpoint.feed(data)
        self.wake()
        if self._endpoint.broken and not self._endpoint.output:
            raise StatusError(NtStatus.PIPE_DISCONNECTED)
        return len(data)

    def read(self, size: int) -> tuple[bytes, bool]:
        """Return one message, or the first ``size`` bytes of it, and whether more of it is left.

        Raises ``StatusError``: PIPE_EMPTY, PIPE_BROKEN if the pipe is closed, PIPE_DISCONNECTED after the client
        violated the protocol."""
        if self._closed:
            raise StatusError(NtStatus.PIPE_BROKEN)
        if not self._rest:
            if not self._endpoint.output:
                raise StatusError(NtStatus.PIPE_DISCONNECTED if self._endpoint.broken else NtStatus.PIPE_EMPTY)
            self._rest = memoryview(self._endpoint.output.pop(0))
        data = bytes(self._rest[:size])
        self._rest = self._rest[size:]
        return data, len(self._rest) > 0

    def peek(self) -> tuple[int, int, int]:
        """Return the bytes that can be read, the number of messages, and the bytes of the first message."""
        messages = ([self._rest] if self._rest else []) + [memoryview(entry) for entry in self._endpoint.output]
        return sum(map(len, messages)), len(messages), len(messages[0]) if messages else 0

    def close(self) -> None:
        """Close the pipe, at the end of a worker's write if there is one."""
        self._closed = True
        if not self._busy:
            self._close()
        self.wake()

    def _close(self) -> None:
        self._endpoint.close()
        self._endpoint.output.clear()
        self._rest = memoryview(b"")


def normalize(name: str) -> str:
    """Return the name of a pipe without prefix, case-folded."""
    return name.casefold().lstrip("\\").removeprefix("pipe\\")


def open_pipe(request: SessionRequest, name: str) -> RpcPipe:
    """Open a pipe for the user of the request's session. Raises ``StatusError`` (OBJECT_NAME_NOT_FOUND)."""
    factory = PIPES.get(normalize(name))
    if factory is None:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    server = request.server
    interfaces = factory(server, request.session)
    # Calls act for the session's user. A bind may protect them in addition to the session's protection.
    association = Association(
        f"\\PIPE\\{normalize(name)}", lambda association: interfaces, server.new_rpc_acceptor, AssociationGroups()
    )
    on_worker = factory is _lsarpc
    long_calls = on_worker or server.accounts.administers(request.session.identity)
    association.max_stub = MAX_STUB if long_calls else MAX_SHORT_STUB
    pipe = RpcPipe(association, on_worker)
    association.flush = pipe.wake
    association.events, association.client = server.events, request.connection.client_name
    return pipe
