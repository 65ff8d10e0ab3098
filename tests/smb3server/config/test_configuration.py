"""docs/configuration.md says what the parser does: every option, every key, every default."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from smb3server.cli.main import main as cli_main
from smb3server.config import reader
from smb3server.config.arguments import parse_arguments
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.options import server_options
from smb3server.config.reader import LIMITS, read_file
from smb3server.config.table import Table
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.settings.server import Settings
from smbdirect import native
from tools.cluster.certificates import Authority

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
        ("carol", "secret\n"),
    ):
        (secrets / name).touch(mode=0o600)
        (secrets / name).write_text(text)
    return (
        section("Everything at once")
        .split("```toml\n")[1]
        .split("```")[0]
        .replace("/srv/data", str(data))
        .replace("/etc/smb3server", str(secrets))
        .replace("www-data", pwd.getpwuid(os.geteuid()).pw_name)
    )


class RecordingTable(Table):
    """A table that notes which keys the reader asks it for, by section."""

    asked: ClassVar[dict[str, set[str]]]

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        super().__init__(where, values)
        self._keys = self.asked.setdefault(where.rpartition(": ")[2], set())

    def take(self, key: str, kind: type[Any], default: Any = None) -> Any:
        self._keys.add(key)
        return super().take(key, kind, default)

    def number(self, key: str, kinds: tuple[type[Any], ...], default: float) -> float:
        self._keys.add(key)
        return super().number(key, kinds, default)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Which keys the reader asks for, by section."""
    RecordingTable.asked = {}
    monkeypatch.setattr(reader, "Table", RecordingTable)
    return RecordingTable.asked


def test_the_example_has_every_key_and_is_read(tmp_path: Path, asked: dict[str, set[str]]) -> None:
    file = tmp_path / "smb3server.toml"
    file.write_text(example(tmp_path))
    read = Config()
    read_file(file, read)
    settings = read.settings
    assert (settings.server_name, settings.min_dialect, settings.keytab) == ("FILES", 0x0210, "/etc/krb5.keytab")
    assert settings.ciphers == (Cipher.AES_128_GCM, Cipher.AES_256_GCM)
    assert settings.signing_algorithms == (SigningAlgorithm.AES_GMAC, SigningAlgorithm.AES_CMAC)
    assert (settings.max_connections, settings.interim_delay) == (500, 0.5)
    assert (read.listen, read.rdma, read.rdma_port) == (["0.0.0.0", "::"], "iwarp,roce", 5445)
    assert read.shares[0].users == {"alice", "bob", "carol@example.com", "dora"} and read.shares[0].encrypt
    assert [account.name for account in read.accounts] == ["alice", "bob", "carol"]
    assert read.users_file == tmp_path / "etc" / "users"
    for title in ("[server]", "[[share]]", "[[user]]", "[cluster]", "[[service]]", "[witness]", "[limits]"):
        sections = {"node"} if title == "[witness]" else set()
        assert asked[title] == set(rows(f"`{title}`")) - sections, title
    for title in ("[server]", "[[share]]", "[[user]]", "[cluster]", "[[service]]", "[witness]"):
        text = file.read_text()
        assert all(re.search(rf"^{key} = ", text, re.MULTILINE) for key in asked[title])


def test_a_table_gives_each_key_once_and_of_the_right_type() -> None:
    table = Table("[section]", {"text": "t", "flag": True, "count": 3, "share": 0.5, "names": ["a", "b"]})
    assert (table.take("text", str), table.take("text", str, "default")) == ("t", "default")
    assert table.has("count") and table.number("count", (int,), 1) == 3 and not table.has("count")
    assert (table.number("share", (int, float), 1), table.number("missing", (int,), 7)) == (0.5, 7)
    assert (table.strings("names"), table.strings("names")) == (["a", "b"], None)
    with pytest.raises(ConfigError, match=r"^\[section\]: unknown key flag$"):
        table.finish()
    assert table.take("flag", bool) is True
    table.finish()


@pytest.mark.parametrize(
    ("value", "take", "complaint"),
    [
        (True, lambda table: table.take("key", int), "must be of type int, not True"),
        ("1", lambda table: table.take("key", int), "must be of type int, not '1'"),
        (True, lambda table: table.number("key", (int, float), 1), "must be a number, not True"),
        (0.5, lambda table: table.number("key", (int,), 1), "must be a number, not 0.5"),
        (["a", 1], lambda table: table.strings("key"), "must be a list of strings"),
    ],
)
def test_a_table_refuses_values_of_other_types(value: Any, take: Callable[[Table], Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"[section]: key {complaint}")):
        take(Table("[section]", {"key": value}))


def test_a_table_does_not_show_secrets() -> None:
    with pytest.raises(ConfigError, match="password must be of type str, not int"):
        Table("[[user]]", {"password": 12345}).take("password", str)


def test_defaults_of_limits() -> None:
    assert {name: cells[0] for name, cells in rows("`[limits]`").items()} == {
        name: str(getattr(Settings(), name)) for name in LIMITS
    }


def test_defaults_of_flags() -> None:
    config, settings = Config(), Settings()
    attributes = {"guest": "allow_guest", "anonymous": "allow_anonymous"}
    for name, cells in rows("`[server]`").items():
        if cells[0] in ("`true`", "`false`"):
            holder = config if hasattr(config, name) else settings
            assert cells[0] == f"`{str(getattr(holder, attributes.get(name, name))).lower()}`", name


def test_every_option_is_documented() -> None:
    known = {name for option in server_options() for name in option.opts} | {"--version"}
    documented = {re.split(r"[ \[]", name)[0] for name in rows("Command line")}
    assert documented == known


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[server]\nfoo = 1", "unknown key foo"),
        ("[sever]\n", "unknown section sever"),
        ("[server]\nport = true", "port must be of type int"),
        ("[server]\nport = 65536", "not within"),
        ("[server]\nrdma = 'iwarp,auto'", "auto and off stand alone"),
        ("[server]\nrdma = 'infiniband'", "infiniband is not one of"),
        ("[server]\nmax_dialect = '3'", "max_dialect"),
        ("[server]\nciphers = ['ROT13']", "ROT13 is not one of"),
        ("[server]\nlisten = [1]", "list of strings"),
        ("[limits]\nmax_credits = 0", "greater than 0"),
        ("[limits]\nmax_credits = 1.5", "must be a number"),
        ("[limits]\nmax_credit = 1", "unknown key max_credit"),
        ("[[share]]\nname = 'a'", "name and path are needed"),
        ("[[share]]\nname = 'a/b'\npath = '/'", "not a valid share name"),
        ("[[share]]\nname = 'IPC$'\npath = '/'", "the name is reserved"),
        ("[[share]]\nname = 'a'\npath = '/nowhere/at/all'", "not a directory"),
        ("[[user]]\nname = 'a'", "one of password, nt_hash and password_file"),
        ("[[user]]\nname = 'a'\npassword = 'b'\nnt_hash = 'c'", "one of password, nt_hash and password_file"),
        ("[[user]]\nname = 'a'\nnt_hash = 'c'", "32 hexadecimal digits"),
        ("[server]\nname = 'SIXTEENCHARACTER'", "not a NetBIOS name"),
        ("[server]\nname = ''", "not a NetBIOS name"),
        ("[server]\nlog_level = 'loud'", "'loud' is not a level of the log"),
        ("[server]\nlisten = ['[::1]']", "write IPv6 without brackets"),
        ("[server]\nlisten = ['fe80::1']", "needs its interface"),
        ("[server]\nlisten = ['::', '::']", "given twice"),
        ("[server]\nmin_dialect = '3.1.1'\nmax_dialect = '3.0'", "no client could connect"),
        ("[server]\nsigning_algorithms = []", "at least one"),
        ("[server]\nrequire_encryption = true\nciphers = []", "needs ciphers"),
        ("[server]\nrequire_encryption = true\nmax_dialect = '2.1'", "needs max_dialect 3.0"),
        ("[limits]\ninterim_delay = nan", "finite"),
        ("[limits]\nmax_io_size = 65535", "max_io_size must be 65536 to"),
        ("[limits]\nmax_io_size = 16711680", "max_io_size must be 65536 to 16711679"),
        ("[limits]\nmax_message_size = 8388608", "more than max_io_size"),
        ("[limits]\nmax_message_size = 16777216", "to 16777215"),
        ("[limits]\nmax_message_before_authentication = 10", "must be 1024 to"),
        ("[witness]\nlisten = ['nowhere']", "[witness]: listen nowhere: not an IP address"),
        ("[[share]]\nname = '..'\npath = '/'", "not a valid share name"),
        ("[[share]]\nname = ' a'\npath = '/'", "not a valid share name"),
        ("[[user]]\nname = 'a'\npassword = ''\n[[user]]\nname = 'A'\npassword = ''", "user A: given twice"),
        ("[[share]]\nname = 'a'\npath = '/'\n[[share]]\nname = 'A'\npath = '/'", "share A: given twice"),
        ("share = 1", "must be a list of sections"),
        ("= 1", "Invalid"),
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
