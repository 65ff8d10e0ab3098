"""``smb3server client``, as people and scripts use it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smb3server.cli import exits
from smb3server.cli.main import main
from smb3server.client.protocol import Client
from tests.lab.remote import PASSWORD, Home, home

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with home(tmp_path_factory.mktemp("client")) as found:
        yield found


@pytest.fixture(autouse=True)
def folder(served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the share for one test, and the account in the environment."""
    monkeypatch.setenv("SMB3SERVER_PASSWORD", PASSWORD)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    found = served.folder / "test"
    found.mkdir()
    yield found
    shutil.rmtree(found)


def client(*words: str) -> int:
    return main(["client", *words])


@pytest.fixture
def url(served: Home) -> str:
    return f"{served.url}/test"


def test_files_and_folders(
    url: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], served: Home
) -> None:
    source = tmp_path / "photos"
    (source / "2026").mkdir(parents=True)
    (source / "a.jpg").write_bytes(os.urandom(2 << 20))
    (source / "2026" / "b.jpg").write_bytes(b"b")
    assert client("put", "-r", str(source), url, "--rdma=iwarp", "--rdma-port", str(served.rdma_port)) == 0
    shown = capsys.readouterr()
    assert f"copied {url}/photos/a.jpg  2.0 MiB" in shown.out
    assert "2 files, 2.0 MiB" in shown.err and "iwarp (RDMA, signed)" in shown.err
    assert client("get", "-r", f"{url}/photos", "back") == 0
    assert subprocess.run(["diff", "-r", source, tmp_path / "back"], check=False).returncode == 0
    assert client("get", f"{url}/**/*.jpg") == 0
    assert (tmp_path / "b.jpg").read_bytes() == b"b"
    assert client("get", f"{url}/photos/a.jpg", "renamed.jpg", "-q") == 0
    assert (tmp_path / "renamed.jpg").stat().st_size == 2 << 20
    capsys.readouterr()
    assert client("ls", url) == 0
    assert capsys.readouterr().out == "photos/\n"
    assert client("ls", "-R", "-l", url) == 0
    assert "2097152" in capsys.readouterr().out
    assert client("tree", url) == 0
    assert "├── 2026/" in capsys.readouterr().out
    assert client("du", "-s", "--json", url) == 0
    assert json.loads(capsys.readouterr().out) == {"path": "test", "size": (2 << 20) + 1, "files": 2}
    assert client("stat", f"{url}/photos/a.jpg") == 0
    assert "reached by  tcp; no RDMA: " in capsys.readouterr().out
    assert client("cp", f"{url}/photos/2026/b.jpg", f"{url}/c.jpg") == 0
    assert "by the server" in capsys.readouterr().out
    assert client("mkdir", f"{url}/more") == client("cp", "-r", f"{url}/photos", f"{url}/more/") == 0
    assert (folder / "more" / "photos" / "2026" / "b.jpg").exists()
    assert client("mkdir", "-p", f"{url}/x/y") == client("mv", f"{url}/c.jpg", f"{url}/x") == 0
    assert (folder / "x" / "c.jpg").exists()
    assert client("rm", "-r", f"{url}/x", f"{url}/more") == 0
    assert os.listdir(folder) == ["photos"]


def test_stdout_is_the_file_alone(url: str, folder: Path, served: Home) -> None:
    (folder / "a").write_bytes(bytes(range(256)))
    found = subprocess.run(
        [sys.executable, "-m", "smb3server", "client", "cat", f"{url}/a"],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert found.stdout == bytes(range(256))


def test_sync(url: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "work"
    source.mkdir()
    (source / "a").write_text("a")
    (folder / "extra").write_text("x")
    assert client("sync", "--delete", "--dry-run", str(source), url) == 0
    said = capsys.readouterr().out
    assert f"would copy {url}/a" in said and f"would remove {url}/extra" in said
    assert os.listdir(folder) == ["extra"]
    assert client("sync", "--delete", "--json", str(source), url) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["action"] for line in lines} == {"copy", "remove", "done"}
    assert (lines[-1]["files"], lines[-1]["removed"], lines[-1]["failed"]) == (1, 1, 0)
    assert lines[-1]["shares"][0]["moved"] == {"tcp": {"written": 1, "read": 0}}
    assert client("sync", url, str(tmp_path / "other")) == 0
    assert (tmp_path / "other" / "a").read_text() == "a"


def test_names_cannot_command_the_terminal(url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "\x1b[31mred").write_text("x")
    for words in (["ls", url], ["tree", url], ["get", "-r", url, "back"], ["du", f"{url}/*"]):
        assert client(*words) == 0
        shown = capsys.readouterr()
        assert "\x1b" not in shown.out + shown.err and "\\x1b[31mred" in shown.out


def test_bench_says_what_carried_the_bytes(
    url: str, folder: Path, served: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert client("bench", "--size", "4", "--rdma=prefer", "--rdma-port", str(served.rdma_port), "--json", url) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["moved"]["iwarp"] == {"written": 4 << 20, "read": 4 << 20}
    assert found["transport"] == "iwarp (RDMA, signed)"
    assert client("bench", "--size", "1", "--rdma=off", url) == 0
    assert "no RDMA     it was turned off" in capsys.readouterr().out
    assert client("bench", "--size", "2", "--rdma=off", "--compress", "--json", url) == 0
    compressed = json.loads(capsys.readouterr().out)["compressed"]
    # Written and read; every other KiB is one line again and again.
    assert compressed["bytes"] >= 4 << 20
    assert compressed["as"] < compressed["bytes"] * 0.6
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (
            ["ls", "{url}/none"],
            exits.EXIT_FAILED,
            "No such file or directory: 'test/none' (STATUS_OBJECT_NAME_NOT_FOUND)",
        ),
        (["ls", "smb://u@127.0.0.1:1/share"], exits.EXIT_NO_SERVER, "Connection refused: '127.0.0.1:1'"),
        (["ls", "nas/data"], exits.EXIT_USAGE, "write smb://USER@HOST/SHARE/PATH"),
        (["du", "smb://u@127.0.0.1"], exits.EXIT_USAGE, "no share; write smb://USER@HOST/SHARE"),
        (["ls", "//127.0.0.1:{port}/share"], exits.EXIT_USAGE, "no user for 127.0.0.1"),
        (["ls", "--rdma=verbs", "{url}"], exits.EXIT_FAILED, "no RDMA device"),
        (["get", "{url}/*.none", "x"], exits.EXIT_FAILED, "nothing matches"),
        (["get", "{url}", "x"], exits.EXIT_FAILED, "copy folders with -r"),
        (["get", "a", "b"], exits.EXIT_USAGE, "get copies from shares"),
        (["put", "{url}", "{url}"], exits.EXIT_USAGE, "put copies from this machine"),
        (["put", "none", "{url}"], exits.EXIT_FAILED, "none: no such file"),
        (["cp", "a", "b"], exits.EXIT_USAGE, "of this machine"),
        (["sync", "none", "{url}"], exits.EXIT_FAILED, "none: not a folder"),
        (["rm", "{url}"], exits.EXIT_USAGE, "remove it with -r"),
        (["rm", "-r", "{share}"], exits.EXIT_USAGE, "the whole share is not removed"),
        (["mv", "{url}/none", "{url}/x"], exits.EXIT_FAILED, "'test/none'"),
        (["ls", "--credentials", "none", "{url}"], exits.EXIT_USAGE, "none: No such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_say_what_to_do(
    words: list[str], status: int, said: str, url: str, served: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert client(*(word.format(url=url, port=served.port, share=served.url) for word in words)) == status
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err


def test_a_password_in_the_address_is_warned_of(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SMB3SERVER_PASSWORD")
    assert client("ls", url.replace("u@", "u:pw@")) == 0
    assert "can see the password" in capsys.readouterr().err
    secret = Path("secret")
    secret.write_text("pw\n")
    secret.chmod(0o600)
    assert client("ls", "--password-file", str(secret), url) == 0
    assert capsys.readouterr().err == ""


def test_one_password_is_offered_to_one_server(
    url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a command names two servers, each needs its own: the other must not get what proves the password."""
    (folder / "a").write_bytes(b"a")
    offered: list[str] = []
    original = Client.log_on

    async def log_on(client: Client, user: str, password: str, *words: Any, **options: Any) -> Any:
        offered.append(f"{client.transport.peer_address[0]} {password}")
        return await original(client, user, password, *words, **options)

    monkeypatch.setattr(Client, "log_on", log_on)
    other = url.replace("127.0.0.1", "localhost")
    assert client("cp", f"{url}/a", f"{other}/b") == exits.EXIT_USAGE
    assert "no password for u at 127.0.0.1; write it to" in capsys.readouterr().err
    (tmp_path / "pw").write_text(PASSWORD)
    (tmp_path / "pw").chmod(0o600)
    assert client("cp", "--password-file", "pw", f"{url}/a", f"{other}/b") == exits.EXIT_USAGE
    assert "--password-file has one password, and 127.0.0.1" in capsys.readouterr().err
    assert not offered
    file = tmp_path / "config" / "smb3server" / "credentials"
    file.parent.mkdir(parents=True)
    file.touch(0o600)
    file.write_text(f"[127.0.0.1]\npassword = {PASSWORD}\n[localhost]\npassword = another\n")
    assert client("cp", f"{url}/a", f"{other}/b") == exits.EXIT_FAILED
    assert offered == [f"127.0.0.1 {PASSWORD}", "127.0.0.1 another"]
    file.write_text(f"[127.0.0.1]\npassword = {PASSWORD}\n[localhost]\npassword = {PASSWORD}\n")
    assert client("cp", f"{url}/a", f"{other}/b") == 0
    assert client("cp", "--password-file", "pw", f"{url}/a", f"{url}/c") == 0
    assert (folder / "b").read_bytes() == (folder / "c").read_bytes() == b"a"


def test_one_failure_among_many_is_told(
    url: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "abc":
        (folder / name).write_text(name)
    (tmp_path / "back" / "b").mkdir(parents=True)
    assert client("get", f"{url}/?", "back") == exits.EXIT_FAILED
    shown = capsys.readouterr()
    assert (
        "error: " in shown.err and "Is a directory" in shown.err and "2 files" in shown.err and "1 failed" in shown.err
    )
    assert sorted(os.listdir(tmp_path / "back")) == ["a", "b", "c"]


def test_interrupted_and_continued(url: str, folder: Path, tmp_path: Path, served: Home) -> None:
    data = os.urandom(1 << 20) * 500
    (folder / "big").write_bytes(data)
    command = [sys.executable, "-m", "smb3server", "client", "get", "--rdma=off", f"{url}/big", "big"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (found := [path for path in tmp_path.glob("big.*.part") if path.stat().st_size > 8 << 20]):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == exits.EXIT_INTERRUPTED, said
    assert "--continue goes on" in said and "Traceback" not in said
    left = found[0].stat().st_size
    assert 0 < left < len(data) and not (tmp_path / "big").exists()
    again = subprocess.run([*command, "--continue"], env=environment, capture_output=True, text=True, check=True)
    assert "from " in again.stdout
    assert (tmp_path / "big").read_bytes() == data
    assert not list(tmp_path.glob("big.*"))


def test_compressed_on_the_way(url: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = b"".join(b"line %d of a text that shrinks\n" % number for number in range(20_000))
    (tmp_path / "a.txt").write_bytes(text)
    assert client("put", "--compress", "a.txt", f"{url}/", "--rdma=off") == 0
    told = capsys.readouterr().err
    assert "LZ4, Pattern_V1" in told and "travelled as" in told
    assert (folder / "a.txt").read_bytes() == text
    assert client("get", "--compress", f"{url}/a.txt", "b.txt", "--rdma=off", "--json") == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    (share,) = done["shares"]
    assert share["compressed"]["bytes"] >= len(text) > 2 * share["compressed"]["as"]
    assert (tmp_path / "b.txt").read_bytes() == text
    assert client("get", f"{url}/a.txt", "c.txt", "--rdma=off") == 0
    assert "travelled as" not in capsys.readouterr().err
