"""``smb3server user``: the users file is changed as told, and passwords come from where nobody else sees them."""

from __future__ import annotations

import json
import os
import pwd
import socket
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from smb3server.auth.password_rules import EMPTY_HASH
from smb3server.auth.users import nt_hash
from smb3server.auth.users_file import StoredUser, parse_time, read_users
from smb3server.cli import ask_server
from smb3server.cli.admin import users_store
from smb3server.cli.tree import TREE
from smb3server.config.command_line.arguments import parse_arguments

PASSWORD = "correct horse"
ME = pwd.getpwuid(os.geteuid()).pw_name
# As `pdbedit -Lw` of Samba 4.17 printed them.
SAMBA = """games:5:XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX:07758B38ACA09FD1EEDEE1C49927B5AD:[U          ]:LCT-6B0342B0:
news:9:NO PASSWORDXXXXXXXXXXXXXXXXXXXXX:094BBFC29A6557A6BA6E4D76FA84CA2F:[NU         ]:LCT-6B0342B0:
mail:8:XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX:6D615BF571835181ED4341736B355F96:[DU         ]:LCT-6B0342B0:
pc$:1001:XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX:80DB8A96DFAC9285EBCF95639E6DDAFE:[W          ]:LCT-6B0342B1:
new:4294967295:XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX:XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX:[U          ]:LCT-00000000:
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMB3SERVER_PASSWORD", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


def run(file: Path, *arguments: str, text: str = "", status: int = 0) -> str:
    words = ["user", arguments[0], "--file", str(file), *arguments[1:]]
    result = CliRunner().invoke(TREE, words, input=text, standalone_mode=False)
    error = result.exception
    if isinstance(error, click.ClickException):
        found, said = error.exit_code, f"{result.output}{error.format_message()}"
    else:
        assert error is None, result.output
        found, said = result.return_value or 0, result.output
    assert found == status, said
    return said


def add(file: Path, *arguments: str, password: str = PASSWORD, status: int = 0) -> str:
    return run(file, "add", *arguments, "--password-stdin", text=f"{password}\nmore\n", status=status)


def only(file: Path) -> StoredUser:
    (user,) = read_users(file)
    return user


def test_a_user_is_added_changed_and_removed(file: Path) -> None:
    add(file, "alice", "--full-name", "Alice L", "--unix-user", ME, "--expires", "2030-01-01")
    user = only(file)
    assert (user.nt_hash, user.full_name, user.unix_user) == (nt_hash(PASSWORD), "Alice L", ME)
    assert user.expires == parse_time("2030-01-01") and user.changed and not user.must_change
    run(file, "passwd", "ALICE", "--password-stdin", "--must-change", text="another one\n")
    user = only(file)
    assert (user.name, user.nt_hash, user.must_change) == ("alice", nt_hash("another one"), True)
    run(file, "set", "alice", "--expires", "never", "--full-name", "", "--comment", "c", "--no-must-change")
    user = only(file)
    assert (user.expires, user.full_name, user.comment, user.must_change) == (0, "", "c", False)
    run(file, "disable", "alice")
    assert only(file).disabled
    run(file, "enable", "alice")
    assert not only(file).disabled
    run(file, "remove", "alice")
    assert list(read_users(file)) == [] and file.stat().st_mode & 0o777 == 0o600


def test_a_password_as_an_argument_is_refused_and_not_repeated(file: Path) -> None:
    for name in ("add", "passwd"):
        result = run(file, name, "alice", PASSWORD, status=2)
        assert "can be read by everybody" in result and PASSWORD not in result
    assert not file.exists()


def test_sources_of_passwords(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "password"
    place.write_text("from a file\n")
    place.chmod(0o644)
    assert "chmod 600" in run(file, "add", "alice", "--password-file", str(place), status=2)
    place.chmod(0o600)
    run(file, "add", "alice", "--password-file", str(place))
    assert only(file).nt_hash == nt_hash("from a file")
    monkeypatch.setenv("SMB3SERVER_PASSWORD", "from the environment")
    run(file, "passwd", "alice")
    assert only(file).nt_hash == nt_hash("from the environment")
    credential = tmp_path / "smb3server.alice"
    credential.write_text("from systemd\n")
    credential.chmod(0o400)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    run(file, "passwd", "alice")
    assert only(file).nt_hash == nt_hash("from systemd")
    shown = run(file, "passwd", "alice", "--random").splitlines()[0].removeprefix("password of alice: ")
    assert only(file).nt_hash == nt_hash(shown) and len(shown) >= 16
    assert "choose one of" in run(file, "passwd", "alice", "--random", "--password-stdin", status=2)
    monkeypatch.delenv("SMB3SERVER_PASSWORD")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    assert "give --password-stdin, --password-file" in run(file, "passwd", "alice", status=2)


def test_rules_for_passwords(file: Path) -> None:
    assert "at least 8 characters; --force" in add(file, "alice", password="short", status=2)
    assert "must not be empty" in add(file, "alice", "--force", password="", status=2)
    assert "user's name" in add(file, "administrator", password="Administrator", status=2)
    assert "at most 256" in add(file, "alice", password="x" * 257, status=2)
    assert not file.exists()
    add(file, "alice", "--force", password="short")
    run(file, "passwd", "alice", "--password-stdin", text=f"{PASSWORD}\n")
    again = run(file, "passwd", "alice", "--password-stdin", text=f"{PASSWORD}\n", status=2)
    assert "the new password is the old one" in again


@pytest.mark.parametrize(
    ("arguments", "complaint", "status"),
    [
        (["add", "bob"], "has a user bob already", 1),
        (["add", "a:b"], "is no name for a user", 2),
        (["add", "new", "--unix-user", "no-such-user"], "this machine has no user no-such-user", 2),
        (["add", "new", "--principal", "nonsense"], "is not a principal", 2),
        (["add", "new", "--expires", "soon"], "is not a time", 2),
    ],
)
def test_mistakes_change_nothing(file: Path, arguments: list[str], complaint: str, status: int) -> None:
    add(file, "Bob")
    before = file.read_bytes()
    assert complaint in add(file, *arguments[1:], status=status)
    assert file.read_bytes() == before


def test_unknown_users(file: Path) -> None:
    add(file, "alice")
    before = file.read_bytes()
    for arguments in (["passwd", "alic", "--random"], ["set", "alic", "--comment", "x"], ["remove", "alice", "alic"]):
        assert "did you mean alice?" in run(file, *arguments, status=1)
    assert "nothing to change" in run(file, "set", "alice", status=2)
    assert file.read_bytes() == before


def test_what_is_listed_has_no_secrets(file: Path) -> None:
    assert "has no users" in run(file, "list")
    add(file, "bob", "--must-change", "--comment", "of the lab")
    add(file, "Alice", "--expires", "2030-01-01")
    table = run(file, "list")
    assert [line.split()[0] for line in table.splitlines()] == ["NAME", "Alice", "bob"]
    assert "expires 2030-01-01" in table and "must change; of the lab" in table
    shown = json.loads(run(file, "list", "--json"))
    assert [(user["name"], user["must_change"]) for user in shown] == [("Alice", False), ("bob", True)]
    assert nt_hash(PASSWORD).hex() not in table + json.dumps(shown)


def test_the_configuration_says_which_file_groups_and_length(tmp_path: Path) -> None:
    config = tmp_path / "smb3server.toml"
    config.write_text(
        f'[server]\nstate = "{tmp_path / "state"}"\nmin_password_length = 13\n'
        '[groups]\nstaff = ["alice", "carol"]\nempty = []\n'
        '[[user]]\nname = "carol"\npassword = "x"\n'
    )

    def with_config(*arguments: str, text: str = "", status: int = 0) -> str:
        result = CliRunner().invoke(TREE, ["user", *arguments, "--config", str(config)], input=text)
        assert result.exit_code == status, result.output
        return result.output

    with_config("add", "alice", "--password-stdin", text=f"{PASSWORD}\n")
    assert only(tmp_path / "state" / "users").name == "alice"
    assert "at least 13 characters" in with_config("passwd", "alice", "--password-stdin", text="x" * 12, status=2)
    assert "there is a group staff" in with_config("add", "staff", "--random", status=1)
    assert "has a [[user]] Carol" in with_config("add", "Carol", "--random", status=1)
    assert "staff" in with_config("list")
    assert with_config("groups") == "empty: nobody\nstaff: alice, carol\n"
    assert with_config("groups", "alice") == "staff: alice, carol\n"
    assert json.loads(with_config("groups", "--json")) == {"empty": [], "staff": ["alice", "carol"]}
    assert "is in no group" in with_config("groups", "dora")
    folder = tmp_path / "data"
    folder.mkdir()
    config.chmod(0o600)
    made = parse_arguments(["--config", str(config), "--share", f"data={folder}"])
    assert [account.name for account in made.accounts] == ["alice", "carol"] and made.accounts[0].stored


def test_users_of_samba_are_imported(file: Path) -> None:
    add(file, "mail")
    result = run(file, "import", "-", "--no-unix-users", text=SAMBA, status=1)
    assert [(user.name, user.disabled) for user in read_users(file)] == [("mail", False), ("games", False)]
    for said in ("left out news: it has no password", "left out mail: there is such a user already",
                 "left out pc$: the account of a machine", "left out new: no password is set"):  # fmt: skip
        assert said in result
    before = file.read_bytes()
    assert "would import 2 users" in run(
        file, "import", "-", "--replace", "--unix-users", "--dry-run", text=SAMBA, status=1
    )
    assert file.read_bytes() == before
    run(file, "import", "-", "--replace", "--unix-users", text=SAMBA, status=1)
    users = read_users(file)
    mail, games = users.find("mail"), users.find("games")
    assert mail is not None and mail.disabled and mail.nt_hash.hex().upper() == "6D615BF571835181ED4341736B355F96"
    assert games is not None and games.changed == 0x6B0342B0 and games.nt_hash != EMPTY_HASH
    assert games.unix_user == "games"
    assert "not a line of smbpasswd" in run(file, "import", "-", text="alice:secret\n", status=2)


def test_an_imported_user_never_acts_as_whoever_has_the_number(file: Path) -> None:
    text = SAMBA.splitlines()[0].replace("games:5:", f"nobody-here:{pwd.getpwnam('games').pw_uid}:") + "\n"
    said = run(file, "import", "-", "--unix-users", text=text, status=1)
    assert "left out nobody-here: this machine has no user nobody-here to act as" in said
    assert list(read_users(file)) == []
    run(file, "import", "-", "--no-unix-users", text=text)
    assert only(file).unix_user == ""


def test_a_server_that_hangs_is_named_and_not_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_store, "_ANSWER_TIMEOUT", 0.1)
    monkeypatch.setattr(ask_server, "SIGN_OF_LIFE_TIMEOUT", 0.1)
    path = file.parent / "admin.sock"
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(path))
        stopped.listen()
        complaint = add(file, "alice", status=1)
        assert "is changed, but the server at" in complaint and "does not answer" in complaint
        assert only(file).name == "alice"
        result = CliRunner().invoke(TREE, ["share", "list", "--socket", str(path)])
        assert result.exit_code == 3 and "no answer in 0.1 s: the server hangs or is stopped" in result.output
