"""Run the steps on one server through impacket's client."""

from __future__ import annotations

import hashlib
import os
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.access_differential import descriptor, steps
from tools.access_differential.steps import Ace, Do, Step, Who

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket import smb3, smb3structs

SUCCESS = 0
BAD_ANSWER = -1
"""Used in place of a status if the client cannot understand the answer."""
_SHARE_ALL = 7
_FILE, _SECURITY = 1, 3
_BASIC, _ACCESS, _RENAME, _LINK, _DISPOSITION, _FULL_EA, _END_OF_FILE = 4, 8, 10, 11, 13, 15, 20
_OWNER, _GROUP, _DACL = 1, 2, 4
_NAMES = 12
_NO_CHANGE = 0
_ROUNDS = "rounds"
_LIST_AND_ADD = 0x1200AF
_SHOWN_ATTRIBUTES = 0x17
"""READONLY, HIDDEN, SYSTEM, DIRECTORY. Servers may choose freely when to set ARCHIVE."""
_NOTHING_THERE = frozenset({0xC0000034, 0xC000003A})
"""OBJECT_NAME_NOT_FOUND, OBJECT_PATH_NOT_FOUND."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a step."""

    open_status: int
    status: int = SUCCESS
    """Status of the action; meaningless unless the open succeeded."""
    found: Any = None
    """Result of the action: the access, the descriptor, the data or the names."""

    @property
    def allowed(self) -> bool:
        """Whether open and action succeeded."""
        return self.open_status == SUCCESS and self.status == SUCCESS

    @property
    def refusal(self) -> int:
        """The first status that is not a success, or SUCCESS."""
        return self.open_status or self.status


@dataclass(frozen=True, slots=True)
class Login:
    """An account on the server."""

    name: str
    password: str
    group: str
    """SID of the primary group of the host's user with this name."""


class Player:
    """Two users logged on to one server. It is a context manager."""

    def __init__(self, port: int, logins: tuple[Login, Login], share: str, root: Path) -> None:
        self.root = root
        """The share's folder on this machine."""
        self._clients = [_log_on(port, login) for login in logins]
        self._trees = [client.connectTree(share) for client in self._clients]
        self._rounds = 0
        self.sids = self._ask_for_sids(logins)
        self._make_folder()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close_session()

    def _make_folder(self) -> None:
        """Make the folder of all rounds, with an explicit descriptor, because servers' defaults differ."""
        everyone = Ace(Who.EVERYONE, _LIST_AND_ADD)
        made = Step(0, "", steps.ALL, steps.CREATE, steps.DIRECTORY_FILE, do=Do.DACL, aces=(everyone,))
        file = self._create(0, made, _ROUNDS)
        try:
            self._act(made, file)
        finally:
            self._clients[0].close(self._trees[0], file)

    def _ask_for_sids(self, logins: tuple[Login, Login]) -> dict[Who, str]:
        """Return the SID of every principal. The users' SIDs are the owners that the server gives to new files.

        Raises ``RuntimeError`` if both users have the same SID.
        """
        sids = dict(descriptor.WELL_KNOWN)
        for user, (who, group) in enumerate(
            ((Who.ALICE, Who.ALICES_GROUP), (Who.BOB, Who.BOBS_GROUP)),
        ):
            name = f"whose-{user}"
            file = self._create(user, Step(user, name, steps.ALL, steps.OPEN_IF), name)
            try:
                packed = self._query(user, file, 0, _SECURITY, _OWNER | _GROUP)
            finally:
                self._clients[user].close(self._trees[user], file)
            sids[who], _ = descriptor.owner_and_group(packed)
            sids[group] = logins[user].group
        if sids[Who.ALICE] == sids[Who.BOB]:
            raise RuntimeError(f"the server takes both users for the same one, {sids[Who.BOB]}")
        return sids

    # A round

    def begin(self) -> None:
        """Begin a round in a new folder."""
        self._rounds += 1

    def probe(self, user: int, path: str) -> int | None:
        """Return the access that the user could get to the path.

        None means that it does not exist, 0 that access is refused.
        """
        outcome = self.do(Step(user, path, steps.MAXIMUM, do=Do.QUERY_ACCESS))
        if outcome.open_status in _NOTHING_THERE:
            return None
        return int(outcome.found) if outcome.allowed else 0

    def allows(self, step: Step) -> bool:
        """Return whether the access that the step requests by name, without MAXIMUM_ALLOWED, is granted on the existing
        file.
        """
        access = step.access & ~steps.MAXIMUM | steps.READ_ATTRIBUTES
        return self.do(Step(step.user, step.path, access)).allowed

    def read_only(self, path: str) -> bool:
        """Return whether one of the users sees the read-only attribute on the path."""
        asked = [self.do(Step(user, path, steps.READ_ATTRIBUTES, do=Do.QUERY_ATTRIBUTES)) for user in (0, 1)]
        return any(outcome.allowed and outcome.found & steps.ATTRIBUTE_READONLY for outcome in asked)

    @property
    def folder(self) -> str:
        """Folder of the current round, from the share's root."""
        return f"{_ROUNDS}\\r{self._rounds}"

    def tree(self) -> dict[str, tuple[Any, ...]]:
        """Return the tree on disk after the round: kind, names of the file, and a digest of its content."""
        found: dict[str, tuple[Any, ...]] = {}
        top = self.root / self.folder.replace("\\", "/")
        for place, folders, files in os.walk(top):
            for name in folders:
                found[os.path.relpath(os.path.join(place, name), top)] = ("folder",)
            for name in files:
                path = Path(place, name)
                digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
                found[str(path.relative_to(top))] = ("file", path.stat().st_nlink, digest)
        return found

    def do(self, step: Step) -> Outcome:
        """Run one step of the round."""
        path = self._path(step.path)
        client, tree = self._clients[step.user], self._trees[step.user]
        try:
            file = self._create(step.user, step, path)
        except smb3.SessionError as error:
            return Outcome(_status(error))
        status, found = SUCCESS, None
        try:
            found = self._act(step, file)
        except smb3.SessionError as error:
            status = _status(error)
        try:
            client.close(tree, file)
        except smb3.SessionError as error:
            # Samba sometimes reports only here that the action failed.
            status = status or _status(error)
        return Outcome(SUCCESS, status, found)

    def _path(self, path: str) -> str:
        return f"{self.folder}\\{path}" if path else self.folder

    def _create(self, user: int, step: Step, path: str) -> Any:
        return self._clients[user].create(
            self._trees[user], path, step.access, _SHARE_ALL, step.options, step.disposition, step.attributes
        )

    def _act(self, step: Step, file: Any) -> Any:
        user, client, tree = step.user, self._clients[step.user], self._trees[step.user]
        match step.do:
            case Do.NOTHING:
                return None
            case Do.READ:
                return _read(client, tree, file)
            case Do.WRITE:
                return client.write(tree, file, b"written", 0, 7)
            case Do.LIST:
                return _names(client, tree, file)
            case Do.RENAME | Do.LINK:
                name = self._path(step.target).encode("utf-16-le")
                data = struct.pack("<B7xQI", step.replace, 0, len(name)) + name
                self._set(user, file, _RENAME if step.do == Do.RENAME else _LINK, data)
            case Do.DISPOSE:
                self._set(user, file, _DISPOSITION, b"\1")
            case Do.BASIC:
                self._set(user, file, _BASIC, struct.pack("<QQQQII", *(_NO_CHANGE,) * 4, step.number, 0))
            case Do.END_OF_FILE:
                self._set(user, file, _END_OF_FILE, struct.pack("<Q", step.number))
            case Do.EA:
                self._set(user, file, _FULL_EA, struct.pack("<IBBH", 0, 0, 4, 3) + b"NAME\0" + b"val")
            case Do.OWNER | Do.GROUP:
                assert step.who is not None
                sid = self.sids[step.who]
                if step.do == Do.OWNER:
                    self._set(user, file, 0, descriptor.pack(owner=sid), _SECURITY, _OWNER)
                else:
                    self._set(user, file, 0, descriptor.pack(group=sid), _SECURITY, _GROUP)
            case Do.DACL:
                self._set(user, file, 0, descriptor.pack(dacl=step.aces, sids=self.sids), _SECURITY, _DACL)
            case Do.QUERY_SECURITY:
                return descriptor.describe(self._query(user, file, 0, _SECURITY, step.number), self.sids)
            case Do.QUERY_ACCESS:
                return int.from_bytes(self._query(user, file, _ACCESS, _FILE)[:4], "little")
            case Do.QUERY_ATTRIBUTES:
                return int.from_bytes(self._query(user, file, _BASIC, _FILE)[32:36], "little") & _SHOWN_ATTRIBUTES
        return None

    def _set(self, user: int, file: Any, level: int, data: bytes, kind: int = _FILE, additional: int = 0) -> None:
        self._clients[user].setInfo(self._trees[user], file, data, kind, level, additional)

    def _query(self, user: int, file: Any, level: int, kind: int, additional: int = 0) -> bytes:
        return bytes(self._clients[user].queryInfo(self._trees[user], file, b"", kind, level, additional))


def _log_on(port: int, login: Login) -> Any:
    client = smb3.SMB3(
        "127.0.0.1", "127.0.0.1", sess_port=port, preferredDialect=smb3structs.SMB2_DIALECT_302, timeout=60
    )
    client.login(login.name, login.password)
    return client


def _status(error: Any) -> int:
    return int(error.get_error_code()) & 0xFFFFFFFF


def _read(client: Any, tree: Any, file: Any) -> bytes:
    try:
        return bytes(client.read(tree, file, 0, 100))
    except smb3.SessionError as error:
        if _status(error) == 0xC0000011:  # END_OF_FILE: reading was allowed.
            return b""
        raise


def _names(client: Any, tree: Any, file: Any) -> list[str]:
    """Return the names in a folder, without those that begin with a dot."""
    found: list[str] = []
    try:
        data = bytes(client.queryDirectory(tree, file, "*", informationClass=_NAMES))
    except smb3.SessionError as error:
        if _status(error) in {0x80000006, 0xC000000F}:  # NO_MORE_FILES, NO_SUCH_FILE.
            return found
        raise
    at = 0
    while True:
        step, _, length = struct.unpack_from("<III", data, at)
        name = data[at + 12 : at + 12 + length].decode("utf-16-le")
        if not name.startswith("."):
            found.append(name)
        if not step:
            return sorted(found)
        at += step
