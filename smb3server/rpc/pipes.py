"""Named pipes of IPC$: an RPC endpoint behind each open, in message mode (MS-SMB2 3.3.5.10, 3.3.5.12, 3.3.5.13)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from smb3server.dispatch.request import SessionRequest
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

    return [wkssvc.interface(server.settings.server_name)]


def _lsarpc(server: ServerState, session: Session) -> list[Interface]:
    from smb3server.rpc import lsarpc, samr

    return [lsarpc.interface(server.accounts, session), samr.interface(server.accounts, session)]


PIPES: dict[str, InterfaceFactory] = {
    "srvsvc": _srvsvc,
    "wkssvc": _wkssvc,
    # All of LSASS is behind each of its pipes (MS-RPCE has interfaces, not pipes, chosen by the bind).
    "lsarpc": _lsarpc,
    "samr": _lsarpc,
    "lsass": _lsarpc,
}
"""By name without ``\\pipe\\``. impacket's NDR is imported with the first use."""

MAX_WRITE = 65536
"""Bytes at once. Clients write fragments."""
MAX_STUB = 32768
"""Bytes of one call's arguments."""
MAX_SHORT_STUB = 2048
"""The same for services whose operations look at the state of the server and so stay on the event loop. None of their
calls has reason to be longer."""
MAX_OUTPUT = 8 << 20
"""Unread answers, bytes; a client that only writes gets PIPE_BUSY."""


class RpcPipe:
    """See ``smb3server.state.objects.Pipe``."""

    def __init__(self, endpoint: RpcEndpoint, on_worker: bool) -> None:
        """``on_worker``: calls touch nothing but what they read of accounts, and may ask the host's user database."""
        self._endpoint = endpoint
        self._on_worker = on_worker
        self._rest = memoryview(b"")
        self._busy = False
        self._closed = False
        self.turn = asyncio.Lock()

    def is_slow(self, size: int) -> bool:
        return self._on_worker

    def begin(self) -> bool:
        self._busy = not self._closed
        return self._busy

    def end(self) -> None:
        self._busy = False
        if self._closed:
            self._close()

    def write(self, data: bytes) -> int:
        """Everything is taken, or PIPE_DISCONNECTED after a protocol violation of the client's. INSUFFICIENT_RESOURCES
        for more than a client has reason to send at once."""
        if len(data) > MAX_WRITE:
            raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
        if sum(map(len, self._endpoint.output)) > MAX_OUTPUT:
            raise StatusError(NtStatus.PIPE_BUSY)
        self._endpoint.feed(data)
        if self._endpoint.broken and not self._endpoint.output:
            raise StatusError(NtStatus.PIPE_DISCONNECTED)
        return len(data)

    def read(self, size: int) -> tuple[bytes, bool]:
        """One message, or what fits, and whether more of it is left."""
        if not self._rest:
            if not self._endpoint.output:
                raise StatusError(NtStatus.PIPE_EMPTY)
            self._rest = memoryview(self._endpoint.output.pop(0))
        data = bytes(self._rest[:size])
        self._rest = self._rest[size:]
        return data, len(self._rest) > 0

    def peek(self) -> tuple[int, int, int]:
        """Bytes that can be read, messages, bytes of the first message."""
        messages = ([self._rest] if self._rest else []) + [memoryview(entry) for entry in self._endpoint.output]
        return sum(map(len, messages)), len(messages), len(messages[0]) if messages else 0

    def close(self) -> None:
        self._closed = True
        if not self._busy:
            self._close()

    def _close(self) -> None:
        self._endpoint.close()
        self._endpoint.output.clear()
        self._rest = memoryview(b"")


def normalize(name: str) -> str:
    """Pipe names come with and without a prefix."""
    return name.casefold().lstrip("\\").removeprefix("pipe\\")


def open_pipe(request: SessionRequest, name: str) -> RpcPipe:
    """OBJECT_NAME_NOT_FOUND for a name that nobody serves; ACCESS_DENIED for anonymous users where they are barred."""
    factory = PIPES.get(normalize(name))
    if factory is None:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    server = request.server
    interfaces = factory(server, request.session)
    # Calls act for the session's user; binds may protect them on top of what the session does.
    association = Association(
        f"\\PIPE\\{normalize(name)}", lambda association: interfaces, server.new_rpc_acceptor, AssociationGroups()
    )
    on_worker = factory is _lsarpc
    association.max_stub = MAX_STUB if on_worker else MAX_SHORT_STUB
    return RpcPipe(association, on_worker)
