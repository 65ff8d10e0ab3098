"""``smb3server bench --against``: a server that runs already, ours and Samba, in a folder that is gone afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from smb3server.cli.main import main
from tests.lab.served import open_up, served
from tools.access_differential import servers

pytestmark = pytest.mark.usefixtures("compiler")

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["read 1 MiB q4", "write 1 MiB q1 AES-128-GCM", "create + close", "open + close", "stat, compound"]
SHORT = ["--seconds", "0.1", "--rounds", "1", "--size", "4", "--json"]


def cases_of(names: list[str]) -> list[str]:
    return [word for name in names for word in ("--cases", name)]


def let_write(folder: Path) -> None:
    open_up(folder)
    folder.chmod(0o777)


def check(found: str, names: list[str]) -> None:
    cases = json.loads(found)["cases"]
    assert [entry["case"] for entry in cases] == names
    for entry in cases:
        (sample,) = entry["ours"]
        assert sample["rate"] > 0 and sample["late"] >= sample["middle"] > 0


@pytest.mark.parametrize(
    "required", [pytest.param(False, marks=pytest.mark.long), True], ids=["as it is", "signing required"]
)
def test_our_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], required: bool
) -> None:
    share = tmp_path / "share"
    (share / "in").mkdir(parents=True)
    (share / "in" / "c1-1-1").write_text("a file of somebody else, whose name is like those that the run makes")
    let_write(share / "in")
    monkeypatch.setenv("SMB3SERVER_PASSWORD", "secret")
    config = tmp_path / "server.toml"
    config.write_text(
        f"[server]\nrequire_signing = {str(required).lower()}\n"
        f'[[share]]\nname = "data"\npath = "{share}"\n[[user]]\nname = "alice"\npassword = "secret"\n'
    )
    config.chmod(0o600)
    with served(tmp_path, "--config", str(config)) as server:
        assert (
            main(["bench", "--against", f"smb://alice@127.0.0.1:{server.port}/data/in", *SHORT, *cases_of(NAMES)]) == 0
        )
    check(capsys.readouterr().out, NAMES)
    assert [path.name for path in share.rglob("*")] == ["in", "c1-1-1"]


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.skipif(bool(servers.missing()), reason=servers.missing())
def test_samba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    login = servers.LOGINS[0]
    monkeypatch.setenv("SMB3SERVER_PASSWORD", login.password)
    open_up(tmp_path)
    with servers.running_samba(tmp_path / "samba") as (port, folder):
        address = f"smb://{login.name}@127.0.0.1:{port}/{servers.SHARE}"
        assert main(["bench", "--against", address, *SHORT, *cases_of(NAMES)]) == 0
        check(capsys.readouterr().out, NAMES)
        assert list(folder.iterdir()) == []


@pytest.mark.long
def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A case that the server refuses is left out and said; a wrong password, or nobody there, ends the run."""
    share = tmp_path / "share"
    share.mkdir()
    let_write(share)
    config = tmp_path / "server.toml"
    config.write_text(
        '[server]\nsigning_algorithms = ["AES-CMAC"]\n'
        f'[[share]]\nname = "data"\npath = "{share}"\n[[user]]\nname = "alice"\npassword = "secret"\n'
    )
    config.chmod(0o600)
    names = ["read 1 MiB q1 GMAC", "echo q1"]
    with served(tmp_path, "--config", str(config)) as server:
        address = f"smb://alice@127.0.0.1:{server.port}/data"
        monkeypatch.setenv("SMB3SERVER_PASSWORD", "secret")
        assert main(["bench", "--against", address, *SHORT, *cases_of(names)]) == 0
        said = capsys.readouterr()
        check(said.out, [name for name in names if f"left out: 127.0.0.1: {name}" not in said.err])
        assert "echo q1" in said.out
        monkeypatch.setenv("SMB3SERVER_PASSWORD", "wrong")
        assert main(["bench", "--against", address, *SHORT, *cases_of(names)]) == 2
        assert "LOGON_FAILURE" in capsys.readouterr().err
        assert main(["bench", "--against", f"smb://alice@127.0.0.1:{server.port}", *SHORT]) == 2
        assert "no share; write smb://USER@HOST/SHARE" in capsys.readouterr().err
        assert main(["bench", "--against", address, "--fabrics", "iwarp"]) == 2
    assert list(share.iterdir()) == []
    assert main(["bench", "--against", address, *SHORT]) == 2
    assert capsys.readouterr().err


@pytest.mark.long
def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    let_write(share)
    with served(tmp_path, "--share", f"data={share}", "--user", "alice:secret") as server:
        address = f"smb://alice@127.0.0.1:{server.port}/data"
        command = [sys.executable, "-m", "smb3server", "bench", "--against", address, "--size", "4"]
        with subprocess.Popen(
            [*command, "--seconds", "60", "--cases", "echo q1"],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "SMB3SERVER_PASSWORD": "secret"},
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stderr is not None
                assert any("round 1 of" in line for line in process.stderr)
                assert len(list(share.iterdir())) == 1
                process.send_signal(signal.SIGTERM)
                said = process.stderr.read()
                assert "removing smb3server-bench-" in said
                assert process.wait(30) == 128 + signal.SIGTERM, said
            finally:
                process.kill()
        assert list(share.iterdir()) == []
