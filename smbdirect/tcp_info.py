"""What the kernel reports about a TCP connection, and how long it waits for the peer."""

from __future__ import annotations

import os
import socket
import struct
import sys

_TOTAL_RETRANSMISSIONS = struct.Struct("=100xI")
"""tcpi_total_retrans in Linux's struct tcp_info."""
_STALL_INFO_SIZE = 60
"""struct tcp_info up to tcpi_last_ack_recv (linux/tcp.h)."""
_STALL_MILLISECONDS = 1000
_PROBES = 4


def retransmissions(sock: socket.socket) -> int:
    """Return how many segments were retransmitted so far; 0 if the system does not report it or the socket is
    closed."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TOTAL_RETRANSMISSIONS.size)
    except OSError:
        return 0
    return int(_TOTAL_RETRANSMISSIONS.unpack(info)[0]) if len(info) == _TOTAL_RETRANSMISSIONS.size else 0


def raise_error(sock: socket.socket) -> None:
    """Raise the ``OSError`` that has ended the connection, if one has.

    Received data hides an error: a call that finds both returns the data. The event loop reports an error once and then
    watches the socket no longer (uv_poll of libuv). So whoever waits for the rest of a message asks here first,
    and so does who sends nothing: a send would meet the error."""
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))


def is_stalled(sock: socket.socket) -> bool:
    """Return whether segments are in flight and nothing was acknowledged for a second or longer; False if the system
    does not report it or the socket is closed."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _STALL_INFO_SIZE)
    except OSError:
        return False
    if len(info) < _STALL_INFO_SIZE:
        return False
    unacknowledged = int.from_bytes(info[24:28], sys.byteorder)
    last_acknowledgment = int.from_bytes(info[56:60], sys.byteorder)
    return unacknowledged > 0 and last_acknowledgment >= _STALL_MILLISECONDS


def set_peer_timeout(sock: socket.socket, seconds: float) -> None:
    """Have the kernel close the connection if the peer acknowledges nothing for ``seconds``: neither data nor the
    probes that the kernel sends on an idle connection."""
    idle = max(1, round(seconds / 2))
    interval = max(1, round((seconds - idle) / _PROBES))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
