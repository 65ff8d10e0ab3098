"""Traces: the messages of one client, written to a capture file that Wireshark opens.

A trace has the messages as they were on the wire: sealed ones sealed. On request it has them in the clear. Of SMB
Direct
it has the messages alone: data that moved by RDMA is not in it. While there is no trace nothing here runs, and no
connection has a tap (``smbdirect.tapping``).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from smb3server.crypto.encryption import TRANSFORM_PROTOCOL_ID, TRANSFORM_SIZE
from smb3server.observing import pcapng
from smb3server.process.words import amount, endpoint
from smb3server.state.events import fabric_of
from smbdirect.tapping import tapped, untapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smb3server.crypto.encryption import SessionCipher
    from smb3server.server.server import Server
    from smb3server.state.objects import Connection
    from smbdirect.codec import Buffer
    from smbdirect.message_transport import FileRange

log = logging.getLogger("smb3server.net.trace")

MAX_SIZE = 100 << 20
"""Bytes of a file. Then it is renamed to FILE.1, in place of an earlier one, and a new one begins."""
SECONDS = 600.0
"""How long a trace lasts that nobody stops."""
MAX_SECONDS = 86400.0
MAX_TRACES = 4
_SESSION_AT = 44
"""Offset of the SessionId in a transform header. [MS-SMB2 2.2.41]"""


class TraceError(Exception):
    """A trace cannot be begun. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be traced, and how."""

    client: ipaddress.IPv4Network | ipaddress.IPv6Network
    path: Path
    decrypt: bool = False
    seconds: float = SECONDS
    max_size: int = MAX_SIZE

    def concerns(self, connection: Connection) -> bool:
        """Return whether the connection is the client's."""
        host = ipaddress.ip_address(connection.client_name.partition("%")[0])
        return host.version == self.client.version and host in self.client


def parse_client(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Read an address or a network. Raises ``TraceError``."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise TraceError(f"{text!r} is not a client: write its address, or a network such as 192.0.2.0/24") from None


class _Tap:
    """Writes the messages of one connection. Implements ``message_transport.Tap``."""

    def __init__(self, trace: Trace, connection: Connection) -> None:
        self._trace = trace
        self._connection = connection
        transport = connection.transport
        self.conversation = pcapng.Conversation(transport.peer_address, transport.local_address[0])
        self._ciphers: dict[int, SessionCipher] = {}
        """Of sessions that were seen: the answer to a LOGOFF is sealed by one that has ended."""

    @property
    def title(self) -> str:
        """What the file says of the connection."""
        transport = self._connection.transport
        return (
            f"{endpoint(transport.peer_address)} to {endpoint(transport.local_address)}, {fabric_of(self._connection)}"
        )

    def received(self, message: memoryview) -> None:
        """See ``Tap``."""
        self._write(False, (message,))

    def sent(self, segments: Sequence[Buffer], data: FileRange | None) -> None:
        """See ``Tap``."""
        if data is not None:
            # The bytes that the file has now. They are sent a moment later, and zeros instead of what is cut off.
            try:
                content = os.pread(data.descriptor, data.length, data.offset)
            except OSError:
                content = b""
            segments = (*segments, content, bytes(data.length - len(content)))
        self._write(True, segments)

    def _write(self, by_server: bool, segments: Sequence[Buffer]) -> None:
        comment = ""
        if self._trace.wanted.decrypt and bytes(segments[0][:4]) == TRANSFORM_PROTOCOL_ID:
            message = b"".join(segments)
            plain = self._opened(message, by_server)
            segments, comment = ((message,), "cannot be decrypted") if plain is None else ((plain,), "was encrypted")
        self._trace.write(self, by_server, segments, comment)

    def _opened(self, message: bytes, by_server: bool) -> bytes | None:
        session_id = int.from_bytes(message[_SESSION_AT:TRANSFORM_SIZE], "little")
        session = self._connection.session_table.get(session_id)
        if session is not None and session.cipher is not None:
            self._ciphers[session_id] = session.cipher
        cipher = self._ciphers.get(session_id)
        return cipher.opened(message, not by_server) if cipher is not None else None


class Trace:
    """One trace under way."""

    def __init__(self, wanted: Wanted) -> None:
        """Make the file, readable by its owner alone. Raises ``OSError``; FileExistsError if there is one."""
        self.wanted = wanted
        self.messages = 0
        self.bytes = 0
        self.ended_by = ""
        """Why it has ended; empty while it goes on."""
        self.taps: dict[Connection, _Tap] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.on_failure: Callable[[], object] = lambda: None
        """Called when the file cannot be written."""
        self._size = 0
        self._file: BinaryIO | None = self._make(wanted.path)

    def _make(self, path: Path) -> BinaryIO:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        file = os.fdopen(descriptor, "wb", 1 << 20)
        what = "what was encrypted is in the clear" if self.wanted.decrypt else "as they were on the wire"
        file.write(
            pcapng.header(
                f"SMB2 messages of {self.wanted.client}, {what}. IP and TCP headers and port 445 are made up. "
                "Of SMB Direct the messages alone are here, not the data that moved by RDMA."
            )
        )
        self._size = 0
        return file

    def join(self, connection: Connection) -> None:
        """Write the messages of a connection from now on."""
        tap = self.taps[connection] = _Tap(self, connection)
        self._put(tap.conversation.beginning(pcapng.now(), tap.title))

    def leave(self, connection: Connection) -> None:
        """Write the end of a connection."""
        tap = self.taps.pop(connection, None)
        if tap is not None:
            self._put(tap.conversation.end(pcapng.now()))
            self.flush()

    def write(self, tap: _Tap, by_server: bool, segments: Sequence[Buffer], comment: str) -> None:
        """Write one message."""
        self.messages += 1
        if self._size > self.wanted.max_size:
            self._rotate()
        self._put(tap.conversation.message(pcapng.now(), by_server, segments, comment))

    def _rotate(self) -> None:
        path = self.wanted.path
        try:
            self.close()
            path.rename(path.with_name(f"{path.name}.1"))
            self._file = self._make(path)
        except OSError as error:
            self._fail(error)
            return
        # Each file can be read without the one before it.
        for tap in self.taps.values():
            self._put(tap.conversation.beginning(pcapng.now(), f"{tap.title}, continued"))

    def _put(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(data)
        except OSError as error:
            self._fail(error)
            return
        self._size += len(data)
        self.bytes += len(data)

    def _fail(self, error: OSError) -> None:
        self.ended_by = error.strerror or str(error)
        file, self._file = self._file, None
        if file is not None:
            # It tries once more to write, and is closed whether that works or not.
            with contextlib.suppress(OSError):
                file.close()
        self.on_failure()

    def flush(self) -> None:
        """Hand everything to the system."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._fail(error)

    def close(self) -> None:
        """Close the file. Raises ``OSError`` if its end cannot be written."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


class Traces:
    """All traces of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.running: dict[Path, Trace] = {}

    def begin(self, wanted: Wanted) -> Trace:
        """Begin a trace, with the connections that the client has already. Raises ``TraceError``."""
        if len(self.running) >= MAX_TRACES:
            raise TraceError(f"{MAX_TRACES} traces are under way; stop one")
        if wanted.path in self.running:
            raise TraceError(f"{wanted.path} is being written by another trace")
        if not 0 < wanted.seconds <= MAX_SECONDS:
            raise TraceError(f"a trace lasts up to {MAX_SECONDS:.0f} seconds")
        for other in self.running.values():
            if other.wanted.client.version == wanted.client.version and other.wanted.client.overlaps(wanted.client):
                raise TraceError(f"{other.wanted.client} is traced to {other.wanted.path} already")
        try:
            trace = Trace(wanted)
        except FileExistsError:
            raise TraceError(f"{wanted.path} exists; remove it, or name another file") from None
        except OSError as error:
            raise TraceError(f"{wanted.path}: {error.strerror}; the server writes it, as its own user") from error
        self.running[wanted.path] = trace
        trace.on_failure = partial(asyncio.get_running_loop().call_soon, self.end, trace, "")
        self._server.watcher = self
        trace.timer = asyncio.get_running_loop().call_later(wanted.seconds, partial(self.end, trace, "time is up"))
        how = ", with what was encrypted in the clear" if wanted.decrypt else ""
        log.warning(
            "trace of client %s begins: %s%s, for %.0f s at most", wanted.client, wanted.path, how, wanted.seconds
        )
        for connection in list(self._server.connection_list):
            self.accepted(connection)
        return trace

    def end(self, trace: Trace, why: str) -> None:
        """End a trace. Do nothing if it has ended."""
        if self.running.pop(trace.wanted.path, None) is None:
            return
        if trace.timer is not None:
            trace.timer.cancel()
        for connection in list(trace.taps):
            connection.transport = untapped(connection.transport)
            trace.leave(connection)
        trace.ended_by = trace.ended_by or why
        try:
            trace.close()
        except OSError as error:
            trace.ended_by = error.strerror or str(error)
        if not self.running:
            self._server.watcher = None
        log.warning(
            "trace of client %s ended: %s: %d messages, %s: %s",
            trace.wanted.client,
            trace.wanted.path,
            trace.messages,
            amount(trace.bytes),
            trace.ended_by,
        )

    def end_all(self) -> None:
        """End every trace."""
        for trace in list(self.running.values()):
            self.end(trace, "the server ends")

    # What ``server.ConnectionWatcher`` asks for

    def accepted(self, connection: Connection) -> None:
        """Tap a connection of a traced client."""
        for trace in self.running.values():
            if trace.wanted.concerns(connection) and not connection.closed:
                trace.join(connection)
                connection.transport = tapped(connection.transport, trace.taps[connection])

    def ended(self, connection: Connection) -> None:
        """Write the end of a connection."""
        for trace in list(self.running.values()):
            if connection in trace.taps:
                connection.transport = untapped(connection.transport)
                trace.leave(connection)
