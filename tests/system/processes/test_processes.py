"""Several processes serve the shares of one configuration: what a client sees who knows one name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.processes import PASSWORD, USER, Processes, wait_until
from tools.support import own_user

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed"),
]


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Processes]:
    server = Processes(folder)
    server.start()
    try:
        yield server
    finally:
        status = server.stop()
        assert "Traceback" not in server.log()
    assert status == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with started(tmp_path_factory.mktemp("processes")) as found:
        yield found


@pytest.mark.parametrize("process", [1, 2])
@pytest.mark.parametrize("share", ["one", "two", "kept"])
def test_every_address_leads_to_every_share(server: Processes, share: str, process: int) -> None:
    said = server.smbclient(share, f"get name got-{share}-{process}; put {server.config} put-{process}", process)
    assert (server.folder / f"got-{share}-{process}").read_text() == f"this is {share}", said
    assert (server.folder / share / f"put-{process}").read_bytes() == server.config.read_bytes()


def test_the_list_has_all_shares(server: Processes) -> None:
    listed = subprocess.run(
        ["smbclient", "-L", server.addresses[0], "-p", str(server.port), "-U", f"{USER}%{PASSWORD}", "-g"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout
    assert {line.split("|")[1] for line in listed.splitlines() if line.startswith("Disk|")} == {"one", "two", "kept"}


def test_one_admin_socket_speaks_for_all(server: Processes) -> None:
    running = server.processes()
    assert [entry["address"] for entry in running.values()] == server.addresses
    shares = {entry["share"]: entry["process"] for entry in server.ask("status")["shares"] if entry["share"] != "IPC$"}
    assert shares == {"one": 1, "two": 2, "kept": 2}

    async def body() -> None:
        client = server.client("two", 2)
        await client.connected()
        try:
            listed = (await asyncio.to_thread(server.ask, "session-list"))["sessions"]
            mine = [entry for entry in listed if "two" in entry["shares"]]
            assert [entry["process"] for entry in mine] == [2]
            closed = (await asyncio.to_thread(server.ask, "session-close", ids=[mine[0]["id"]]))["closed"]
            assert [entry["id"] for entry in closed] == [mine[0]["id"]]
            assert not (await asyncio.to_thread(server.ask, "session-list"))["sessions"]
        finally:
            client.drop()

    asyncio.run(body())


def test_metrics_say_which_process(server: Processes) -> None:
    lines = [line for line in server.ask("metrics")["text"].splitlines() if line.startswith("smb3server_info{")]
    assert len(lines) == 2
    assert all(f'process="{number}"' in line for number, line in enumerate(lines, 1))


def test_shares_of_run_time_have_one_owner(tmp_path: Path) -> None:
    below = tmp_path / "two" / "below"
    with started(tmp_path) as server:
        below.mkdir()
        (below / "name").write_text("below")
        options = {"force_user": own_user.NAME} if own_user.LINE else {}
        server.ask("share-add", name="below", path=str(below), options=options)
        owners = {entry["share"]: entry["process"] for entry in server.ask("status")["shares"]}
        assert owners["below"] == 2
        assert "name" in server.smbclient("below", "ls")
        refused = server.ask("share-add", name="above", path=str(tmp_path), options={})
        assert "one process has to serve" in refused["error"]
        assert "there is one" in server.ask("share-add", name="two", path=str(below), options={})["error"]
        server.ask("share-remove", name="below")
        assert "BAD_NETWORK_NAME" in server.smbclient("below", "ls")


def test_a_reload_reaches_all(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        assert server.stop(signal.SIGTERM) == 0
        server.start()
        server.add("more", "process = 2")
        outcome = server.ask("reload")
        assert "process 2: share more: added" in outcome["changes"]
        assert "name" in server.smbclient("more", "ls")
        # A share never changes its owner while both run.
        text = server.config.read_text()
        server.config.write_text(text.replace("process = 1", "process = 2"))
        assert any("until the server is started anew" in note for note in server.ask("reload")["notes"])
        assert "name" in server.smbclient("one", "ls")
        # Neither by another share above its folder.
        (tmp_path / "above").symlink_to(tmp_path)
        with server.config.open("a") as file:
            file.write(f'[[share]]\nname = "above"\npath = "{tmp_path}/above/two/.."\n')
        assert "nothing was changed" in server.ask("reload")["error"]
        server.config.write_text(text.replace("process = 1", "process = 2"))
        assert server.stop() == 0
        server.start()
        assert {entry["process"] for entry in server.ask("status")["shares"] if entry["share"] == "one"} == {2}


def test_a_process_that_dies_is_started_anew_and_the_others_go_on(tmp_path: Path) -> None:
    async def body(server: Processes) -> None:
        other, client = server.client("one", 1), server.client("kept", 2)
        await other.connected()
        file = await client.open("file")
        await file.write(0, b"before")
        pid = await asyncio.to_thread(server.kill, 2)
        assert (await asyncio.to_thread(server.processes))[1]["sessions"] == 1
        await asyncio.to_thread(server.wait_for_another, 2, pid)
        # The same open, over another connection. Its handle was restored.
        await file.write(6, b" and after")
        assert await file.read(0, 100) == b"before and after"
        assert (other.generation, client.generation) == (1, 2)
        assert other.tree is not None and other.tree.client.closed is None
        await file.close()
        await client.close()
        await other.close()

    with started(tmp_path) as server:
        asyncio.run(body(server))
        pid = server.kill(1)
        assert "name" in server.smbclient("two", "ls", 2)
        server.wait_for_another(1, pid)
        assert "name" in server.smbclient("two", "ls")


def test_all_end_with_their_parent(tmp_path: Path) -> None:
    server = Processes(tmp_path)
    server.start()
    pids = [entry["pid"] for entry in server.processes().values()]
    server.stop(signal.SIGKILL)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    server.start()
    assert "name" in server.smbclient("two", "ls")
    server.ask("stop")
    assert server.process is not None
    assert server.process.wait(40) == 0
    server.stop()


@pytest.mark.long
def test_one_that_does_not_stop_is_killed_and_named(tmp_path: Path) -> None:
    server = Processes(tmp_path)
    server.start()
    os.kill(server.processes()[2]["pid"], signal.SIGSTOP)
    assert server.stop() == 0
    assert "process 2 has not stopped within 25 s, and is killed" in server.log()


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    server = Processes(tmp_path)
    text = server.config.read_text().replace(f'"{server.addresses[1]}"', '"192.0.2.77"')
    server.config.write_text(text)
    with pytest.raises(AssertionError, match=r"does not have the address|192\.0\.2\.77"):
        server.start()
    assert server.process is not None
    assert server.process.wait(40) == 1
    server.stop()
