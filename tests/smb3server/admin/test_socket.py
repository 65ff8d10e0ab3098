"""The admin socket, ``smb3server status`` and ``smb3server doctor`` against running servers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from smb3server.admin.socket import MAX_LINE, AdminSocket, ask
from smb3server.cli.exits import EXIT_NO_SERVER
from smb3server.cli.main import main as cli_main
from smb3server.cli.status import tables as status_tables
from smb3server.doctor.host import EXIT_RDMA, EXIT_UNKNOWN, Host, examine
from smb3server.doctor.patient import Answer
from smb3server.net.fabric_choice import Machine
from smb3server.process.output import EXIT_CLOSED
from smbdirect.errors import ProviderError
from tests.lab.doctor import examined
from tests.lab.machine import PLAIN, RDMA, device, interface
from tests.lab.scene import Scene, log_on, play
from tests.lab.scene import ask as ask_interfaces


def serve(path: Path, scenario: Any) -> None:
    async def main() -> None:
        admin = AdminSocket(path, {"ping": lambda _: {"pid": 1}, "broken": lambda _: {}[0]})
        await admin.start()
        try:
            await scenario(admin)
        finally:
            await admin.close()

    asyncio.run(main())


def test_requests_and_answers(tmp_path: Path) -> None:
    # deeper than sun_path is long
    path = tmp_path / ("d" * 120) / "admin.sock"

    async def scenario(admin: AdminSocket) -> None:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert await asyncio.to_thread(ask, path, "ping") == {"pid": 1}
        assert "unknown command" in (await asyncio.to_thread(ask, path, "nonsense"))["error"]
        assert "broken failed" in (await asyncio.to_thread(ask, path, "broken"))["error"]

    serve(path, scenario)
    assert not path.exists()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"}{\n", "not JSON"),
        (b"[]\n", "unknown command"),
        (b"[" * 60_000 + b"\n", "not JSON"),
        (b'{"command": 1}\n', "unknown command"),
        (b"\xff\n", "JSON"),
    ],
)
def test_bad_requests(tmp_path: Path, line: bytes, answer: str) -> None:
    path = tmp_path / "admin.sock"

    async def scenario(admin: AdminSocket) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line)
        assert answer in json.loads(await reader.readline())["error"]
        writer.write(b'{"command": "ping"}\n')
        assert json.loads(await reader.readline()) == {"pid": 1}
        writer.close()

    serve(path, scenario)


def test_endless_request_ends_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"

    async def scenario(admin: AdminSocket) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"x" * (3 * MAX_LINE))
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            assert reader.at_eof() or reader.exception() is not None
        writer.close()

    serve(path, scenario)


def test_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"

    async def scenario(admin: AdminSocket) -> None:
        with pytest.raises(OSError, match="another server"):
            await AdminSocket(path, {}).start()

    serve(path, scenario)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    serve(path, lambda admin: asyncio.to_thread(ask, path, "ping"))


def test_status_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(acted: Scene) -> None:
        session = await log_on(await acted.tcp())
        await ask_interfaces(session)
        tree = await session.tree_connect("data")
        await tree.create("a file", access=0x0012019F, disposition=5)
        state = ["--state", str(tmp_path / "state")]
        assert await asyncio.to_thread(cli_main, ["status", "--json", *state]) == 0
        report = json.loads(capsys.readouterr().out)
        (entry,), (channel,) = report["sessions"], report["channels"]
        assert (entry["user"], entry["open_count"], entry["channels"]) == ("u", 1, [1])
        assert entry["opens"][0]["path"] == "a file"
        assert (channel["fabric"], channel["dialect"], channel["rdma"]["code"]) == ("tcp", "3.1.1", "not-opened")
        assert channel["inline_bytes_received"] > 500
        assert report["server"]["rdma_choices"][0]["served"]
        assert await asyncio.to_thread(cli_main, ["status", *state]) == 0
        text = capsys.readouterr().out
        assert "a file" in text
        assert "opened no" in text

    play(tmp_path, scene)


def test_watch(tmp_path: Path) -> None:
    """One line of JSON per refresh, until interrupted."""

    async def scene(acted: Scene) -> None:
        process = await asyncio.create_subprocess_exec(
            # A shell has the signal ignored by what it runs in the background, these tests for instance.
            *("env", "--default-signal=INT", sys.executable, "-m", "smb3server", "status"),
            *("--state", str(tmp_path / "state"), "--json", "--watch", "0.2"),
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        assert process.stdout is not None
        for _ in range(2):
            assert "sessions" in json.loads(await process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
        # asyncio's transport of the pipe is closed by reading to the end
        await process.stdout.read()

    play(tmp_path, scene)


def test_output_that_nobody_reads_any_more(tmp_path: Path) -> None:
    """As in ``smb3server status --watch | head``."""

    async def scene(acted: Scene) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "smb3server", "status", "--state", str(tmp_path / "state"), "--json"),
            *("--watch", "0.2"),
            stdout=(ends := os.pipe())[1],
            stderr=asyncio.subprocess.PIPE,
        )
        os.close(ends[1])
        assert await asyncio.to_thread(os.read, ends[0], 1)
        os.close(ends[0])
        assert await process.communicate() == (None, b"")
        assert process.returncode == EXIT_CLOSED

    play(tmp_path, scene)


def test_status_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main(["status", "--state", str(tmp_path)]) == EXIT_NO_SERVER
    assert "no server runs there" in capsys.readouterr().err


def test_amounts_and_durations() -> None:
    assert [status_tables.amount(size) for size in (0, 1023, 1536, 5 << 40)] == ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"]
    assert [status_tables.duration(time) for time in (59, 3661, 90061)] == ["00:00:59", "01:01:01", "1 d 01:01"]


def texts(host: Host) -> str:
    return "\n".join(finding.line() for finding in examine(host))


def test_doctor_on_made_up_hosts(tmp_path: Path) -> None:
    plain = texts(Host(list(PLAIN), [], Machine(PLAIN, unavailable={"verbs": "none"}), tmp_path))
    assert "CAP_NET_RAW: missing" in plain
    assert "clients will see 192.0.2.1 (eth0, 1000 Mbit/s) as RDMA capable" in plain
    devices = [device("mlx5_0", "eth1")]
    lacking = texts(
        Host(list(RDMA), devices, Machine(RDMA, devices, unavailable={"verbs": "no rdma_cm"}), tmp_path, 0, 1)
    )
    assert "problem  modules: rdma_ucm is not loaded\n         -> modprobe rdma_ucm" in lacking
    assert "problem  verbs: no rdma_cm" in lacking
    assert "raise `ulimit -l`" in lacking
    down = [device("mlx5_0", "eth1", active=False)]
    assert "port 1 is down" in texts(Host(list(RDMA), down, Machine(RDMA, down), tmp_path))


def test_doctor_on_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli_main(["doctor", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["rdma"] is (status == EXIT_RDMA)
    assert any(finding["subject"] == "interface list" for finding in document["findings"])
    assert cli_main(["doctor"]) == status
    assert "verdict: " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["host/share/deep"], ["//host/share", "--fabrics", "tin-cans"], ["///"]])
def test_doctor_usage(arguments: list[str]) -> None:
    assert cli_main(["doctor", *arguments]) == EXIT_UNKNOWN


def test_doctor_finds_rdma(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        result = await examined(acted)
        assert (result.reached, result.rdma) == (True, True)
        assert result.verdict == "RDMA is used: iwarp (4096 KiB written, 4096 KiB read)"
        assert "a channel of the session was bound" in result.attempts[0].text
        json.dumps(result.as_json())

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ({"multichannel": False}, "RDMA could be used by clients that ask for it (iwarp answers), but others do not"),
        ({"max_dialect": 0x0210}, "RDMA is not used, although iwarp answers: the server speaks dialect 2.1"),
        ({"host": "127.44.55.66"}, "because no interface in the server's list is RDMA capable"),
    ],
)
def test_doctor_verdicts(tmp_path: Path, settings: dict[str, Any], verdict: str) -> None:
    async def scene(acted: Scene) -> None:
        acted.service.server.tcp_addresses.add("127.0.0.1")  # so that there is a list
        result = await examined(acted)
        assert result.reached
        assert verdict in result.verdict
        assert not result.rdma
        # It left nothing behind.
        assert list((tmp_path / "share").iterdir()) == []

    play(tmp_path, scene, **settings)


def test_doctor_without_rdma(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        result = await examined(acted, port=acted.service.listeners[0].address[1])
        assert (result.reached, result.rdma) == (True, False)
        assert "no interface in the server's list is RDMA capable" in result.verdict
        result = await examined(acted, password="wrong", port=acted.service.listeners[0].address[1])
        assert "the logon failed" in result.verdict
        assert result.answer is Answer.UNKNOWN

    play(tmp_path, scene, rdma="off")


def test_doctor_as_a_guest(tmp_path: Path) -> None:
    """Whatever a guest's logon comes to, it ends in a verdict."""

    async def scene(acted: Scene) -> None:
        result = await examined(acted, "nobody-here", "")
        assert result.reached
        assert result.verdict.startswith(("RDMA could be used", "RDMA is not used", "it is unknown"))
        assert not result.rdma

    play(tmp_path, scene, allow_guest=True)


def test_doctor_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        arguments = ["doctor", f"//127.0.0.1:{port}/x", "--fabrics", "iwarp", "--rdma-port", str(port), "--json"]
        assert cli_main(arguments) == EXIT_UNKNOWN
    assert json.loads(capsys.readouterr().out)["reached"] is False


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        (
            [],
            "RDMA could be used by clients that ask for it (iwarp answers), but others do not find it, because no list",
        ),
        ([("::1", True)], "RDMA could be used by mounts that name it (iwarp answers)"),
        ([("::1", False)], "because no interface in the server's list is RDMA capable"),
    ],
)
def test_doctor_on_lists_of_interfaces(tmp_path: Path, known: list[tuple[str, bool]], verdict: str) -> None:
    """Served on 127.0.0.1; the list knows other addresses, or none."""

    async def scene(acted: Scene) -> None:
        server = acted.service.server
        await server.interfaces.stop()
        server.tcp_addresses.update(address for address, _ in known)
        server.interfaces.interfaces = [interface("eth0", address) for address, _ in known]
        server.rdma_addresses.update(address for address, flagged in known if flagged)
        result = await examined(acted)
        assert result.answer is Answer.POSSIBLE
        assert verdict in result.verdict

    play(tmp_path, scene)


def test_doctor_without_the_fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ProviderError("no RDMA device")

    async def scene(acted: Scene) -> None:
        monkeypatch.setattr("smb3server.doctor.fabrics.make_provider", refuse)
        result = await examined(acted)
        assert (result.reached, result.rdma) == (True, False)
        assert "note     iwarp: cannot be tried from here: no RDMA device" in [f.line() for f in result.findings]
        assert "the server answers on no fabric that could be tried from here" in result.verdict

    play(tmp_path, scene)


def test_doctor_on_a_name_that_nobody_has(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "//nobody.invalid/x", "--fabrics", "iwarp", "--json"]
    assert cli_main(arguments) == EXIT_UNKNOWN
    assert json.loads(capsys.readouterr().out)["attempts"] == []
