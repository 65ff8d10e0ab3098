"""``smb3server cluster``: what an administrator sees and is told."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from smb3server.cli.main import main
from smb3server.persistence import etcd as etcd_module
from smb3server.wire.create import ShareAccess
from tests.lab.etcd import Etcd
from tests.lab.nodes import Node, admin, asked, client
from tools.support import own_user
from tools.support.ports import free_port

HELP_WORDS = ("status", "drain", "move", "move-client", "Exit status")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Etcd, dict[str, Node]]]:
    folder = tmp_path_factory.mktemp("admin")
    (folder / "share").mkdir()
    etcd = Etcd(folder)
    etcd.start()
    services = (
        '[[service]]\nname = "one"\nnodes = ["a", "b"]\n[[service]]\nname = "spare"\nnodes = ["nowhere"]\n'
        f'[[share]]\nname = "data"\npath = "{folder / "share"}"\n{own_user.LINE}'
        'continuous_availability = true\nservice = "one"\n'
    )
    nodes = {name: Node(folder, name, etcd.url, services) for name in ("a", "b")}
    try:
        for node in nodes.values():
            node.start()
        yield etcd, nodes
    finally:
        for node in nodes.values():
            node.kill()
        etcd.stop()


def said(etcd: Etcd, *arguments: str) -> str:
    status, out, errors = asked(etcd.url, *arguments)
    assert status == 0, errors
    return out


def cut_off(etcd: Etcd, *arguments: str) -> str:
    """Return what the first read gets of a command, whose reader then goes away as ``grep -q`` does."""
    command = [sys.executable, "-m", "smb3server", "cluster", "--cluster", etcd.url, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        first = os.read(asking.stdout.fileno(), 1 << 16)
        asking.stdout.close()
        assert asking.wait() == 0
    return first.decode()


def complaint(url: str, *arguments: str) -> str:
    """One line, and no traceback."""
    status, out, errors = asked(url, *arguments)
    assert status == 1 and not out
    assert re.match(r"smb3server cluster [a-z-]+: ", errors) and errors.count("\n") == 1
    return errors


def test_status(cluster: tuple[Etcd, dict[str, Node]]) -> None:
    """Who has what, since when, how many clients; nodes that are up, that drain, that do not answer."""
    etcd, nodes = cluster

    async def body() -> None:
        share = client(list(nodes.values()))
        file = await share.open("f", share=int(ShareAccess.READ))
        found = json.loads(await asyncio.to_thread(said, etcd, "status", "--json"))
        a, b = found["nodes"]
        assert (a["name"], a["draining"], a["answers"], b["name"]) == ("a", False, True, "b")
        assert 0 <= a["lease_left"] <= 2
        one, spare = found["services"]
        assert (one["name"], one["node"], one["serving"], one["clients"], one["opens"]) == ("one", "a", True, 1, 1)
        assert 0 <= one["seconds"] < 60
        assert (spare["name"], spare["node"], spare["clients"]) == ("spare", None, None)
        done = await asyncio.to_thread(admin, etcd.url, "status")
        assert done.returncode == 0, done.stderr
        for word in ("lease left", "served for", "clients", "served", "on no node"):
            assert word in done.stdout
        found = await asyncio.to_thread(cut_off, etcd, "status")
        assert "served" in found and "answers in" in found
        nodes["b"].send(signal.SIGSTOP)
        try:
            found = json.loads(await asyncio.to_thread(said, etcd, "status", "--json"))
            # Until its lease is over it is a member that says nothing.
            assert [node["answers"] for node in found["nodes"] if node["name"] == "b"] in ([False], [])
        finally:
            nodes["b"].send(signal.SIGCONT)
        await file.close()
        await share.close()

    asyncio.run(asyncio.wait_for(body(), 60))


def test_complaints(cluster: tuple[Etcd, dict[str, Node]]) -> None:
    etcd, _ = cluster
    assert "there is no node z that is up (up: a" in complaint(etcd.url, "move", "one", "z")
    assert "there is no node z" in complaint(etcd.url, "drain", "z")
    assert "there is no node z" in complaint(etcd.url, "drain", "--undo", "z")
    assert "there is no node z" in complaint(etcd.url, "move-client", "PC", "z")
    assert "there is no service two (there are: one, spare)" in complaint(etcd.url, "move", "two", "a")
    assert "after 0.5 s spare is not on b" in complaint(etcd.url, "move", "spare", "b", "--timeout", "0.5")
    assert "no client PC is registered" in complaint(etcd.url, "move-client", "PC", "a")


def test_drain_says_what_it_did(cluster: tuple[Etcd, dict[str, Node]]) -> None:
    etcd, _ = cluster
    assert said(etcd, "drain", "a") == "a serves nothing until drain --undo; moved: one\n"
    assert "up, draining" in said(etcd, "status")
    assert "a is draining: drain --undo a first" in complaint(etcd.url, "move", "one", "a")
    assert "no other node is up to take one" in complaint(etcd.url, "drain", "b")
    assert said(etcd, "drain", "--undo", "a") == "a may serve again\n"
    assert said(etcd, "drain", "--undo", "a") == "a was not draining\n"
    assert said(etcd, "drain", "--undo", "b") == "b may serve again\n"
    assert said(etcd, "move", "one", "a") == "one is on a\n"


def test_etcd_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "PAGE_TIMEOUT", 0.5)
    port = free_port()
    errors = complaint(f"etcd://127.0.0.1:{port}", "status")
    assert "no etcd member answers in 0.5 s" in errors and str(port) in errors


def test_usage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "PAGE_TIMEOUT", 0.2)

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["cluster", *arguments])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    code, text = run("--help")
    assert code == 0 and all(word in text for word in HELP_WORDS)
    assert "NODE" in run("drain", "--help")[1]
    # The store's options may stand behind the command, too; nothing listens on port 1.
    for right in (["--cluster", "etcd://127.0.0.1:1", "status"], ["status", "--cluster", "etcd://127.0.0.1:1"]):
        code, text = run(*right)
        assert code == 1 and "no etcd member answers" in text, right
    for wrong in (["status"], [], ["--cluster", "http://x", "status"], ["--cluster", "etcd://h:1", "move", "x"],
                  ["--cluster", "etcd://h:1", "drain", "a", "--timeout", "nan"]):  # fmt: skip
        assert run(*wrong)[0] == 2, wrong
