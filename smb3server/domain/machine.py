"""The member's machine account: its passwords in a file with mode 0600, and the keytab that is made from them.

Two passwords are kept. Tickets that clients have from before a change stay valid, and so does the account for
controllers that have not heard of the change yet. A new password is written before a controller is asked to set it:
whatever happens in between, the member knows the password that counts. [MS-NRPC 3.1.6]
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from smb3server.auth.users import nt_hash
from smb3server.domain import keytab
from smb3server.domain.keytab import Version
from smb3server.domain.netlogon_calls import Secret
from smb3server.process.own_files import replace_file
from smb3server.process.secret_files import SecretFileError, read_secret
from smb3server.settings.domain import DomainConfig

KEPT = 2
"""Passwords that are kept, and versions of keys in the keytab."""
_ODD = 86400
"""Seconds that a password may seem to be set in the future: nodes' clocks differ a little."""
_FORMAT = 1


class MachineError(Exception):
    """There is no usable machine account; the text has the remedy."""


@dataclass(frozen=True, slots=True)
class Account:
    """What the file has."""

    realm: str
    workgroup: str
    machine: str
    host: str
    domain_sid: str
    versions: tuple[Version, ...]
    """The latest first."""
    pending: bool = False
    """Whether it is not known if a controller has set the latest."""


def new_password() -> str:
    """Return a password by chance, of 256 bits or more, in characters that all encodings have."""
    return secrets.token_urlsafe(90)


class Machine:
    """The machine account of one member, or of all nodes of a cluster that share the file."""

    def __init__(self, secret: Path, keytab_file: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._file = secret
        self._keytab = keytab_file
        self._read: tuple[tuple[int, int], Account] | None = None
        """Inode and time of the file that was read, and what it had."""

    def account(self) -> Account:
        """Return what the file has. Raises ``MachineError``."""
        try:
            found = os.stat(self._file)
            mark = (found.st_ino, found.st_mtime_ns)
            if self._read is None or self._read[0] != mark:
                self._read = (mark, _parse(read_secret(self._file, (os.stat(self._file.parent).st_uid,))))
        except FileNotFoundError:
            raise MachineError("not joined; remedy: smb3server domain join") from None
        except (OSError, SecretFileError) as error:
            raise MachineError(str(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MachineError(f"{self._file} is damaged; remedy: smb3server domain join --reuse") from error
        return self._read[1]

    def secrets(self) -> list[Secret]:
        """Return what the account's password may be, the latest first. Raises ``ValueError`` if there is none."""
        try:
            account = self.account()
        except MachineError as error:
            raise ValueError(str(error)) from error
        return [Secret(account.workgroup, account.machine, nt_hash(one.password)) for one in account.versions]

    def write(self, account: Account) -> None:
        """Replace both files. The keytab comes first: no ticket may come for a key that it does not have yet.

        Raises ``OSError``."""
        content = keytab.pack(account.realm, account.machine, account.host, account.versions)
        replace_file(self._keytab, content, self._dress)
        replace_file(self._file, _format(account), self._dress)

    def _dress(self, descriptor: int) -> None:
        """Give a file that root makes to the owner of its folder, who is the server's user."""
        if os.geteuid() == 0:
            owner = os.stat(self._file.parent)
            os.fchown(descriptor, owner.st_uid, owner.st_gid)

    def remove(self) -> None:
        """Remove both files. Raises ``OSError``."""
        self._keytab.unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process, also of another node that shares the file, change the account. Raises ``OSError``."""
        lock = self._file.with_name(f"{self._file.name}.lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._dress(descriptor)
            # A record lock, which network file systems have as well.
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def due(self, seconds: int) -> bool:
        """Return whether the password is older than this, or its last change did not come to an end. 0 means never.

        Raises ``MachineError``."""
        account = self.account()
        age = self._clock() - account.versions[0].set_at
        # A time to come is that of a clock which was wrong: nobody knows how old the password is.
        return account.pending or (bool(seconds) and (age >= seconds or age < -_ODD))

    def rotate(self, in_use: Callable[[], str], set_password: Callable[[str], None], seconds: int = -1) -> bool:
        """Change the account's password, and return whether this was done.

        ``in_use`` returns the NT hash that a controller accepts now, as hexadecimal digits. ``set_password`` has a
        controller set a new one. ``seconds``: nothing is done if the password is younger, as another node may have
        changed it; negative means that it is changed in any case.

        Raises ``MachineError``, ``OSError`` and whatever the two raise. The account stays usable then.
        """
        with self.locked():
            account = self.account()
            if seconds >= 0 and not self.due(seconds):
                return False
            if account.pending:
                account = self._settle(account, in_use())
                if seconds >= 0 and not self.due(seconds):
                    return True
            latest = account.versions[0]
            new = Version(new_password(), latest.number + 1, int(self._clock()))
            begun = replace(account, versions=(new, *account.versions)[:KEPT], pending=True)
            self.write(begun)
            set_password(new.password)
            self.write(replace(begun, pending=False))
            return True

    def _settle(self, account: Account, accepted: str) -> Account:
        """Find out which password counts, after a change that did not come to an end."""
        used = [one for one in account.versions if nt_hash(one.password).hex() == accepted]
        if not used:
            raise MachineError("no controller accepts the machine account; remedy: smb3server domain join --reuse")
        start = account.versions.index(used[0])
        settled = replace(account, versions=account.versions[start:], pending=False)
        self.write(settled)
        return settled


def machine_of(config: DomainConfig) -> Machine:
    """Return the machine account of a configuration. Raises ``MachineError`` if it has no place for one."""
    if config.secret is None:
        raise MachineError("there is no place for the machine account; remedy: `secret` in [domain], or `state`")
    return Machine(config.secret, config.keytab)


def _format(account: Account) -> bytes:
    data = {
        "format": _FORMAT,
        "realm": account.realm,
        "workgroup": account.workgroup,
        "machine": account.machine,
        "host": account.host,
        "domain_sid": account.domain_sid,
        "pending": account.pending,
        "versions": [one._asdict() for one in account.versions],
    }
    return json.dumps(data, indent=1).encode() + b"\n"


def _parse(content: bytes) -> Account:
    """Raises ``ValueError``, ``KeyError``, ``TypeError`` or ``AttributeError`` for content of another kind."""
    data = json.loads(content)
    if data["format"] != _FORMAT:
        raise ValueError("another format")
    versions = tuple(Version(str(one["password"]), int(one["number"]), int(one["set_at"])) for one in data["versions"])
    if not versions:
        raise ValueError("no password")
    names = {name: str(data[name]) for name in ("realm", "workgroup", "machine", "host", "domain_sid")}
    return Account(**names, versions=versions, pending=bool(data["pending"]))
