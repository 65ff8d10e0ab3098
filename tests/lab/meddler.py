"""Somebody between client and server, who knows no password, and false servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from smb3server.access.identity import Identity
from smb3server.auth import ntlm_messages
from smb3server.auth.ntlm_logon import NtlmLogon
from smb3server.wire.header import Command

Change = Callable[[bytearray], bool | None]
"""Changes an SMB2 message in place; True keeps it back."""
FLAGS, SESSION_FLAGS = 16, 66
"""Where the flags of a header, and those of a SESSION_SETUP response are."""
SIGNED = 8


def command_of(message: bytes | bytearray) -> int:
    return int.from_bytes(message[12:14], "little")


def unsigned(message: bytearray) -> None:
    """Say that a message is not signed."""
    if command_of(message) not in (Command.NEGOTIATE, Command.SESSION_SETUP):
        message[FLAGS] &= ~SIGNED


def as_session(flags: int) -> Change:
    """Have the last response of a logon say that the user is a guest (1) or nobody (2)."""

    def change(message: bytearray) -> None:
        if command_of(message) == Command.SESSION_SETUP and not any(message[8:12]):
            message[SESSION_FLAGS] |= flags

    return change


@contextlib.asynccontextmanager
async def between(port: int, from_server: Change) -> AsyncIterator[int]:
    """Yield a port of 127.0.0.1 that leads to the server at ``port``, whose messages are changed on the way."""
    tasks: set[asyncio.Task[None]] = set()
    writers: set[asyncio.StreamWriter] = set()

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, change: Change | None) -> None:
        try:
            while True:
                head = await source.readexactly(4)
                message = bytearray(await source.readexactly(int.from_bytes(head, "big")))
                if change is not None and change(message):
                    continue
                sink.write(head + message)
                await sink.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            sink.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        writers.update((writer, back))
        for task in (
            asyncio.create_task(carry(reader, back, None)),
            asyncio.create_task(carry(there, writer, from_server)),
        ):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1]
        for task in tasks:
            task.cancel()
        for writer in writers:
            writer.transport.abort()


def accept_everybody(patch: pytest.MonkeyPatch, *, guest: bool) -> None:
    """Make our server one that takes any logon, with whatever password, for that of a guest or of nobody."""

    def authenticate(self: NtlmLogon, token: bytes) -> None:
        given = ntlm_messages.parse_authenticate(token)
        self.claimed, self.flags, self.session_key, self._challenge = given.user, given.flags, bytes(16), b""
        self.identity = Identity("stranger", guest=True) if guest else Identity("", anonymous=True)

    patch.setattr(NtlmLogon, "authenticate", authenticate)
    patch.setattr(NtlmLogon, "mechanism_list_mic", lambda self, mechanisms, earlier: b"")
    patch.setattr(NtlmLogon, "check_mechanism_list_mic", lambda self, mechanisms, mic, earlier: None)
