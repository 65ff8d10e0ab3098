"""What the kernel counts about a TCP connection."""

from __future__ import annotations

import socket
import struct

_TOTAL_RETRANSMISSIONS = struct.Struct("=100xI")
"""tcpi_total_retrans in Linux's struct tcp_info."""


def retransmissions(sock: socket.socket) -> int:
    """Segments sent again so far; 0 where the system does not tell or the socket is closed."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TOTAL_RETRANSMISSIONS.size)
    except OSError:
        return 0
    return int(_TOTAL_RETRANSMISSIONS.unpack(info)[0]) if len(info) == _TOTAL_RETRANSMISSIONS.size else 0
