"""Nobody acts as root unless that is allowed, and with ``drop_privileges`` everybody acts as one user."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from smb3server.auth.users import nt_hash
from smb3server.auth.users_file import StoredUser, change_users
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.sources.host_users import ALLOW_ROOT_VARIABLE, user_to_become

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")
OTHER = pwd.getpwnam("games")


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW_ROOT_VARIABLE, raising=False)


def folder(tmp_path: Path, name: str, owner: int | None = None) -> Path:
    made = tmp_path / name
    made.mkdir()
    if owner is not None:
        os.chown(made, owner, owner)
    return made


def config(tmp_path: Path, *lines: str) -> list[str]:
    file = tmp_path / "smb3server.toml"
    file.touch(0o600)
    file.write_text("\n".join(lines))
    return ["--config", str(file), "--state", str(tmp_path / "state")]


@root_only
@pytest.mark.parametrize("key", ["unix_user", "force_user"])
def test_root_is_refused_and_can_be_allowed(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    share, user = ["[[share]]", 'name = "data"', f'path = "{folder(tmp_path, "data")}"'], ["[[user]]", 'name = "a"']
    (share if key == "force_user" else user).append(f'{key} = "root"')
    arguments = config(tmp_path, *share, *user, 'password = "longpassword"')
    with pytest.raises(ConfigError, match=rf"{key}: is root, .*; remedy: .*--allow-root"):
        parse_arguments(arguments)
    assert parse_arguments([*arguments, "--allow-root"]).allow_root
    file = Path(arguments[1])
    file.write_text(f"[server]\nallow_root = true\n{file.read_text()}")
    parse_arguments(arguments)
    file.write_text(file.read_text().replace("true", "false"))
    monkeypatch.setenv(ALLOW_ROOT_VARIABLE, "1")
    parse_arguments(arguments)


@root_only
def test_root_in_the_users_file_and_on_the_command_line(tmp_path: Path) -> None:
    data = folder(tmp_path, "data")
    change_users(tmp_path / "state" / "users", lambda users: users.put(StoredUser("alice", nt_hash("x"), "root")))
    with pytest.raises(ConfigError, match="user alice: unix_user: is root"):
        parse_arguments(["--share", f"data={data}", "--state", str(tmp_path / "state")])
    with pytest.raises(ConfigError, match="is root"):
        parse_arguments(["--share", f"data={data},user=root", "--user", "a:longpassword"])


@root_only
def test_the_user_that_a_server_becomes(tmp_path: Path) -> None:
    data = folder(tmp_path, "data", OTHER.pw_uid)
    arguments = ["--share", f"data={data}", "--user", "a:longpassword", "--state", str(tmp_path / "state")]
    assert parse_arguments([*arguments, "--drop-privileges"]).run_as == OTHER.pw_name
    assert parse_arguments([*arguments, "--drop-privileges=news"]).run_as == "news"
    assert parse_arguments(arguments).run_as == ""
    # The users file may belong to that user.
    change_users(tmp_path / "state" / "users", lambda users: users.put(StoredUser("alice", nt_hash("x"))))
    os.chown(tmp_path / "state" / "users", OTHER.pw_uid, OTHER.pw_gid)
    with pytest.raises(ConfigError, match="belongs to another user"):
        parse_arguments(arguments)
    assert len(parse_arguments([*arguments, "--drop-privileges"]).accounts) == 2


@root_only
def test_nobody_acts_as_another_user_then(tmp_path: Path) -> None:
    data = folder(tmp_path, "data", OTHER.pw_uid)
    arguments = ["--share", f"data={data},user=news", "--user", "a:longpassword", "--drop-privileges"]
    with pytest.raises(ConfigError, match=r"is not games: with drop_privileges everybody acts as games; remedy"):
        parse_arguments(arguments)
    arguments[1] = f"data={data},user=games"
    assert parse_arguments(arguments).run_as == "games"


@root_only
def test_folders_that_do_not_say_which_user(tmp_path: Path) -> None:
    own, other = folder(tmp_path, "own", 0), folder(tmp_path, "other", OTHER.pw_uid)
    unnamed = folder(tmp_path, "unnamed", 12345)
    for folders, said in (
        ([own], r"root owns .*; remedy: chown USER"),
        ([own, other], "different owners; name one user"),
        ([unnamed], "user 12345, who owns the folders, has no name here"),
        ([], "no owner"),
    ):
        with pytest.raises(ConfigError, match=said):
            user_to_become("owner", "", [ShareConfig(path.name, path) for path in folders])


def test_users_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="this machine has no user no-such-user"):
        user_to_become("no-such-user", "", [])
    with pytest.raises(ConfigError, match="root has all privileges"):
        user_to_become("root", "", [])
    with pytest.raises(ConfigError, match="excludes run_as"):
        user_to_become("games", "news", [])
    assert Config().drop_privileges == ""
