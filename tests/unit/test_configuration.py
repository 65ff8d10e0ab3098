"""docs/configuration.md says what the parser does: every option, every key, every default."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path
from typing import Any

import pytest

from smb3server import config
from smb3server.config import LIMITS, Config, ConfigError, parse_arguments, read_file
from smb3server.security.algorithms import Cipher, SigningAlgorithm
from smb3server.settings import Settings

DOCUMENT = (Path(__file__).parent.parent.parent / "docs" / "configuration.md").read_text()


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
    return (
        section("Everything at once")
        .split("```toml\n")[1]
        .split("```")[0]
        .replace("/srv/data", str(data))
        .replace("www-data", pwd.getpwuid(os.geteuid()).pw_name)
    )


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Which keys the parser looks for, by section."""
    found: dict[str, set[str]] = {}
    take, number = config._Table.take, config._Table.number

    def note(table: Any, key: str) -> None:
        found.setdefault(re.sub(r".*: ", "", table._where), set()).add(key)

    def spy_take(self: Any, key: str, *rest: Any) -> Any:
        note(self, key)
        return take(self, key, *rest)

    def spy_number(self: Any, key: str, *rest: Any) -> Any:
        note(self, key)
        return number(self, key, *rest)

    monkeypatch.setattr(config._Table, "take", spy_take)
    monkeypatch.setattr(config._Table, "number", spy_number)
    return found


def test_the_example_has_every_key_and_is_read(tmp_path: Path, taken: dict[str, set[str]]) -> None:
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
    assert read.shares[0].users == {"alice", "bob"} and read.shares[0].encrypt
    assert [account.name for account in read.accounts] == ["alice", "bob"]
    for title in ("[server]", "[[share]]", "[[user]]", "[cluster]", "[[service]]", "[witness]", "[limits]"):
        sections = {"node"} if title == "[witness]" else set()
        assert taken[title] == set(rows(f"`{title}`")) - sections, title
    for title in ("[server]", "[[share]]", "[[user]]", "[cluster]", "[[service]]", "[witness]"):
        text = file.read_text()
        assert all(re.search(rf"^{key} = ", text, re.MULTILINE) for key in taken[title])


def test_defaults_of_limits() -> None:
    assert {name: cells[0] for name, cells in rows("`[limits]`").items()} == {
        name: str(getattr(Settings(), name)) for name in LIMITS
    }


def test_defaults_of_flags() -> None:
    settings = Settings()
    attributes = {"guest": "allow_guest", "anonymous": "allow_anonymous"}
    for name, cells in rows("`[server]`").items():
        if cells[0] in ("`true`", "`false`"):
            assert cells[0] == f"`{str(getattr(settings, attributes.get(name, name))).lower()}`", name


def test_every_option_is_documented() -> None:
    known = {
        option for action in config._parser()._actions for option in action.option_strings if option.startswith("--")
    }
    documented = {re.split(r"[ \[]", name)[0] for name in rows("Command line")}
    assert documented == known - {"--help"}


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
        ("[[share]]\nname = 'IPC$'\npath = '/'", "the name is taken"),
        ("[[share]]\nname = 'a'\npath = '/nowhere/at/all'", "not a directory"),
        ("[[user]]\nname = 'a'", "either password or nt_hash"),
        ("[[user]]\nname = 'a'\npassword = 'b'\nnt_hash = 'c'", "either password or nt_hash"),
        ("[[user]]\nname = 'a'\nnt_hash = 'c'", "32 hexadecimal digits"),
        ("share = 1", "must be a list of sections"),
        ("= 1", "Invalid"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        parse_arguments(["--config", str(file)])


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
    assert [account.name for account in read.accounts] == ["alice", "bob", "c"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "nothing to share"),
        (["--share", "a=/"], "nobody could log on"),
        (["--share", "a"], "write NAME=PATH"),
        (["--share", "a=/", "--user", "b"], "write NAME:PASSWORD"),
        (["--share", "a=/", "--guest", "--rdma=iwarp,iwarp"], "a fabric is named once"),
    ],
)
def test_wrong_command_lines(arguments: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        parse_arguments(arguments)
