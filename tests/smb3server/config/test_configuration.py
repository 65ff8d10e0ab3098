"""docs/configuration.md says what the parser does: every option, every key, every default."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from smb3server.cli.main import main as cli_main
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.command_line.options import server_options
from smb3server.config.error import ConfigError
from smb3server.config.reader import read_file
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smbdirect import native
from tools.cluster.certificates import Authority
from tools.support import own_user

DOCUMENT = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()


def section(title: str) -> str:
    return DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> dict[str, list[str]]:
    """First column (its first code word) to the other columns."""
    found = {}
    for line in section(title).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `"):
            name = re.match(r"`([^`]*)`", cells[0])
            assert name is not None
            found[name[1]] = cells[1:]
    return found


def example(tmp_path: Path) -> str:
    data = tmp_path / "data"
    data.mkdir()
    secrets = tmp_path / "etc"
    secrets.mkdir()
    authority = Authority(secrets)
    authority.issue("node")
    for name, text in (
        ("etcd.password", "0123456789abcdef\n"),
        ("cluster.secret", "0123456789abcdef\n"),
        ("users", "dora:878d8014606cda29677a44efa1353fc7\n"),
        ("alice", "secret\n"),
    ):
        (secrets / name).touch(mode=0o600)
        (secrets / name).write_text(text)
    return (
        section("Everything at once")
        .split("```toml\n")[1]
        .split("```")[0]
        .replace("/srv/data", str(data))
        .replace("/etc/smb3server", str(secrets))
        .replace("/var/log/smb3server", str(data))
        .replace("/var/lib/smb3server/users", str(secrets / "users"))
        .replace("www-data", own_user.NAME)
    )


def test_the_example_has_every_key_and_is_read(tmp_path: Path) -> None:
    file = tmp_path / "smb3server.toml"
    file.write_text(example(tmp_path))
    read = read_file(file)
    settings = read.settings
    assert (settings.server_name, settings.min_dialect, settings.keytab) == (
        "FILES",
        0x0210,
        "/var/lib/smb3server/domain.keytab",
    )
    assert settings.ciphers == (Cipher.AES_128_GCM, Cipher.AES_256_GCM)
    assert settings.signing_algorithms == (SigningAlgorithm.AES_GMAC, SigningAlgorithm.AES_CMAC)
    assert (settings.max_connections, settings.lockout_time) == (500, 1800.0)
    assert (read.listen, read.rdma, read.rdma_port) == (["0.0.0.0", "::"], "iwarp,roce", 5445)
    assert read.shares[0].users == {"alice", "bob", "carol@example.com", "dora"} and read.shares[0].encrypt
    assert [account.name for account in read.accounts] == ["dora", "alice", "bob", "carol"]


def test_every_option_is_documented() -> None:
    known = {name for option in server_options() for name in option.opts} | {"--version"}
    documented = {re.split(r"[ \[]", name)[0] for name in rows("Command line")}
    assert documented == known


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[server]\nfoo = 1", "2:1: [server] foo: unknown key"),
        ("[sever]\n", "1:1: [sever]: unknown section; did you mean server?"),
        ("[server]\nport = true", "[server] port: must be an integer from 0 to 65535, not true"),
        ("[server]\nport = 65536", "must be an integer from 0 to 65535, not 65536"),
        ("[server]\nrdma = 'iwarp,auto'", "auto and off stand alone"),
        ("[server]\nrdma = 'infiniband'", "infiniband is not one of"),
        ("[server]\nmax_dialect = '3'", 'must be one of 2.0.2, 2.1, 3.0, 3.0.2, 3.1.1, not "3"'),
        ("[server]\nciphers = ['ROT13']", "must be one of AES-128-GCM"),
        ("[server]\nlisten = [1]", "listen: must be text in quotes, not 1"),
        ("[limits]\nmax_credits = 0", "max_credits: must be an integer greater than 0, not 0"),
        ("[limits]\nmax_credits = 1.5", "must be an integer greater than 0, not 1.5"),
        ("[limits]\nmax_credit = 1", "max_credit: unknown key; did you mean max_credits?"),
        ("[[share]]\nname = 'a'", "1:1: share a: path is needed"),
        ("[[share]]\nname = 'a/b'\npath = '/'", "is not a valid share name"),
        ("[[share]]\nname = 'IPC$'\npath = '/'", "the name IPC$ is reserved"),
        ("[[share]]\nname = 'a'\npath = '/etc/passwd'", "3:1: share a: path: /etc/passwd is not a directory"),
        ("[[user]]\nname = 'a'", "one of password, nt_hash and password_file"),
        ("[[user]]\nname = 'a'\npassword = 'b'\npassword_file = 'c'", "one of password, nt_hash and password_file"),
        ("[[user]]\nname = 'a'\nnt_hash = 'c'", "32 hexadecimal digits"),
        ("[server]\nname = 'SIXTEENCHARACTER'", "[server] name: must be a NetBIOS name: 1 to 15 characters"),
        ("[server]\nname = ''", "[server] name: must be a NetBIOS name: 1 to 15 characters"),
        ("[server]\nlog_level = 'loud'", 'must be one of debug, info, warning, error, not "loud"'),
        ("[server]\nlisten = ['[::1]']", "write IPv6 without brackets"),
        ("[server]\nlisten = ['fe80::1']", "needs its interface"),
        ("[server]\nlisten = ['::', '::']", "given twice"),
        ("[server]\nmin_dialect = '3.1.1'\nmax_dialect = '3.0'", "no client could connect"),
        ("[server]\nsigning_algorithms = []", "at least one"),
        ("[server]\nrequire_encryption = true\nciphers = []", "needs ciphers"),
        ("[server]\nrequire_encryption = true\nmax_dialect = '2.1'", "needs max_dialect 3.0"),
        ("[limits]\nlockout_time = nan", "lockout_time: must be a number, at least 0, not nan"),
        ("[limits]\nmax_io_size = 65535", "max_io_size: must be an integer from 65536 to"),
        ("[limits]\nmax_io_size = 16711680", "max_io_size: must be an integer from 65536 to 16711679"),
        ("[limits]\nmax_message_size = 8388608", "it cannot be set; the server uses 8454144"),
        ("[limits]\nmax_channels = 4", "[limits] max_channels: unknown key: it cannot be set; the server uses 32"),
        ("[witness]\nlisten = ['nowhere']", "2:1: [witness] listen: nowhere: not an IP address"),
        ("[[share]]\nname = '..'\npath = '/'", "is not a valid share name"),
        ("[[share]]\nname = ' a'\npath = '/'", "is not a valid share name"),
        (
            "[[user]]\nname = 'a'\npassword = ''\n[[user]]\nname = 'A'\npassword = ''",
            "4:1: user A: given twice, first in",
        ),
        (
            "[[share]]\nname = 'a'\npath = '/'\n[[share]]\nname = 'A'\npath = '/'",
            "4:1: share A: given twice, first in",
        ),
        ("share = 1", "write [[share]]"),
        ("= 1", "wrong.toml:1:1: not TOML: Invalid"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    options = [] if "[[" in text or "share" in text else ["--share", f"a={tmp_path}", "--user", "u:p"]
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        parse_arguments(["--config", str(file), *options])


def test_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text(example(tmp_path))
    read = parse_arguments(
        [
            "--config",
            str(file),
            "--share",
            f"DATA={tmp_path},ro",
            "--rdma=off",
            "--port",
            "0",
            "--guest",
            "--user",
            "c:d",
        ]
    )
    assert [(share.name, share.path, share.read_only, share.guest) for share in read.shares] == [
        ("DATA", tmp_path, True, True)
    ]
    assert (read.rdma, read.port, read.rdma_port, read.settings.allow_guest) == ("off", 0, 5445, True)
    assert [account.name for account in read.accounts] == ["dora", "alice", "bob", "carol", "c"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "nothing to share"),
        (["--share", "a=/"], "no user could log on"),
        (["--share", "a"], "write NAME=PATH"),
        (["--share", "a=/", "--user", ":b"], "write NAME or NAME:PASSWORD"),
        (["--share", "a=/", "--guest", "--rdma=iwarp,iwarp"], "a fabric is named once"),
        (["--share", "a=/", "--share", "A=/usr", "--guest"], "--share A: given twice"),
        (["--share", "a=/", "--user", "u:1", "--user", "U:2"], "--user U: given twice"),
        (["--share", "a=/usr", "--guest", "--state", "/usr/lib/smb3server"], "lies inside share a"),
        (["--share", "a=/usr\0", "--guest"], "share a: "),
    ],
)
def test_wrong_command_lines(arguments: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        parse_arguments(arguments)


def test_users_of_a_share_that_nobody_knows(tmp_path: Path) -> None:
    """A typing error would lock somebody out in silence. Principals without an account are named whole."""
    file = tmp_path / "some.toml"
    text = f"[[share]]\nname = 'a'\npath = '{tmp_path}'\nusers = ['alice', 'bbo']\n"
    text += "[[user]]\nname = 'Alice'\npassword = 'x'\n"
    file.write_text(text)
    with pytest.raises(ConfigError, match="share a: users: there is no user bbo"):
        parse_arguments(["--config", str(file)])
    file.write_text(f"[server]\nkeytab = '/etc/krb5.keytab'\n{text}")
    with pytest.raises(ConfigError, match="share a: users: there is no user bbo"):
        parse_arguments(["--config", str(file)])
    file.write_text(f"[server]\nkeytab = '/etc/krb5.keytab'\n{text.replace('bbo', 'bbo@EXAMPLE.COM')}")
    assert parse_arguments(["--config", str(file)]).shares[0].users == {"alice", "bbo@example.com"}


def test_messages_are_as_large_as_what_they_carry(tmp_path: Path) -> None:
    """``max_io_size`` alone takes ``max_message_size`` along: clients that use it are not thrown out."""
    file = tmp_path / "some.toml"
    file.write_text("[limits]\nmax_io_size = 16000000\n")
    settings = parse_arguments(["--config", str(file), "--share", f"a={tmp_path}", "--guest"]).settings
    assert settings.max_message_size > settings.max_io_size + 1024


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root's rights for a moment")
def test_a_directory_that_the_server_may_not_read() -> None:
    """In words, not by a traceback."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)
        inner = Path(place) / "closed" / "inner"
        inner.mkdir(parents=True)
        inner.parent.chmod(0o700)
        os.seteuid(65534)
        try:
            with pytest.raises(ConfigError, match=r"share a: .*: Permission denied"):
                parse_arguments(["--share", f"a={inner}", "--guest"])
            with pytest.raises(ConfigError, match="share a: this server, which runs as uid 65534, may not read"):
                parse_arguments(["--share", f"a={inner.parent}", "--guest"])
        finally:
            os.seteuid(0)


def test_the_configuration_loads_none_of_what_it_configures() -> None:
    """A fresh interpreter: pytest has loaded all of it."""
    rooms = ("cluster", "persistence", "state", "dispatch", "commands", "server")
    code = (
        "import importlib, pkgutil, sys, smb3server.config as config\n"
        "for found in pkgutil.iter_modules(config.__path__):\n"
        "    importlib.import_module(f'smb3server.config.{found.name}')\n"
        "print(*sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    forbidden = ("witness", *(f"smb3server.{room}" for room in rooms))
    loaded = [name for name in ended.stdout.split() if name.startswith(tuple(f"{room}." for room in forbidden))]
    assert loaded == []


def test_the_version_says_which_modules_in_c_are_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.SWITCH, "0")
    assert cli_main(["--version"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("smb3server ")
    assert "smb3server.backends.local._native (SMB3SERVER_NATIVE is 0)" in line
