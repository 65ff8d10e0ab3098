"""Passwords, hashes and sockets of the server: who else of this host gets at them."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from smb3server.admin import socket as admin
from smb3server.admin.socket import AdminSocket, running
from smb3server.auth.users import nt_hash
from smb3server.auth.users_file import read_users
from smb3server.cli.main import main as cli_main
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.error import ConfigError
from smb3server.config.reader import read_file
from tests.lab.forked_starts import own_interpreter
from tests.lab.served import ROOT, run, served

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="files of others need root")
PASSWORD = "correct horse"


def secret(path: Path, text: str, mode: int = 0o600) -> Path:
    path.touch(0o600)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("line", ['password = "pw"', 'nt_hash = "878d8014606cda29677a44efa1353fc7"'])
def test_a_configuration_with_secrets_is_not_for_all(tmp_path: Path, line: str) -> None:
    text = f'[[share]]\nname = "d"\npath = "{tmp_path}"\n[[user]]\nname = "u"\n{line}\n'
    file = secret(tmp_path / "c.toml", text, 0o644)
    ended = run("--config", str(file), "--port", "0")
    assert ended.returncode == 2
    assert f"remedy: chmod 600 {file}" in ended.stderr


def test_a_configuration_without_secrets_is(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    text = f'[[share]]\nname = "d"\npath = "{tmp_path / "share"}"\n'
    file = secret(tmp_path / "c.toml", text, 0o644)
    with served(tmp_path, "--config", str(file), "--guest"):
        pass


def test_users_from_a_file(tmp_path: Path) -> None:
    digest = nt_hash(PASSWORD).hex()
    users = secret(tmp_path / "users", f"# people\n\nalice:{digest}\nbob:{digest}:root\n")
    file = secret(tmp_path / "c.toml", f'[server]\nusers_file = "{users}"\n', 0o644)
    folder = tmp_path / "data"
    folder.mkdir()
    arguments = ["--config", str(file), "--share", f"data={folder}"]
    config = parse_arguments(arguments)
    assert [(entry.name, entry.nt_hash) for entry in config.accounts] == [
        ("alice", nt_hash(PASSWORD)),
        ("bob", nt_hash(PASSWORD)),
    ]
    assert config.accounts[1].user is not None and config.accounts[1].user.uid == 0
    assert config.secret_files == []
    for text, said in (
        ("alice", "line 1: write NAME:NT_HASH"),
        (f":{digest}:", "line 1: write"),
        (f"a:{digest}:b:c", "line 1: unknown field c"),
        ("\nalice:secret", "line 2: an NT hash has 32"),
        (f"alice:{digest}:no-such-user", "user alice: this machine has no user"),
        ("\udcff", "not UTF-8"),
    ):
        users.write_text(text, errors="surrogateescape")
        with pytest.raises(ConfigError, match=said) as caught:
            parse_arguments(arguments)
        assert digest not in str(caught.value) and "secret" not in str(caught.value)
    users.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        parse_arguments(arguments)


def test_a_password_from_a_file(tmp_path: Path) -> None:
    place = secret(tmp_path / "password", f"{PASSWORD}\nmore\n")
    file = secret(tmp_path / "c.toml", f'[[user]]\nname = "u"\npassword_file = "{place}"\n', 0o644)
    config = read_file(file)
    assert config.accounts[0].nt_hash == nt_hash(PASSWORD)
    assert PASSWORD not in repr(config) and nt_hash(PASSWORD).hex() not in repr(config)
    place.write_text("\n")
    with pytest.raises(ConfigError, match="first line has to be the password"):
        read_file(file)
    place.unlink()
    with pytest.raises(ConfigError, match=f"{place}: No such file"):
        read_file(file)


def test_lines_for_the_file_of_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SMB3SERVER_PASSWORD", PASSWORD)
    assert cli_main(["hash", "alice"]) == 0
    assert cli_main(["hash", "bob", "root"]) == 0
    users = secret(tmp_path / "users", capsys.readouterr().out)
    assert [(user.name, user.nt_hash, user.unix_user) for user in read_users(users)] == [
        ("alice", nt_hash(PASSWORD), ""),
        ("bob", nt_hash(PASSWORD), "root"),
    ]
    for name in ("a:b", "#a", "", "a\nb"):
        assert cli_main(["hash", name]) == 2


def test_values_of_secrets_are_not_shown(tmp_path: Path) -> None:
    file = secret(tmp_path / "c.toml", '[[user]]\nname = "u"\npassword = 4711\n')
    with pytest.raises(ConfigError, match=r"user u: password: must be text in quotes$") as caught:
        read_file(file)
    assert "4711" not in str(caught.value)


def given(tmp_path: Path, *arguments: str) -> bytes:
    """The hash of the user u."""
    return parse_arguments(["--share", f"d={tmp_path}", "--user", "u", *arguments]).accounts[0].nt_hash


def test_passwords_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file before a credential before the environment."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.delenv("SMB3SERVER_PASSWORD", raising=False)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(ConfigError, match="user u: no password: give --password-file FILE"):
        given(tmp_path)
    monkeypatch.setenv("SMB3SERVER_PASSWORD", "of the environment")
    assert given(tmp_path) == nt_hash("of the environment")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert given(tmp_path) == nt_hash("of the environment")
    secret(tmp_path / "smb3server.u", "of systemd")
    assert given(tmp_path) == nt_hash("of systemd")
    file = secret(tmp_path / "file", "of the file")
    assert given(tmp_path, "--password-file", str(file)) == nt_hash("of the file")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        given(tmp_path, "--password-file", str(file))


def test_a_password_is_asked_for(tmp_path: Path) -> None:
    """On the terminal, which does not show it."""
    script = (
        "import sys\n"
        "from smb3server.auth.users import nt_hash\n"
        "from smb3server.config.command_line.arguments import parse_arguments\n"
        f"config = parse_arguments(['--share', 'd={tmp_path}', '--user', 'u'])\n"
        f"sys.exit(0 if config.accounts[0].nt_hash == nt_hash({PASSWORD!r}) else 3)\n"
    )
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "SMB3SERVER_PASSWORD"}
        | {"PYTHONPATH": str(ROOT)},
    ) as process:
        shown = b""
        while b"Password of u: " not in shown:
            shown += os.read(controller, 1024)
        os.write(controller, PASSWORD.encode() + b"\n")
        assert process.wait(30) == 0
    os.close(terminal)
    os.set_blocking(controller, False)
    try:
        shown += os.read(controller, 65536)
    except OSError:
        pass
    os.close(controller)
    assert PASSWORD.encode() not in shown


@pytest.mark.parametrize("form", [("--user", f"u:{PASSWORD}"), (f"--user=u:{PASSWORD}",)])
def test_the_command_line_does_not_keep_a_password(tmp_path: Path, form: tuple[str, ...]) -> None:
    """/proc/PID/cmdline, which everybody may read, and what ``ps`` shows."""
    (tmp_path / "share").mkdir()
    with own_interpreter(), served(tmp_path, "--share", f"data={tmp_path / 'share'}", *form) as server:
        shown = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert PASSWORD.encode() not in shown
        assert b"u:" + b"*" * len(PASSWORD) in shown
        assert f"data={tmp_path / 'share'}".encode() in shown
        assert any("password was on the command line" in line for line in server.lines)

        async def use() -> None:
            async with server.tree("u", PASSWORD):
                pass

        asyncio.run(use())
    assert PASSWORD not in (tmp_path / "log").read_text()


CLIENT = """
import sys
from pathlib import Path
from smb3server.cli.main import main
main(sys.argv[1:])
print(Path("/proc/self/cmdline").read_bytes().replace(b"\\0", b" ").decode(), sys.argv)
"""


@pytest.mark.parametrize(
    "arguments",
    [("doctor", "//127.0.0.1:9/x", "--fabrics=iwarp"), ("witness", "list", "//127.0.0.1", "--port=9")],
)
def test_commands_do_not_keep_one_either(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, *arguments, "--user", f"u:{PASSWORD}"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        check=False,
        timeout=60,
    )
    assert "u:*****" in done.stdout, done.stderr
    assert PASSWORD not in done.stdout + done.stderr


# The admin socket's directory


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory like /tmp, and in it the runtime directory's name."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(admin, "runtime_directory", lambda: place / "smb3server")
    return place / "smb3server"


def start(path: Path) -> None:
    async def main() -> None:
        socket = AdminSocket(path / "1.sock", {"ping": lambda _: {}})
        try:
            await socket.start()
        finally:
            await socket.close()

    asyncio.run(main())


def test_a_directory_of_ones_own(shared: Path) -> None:
    start(shared)
    assert shared.stat().st_mode & 0o777 == 0o700


def test_a_link_where_everybody_may_make_names(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    shared.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        start(shared)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702])
def test_a_directory_that_others_may_write_to(shared: Path, mode: int) -> None:
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(PermissionError, match="others may write"):
        start(shared)
    assert list(shared.iterdir()) == []


@root_only
def test_a_directory_of_somebody_else(shared: Path) -> None:
    """Neither served nor asked: an answer of his could be anything."""
    shared.mkdir(mode=0o700)
    os.chown(shared, 54321, 54321)
    with pytest.raises(PermissionError, match="belongs to another user"):
        start(shared)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(shared / "1.sock"))
        other.listen()
        assert running(shared) == []
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()
