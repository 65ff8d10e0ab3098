"""impacket's SMB client over any ``MessageTransport``, in particular over SMB Direct.

impacket blocks, so the transport runs on an event loop in its own thread. ``TransportSession`` has the interface of
impacket's ``NetBIOSTCPSession``.

    connection = connect(lambda: open_rdma(provider, "192.0.2.1"), "192.0.2.1")
    connection.login("user", "password")
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from impacket import nmb, smb3
from impacket.smbconnection import SMBConnection

from smbdirect.message_transport import InboundMessage, MessageTransport

DEFAULT_TIMEOUT = 60.0
"""Seconds to wait for a response."""

Open = Callable[[], Awaitable[MessageTransport]]


class TransportSession:
    """The part of impacket's ``NetBIOSTCPSession`` that its SMB client uses. Errors are impacket's."""

    def __init__(self, opener: Open, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Open the transport in the thread that it will live in. Raises the errors of ``opener``."""
        self._timeout = timeout
        self._received: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """Received messages; None means that the connection has ended."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="smb transport", daemon=True)
        self._thread.start()
        self._ended = threading.Event()
        try:
            self._transport = self._run(self._open(opener))
        except BaseException:
            self._stop()
            raise

    async def _open(self, opener: Open) -> MessageTransport:
        transport = await opener()
        transport.start(self._on_message, self._on_closed)
        return transport

    def _on_message(self, message: InboundMessage) -> None:
        data = bytes(message.view)
        message.release()
        self._received.put(data)

    def _on_closed(self, error: BaseException | None) -> None:
        self._received.put(None)
        self._ended.set()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(self._timeout)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def send_packet(self, data: bytes) -> None:
        """Send one SMB2 message."""
        if self._ended.is_set():
            raise nmb.NetBIOSError("connection closed", nmb.ERRCLASS_OS, 0)
        self._loop.call_soon_threadsafe(self._transport.send, [bytes(data)])

    def recv_packet(self, timeout: float | None = None) -> nmb.NetBIOSSessionPacket:
        """Return the next message. Raise ``NetBIOSTimeout`` after ``timeout`` seconds."""
        try:
            data = self._received.get(timeout=timeout or self._timeout)
        except queue.Empty:
            raise nmb.NetBIOSTimeout from None
        if data is None:
            self._received.put(None)
            raise nmb.NetBIOSError("connection closed by the server", nmb.ERRCLASS_OS, 0)
        packet = nmb.NetBIOSSessionPacket()
        packet.set_type(nmb.NETBIOS_SESSION_MESSAGE)
        packet.set_trailer(data)
        return packet

    def get_socket(self) -> None:
        """Return None: there is no socket."""

    def get_remote_host(self) -> str:
        """Return the server's address."""
        return str(self._transport.peer_address[0])

    def close(self) -> None:
        """Close the connection, and return when it and its thread have ended. Idempotent."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._transport.close, "impacket closes")
        if not self._ended.wait(self._timeout):
            self._loop.call_soon_threadsafe(self._transport.abort, "close takes too long")
        self._stop()


class _Smb3(smb3.SMB3):  # type: ignore[misc]
    def negotiateSession(self, preferredDialect: int | None = None, negSessionResponse: Any = None) -> Any:
        # impacket assumes that a session passed to it has already exchanged a message; this one has not.
        self._Connection["SequenceWindow"] = 0
        return super().negotiateSession(preferredDialect, negSessionResponse)


def connect(opener: Open, host: str, dialect: int | None = None, timeout: float = DEFAULT_TIMEOUT) -> SMBConnection:
    """Return an impacket ``SMBConnection`` that has negotiated and is ready to log on.

    ``dialect`` is the only one offered; None offers impacket's default. Raises the errors of ``opener`` and impacket's
    ``SessionError``.
    """
    session = TransportSession(opener, timeout)
    try:
        return SMBConnection(
            existingConnection=_Smb3(host, host, timeout=timeout, preferredDialect=dialect, session=session)
        )
    except BaseException:
        session.close()
        raise
