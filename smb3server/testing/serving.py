"""A server for tests of other programs: one folder or store, one user, loopback, any free port.

    with serve(tmp_path) as url:
        with connect(url, password=url.password) as share:
            share.write_text("notes.txt", "...")

It needs no root. What clients do, the user who runs the test does, root as well: its files are the test's own.
"""

from __future__ import annotations

import os
import pwd
import tempfile
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
        """``options`` are more of those of ``smb3server serve``, as ``"--rdma=iwarp"``. Raises ``ConfigError``, whose
        text says what to do.
        """
        given = [*options, "--listen", HOST, "--port", "0", "--user", f"{user}:{password}"]
        if isinstance(what, Backend):
            # A command line without a share needs a file, which may be empty.
            with tempfile.NamedTemporaryFile(suffix=".toml") as empty:
                self._service = Service(parse_arguments([*given, "--config", empty.name]))
            self._service.add_store(SHARE, what)
        else:
            share = f"{SHARE}={Path(what).absolute()}{_own_user()}"
            self._service = Service(parse_arguments([*given, "--share", share, "--allow-root"]))
        self._user, self._password = user, password

    def _url(self) -> Url:
        port = self._service.address[1]
        url = Url(f"smb://{self._user}@{HOST}:{port}/{SHARE}")
        url.user, url.password, url.port, url.service = self._user, self._password, port, self._service
        return url

    async def __aenter__(self) -> Url:
        """Start. Raises ``ConfigError`` and ``OSError``."""
        await self._service.__aenter__()
        return self._url()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self._service.stop()

    def __enter__(self) -> Url:
        """Start on a thread of its own. Raises as ``__aenter__``."""
        self._service.__enter__()
        return self._url()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait for the end."""
        self._service.__exit__(kind, error, trace)


def _own_user() -> str:
    """Return the part of ``--share`` by which everybody acts as this process's user."""
    try:
        return f",user={pwd.getpwuid(os.geteuid()).pw_name}"
    except KeyError:
        return ""  # Without a name it is not root, and acts as nobody else anyway.
