"""The users file: one line for each account, read by the server and changed while it runs.

    # Users of smb3server, version 1: change it with "smb3server user".
    alice:878d8014606cda29677a44efa1353fc7:alice:changed=2026-11-22T19:00:00Z,full_name=Alice Liddell
    bob:0cb6948805f797bf2a82807973b89537

A line is ``NAME:NT_HASH[:UNIX_USER[:FIELDS]]``. ``FIELDS`` are separated by commas: ``KEY=VALUE``, or ``KEY`` alone for
``disabled`` and ``must_change``. In values, ``%``, commas and characters that cannot be printed are written ``%XX``.
Empty lines, and lines that begin with ``#``, are kept.

A change is written to a new file that then replaces the old one, so a reader, or a crash at any time, finds the old or
the new content. Writers exclude each other by a lock on a file beside it, because the users file itself is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote

from smb3server.auth.password_rules import EMPTY_HASH
from smb3server.auth.users import parse_hash
from smb3server.process.own_files import replace_file
from smb3server.process.presence import exists
from smb3server.process.secret_files import SecretFileError, read_secret

VERSION = 1
_HEADER = f'# Users of smb3server, version {VERSION}: change it with "smb3server user".'
_VERSION_LINE = re.compile(r"# Users of smb3server, version (\d+)")
_MAX_NAME = 64
_BAD_NAME = re.compile(r'[\x00-\x1f"/\\\[\]:;|=,+*?<>@]')
"""Characters that no account's name may have. [MS-SAMR 3.1.1.6]"""
_TEXTS = ("principal", "full_name", "comment")
_TIMES = ("changed", "expires")
_FLAGS = ("disabled", "must_change")
_PRINTED = " !\"#$&'()*+-./:;<=>?@[\\]^_`{|}~"
"""Characters that values have as they are, besides letters and digits."""


class UsersFileError(ValueError):
    """The file cannot be read or changed. The text names file, line and remedy."""


@dataclass(frozen=True, slots=True)
class StoredUser:
    """An account as the file has it. Times are in seconds since 1970, 0 means none."""

    name: str
    nt_hash: bytes = field(repr=False)
    unix_user: str = ""
    """Name of the user of the host that it acts as. Empty means none of its own."""
    principal: str = ""
    full_name: str = ""
    comment: str = ""
    changed: int = 0
    """When its password was last set."""
    expires: int = 0
    """When it stops being valid."""
    disabled: bool = False
    must_change: bool = False
    """Whether its password must be changed before it may log on."""

    def with_password(self, nt_hash: bytes, *, must_change: bool = False) -> StoredUser:
        """Return the account with another password, set now."""
        return replace(self, nt_hash=nt_hash, changed=int(time.time()), must_change=must_change)


def check_name(name: str) -> str:
    """Return the name if a new account may have it. Raises ``ValueError``."""
    if not name or len(name) > _MAX_NAME or _BAD_NAME.search(name) or not name.isprintable():
        raise ValueError(f'{name!r} is no name for a user: at most {_MAX_NAME} characters, none of "/\\[]:;|=,+*?<>@')
    if name != name.strip() or not name.strip(".") or name.startswith("#"):
        raise ValueError(f"{name!r} is no name for a user: no blanks at its ends, no # first, not dots alone")
    return name


def show_time(seconds: int) -> str:
    """Return a time as the file has it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> int:
    """Read a date, or a date and time, which is in UTC unless it says otherwise. Raises ``ValueError``."""
    try:
        given = datetime.fromisoformat(text)
        return int((given if given.tzinfo is not None else given.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time: write 2026-12-31 or 2026-12-31T18:00:00Z") from None


class Users:
    """The content of a users file, with its comments, to be read and changed."""

    def __init__(self, text: str, where: str = "users file") -> None:
        """Parse a file's content. Raises ``UsersFileError``; ``where`` begins its text."""
        # Invariant: a line that has an account is that account, any other line is its text.
        self._lines: list[StoredUser | str] = []
        names: set[str] = set()
        for number, line in enumerate(text.split("\n"), 1):
            version = _VERSION_LINE.match(line)
            if version is not None and int(version[1]) > VERSION:
                raise UsersFileError(f"{where}: version {version[1]} is later than this server knows ({VERSION})")
            if not line.strip() or line.startswith("#"):
                self._lines.append(line)
                continue
            try:
                user = _parse(line)
                if user.name.casefold() in names:
                    raise ValueError(f"{user.name} is given twice")
            except ValueError as error:
                raise UsersFileError(f"{where}: line {number}: {error}") from error
            names.add(user.name.casefold())
            self._lines.append(user)
        if text.startswith("# Users of smb3server, version") and not text.endswith("\n"):
            raise UsersFileError(
                f"{where}: the last line has no end, so a part of the file may be missing; remedy: take it from a "
                "backup, or check the last line, for example for `disabled`, and end it with a newline"
            )
        if self._lines and self._lines[-1] == "":
            # What follows the last line's end is no line.
            self._lines.pop()

    def __iter__(self) -> Iterator[StoredUser]:
        return (line for line in self._lines if isinstance(line, StoredUser))

    def find(self, name: str) -> StoredUser | None:
        """Return the account of a name, in any case."""
        return next((user for user in self if user.name.casefold() == name.casefold()), None)

    def put(self, user: StoredUser) -> None:
        """Add an account, or replace the one of the same name."""
        for index, line in enumerate(self._lines):
            if isinstance(line, StoredUser) and line.name.casefold() == user.name.casefold():
                self._lines[index] = user
                return
        self._lines.append(user)

    def remove(self, name: str) -> bool:
        """Remove an account. Return whether there was one."""
        found = self.find(name)
        if found is not None:
            self._lines.remove(found)
        return found is not None

    def pack(self) -> str:
        """Return the content to write."""
        lines = [_pack(line) if isinstance(line, StoredUser) else line for line in self._lines]
        if not any(_VERSION_LINE.match(line) for line in lines):
            lines.insert(0, _HEADER)
        return "".join(f"{line}\n" for line in lines)


def _parse(line: str) -> StoredUser:
    """Read the line of an account. Raises ``ValueError``, whose text has nothing of the hash."""
    parts = line.split(":", 3)
    if len(parts) < 2 or not parts[0]:
        raise ValueError("write NAME:NT_HASH or NAME:NT_HASH:UNIX_USER")
    if parse_hash(parts[1]) == EMPTY_HASH:
        raise ValueError(f"the password of {parts[0]} is empty; remedy: smb3server user passwd {parts[0]}")
    texts, times, flags = dict.fromkeys(_TEXTS, ""), dict.fromkeys(_TIMES, 0), dict.fromkeys(_FLAGS, False)
    seen: set[str] = set()
    for entry in parts[3].split(",") if len(parts) > 3 and parts[3] else ():
        key, separator, value = entry.partition("=")
        if key in seen:
            raise ValueError(f"{key} is given twice")
        seen.add(key)
        if key in _FLAGS and not separator:
            flags[key] = True
        elif key in _TEXTS and separator:
            texts[key] = unquote(value)
        elif key in _TIMES and separator:
            times[key] = parse_time(value)
        else:
            raise ValueError(f"unknown field {key}; known are {', '.join((*_TEXTS, *_TIMES, *_FLAGS))}")
    return StoredUser(
        parts[0],
        parse_hash(parts[1]),
        parts[2] if len(parts) > 2 else "",
        texts["principal"],
        texts["full_name"],
        texts["comment"],
        times["changed"],
        times["expires"],
        flags["disabled"],
        flags["must_change"],
    )


def _pack(user: StoredUser) -> str:
    fields = [f"{key}={quote(getattr(user, key), safe=_PRINTED)}" for key in _TEXTS if getattr(user, key)]
    fields += [f"{key}={show_time(getattr(user, key))}" for key in _TIMES if getattr(user, key)]
    fields += [key for key in _FLAGS if getattr(user, key)]
    parts = [user.name, user.nt_hash.hex(), user.unix_user, ",".join(fields)]
    while not parts[-1]:
        parts.pop()
    return ":".join(parts)


def read_users(path: Path, owners: Collection[int] = ()) -> Users:
    """Read a users file, which only its owner and groups of this process may read. Raises ``UsersFileError``.

    ``owners``: user ids that it may belong to, besides root and the user of this process.
    """
    try:
        return Users(read_secret(path, owners).decode(), str(path))
    except UnicodeDecodeError:
        raise UsersFileError(f"{path}: not UTF-8") from None
    except SecretFileError as error:
        raise UsersFileError(str(error)) from error


def change_users(path: Path, change: Callable[[Users], None], owners: Collection[int] = ()) -> None:
    """Change a users file, or make it if there is none, while no one else changes it.

    ``change`` is handed the content. If it raises, the file stays as it was. Raises ``UsersFileError`` if the file
    cannot be read or written. ``owners`` is as for ``read_users``.
    """
    # The file that a link leads to is replaced, not the link.
    path = Path(os.path.realpath(path))
    try:
        with _locked(path):
            users = read_users(path, owners) if exists(path) else Users("", str(path))
            before = users.pack()
            change(users)
            if users.pack() != before or not exists(path):
                replace_file(path, users.pack().encode(), lambda new: _belongs_like(new, path))
    except OSError as error:
        raise UsersFileError(f"{error.filename or path}: {error.strerror}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclude other writers of the file until the end of the block. Raises ``OSError``."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _belongs_like(lock, path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _belongs_like(descriptor: int, path: Path) -> None:
    """Give a new file the owner and mode of ``path``, or if that does not exist the owner of its folder.

    So a file that root changes stays readable to a server that runs as another user. Raises ``OSError``.
    """
    try:
        model = os.stat(path)
        mode = model.st_mode & 0o640
    except FileNotFoundError:
        model, mode = os.stat(path.parent), 0o600
    own = os.fstat(descriptor)
    if own.st_nlink != 1 or not stat.S_ISREG(own.st_mode):
        # Whoever may write to the folder may have linked a file of somebody else there.
        raise PermissionError(errno.EACCES, "it is another file, too; remedy: remove it", f"{path}.lock")
    if (own.st_uid, own.st_gid) != (model.st_uid, model.st_gid):
        # Only root may give files away. Another user keeps a file that it may write anyway.
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, model.st_uid, model.st_gid)
    os.fchmod(descriptor, mode)


_CHANGED = re.compile(r"LCT-([0-9A-Fa-f]{8})")
_MACHINE, _NO_PASSWORD, _DISABLED, _USER = frozenset("WSI"), "N", "D", "U"


@dataclass(frozen=True, slots=True)
class Imported:
    """One line: an account, or why there is none."""

    name: str
    user: StoredUser | None = None
    uid: int | None = None
    """Id of the account's user of the host. None for the marker of no user (-1)."""
    reason: str = ""
    machine: bool = False
    """Whether it is the account of a machine, which nobody misses here."""


def read_smbpasswd(text: str) -> Iterator[Imported]:
    """Read accounts of Samba as smbpasswd(5) has them, and ``pdbedit -Lw`` prints for any other store of Samba.

    The fields are name, user id of the host, LM hash, NT hash, flags in brackets, time of the last change in
    hexadecimal. Raises ``ValueError``, whose text names the line, if it is no such file.

        alice:1000:XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX:878D8014606CDA29677A44EFA1353FC7:[U          ]:LCT-5F3A1B2C:
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split(":")
        if len(parts) < 5 or not parts[1].isdecimal() or not (parts[4].startswith("[") and parts[4].endswith("]")):
            raise ValueError(f"line {number}: not a line of smbpasswd(5); `pdbedit -Lw` prints such lines")
        yield _read(parts)


def _read(parts: list[str]) -> Imported:
    name, flags = parts[0], parts[4].strip("[]")
    uid = int(parts[1])
    own = uid if uid not in (0xFFFFFFFF, 0) else None
    if set(flags) & _MACHINE or name.endswith("$"):
        return Imported(name, reason="the account of a machine", machine=True)
    try:
        check_name(name)
        digest = parse_hash(parts[3])
    except ValueError as error:
        return Imported(name, reason="no password is set" if parts[3].startswith(("NO PASS", "X")) else str(error))
    if _NO_PASSWORD in flags or digest == EMPTY_HASH:
        return Imported(name, reason="it has no password")
    changed = _CHANGED.match(parts[5]) if len(parts) > 5 else None
    seconds = int(changed[1], 16) if changed is not None else 0
    user = StoredUser(name, digest, changed=seconds if seconds < 0x7FFFFFFF else 0, disabled=_DISABLED in flags)
    return Imported(name, user, own)
