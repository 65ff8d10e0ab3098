"""The end of a TCP connection after its endpoint has ended."""

from __future__ import annotations

import asyncio
import socket
import weakref

from smbdirect.tcp_info import raise_error

LINGER_TIMEOUT = 2.0
"""Seconds within which the peer must receive the last bytes and close its side."""
_SCRATCH = bytearray(16 * 1024)


class Linger:
    """The orderly end of one socket: sends ``farewell``, ends our direction, discards received bytes, then closes.

    An immediate close would answer bytes that are still arriving with a reset, and the peer would lose the Terminate
    message or the last Sends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, farewell: bytes = b"") -> None:
        self._loop = loop
        self._sock = sock
        self._farewell = memoryview(farewell)
        # Closes the socket even if the event loop ends first. ``__del__`` would not do: that of the socket may run
        # first.
        self._close_socket = weakref.finalize(self, sock.close)
        self._close_socket.atexit = False
        self._timer = loop.call_later(LINGER_TIMEOUT, self.close)
        loop.add_reader(sock, self._readable)
        self._writable()

    def close(self) -> None:
        """Close the socket. Idempotent."""
        if self._sock.fileno() < 0:
            return
        self._timer.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
        self._close_socket()

    def _writable(self) -> None:
        try:
            if self._farewell:
                self._farewell = self._farewell[self._sock.send(self._farewell) :]
                if self._farewell:
                    self._loop.add_writer(self._sock, self._writable)
                    return
                self._loop.remove_writer(self._sock)
            self._sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            self._loop.add_writer(self._sock, self._writable)
        except OSError:
            self.close()

    def _readable(self) -> None:
        try:
            if not self._sock.recv_into(_SCRATCH):
                self.close()
            else:
                raise_error(self._sock)
        except BlockingIOError:
            return
        except OSError:
            self.close()
