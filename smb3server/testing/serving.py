"""A server for tests of other programs: one folder or store, one user, loopback, any free port.

    with serve(tmp_path) as url:
        with connect(url, password=url.password) as share:
            share.write_text("notes.txt", "...")

It needs no root. What clients do, the user who runs the test does, root as well: its files are the test's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from smb3server.backends.base import Backend
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.service.service import Service

HOST, SHARE = "127.0.0.1", "data"
_PASSWORD = "a password for tests"
"""What nobody has chosen."""


class Url(str):
    """The share's URL, ``smb://USER@127.0.0.1:PORT/data``, and its parts."""

    user: str
    password: str
    host = HOST
    port: int
    share = SHARE
    service: Service
    """The server itself. Its methods belong to its event loop."""


class serve:
    """Serve a folder, or a store of the program's own, while a ``with`` or ``async with`` block runs.

    ``with`` runs the server on a thread of its own, so that the block may block. ``async with`` runs it in the event
    loop of the block. The value is a ``Url``.
    """

    def __init__(
        self, what: str | os.PathLike[str] | Backend, *options: str, user: str = "alice", password: str = _PASSWORD
    ) -> None:
        """``options`` are more of those of ``smb3server serve``, as ``"--rdma=iwarp"``."""
        self._what = what
        self._options = options
        self._user, self._password = user, password
        self._service: Service | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> Url:
        """Start. Raises ``ConfigError``, whose text says what to do, and ``OSError``."""
        with contextlib.ExitStack() as stack:
            options = [*self._options, "--listen", HOST, "--port", "0", "--user", f"{self._user}:{self._password}"]
            if isinstance(self._what, Backend):
                # A configuration file may have no share.
                empty = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".toml"))
                options += ["--config", empty.name]
            else:
                options += ["--share", f"{SHARE}={Path(self._what).absolute()}{_own_user()}", "--allow-root"]
            self._service = Service(parse_arguments(options))
        try:
            await self._service.start()
        except BaseException:
            await self._service.stop()
            raise
        if isinstance(self._what, Backend):
            self._service.add_store(SHARE, self._what)
        port = self._service.listeners[0].address[1]
        url = Url(f"smb://{self._user}@{HOST}:{port}/{SHARE}")
        url.user, url.password, url.port, url.service = self._user, self._password, port, self._service
        return url

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        if self._service is not None:
            await self._service.stop()

    def __enter__(self) -> Url:
        """Start on a thread of its own. Raises as ``__aenter__``."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="smb3server.testing", daemon=True)
        self._thread.start()
        try:
            return asyncio.run_coroutine_threadsafe(self.__aenter__(), self._loop).result()
        except BaseException:
            self._end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait for the end."""
        assert self._loop is not None
        try:
            asyncio.run_coroutine_threadsafe(self.__aexit__(kind, error, trace), self._loop).result()
        finally:
            self._end()

    def _end(self) -> None:
        assert self._loop is not None and self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _own_user() -> str:
    """Return the part of ``--share`` by which everybody acts as this process's user."""
    try:
        return f",user={pwd.getpwuid(os.geteuid()).pw_name}"
    except KeyError:
        return ""  # Without a name it is not root, and acts as nobody else anyway.
