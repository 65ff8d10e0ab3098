"""An innocent client: it logs on from its own address, sends one ECHO after the other, and measures the server's time.

The time is measured both as elapsed and as processor time. ``python -m tools.support.innocent PORT PID`` runs until its
standard input ends, then prints JSON. It is a separate process so that the attacker's processor time does not add to
its waiting time. It uses none of the server's code.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import spnego

ADDRESS = "127.0.0.200"
"""Its own address, so that the server's limits on the attackers' addresses do not affect it."""
USER, PASSWORD = "innocent", "innocent-pw"
_PAUSE = 0.02
_HEADER = struct.Struct("<4sHHIHHIIQIIQ16s")
_NEGOTIATE, _SESSION_SETUP, _ECHO = 0, 1, 13
_DIALECT = 0x0210
_MORE_PROCESSING = 0xC0000016
_PENDING = 0x103


class Lost(Exception):
    """The server ended the connection, or gave a wrong answer."""


class Innocent:
    """One connection with a session. Methods raise ``OSError`` and ``Lost``."""

    def __init__(
        self, port: int, user: str = USER, password: str = PASSWORD, address: str = ADDRESS, timeout: float = 30.0
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout, (address, 0))
        self._buffer = bytearray()
        self._message_id = 0
        self._session_id = 0
        try:
            self._log_on(user, password)
        except (OSError, Lost):
            self.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def echo(self) -> None:
        """Send one ECHO and wait for its answer."""
        if self._ask(_ECHO, b"\4\0\0\0")[0]:
            raise Lost("ECHO was refused")

    def _log_on(self, user: str, password: str) -> None:
        body = struct.pack("<HHHHI16sQH", 36, 1, 1, 0, 0, os.urandom(16), 0, _DIALECT)
        if self._ask(_NEGOTIATE, body)[0]:
            raise Lost("NEGOTIATE was refused")
        context: Any = spnego.client(user, password, protocol="ntlm")
        token = context.step() or b""
        for _ in range(3):
            body = struct.pack("<HBBIIHHQ", 25, 0, 1, 0, 0, 88, len(token), 0) + token
            status, message = self._ask(_SESSION_SETUP, body)
            self._session_id = int.from_bytes(message[40:48], "little")
            if status == 0:
                return
            if status != _MORE_PROCESSING:
                raise Lost(f"the logon was refused with {status:#x}")
            offset, length = struct.unpack_from("<HH", message, 68)
            token = context.step(message[offset : offset + length]) or b""
        raise Lost("the logon does not end")

    def _ask(self, command: int, body: bytes) -> tuple[int, bytes]:
        header = _HEADER.pack(
            *(b"\xfeSMB", 64, 1, 0, command, 8, 0, 0, self._message_id, 0, 0, self._session_id, bytes(16))
        )
        self._message_id += 1
        self._socket.sendall((len(header) + len(body)).to_bytes(4, "big") + header + body)
        while True:
            message = self._receive()
            status = int.from_bytes(message[8:12], "little")
            if status != _PENDING:
                return status, message

    def _receive(self) -> bytes:
        while True:
            if len(self._buffer) >= 4:
                length = int.from_bytes(self._buffer[:4], "big")
                if len(self._buffer) >= 4 + length:
                    message = bytes(self._buffer[4 : 4 + length])
                    del self._buffer[: 4 + length]
                    return message
            data = self._socket.recv(65536)
            if not data:
                raise Lost("the server closed the connection")
            self._buffer += data


def processor_time(pid: int) -> int:
    """Return the nanoseconds of processor time of all threads of the process so far. [sched-stats.rst]"""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/schedstat", "rb") as file:
            total += int(file.read().split()[0])
    return total


@dataclass
class Seen:
    """The innocent client's observations. Times are in seconds."""

    echoes: int = 0
    slowest: float = 0.0
    """Elapsed time, which includes the effect of other load on the machine."""
    most_processor: float = 0.0
    """Largest processor time that all threads of the server together used between an ECHO and its answer."""
    median: float = 0.0
    lost: str = ""
    """Why the connection ended, if it did."""


def watch(port: int, pid: int) -> Seen:
    """Send ECHOs until standard input ends."""
    seen = Seen()
    times = []
    try:
        with contextlib.closing(Innocent(port, timeout=120)) as client:
            print("ready", flush=True)
            while not select.select([sys.stdin], [], [], _PAUSE)[0]:
                before, begun = processor_time(pid), time.monotonic()
                client.echo()
                took, worked = time.monotonic() - begun, processor_time(pid) - before
                times.append(took)
                seen.slowest = max(seen.slowest, took)
                seen.most_processor = max(seen.most_processor, worked / 1e9)
    except (OSError, Lost) as error:
        seen.lost = repr(error)
    seen.echoes = len(times)
    seen.median = sorted(times)[len(times) // 2] if times else 0.0
    return seen


if __name__ == "__main__":
    print(json.dumps(asdict(watch(int(sys.argv[1]), int(sys.argv[2])))))
