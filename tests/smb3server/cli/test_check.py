"""``smb3server check`` and ``smb3server config``."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from smb3server.cli.main import main
from smb3server.config.command_line import options
from smb3server.process import capabilities
from smb3server.process.capabilities import Sets

GOOD = """[server]
port = 1445
[[share]]
name = "data"
path = "{folder}"
[[user]]
name = "alice"
nt_hash = "878d8014606cda29677a44efa1353fc7"
"""


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data").chmod(0o777)
    file = tmp_path / "smb.toml"
    file.touch(0o600)
    file.write_text(text.replace("{folder}", str(tmp_path / "data")))
    return file


def test_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, GOOD)
    assert main(["check", "--config", str(file), "--strict"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    values = tomllib.loads(shown.out)
    assert values == {
        "server": {"port": 1445},
        "share": [{"name": "data", "path": str(tmp_path / "data")}],
        "user": [{"name": "alice"}],
    }
    assert "# nt_hash = (hidden)" in shown.out
    assert main(["--config", str(file), "check", "--all", "--port", "2000"]) == 0
    values = tomllib.loads(capsys.readouterr().out)
    assert (values["server"]["port"], values["limits"]["max_opens"]) == (2000, 16384)
    assert main(["config", "show", "--config", str(file)]) == 0
    assert tomllib.loads(capsys.readouterr().out)["server"] == {"port": 1445}


def test_all_mistakes_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        GOOD
        + """unix_usr = "root"
[[share]]
name = "more"
path = "{folder}"
readonly = true
users = ["alic"]
hosts_allow = [
  "192.0.2.0/24",
  "192.0.2.1/24",
]
[limits]
max_opens = 0
"""
    )
    file = write(tmp_path, text)
    assert main(["check", "--config", str(file), "--listen", "eth0"]) == 2
    lines = capsys.readouterr().err.splitlines()
    expected = [
        "--listen: eth0: not an IP address; write IPv6 without brackets, and ports separately",
        f"{file}:9:1: user alice: unix_usr: unknown key; did you mean unix_user?",
        f"{file}:13:1: share more: readonly: unknown key; did you mean read_only?",
        f"{file}:14:1: share more: users: there is no user alic; did you mean alice?",
        f"{file}:15:1: share more: hosts_allow: 192.0.2.1/24 has host bits set",
        f"{file}:20:1: [limits] max_opens: must be an integer greater than 0, not 0",
    ]
    assert [line.removeprefix("smb3server check: ") for line in lines] == [
        line for line in expected if "alic;" not in line
    ]
    file.write_text(file.read_text().replace("unix_usr", "#"))
    assert main(["check", "--config", str(file), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert {
        "file": str(file),
        "line": 14,
        "column": 1,
        "option": None,
        "setting": "share more: users",
        "text": "there is no user alic; did you mean alice?",
    } in found["problems"]
    assert found["values"]["share"][1]["name"] == "more"


def test_a_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(tmp_path / "missing")]) == 2
    assert "No such file" in capsys.readouterr().err
    for text, said in (
        ("[server]\nname = \n", ":2:8: not TOML: Invalid value"),
        ("name = '", ":1:9: not TOML"),
        (f"a = {'[' * 20_000}", "nested too deeply"),
        (f"a = {'1' * 5000}", "integer"),
    ):
        assert main(["check", "--config", str(write(tmp_path, text))]) == 2
        assert said in capsys.readouterr().err
    file = write(tmp_path, "")
    file.write_bytes(b"a = 1\nb = '\xff'\n")
    assert main(["check", "--config", str(file)]) == 2
    assert ":2:1: not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ('[[share]]\nname = "in"\npath = "{folder}/in"', "share in: path: lies inside share data"),
        ('[[share]]\nname = "all"\npath = "/"', "share all: path: the whole machine is shared"),
        ('[[share]]\nname = "etc"\npath = "/etc"', "share etc: path: /etc holds the system's own files"),
        ('[[share]]\nname = "r"\npath = "data/in"', "share r: path: data/in is relative"),
        ('[[share]]\nname = "g"\npath = "/mnt"\nguest = true', "share g: guest: has no effect"),
        ('[[share]]\nname = "n"\npath = "/mnt"\nusers = []', "share n: users: is empty"),
        ('[cluster]\netcd = "etcd://192.0.2.1:2379"\nnode = "a"', "[cluster] etcd: etcd is reached WITHOUT TLS"),
        ('[[share]]\nname = "b"\npath = "/mnt"\ntime_machine = true', "share b: time_machine: Macs do not find it by"),
        (
            '[[share]]\nname = "b"\npath = "/mnt"\ntime_machine_max_size = 1',
            "time_machine_max_size: does nothing without",
        ),
        ('[[share]]\nname = "b"\npath = "/mnt"\nmacos_file_ids = true', "macos_file_ids: does nothing without macos"),
    ],
)
def test_what_is_seldom_meant(tmp_path: Path, text: str, warning: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data" / "in").mkdir(parents=True)
    file = write(tmp_path, GOOD + text)
    assert main(["check", "--config", str(file)]) == 0
    warnings = capsys.readouterr().err.splitlines()
    assert any(line.startswith(f"warning: {file}:") and warning in line for line in warnings), warnings
    assert main(["check", "--config", str(file), "--strict"]) == 1


def test_a_share_for_macs_needs_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, GOOD + '[[share]]\nname = "b"\npath = "/mnt"\nmacos = true\nstreams = false\n')
    assert main(["check", "--config", str(file)]) == 2
    assert "share b: streams: a share for Macs (macos, time_machine) needs streams" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("server", "warning"),
    [
        ("guest = true\nrequire_signing = true", "guest: guests have no key to sign or encrypt with"),
        ("guest = true", "guest: no share has guest = true"),
        ("hosts_allow = []", "hosts_allow: is empty: nobody can connect"),
        ('keytab = "/nowhere/krb5.keytab"', "keytab: /nowhere/krb5.keytab does not exist"),
        ("rdma_port = 445\nrdma = 'iwarp'", "rdma_port: this user may not open port 445"),
        ("rdma = 'verbs'", "rdma: verbs: this machine has no RDMA device"),
    ],
)
def test_what_is_seldom_meant_of_the_server(
    tmp_path: Path,
    server: str,
    warning: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capabilities, "get", lambda: Sets(0, 0))
    monkeypatch.setattr("smb3server.config.advice.rdma_devices", list)
    file = write(tmp_path, GOOD.replace("[server]", f"[server]\n{server}"))
    assert main(["check", "--config", str(file)]) == 0
    assert warning in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as root")
def test_users_who_act_as_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD.replace("[[user]]", 'force_user = "root"\n[[user]]') + 'unix_user = "root"\n'
    assert main(["check", "--config", str(write(tmp_path, text))]) == 0
    shown = capsys.readouterr().err
    assert "share data: force_user: every user of the share acts as root" in shown
    assert "user alice: unix_user: alice acts as root" in shown


def test_secrets_that_others_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, GOOD)
    file.chmod(0o644)
    assert main(["check", "--config", str(file)]) == 2
    assert f"chmod 600 {file}" in capsys.readouterr().err


def test_an_empty_password(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line, said in (
        ('password = ""', "password is empty"),
        ('nt_hash = "31d6cfe0d16ae931b73c59d7e0c089c0"', "password is empty"),
    ):
        file = write(tmp_path, f'{GOOD}[[user]]\nname = "e"\n{line}\n')
        assert main(["check", "--config", str(file)]) == 2
        assert said in capsys.readouterr().err


def test_paths_count_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "home" / "data"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = write(tmp_path, GOOD.replace("{folder}", "home/data"))
    monkeypatch.chdir("/")
    assert main(["check", "--config", str(file)]) == 0
    file.write_text(file.read_text().replace("home/data", "~/data"))
    assert main(["check", "--config", str(file), "--strict"]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a server that is not root acts as nobody else")
def test_who_acts_in_a_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For users without a user of their own: not as the owner, if others could choose whose folder it is."""
    file = write(tmp_path, GOOD)
    (tmp_path / "data").chmod(0o755)
    assert main(["check", "--config", str(file)]) == 0
    assert "belongs to root: users without unix_user act as nobody there, who may not write; remedy: chown nobody" in (
        capsys.readouterr().err
    )
    os.chown(tmp_path / "data", 5, 60)
    tmp_path.chmod(0o777)
    assert main(["check", "--config", str(file)]) == 0
    assert "may be written by everybody, who could put another folder in its place" in capsys.readouterr().err
    (tmp_path / "data").rename(tmp_path / "there")
    (tmp_path / "data").symlink_to("there")
    assert main(["check", "--config", str(file)]) == 0
    assert "a symbolic link in a folder that may be written by everybody" in capsys.readouterr().err
    tmp_path.chmod(0o1777)
    assert main(["check", "--config", str(file)]) == 0
    assert capsys.readouterr().err == ""


def test_the_file_of_the_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read if nothing is given. A file without shares is no mistake: they may come later."""
    monkeypatch.setattr("smb3server.config.command_line.arguments.DEFAULT_FILE", tmp_path / "smb.toml")
    assert Path("/etc/smb3server/smb3server.toml") == options.DEFAULT_FILE
    assert main(["check"]) == 2
    assert "nothing to share" in capsys.readouterr().err
    assert main(["config", "example"]) == 0
    write(tmp_path, capsys.readouterr().out)
    assert main(["check"]) == 0
    assert "smb.toml has no [[share]]; remedy" in capsys.readouterr().err
    assert main(["check", "--share", f"x={tmp_path}", "--guest"]) == 0
    assert "[[share]]; remedy" not in capsys.readouterr().err


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "smb3server.toml"
