"""Every file of the state directory, cut off, overwritten, emptied or gone while the server was down: it is said."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smb3server.auth.users_file import UsersFileError, change_users, read_users
from smb3server.client.protocol.transports import open_tcp
from tests.lab.persistent import PersistentShare
from tools.support import own_user
from tools.support.ports import free_port

OPENS = 10
Damage = Callable[[Path], None]


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def garbage(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3)
        file.write(os.urandom(min(4096, size)))


def empty(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(0)


def remove(path: Path) -> None:
    path.unlink()


DAMAGES: tuple[Damage, ...] = (cut, garbage, empty, remove)
SAID = {
    "handles.db": r"missing|damaged|malformed|not a database",
    "handles.db-wal": r"\d+ opens of the last run are missing",
    "handles.db-count": r"handles.db-count is (damaged|missing)",
    "server-guid": r"server-guid is (damaged|missing)|not UTF-8|can't decode",
    "shares.toml": r"shares.toml",
    "users": r"/users",
}
"""By file: what is said, whatever the damage."""


class Server:
    """A server process with the state directory of ``folder``.

    ``kept``: the share's folder. Copies of a state directory share it: opens are found by the files themselves."""

    def __init__(self, folder: Path, kept: Path) -> None:
        self.port = free_port()
        config = folder / "serve.toml"
        config.touch(0o600)
        config.write_text(
            f'[server]\nlisten = ["127.0.0.1"]\nport = {self.port}\nallow_root = true\nrdma = "off"\n'
            f'state = "{folder / "state"}"\n[[share]]\nname = "kept"\npath = "{kept}"\n{own_user.LINE}'
            'continuous_availability = true\n[[user]]\nname = "u"\npassword = "pw"\n'
        )
        words = [sys.executable, "-m", "smb3server", "--config", str(config)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if line.startswith("ready"):
                break

    def end(self, number: int = signal.SIGTERM) -> str:
        """End the process, if it has not ended, and return what it has said."""
        self.process.send_signal(number)
        self.said += self.process.communicate(timeout=30)[0]
        return self.said


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory as a server leaves it that was killed, with opens, permissions and users."""
    folder = tmp_path_factory.mktemp("used")
    for name in ("kept", "more", "state"):
        (folder / name).mkdir(0o700)
    users = folder / "state" / "users"
    change_users(users, lambda found: None)
    with users.open("a") as file:
        file.write("alice:878d8014606cda29677a44efa1353fc7::disabled\n")
    served = Server(folder, folder / "kept")

    async def body() -> None:
        share = PersistentShare(lambda: open_tcp("127.0.0.1", served.port), "kept", "u", "pw", 10.0)
        for number in range(OPENS):
            await share.open(f"f{number}", share=0)
        await asyncio.to_thread(served.end, signal.SIGKILL)
        await share.close()

    words = [sys.executable, "-m", "smb3server", "share", "add", "more", str(folder / "more")]
    subprocess.run([*words, "--state", str(folder / "state")], check=True, capture_output=True, timeout=60)
    asyncio.run(body())
    return folder


def copy_of(used: Path, folder: Path) -> Path:
    shutil.copytree(used, folder, ignore=shutil.ignore_patterns("*.sock", "kept", "more"))
    return folder


def _cases() -> Iterator[object]:
    """Every damage of the database, and two of every other file, in every run: each is a start of a server."""
    for name in SAID:
        for damage in DAMAGES:
            marks = () if name == "handles.db" or damage in (cut, remove) else (pytest.mark.long,)
            yield pytest.param(name, damage, marks=marks, id=f"{name}-{damage.__name__}")


@pytest.mark.parametrize(("name", "damage"), list(_cases()))
def test_damage_is_said(used: Path, tmp_path: Path, name: str, damage: Damage) -> None:
    """Either the server starts and its log says what is missing, or it does not start and says why."""
    folder = copy_of(used, tmp_path / "copy")
    path = folder / "state" / name
    assert path.exists(), sorted(os.listdir(folder / "state"))
    damage(path)
    said = Server(folder, used / "kept").end()
    assert "Traceback" not in said
    if name == "handles.db" and f"{OPENS} persistent opens restored" in said:
        # What was damaged is in the log, too, which was not.
        return
    assert [line for line in said.splitlines() if re.search(SAID[name], line)], said


def test_the_number_of_missing_opens(used: Path, tmp_path: Path) -> None:
    """Nothing is said about an undamaged directory, and all opens are counted if the database is gone."""
    whole = copy_of(used, tmp_path / "whole")
    said = Server(whole, used / "kept").end()
    assert f"{OPENS} persistent opens restored" in said
    assert "missing" not in said and "damaged" not in said
    gone = copy_of(used, tmp_path / "gone")
    for path in (gone / "state").glob("handles.db*"):
        if not path.name.endswith("-count"):
            path.unlink()
    assert f"{OPENS} opens of the last run are missing" in Server(gone, used / "kept").end()
    assert "missing" not in Server(gone, used / "kept").end()


def test_a_users_file_that_is_cut_off(tmp_path: Path) -> None:
    """It does not make an account valid that was disabled."""
    path = tmp_path / "users"
    change_users(path, lambda users: None)
    with path.open("a") as file:
        file.write("alice:878d8014606cda29677a44efa1353fc7::disabled\n")
    assert [user.disabled for user in read_users(path)] == [True]
    path.write_text(path.read_text().removesuffix(":disabled\n"))
    with pytest.raises(UsersFileError, match="the last line has no end"):
        read_users(path)
