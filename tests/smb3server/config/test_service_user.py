"""A configuration is judged as its service would, whoever asks: root, or the service's user without capabilities."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.served import ROOT, open_up

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

SERVICE, USER = "www-data", "news"
HASH = "878d8014606cda29677a44efa1353fc7"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """As the package leaves it: the users file is the service's, and users act as users of the host."""
    open_up(tmp_path)
    service = pwd.getpwnam(SERVICE)
    users = tmp_path / "users"
    users.touch(0o600)
    users.write_text(f"alice:{HASH}:{USER}\n")
    os.chown(users, service.pw_uid, service.pw_gid)
    data = tmp_path / "data"
    data.mkdir(0o700)
    os.chown(data, pwd.getpwnam(USER).pw_uid, -1)
    file = tmp_path / "smb3server.toml"
    file.write_text(f'[server]\nport = 445\nusers_file = "{users}"\n[[share]]\nname = "data"\npath = "{data}"\n')
    return file


def ask(*arguments: str | Path, user: str = "") -> tuple[int, str]:
    """Exit status, and what was said."""
    prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
    ended = subprocess.run(
        [*prefix, sys.executable, "-m", "smb3server", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SMB3SERVER_ALLOW_ROOT": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("command", ["check", "config show"])
def test_root_judges_as_the_service(file: Path, command: str) -> None:
    status, said = ask(*command.split(), "--config", file)
    assert status == 0 and "belongs to another user" not in said, said
    # With the unit's capabilities it may read another's folder, and open port 445.
    assert "may not" not in said


def test_the_doctor_judges_as_the_service(file: Path) -> None:
    status, said = ask("doctor", "--config", file)
    assert status in (0, 1) and "would not start" not in said, said
    assert "1 shares, 1 users" in said


def test_another_user_can_be_named(file: Path) -> None:
    status, said = ask("check", "--config", file, "--as", USER)
    assert status == 2 and f"users belongs to another user, uid {pwd.getpwnam(SERVICE).pw_uid}" in said
    status, said = ask("check", "--config", file, "--as", "nobody-like-this")
    assert status == 2 and "this machine has no user nobody-like-this" in said
    # As a server that root starts would: the remedy has a name, not a number.
    status, said = ask("check", "--config", file, "--as", "root")
    assert status == 2 and f"sudo -u {SERVICE}" in said


def test_the_user_of_the_service_says_nothing_wrong(file: Path) -> None:
    if pwd.getpwnam(SERVICE).pw_uid and not os.access(sys.executable, os.X_OK):
        pytest.fail("the interpreter is out of reach")
    status, said = ask("check", "--config", file, user=SERVICE)
    assert status == 0, said
    assert "to act as news (who runs this may not; the unit's server may)" in said
    assert "may not read" in said and "the unit's server may" in said
    status, said = ask("check", "--config", file, "--as", USER, user=SERVICE)
    assert status == 2 and "only root can judge as another user" in said


def test_a_log_that_the_service_cannot_write_is_a_mistake(file: Path) -> None:
    file.write_text(file.read_text().replace("[server]\n", '[server]\naudit_file = "/nowhere/at/all/audit.log"\n'))
    status, said = ask("check", "--config", file)
    assert status == 2
    assert f"/nowhere/at/all is not there; remedy: install -d -o {SERVICE} -m 750 /nowhere/at/all" in said
