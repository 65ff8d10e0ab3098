"""The tree of commands: what a command line means, what help says, and what is loaded for it."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from smb3server.admin.socket import AdminSocket
from smb3server.cli import exits
from smb3server.cli.main import main
from smb3server.cli.tree import COMMANDS, HEADINGS, TREE, find_command
from smb3server.process import garbage

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 60


def commands() -> Iterator[tuple[str, click.Command]]:
    """All commands and commands of groups, by their full names."""
    waiting = [(name, TREE.get_command(click.Context(TREE), name)) for name in COMMANDS]
    while waiting:
        name, command = waiting.pop()
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            waiting += [(f"{name} {inner}", found) for inner, found in command.commands.items()]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("", None),
        ("--share data=/srv --user alice --rdma", None),
        ("--share data=/srv --rdma iwarp,roce --port 0", None),
        ("--rdma --config F", None),
        ("--config F", None),
        ("status --json", "status"),
        ("--config F status", "status"),
        ("--config=F status --json", "status"),
        ("--state DIR --json status", "status"),
        ("--rdma status", "status"),
        ("--guest serve", "serve"),
        ("--user status", None),
        ("--share doctor=/srv", None),
        ("proxy --fabric loopback -- --share a=b", "proxy"),
        ("-- status", None),
        ("stats", "stats"),
        ("--nonsense value", None),
        ("--nonsense value status", None),
        ("--watch status", "status"),
    ],
)
def test_which_command_a_line_means(line: str, command: str | None) -> None:
    words = line.split()
    index = find_command(words)
    assert (None if index is None else words[index]) == command


@pytest.mark.parametrize("words", [[], ["serve"]])
def test_a_line_without_a_command_serves(words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*words, "--share", f"data={tmp_path}", "--user", "", "--rdma"]) == exits.EXIT_USAGE
    assert capsys.readouterr().err == f"{' '.join(['smb3server', *words])}: --user: write NAME or NAME:PASSWORD\n"


def test_options_before_the_command_are_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "smb.toml").write_text('[server]\nstate = "here"\n')
    assert main(["--config", str(tmp_path / "smb.toml"), "status", "--json"]) == exits.EXIT_NO_SERVER
    assert f"{tmp_path}/here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stats", "smb3server: there is no command stats: did you mean status?; see smb3server --help\n"),
        ("frobnicate", "smb3server: there is no command frobnicate: smb3server --help lists the commands"),
        ("status --jsn", "smb3server status: no such option '--jsn'"),
        ("cluster drian n", "did you mean"),
        ("pcap", "smb3server pcap: no file is given; see smb3server pcap --help\n"),
        ("session", "smb3server session: which command? close, list; see smb3server session --help\n"),
        ("pcap none.pcap", "smb3server pcap: none.pcap: no such file or directory\n"),
        ("--frobnicate", "smb3server: no such option '--frobnicate'"),
    ],
)
def test_wrong_usage_is_one_line_that_helps(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == exits.EXIT_USAGE
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert said.lower() in shown.err.lower()


def test_a_process_looks_for_no_garbage_at_its_start_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(garbage, "begin", lambda: told.append("begin"))
    monkeypatch.setattr(garbage, "end", lambda: told.append("end"))
    # Who calls this in a process of their own keeps their settings.
    assert main(["--help"]) == 0 and told == []
    monkeypatch.setattr(sys, "argv", ["smb3server", "--help"])
    assert main() == 0 and told == ["begin", "end"]


def test_help_lists_every_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert main(["help"]) == 0
    assert capsys.readouterr().out == said
    listed = re.findall(r"^  ([a-z][a-z-]*)  +\S", said, re.MULTILINE)
    assert sorted(listed) == sorted(name for name, entry in COMMANDS.items() if not entry.hidden)
    assert {entry.heading for entry in COMMANDS.values()} <= set(HEADINGS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert main(["help", name]) == 0
    assert capsys.readouterr().out == said
    assert f"Usage: smb3server {name}" in said
    assert "Example" in said
    assert [line for line in said.splitlines() if len(line) > 110] == []


def test_help_of_a_command_of_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "cluster", "drain"]) == 0
    assert "Usage: smb3server cluster drain [OPTIONS] NODE" in capsys.readouterr().out
    assert main(["help", "stats"]) == main(["help", "status", "more"]) == exits.EXIT_USAGE


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_option_is_explained(name: str, command: click.Command) -> None:
    assert command.get_short_help_str(), name
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help and parameter.help.endswith("."), f"{name} {parameter.opts}"


HEAVY = (
    "asyncio",
    "rich",
    "impacket",
    "spnego",
    "cryptography",
    "pyroute2",
    "uvloop",
    "msgspec",
    "aiohttp",
    "construct",
)


def loaded(*arguments: str) -> set[str]:
    """The modules that a command line loads."""
    code = (
        "import sys, io; from smb3server.cli.main import main; sys.stdout = io.StringIO()\n"
        f"main({list(arguments)!r})\nprint(*sys.modules, file=sys.__stdout__)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    return set(ended.stdout.split())


@pytest.mark.parametrize("arguments", [("--help",), ("help",), ("completion", "bash"), ("serve", "--help")])
def test_help_loads_next_to_nothing(arguments: tuple[str, ...]) -> None:
    """It appears at once: what takes time is modules."""
    modules = loaded(*arguments)
    assert not modules & set(HEAVY)
    assert len(modules) < 260


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_loads_nothing_heavy_before_it_runs(name: str) -> None:
    assert not loaded(name, "--help") & set(HEAVY[1:])


def test_status_loads_no_server(tmp_path: Path) -> None:
    modules = loaded("status", "--state", str(tmp_path))
    assert not {name for name in modules if name.startswith(("smb3server.service", "smb3server.commands"))}
    assert not modules & {"impacket", "spnego", "cryptography", "pyroute2"}
    assert len(modules) < 420


def test_ctrl_c_gives_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "pipe.pcap").touch()
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(
        [sys.executable, "-m", "smb3server", "pcap", str(tmp_path / "pipe")], stderr=subprocess.PIPE, text=True
    ) as process:
        # It waits for a writer: opening the other end says that it has begun to.
        with open(tmp_path / "pipe", "wb"):
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            said = process.stderr.read()
        assert process.wait(PATIENCE) == exits.EXIT_INTERRUPTED
    assert said.strip() == ""


def completed(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash would offer after ``line``, whose last word is incomplete."""
    words = line.split(" ")
    monkeypatch.setenv("_SMB3SERVER_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert main([]) == 0
    return [entry.partition(",")[2] for entry in capsys.readouterr().out.split()]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("smb3server statu", {"status"}),
        ("smb3server ", {name for name, entry in COMMANDS.items() if not entry.hidden}),
        ("smb3server --sh", {"--share"}),
        ("smb3server --ver", {"--version"}),
        ("smb3server --config F --li", {"--listen"}),
        ("smb3server status --js", {"--json"}),
        ("smb3server --config F status --js", {"--json"}),
        ("smb3server cluster dr", {"drain"}),
        ("smb3server proxy --fabric ro", {"roce"}),
        ("smb3server help clu", {"cluster"}),
    ],
)
def test_completion(
    line: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(completed(line, monkeypatch, capsys)) == offered


def test_names_that_a_running_server_knows_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"name": "data", "id": "da12", "path": "/srv/data", "user": "dave", "client": "192.0.2.1", "share": "data"}
    evil = {**rows, "name": "da\x1b[2J", "id": "da\n"}
    answer = {key: [rows, evil] for key in ("shares", "sessions", "files", "users")}
    socket = tmp_path / "state" / "admin.sock"

    async def serve() -> None:
        names = ("share-list", "session-list", "file-list", "users")
        admin = AdminSocket(socket, {name: lambda _: answer for name in names})
        await admin.start()
        for words, last, offered in (
            ("share remove", "", "data"),
            ("share set", "", "data"),
            ("session close", "", "da12"),
            ("file close", "", "da12"),
            ("user disable", "", "data"),
            ("status", "--share ", "data"),
        ):
            line = f"smb3server {words} --state {socket.parent} {last}da"
            assert await asyncio.to_thread(completed, line, monkeypatch, capsys) == [offered], line
        await admin.close()

    asyncio.run(serve())
    # Without a server nothing is offered, and nothing is said.
    assert completed(f"smb3server share remove --socket {socket} da", monkeypatch, capsys) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_SMB3SERVER_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_every_module_of_a_command_is_in_the_table() -> None:
    """A module of ``cli`` with a ``command`` that nobody can call would be forgotten code."""
    known = {entry.module for entry in COMMANDS.values()}
    for path in (ROOT / "smb3server" / "cli").glob("*.py"):
        module = f"smb3server.cli.{path.stem}"
        if "\ncommand = " in (text := path.read_text()) or "\ndef command(" in text:
            assert module in known
            assert isinstance(importlib.import_module(module).command, click.Command)


def test_the_bench_has_the_cases_of_its_examples() -> None:
    from smb3server.cli.lab.bench import command
    from smb3server.lab.bench.cases import ALL

    named = re.findall(r"--cases (?:'([^']+)'|(\S+))", command.help or "")
    assert named and all((quoted or plain) in ALL for quoted, plain in named)
