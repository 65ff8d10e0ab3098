"""The users file: its format, and that no writer and no crash loses anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smb3server.auth.users import nt_hash
from smb3server.auth.users_file import (
    StoredUser,
    Users,
    UsersFileError,
    change_users,
    check_name,
    parse_time,
    read_users,
    show_time,
)

HASH = "878d8014606cda29677a44efa1353fc7"
OLD = f"# by hand\nalice:{HASH}\n\nbob:{HASH.upper()}:nobody\n"


def put(name: str, password: str = "pw") -> StoredUser:
    return StoredUser(name, nt_hash(password))


def test_lines_of_old_files_are_read_and_kept() -> None:
    users = Users(OLD)
    assert [(user.name, user.unix_user) for user in users] == [("alice", ""), ("bob", "nobody")]
    assert users.find("ALICE") == StoredUser("alice", bytes.fromhex(HASH))
    users.put(put("Alice"))
    assert users.remove("BOB") and not users.remove("bob")
    lines = users.pack().splitlines()
    assert lines[0].startswith("# Users of smb3server, version 1")
    assert lines[1:] == ["# by hand", f"Alice:{nt_hash('pw').hex()}", ""]


TEXTS = st.text(max_size=20)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=64).filter(
    lambda name: not set(name) & set('"/\\[]:;|=,+*?<>@') and name.strip() == name and name.strip(".")
)


@given(
    name=NAMES.filter(lambda name: name.isprintable() and not name.startswith("#")),
    full_name=TEXTS,
    comment=TEXTS,
    times=st.tuples(st.integers(0, 1 << 35), st.integers(0, 1 << 35)),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_what_is_written_is_read(
    name: str, full_name: str, comment: str, times: tuple[int, int], flags: tuple[bool, bool]
) -> None:
    full_name = full_name.encode("utf-8", "replace").decode()
    comment = comment.encode("utf-8", "replace").decode()
    user = StoredUser(check_name(name), bytes(range(16)), "nobody", "a@B", full_name, comment, *times, *flags)
    users = Users("")
    users.put(user)
    text = users.pack()
    assert list(Users(text)) == [user] and Users(text).pack() == text
    assert all(line.isprintable() for line in text.splitlines())


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("alice", r"users file: line 2: write NAME:NT_HASH"),
        (f":{HASH}", "write NAME:NT_HASH"),
        (f"alice:{HASH[1:]}", "32 hexadecimal digits"),
        (f"alice:{HASH}::colour=red", "unknown field colour; known are principal"),
        (f"alice:{HASH}::disabled=yes", "unknown field disabled"),
        (f"alice:{HASH}::disabled,disabled", "disabled is given twice"),
        (f"alice:{HASH}::changed=yesterday", "is not a time: write 2026-12-31"),
        (f"alice:{HASH}\nAlice:{HASH}", "line 3: Alice is given twice"),
        ("# Users of smb3server, version 2: later", r"version 2 is later than this server knows \(1\)"),
    ],
)
def test_mistakes_name_their_line_and_never_the_hash(line: str, complaint: str) -> None:
    with pytest.raises(UsersFileError, match=complaint) as caught:
        Users(f"# first\n{line}\n")
    assert HASH not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a:b", "a@b", "@staff", "#a", " a", "a ", "...", "a\nb", "a" * 65, "a/b", "a,b"])
def test_names_that_no_account_may_have(name: str) -> None:
    with pytest.raises(ValueError, match="is no name for a user"):
        check_name(name)


def test_times() -> None:
    assert show_time(parse_time("2026-11-22T19:00:00Z")) == "2026-11-22T19:00:00Z"
    assert parse_time("2026-11-22") == parse_time("2026-11-22T01:00:00+01:00")


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "users"
    old = os.umask(0)
    try:
        change_users(path, lambda users: users.put(put("alice")))
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert [user.name for user in read_users(path)] == ["alice"]


def test_mode_owner_and_link_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "users", tmp_path / "link"
    path.write_text(OLD)
    path.chmod(0o640)
    link.symlink_to(path)
    if os.geteuid() == 0:
        os.chown(path, 65534, 0)
    before = path.stat()
    change_users(link, lambda users: users.put(put("carol")), [before.st_uid])
    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert after.st_ino != before.st_ino and link.is_symlink()


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(OLD)
    path.chmod(0o644)
    with pytest.raises(UsersFileError, match=f"chmod 600 {path}"):
        change_users(path, lambda users: users.put(put("carol")))
    assert path.read_text() == OLD


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users"
    change_users(path, lambda users: users.put(put("alice")))
    before = path.read_bytes(), path.stat().st_ino

    def fail(users: Users) -> None:
        users.remove("alice")
        raise LookupError

    with pytest.raises(LookupError):
        change_users(path, fail)
    assert (path.read_bytes(), path.stat().st_ino) == before


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users"

    def write(writer: int) -> None:
        for number in range(10):
            user = put(f"user-{writer}-{number}")
            change_users(path, partial(Users.put, user=user))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(read_users(path))) == 40


WRITER = """
import sys
from pathlib import Path
from smb3server.auth.users_file import StoredUser, change_users
print("ready", flush=True)
number = 0
while True:
    number += 1
    user = StoredUser("counter", number.to_bytes(16, "big"), comment=str(number) * 2000)
    change_users(Path(sys.argv[1]), lambda users: users.put(user))
"""


def test_a_writer_killed_at_any_point_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "users"
    last = 0
    for attempt in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None and writer.stdout.readline()
            time.sleep(0.02 + attempt * 0.0031)
            writer.send_signal(signal.SIGKILL)
        if not path.exists():
            continue
        (user,) = read_users(path)
        number = int.from_bytes(user.nt_hash, "big")
        assert user.comment == str(number) * 2000
        last = max(last, number)
    assert last > 1
    # What the killed writers left behind does not stop the next one.
    change_users(path, lambda users: users.put(put("alice")))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["users", "users.lock"]
