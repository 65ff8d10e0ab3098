"""The local admin socket: JSON lines over a Unix socket that only its owner and root may use.

A request is one line, ``{"command": "status"}``. Its answer is one line with an object, which contains ``"error"`` if
the request could not be served. Lines with an object that contains ``"progress"`` may come before it. A connection can
carry any number of requests, and gets their answers one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from smb3server.net.door import Door
from smb3server.process.own_files import check_folder, is_shared, open_folder

log = logging.getLogger(__name__)

SOCKET_NAME = "admin.sock"
MAX_LINE = 1 << 16
"""Largest request in bytes."""
MAX_CLIENTS = 32
MAX_ANSWER = 64 << 20
ANSWER_TIMEOUT = 10.0
_CREDENTIALS = struct.Struct("=iII")
"""pid, uid and gid, as SO_PEERCRED returns them. [unix(7)]"""

Answer = dict[str, Any] | msgspec.Struct
Command = Callable[[dict[str, Any]], Answer | Awaitable[Answer] | AsyncIterator[Answer]]
"""Serves one request. The last object of an iterator is the answer, those before it report progress (``progress``)."""


ROOTS_RUNTIME_DIRECTORY = Path("/run/smb3server")
RUNTIME_VARIABLE = "RUNTIME_DIRECTORY"
"""The unit's runtime directory; systemd sets it. [systemd.exec(5)]"""


def runtime_directory() -> Path:
    """Return the directory for sockets of servers without a state directory."""
    if os.geteuid() == 0:
        return ROOTS_RUNTIME_DIRECTORY
    if given := os.environ.get(RUNTIME_VARIABLE):
        return Path(given.split(":")[0])
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "smb3server" if base else Path(f"/tmp/smb3server-{os.geteuid()}")


def runtime_directory_of(user: str) -> Path:
    """Return the directory for sockets of servers that root started and that became ``user``.

    It lies beside root's own, so that root and several users can have servers at once.
    """
    return ROOTS_RUNTIME_DIRECTORY.with_name(f"{ROOTS_RUNTIME_DIRECTORY.name}-{user}")


def socket_path(state: Path | None) -> Path:
    """Return the path of the socket: in the state directory, or in the runtime directory and named after
    the process.
    """
    return state / SOCKET_NAME if state is not None else runtime_directory() / f"{os.getpid()}.sock"


def _user(sock: socket.socket) -> int:
    """Return the user id of the program at the other end."""
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(user)


class RefusedError(Exception):
    """A command cannot do what it was asked for. The text is for the operator who asked."""


class _Place:
    """A directory, opened so that paths in it fit sun_path (108 bytes) however deep it is."""

    def __init__(self, path: Path) -> None:
        """``path``: a socket in the directory. Raises ``OSError``."""
        self.descriptor = open_folder(path.parent)
        self.folder = f"/proc/self/fd/{self.descriptor}"
        self.name = f"{self.folder}/{path.name}"

    def check_owner(self) -> None:
        """Raise ``PermissionError`` unless this user owns the directory and no one else may change it."""
        check_folder(self.descriptor)

    def check_server(self, sock: socket.socket) -> None:
        """Raise ``PermissionError`` unless the program that listens is that of the directory's owner: a name in it may
        be a link to anywhere.
        """
        if _user(sock) != os.fstat(self.descriptor).st_uid:
            raise PermissionError(errno.EACCES, "the program that listens there is not of the directory's owner")

    def sockets(self) -> list[str]:
        """Return the names of sockets, and of links to them."""
        return sorted(name for name in os.listdir(self.folder) if name.endswith(".sock"))

    def close(self) -> None:
        os.close(self.descriptor)


class AdminSocket:
    """The admin socket of one server. Call ``start`` and then ``close``, once."""

    def __init__(self, path: Path, commands: dict[str, Command]) -> None:
        self.path = path
        self._commands = commands
        self._door: Door | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._inode = 0
        self._pointer = ""
        """The link's name in ``_runtime``, if there is one."""
        self._runtime: _Place | None = None

    async def start(self) -> None:
        """Listen. Raises ``OSError``; EADDRINUSE if another server uses the path."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = _Place(self.path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            place.check_owner()
            self._remove_stale(place.name)
            # The mode of a bound socket is 0777 less the umask, so that it is narrow from the beginning.
            mask = os.umask(0o177)
            try:
                sock.bind(place.name)
            finally:
                os.umask(mask)
            self._inode = os.stat(place.name).st_ino
            sock.listen(MAX_CLIENTS)
            self._door = Door(sock, lambda host: True, self._enter)
        except BaseException:
            sock.close()
            raise
        finally:
            place.close()

    def announce(self) -> None:
        """Link the socket in the runtime directory, where ``running`` looks, if it lies elsewhere.

        Raises ``OSError``; the socket works nevertheless.
        """
        directory = runtime_directory()
        if self.path.parent == directory:
            return
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A process has few sockets of this kind; inodes distinguish them.
        pointer = f"{os.getpid()}-{self._inode}.sock"
        place = _Place(directory / pointer)
        try:
            place.check_owner()
            # Remove links of servers that were killed.
            for name in place.sockets():
                if name == pointer or not os.path.exists(f"{place.folder}/{name}"):
                    os.unlink(name, dir_fd=place.descriptor)
            os.symlink(self.path.absolute(), pointer, dir_fd=place.descriptor)
        except OSError as error:
            place.close()
            raise OSError(error.errno, error.strerror, str(directory)) from error
        self._runtime, self._pointer = place, pointer

    @staticmethod
    def _remove_stale(name: str) -> None:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(name)
            except FileNotFoundError:
                return
            except ConnectionRefusedError:
                os.unlink(name)
                return
        raise OSError(errno.EADDRINUSE, "another server uses this state directory")

    def _enter(self, sock: socket.socket, host: str) -> None:
        if _user(sock) not in (0, os.geteuid()) or len(self._clients) >= MAX_CLIENTS:
            sock.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(sock))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=sock, limit=MAX_LINE)
        self._writers.add(writer)
        try:
            while self._door is not None and (line := await reader.readline()):
                async for answer in self._answers(line):
                    writer.write(json.dumps(answer, default=msgspec.to_builtins).encode() + b"\n")
                    await writer.drain()
        except (ConnectionError, ValueError) as error:
            log.debug("admin client: %s", error)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answers(self, line: bytes) -> AsyncIterator[Answer]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            yield {"error": "not JSON"}
            return
        name = request.get("command") if isinstance(request, dict) else None
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            yield {"error": f"unknown command; known are {', '.join(sorted(self._commands))}"}
            return
        try:
            served = command(request)
            if isinstance(served, AsyncIterator):
                async for answer in served:
                    yield answer
            else:
                yield await served if isinstance(served, Awaitable) else served
        except RefusedError as error:
            yield {"error": str(error)}
        except Exception as error:
            log.exception("admin command %s failed", name)
            yield {"error": f"{name} failed: {error}"}

    async def close(self) -> None:
        """Stop, and delete the socket's file unless another server has replaced it."""
        if self._door is None:
            return
        self._door.close()
        for writer in list(self._writers):
            writer.close()
        if self._runtime is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._pointer, dir_fd=self._runtime.descriptor)
            self._runtime.close()
            self._runtime = None
        try:
            if os.stat(self.path).st_ino == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            log.debug("%s has already been removed", self.path)
        self._door = None


def ask(path: Path, command: str, /, timeout: float = ANSWER_TIMEOUT, **arguments: Any) -> dict[str, Any]:
    """Send one command to a running server and return the answer. Progress is not reported.

    ``arguments`` must be representable in JSON. Blocks for up to ``timeout`` seconds without any bytes. Raises
    ``OSError`` (FileNotFoundError or ConnectionRefusedError if there is no server), and ``ValueError`` for an answer
    that is not an object.
    """
    return follow(path, command, lambda text: None, timeout, **arguments)


def follow(
    path: Path, command: str, tell: Callable[[str], None], /, timeout: float = ANSWER_TIMEOUT, **arguments: Any
) -> dict[str, Any]:
    """Do ``ask``, and call ``tell`` with each line of progress that comes before the answer."""
    place = _Place(path)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(timeout)
            sock.connect(place.name)
            place.check_server(sock)
            sock.sendall(json.dumps({**arguments, "command": command}).encode() + b"\n")
            rest = b""
            while True:
                line, rest = _line(sock, rest)
                answer = json.loads(line)
                if not isinstance(answer, dict):
                    raise ValueError("the server's answer is not an object")
                if "progress" not in answer:
                    return answer
                tell(str(answer["progress"]))
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise type(error)(error.errno, "no server runs there") from error
    except TimeoutError as error:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer in {timeout:g} s: the server hangs or is stopped") from error
    finally:
        place.close()


def _line(sock: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
    """Return the next line, and what came behind it. ``rest`` is what came behind the last one."""
    chunks, size = [rest], len(rest)
    while b"\n" not in chunks[-1]:
        chunk = sock.recv(1 << 16)
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, "the server refused the request, or ended")
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER:
            raise ValueError("answer too long")
    line, _, rest = b"".join(chunks).partition(b"\n")
    return line, rest


def running(directory: Path | None = None) -> list[Path]:
    """Return the sockets in the runtime directory whose servers answer; for root also those of users whom its servers
    became.
    """
    folder = directory or runtime_directory()
    folders = [folder]
    if folder == ROOTS_RUNTIME_DIRECTORY:
        folders += sorted(folder.parent.glob(runtime_directory_of("*").name))
    return [path for each in folders for path in _running_in(each)]


def _running_in(folder: Path) -> list[Path]:
    found: list[Path] = []
    try:
        place = _Place(folder / SOCKET_NAME)
    except FileNotFoundError:
        return found
    except OSError as error:
        log.warning("%s: %s; servers are not looked for there", folder, error.strerror)
        return found
    try:
        # Root asks servers of all users.
        if os.geteuid() != 0 or is_shared(folder.parent):
            place.check_owner()
        names = place.sockets()
    except OSError as error:
        log.warning("%s: %s; answers from there are not trusted", folder, error.strerror)
        return found
    finally:
        place.close()
    for path in (folder / name for name in names):
        try:
            ask(path, "ping", 1.0)
        except (OSError, ValueError):
            continue
        found.append(path)
    return found
