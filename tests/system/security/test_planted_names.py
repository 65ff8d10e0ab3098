"""Names that somebody else has made where everybody may make names, as in /tmp: links, folders, files.

Whoever knows which name the server, or a command, will use can have it ready.
"""

from __future__ import annotations

import ast
import asyncio
import os
import pwd
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from smb3server.admin import socket as admin_socket
from smb3server.admin.socket import AdminSocket, ask, running
from smb3server.auth.users_file import UsersFileError, change_users
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.sources import stored_shares
from smb3server.observing.trace import Trace, Wanted, parse_client
from smb3server.process.log_output import open_append
from smb3server.service.privileges import Privileges
from smb3server.service.state_directory import StateDirectory

ROOT = Path(__file__).parents[3]
STRANGER = 54321
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="files of other users need root")
Trap = Callable[[Path, Path], None]


@pytest.fixture
def name(tmp_path: Path) -> Path:
    """A name in a folder like /tmp."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    return place / "known-name"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the server's user, which only that user may write to."""
    folder = tmp_path / "victim"
    folder.mkdir(mode=0o700)
    (folder / "file").write_text("precious")
    (folder / "old.sock").symlink_to("nowhere")
    return folder


def unharmed(victim: Path) -> bool:
    return sorted(os.listdir(victim)) == ["file", "old.sock"] and (victim / "file").read_text() == "precious"


# Folders


def serve_there(name: Path, state: Path) -> None:
    async def main() -> None:
        admin = AdminSocket(name / "1.sock", {})
        await admin.start()
        await admin.close()

    asyncio.run(main())


def announce_there(name: Path, state: Path) -> None:
    """``name`` is the runtime directory of a server with a state directory."""

    async def main() -> None:
        admin = AdminSocket(state / "admin.sock", {})
        await admin.start()
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(admin_socket, "runtime_directory", lambda: name)
                admin.announce()
        finally:
            await admin.close()

    asyncio.run(main())


def keep_state_there(name: Path, state: Path) -> None:
    StateDirectory(name).release()


FOLDERS = (serve_there, announce_there, keep_state_there)


def a_link(name: Path, victim: Path) -> None:
    name.symlink_to(victim)


def a_link_to_nothing(name: Path, victim: Path) -> None:
    name.symlink_to(victim / "new")


def a_folder_for_all(name: Path, victim: Path) -> None:
    name.mkdir()
    name.chmod(0o777)


def a_folder_for_a_group(name: Path, victim: Path) -> None:
    name.mkdir()
    name.chmod(0o770)


def a_strangers_folder(name: Path, victim: Path) -> None:
    name.mkdir(mode=0o700)
    os.chown(name, STRANGER, STRANGER)


@pytest.mark.parametrize(
    "trap",
    [
        a_link,
        a_link_to_nothing,
        a_folder_for_all,
        a_folder_for_a_group,
        pytest.param(a_strangers_folder, marks=root_only),
    ],
)
@pytest.mark.parametrize("use", FOLDERS)
def test_a_planted_folder_is_not_used(name: Path, victim: Path, tmp_path: Path, use: Trap, trap: Trap) -> None:
    trap(name, victim)
    state = tmp_path / "state"
    with pytest.raises((OSError, ConfigError)) as refused:
        use(name, state)
    assert str(name) in str(refused.value) or "director" in str(refused.value)
    assert unharmed(victim)
    if name.is_dir() and not name.is_symlink():
        assert os.listdir(name) == []


@pytest.mark.parametrize("use", FOLDERS)
def test_a_folder_that_the_server_has_made_is_used_again(name: Path, tmp_path: Path, use: Trap) -> None:
    for _ in range(2):
        use(name, tmp_path / "state")
        assert name.stat().st_mode & 0o777 == 0o700


def test_a_link_of_the_administrators_own_is_followed(victim: Path, tmp_path: Path) -> None:
    """Nobody else may make names here."""
    link = tmp_path / "var"
    link.symlink_to(victim)
    StateDirectory(link).release()
    serve_there(link, tmp_path)
    assert (victim / "server-guid").exists()


@root_only
def test_a_folder_is_handed_over_by_itself(tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user, who may write to the folder above, puts a link in the place of the folder that root has just made."""
    entry = pwd.getpwnam("nobody")
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, entry.pw_uid, entry.pw_gid)
    place, make = home / "state", Path.mkdir

    def make_and_lose(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        make(self, mode, parents, exist_ok)
        self.rmdir()
        self.symlink_to(victim)

    monkeypatch.setattr(Path, "mkdir", make_and_lose)
    with pytest.raises((OSError, ConfigError)):
        Privileges(Config())._hand_over(place, entry)
    assert victim.stat().st_uid == 0
    monkeypatch.undo()
    place.unlink()
    Privileges(Config())._hand_over(place, entry)
    assert place.stat().st_uid == entry.pw_uid


# Whoever looks for servers


def test_a_socket_behind_a_link_is_not_asked(name: Path, victim: Path) -> None:
    name.symlink_to(victim)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(victim / "1.sock"))
        listening.listen()
        listening.settimeout(0)
        assert running(name) == []
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_a_folder_that_all_may_write_to_is_not_asked(name: Path) -> None:
    name.mkdir()
    name.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(name / "1.sock"))
        listening.listen()
        listening.settimeout(0)
        assert running(name) == []
        with pytest.raises(BlockingIOError):
            listening.accept()


@root_only
def test_a_program_of_another_user_gets_no_request(tmp_path: Path) -> None:
    """A user's own runtime directory has a link to a socket of root: root's request is not for that program."""
    folder = tmp_path / "users"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "roots.sock"))
        listening.listen()
        (folder / "1.sock").symlink_to(tmp_path / "roots.sock")
        os.chown(folder, STRANGER, STRANGER)
        with pytest.raises(PermissionError, match="not of the directory's owner"):
            ask(folder / "1.sock", "ping", 1.0)
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.recv(100) == b""


# Files


def log_there(name: Path) -> None:
    os.close(open_append(name))


def trace_there(name: Path) -> None:
    Trace(Wanted(parse_client("192.0.2.1"), name)).close()


def lock_users_there(name: Path) -> None:
    """``name`` is the users file's lock."""
    name.with_name("users").touch(mode=0o600)
    os.rename(name, name.with_name("users.lock"))
    try:
        change_users(name.with_name("users"), lambda users: None)
    except UsersFileError as error:
        assert "users.lock" in str(error) or "Too many levels" in str(error)
        raise


def a_link_to_a_file(name: Path, victim: Path) -> None:
    name.symlink_to(victim / "file")


def a_second_name(name: Path, victim: Path) -> None:
    os.link(victim / "file", name)


def a_strangers_file(name: Path, victim: Path) -> None:
    name.touch()
    os.chown(name, STRANGER, STRANGER)


@pytest.mark.parametrize(
    ("use", "trap"),
    [
        (log_there, a_link_to_a_file),
        (log_there, a_second_name),
        pytest.param(log_there, a_strangers_file, marks=root_only),
        (trace_there, a_link_to_a_file),
        (trace_there, a_second_name),
        (lock_users_there, a_link_to_a_file),
        (lock_users_there, a_second_name),
    ],
)
def test_a_planted_file_is_not_used(name: Path, victim: Path, use: Callable[[Path], None], trap: Trap) -> None:
    trap(name, victim)
    before = os.stat(victim / "file")
    with pytest.raises((OSError, UsersFileError)):
        use(name)
    after = os.stat(victim / "file")
    assert (after.st_uid, after.st_mode, after.st_size) == (before.st_uid, before.st_mode, before.st_size)
    assert unharmed(victim)


def test_a_log_of_ones_own_is_continued(name: Path) -> None:
    log_there(name)
    log_there(name)
    assert name.stat().st_mode & 0o777 & ~0o640 == 0


def test_what_a_killed_writer_left_is_replaced(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "shares.toml.new").symlink_to(victim / "file")
    stored_shares.write(tmp_path / "shares.toml", stored_shares.StoredShares())
    assert unharmed(victim)
    assert (tmp_path / "shares.toml").stat().st_mode & 0o777 == 0o600


# All of them

BY_NAME = ("write_text", "write_bytes", "mktemp", "gettempdir")
"""Ways to make a file that follow links, or whose names others know."""
OTHER_ROOMS = ("cli", "client", "remote", "lab", "doctor", "backends")
"""They write what the user has named, as that user; and files of clients, below a folder that is open."""


def _calls(path: Path) -> list[tuple[int, str, ast.Call]]:
    found = []
    text = path.read_text()
    if not re.search(rf"\b({'|'.join([*BY_NAME, 'open'])})\(", text):
        return []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            found.append((node.lineno, called, node))
    return found


def _makes_a_file_carelessly(called: str, node: ast.Call) -> bool:
    if called in BY_NAME:
        return True
    text = ast.unparse(node)
    if called != "open" or "descriptor" in text:
        # A descriptor was opened with care already.
        return False
    if "O_CREAT" in text:
        return "O_NOFOLLOW" not in text
    strings = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return any(isinstance(mode, str) and mode[:1] in "wax" and len(mode) in (1, 2, 3) for mode in strings)


def test_no_file_of_the_server_is_made_in_another_way() -> None:
    found = []
    for package in ("smb3server", "smbdirect", "witness"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if package == "smb3server" and path.relative_to(ROOT / package).parts[0] in OTHER_ROOMS:
                continue
            found += [
                f"{path.relative_to(ROOT)}:{line}"
                for line, called, node in _calls(path)
                if _makes_a_file_carelessly(called, node)
            ]
    assert found == []
