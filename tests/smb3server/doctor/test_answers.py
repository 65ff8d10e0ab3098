"""The doctor's answers are right: its own server is no obstacle, and RDMA is used only where data went by it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from smb3server.admin.own_servers import OwnServer, own_servers
from smb3server.admin.socket import AdminSocket, running
from smb3server.cli import doctor
from smb3server.cli.admin.password_input import logon_password
from smb3server.cli.main import main as cli_main
from smb3server.client.protocol import RemoteFile, Tree
from smb3server.doctor.findings import Verdict
from smb3server.doctor.host import EXIT_NO_RDMA, EXIT_RDMA, EXIT_UNKNOWN, Host, conclude, examine
from smb3server.doctor.patient import Answer, Result, Target
from smb3server.doctor.share import consult
from smb3server.net.fabric_choice import Machine
from smb3server.net.host import ROCE_UDP_PORT, SMB_DIRECT_PORT, SMB_PORT, PortOwner
from smbdirect.errors import ConnectionLost
from smbdirect.providers.iwarp import IwarpProvider
from tests.lab.doctor import FREE_TO_BIND, MODULES, examined
from tests.lab.machine import PLAIN, write
from tests.lab.scene import Scene, play

PID = 4711
ALL_PORTS = (("tcp", SMB_PORT), ("tcp", SMB_DIRECT_PORT), ("udp", ROCE_UDP_PORT))


def owned(pid: int | None, process: str, servers: list[OwnServer], root: Path, hidden: bool = False) -> Host:
    """A machine all of whose ports one process has."""
    write(root, FREE_TO_BIND | MODULES)
    owners = [
        PortOwner(kind, host, port, process, pid, hidden) for host in ("0.0.0.0", "::") for kind, port in ALL_PORTS
    ]
    machine = Machine(PLAIN, owners=owners, unavailable={"verbs": "none"})
    return Host(list(PLAIN), [], machine, root, (1 << 64) - 1, -1, servers)


SERVED = (("iwarp", "0.0.0.0", (5445,)), ("roce", "0.0.0.0", (5445, 445)), ("iwarp", "::", (5445,)))


def test_ports_of_the_own_server_are_no_obstacle(tmp_path: Path) -> None:
    host = owned(PID, "python", [OwnServer(PID, "auto", SERVED)], tmp_path)
    findings = examine(host)
    assert conclude(host, findings) == (EXIT_RDMA, f"RDMA is served: iwarp, roce, by smb3server (process {PID})")
    assert not any(finding.verdict in (Verdict.WARNING, Verdict.PROBLEM) for finding in findings)
    lines = [finding.line() for finding in findings]
    assert f"ok       tcp port 5445: served by smb3server (process {PID})" in lines
    assert f"ok       server: smb3server (process {PID}) serves roce on 0.0.0.0, port 5445 and 445" in lines
    assert not any("stop it" in line for line in lines)


def test_an_own_server_without_rdma_could_serve_it(tmp_path: Path) -> None:
    host = owned(PID, "python", [OwnServer(PID, "off")], tmp_path)
    findings = examine(host)
    assert conclude(host, findings) == (EXIT_RDMA, "RDMA can be served: iwarp, roce")
    (warning,) = [finding for finding in findings if finding.verdict is Verdict.WARNING]
    assert (warning.text, warning.remedy) == (f"smb3server (process {PID}) runs without RDMA", "start it with --rdma")


def test_a_server_at_loopback_addresses_does_not_count(tmp_path: Path) -> None:
    host = owned(PID, "python", [OwnServer(PID, "auto", (("iwarp", "127.0.0.1", (5445,)),))], tmp_path)
    assert conclude(host, examine(host)) == (EXIT_RDMA, "RDMA can be served: iwarp, roce")


def test_ports_of_foreign_programs_are_one(tmp_path: Path) -> None:
    host = owned(12, "smbd", [OwnServer(PID, "off")], tmp_path)
    assert conclude(host, examine(host)) == (EXIT_NO_RDMA, "RDMA cannot be served here: see the warnings")


def test_ports_of_another_user_leave_the_question_open(tmp_path: Path) -> None:
    host = owned(None, "", [], tmp_path, hidden=True)
    status, text = conclude(host, examine(host))
    assert status == EXIT_UNKNOWN
    assert text.startswith("it is unknown whether RDMA is served here")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory of the test's own."""
    directory = tmp_path / "run"
    monkeypatch.setattr("smb3server.admin.socket.runtime_directory", lambda: directory)
    return directory


def test_the_doctor_finds_a_running_server(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a state directory, too, and so does ``status``. The ports are this process's: the server runs in it."""

    async def scene(acted: Scene) -> None:
        (port,) = [listener.address[1] for _, listener in acted.service.fabrics.listeners]
        monkeypatch.setattr("smb3server.doctor.host.ports_needed", lambda _: [("tcp", port)])
        (found,) = await asyncio.to_thread(own_servers)
        assert (found.pid, found.rdma, found.served) == (os.getpid(), "iwarp", (("iwarp", "127.0.0.1", (port,)),))
        status = await asyncio.to_thread(cli_main, ["doctor", "--json"])
        document = json.loads(capsys.readouterr().out)
        texts = [f"{entry['verdict']} {entry['subject']}: {entry['text']}" for entry in document["findings"]]
        assert f"ok tcp port {port}: served by smb3server (process {os.getpid()})" in texts
        assert document["rdma"] is (status == EXIT_RDMA)
        assert await asyncio.to_thread(cli_main, ["status", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["server"]["rdma"] == "iwarp"

    play(tmp_path, scene)
    assert list(runtime.iterdir()) == []
    assert own_servers() == []


def test_links_to_servers_that_were_killed_go(tmp_path: Path, runtime: Path) -> None:
    async def run() -> None:
        runtime.mkdir(mode=0o700)
        (runtime / "1-2.sock").symlink_to(tmp_path / "gone")
        admin = AdminSocket(tmp_path / "state" / "admin.sock", {"ping": lambda _: {"pid": 1}})
        await admin.start()
        admin.announce()
        assert [path.name.startswith(f"{os.getpid()}-") for path in runtime.iterdir()] == [True]
        assert await asyncio.to_thread(running) == list(runtime.iterdir())
        await admin.close()
        assert list(runtime.iterdir()) == []

    asyncio.run(run())


async def asked(acted: Scene, share: str, user: str = "u", password: str = "pw") -> Result:
    rdma_port = acted.service.fabrics.listeners[0][1].address[1]
    tcp_port = acted.service.listeners[0].address[1]
    return await consult(Target(acted.host, tcp_port, share, user, password, ("iwarp",), rdma_port))


def test_data_is_moved_both_ways_and_nothing_is_left(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        result = await examined(acted)
        assert result.answer is Answer.USED
        (attempt,) = result.attempts
        assert attempt.moved is not None
        assert (attempt.moved.written, attempt.moved.read, attempt.moved.by_rdma) == (4 << 20, 4 << 20, True)
        assert list((tmp_path / "share").iterdir()) == []

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({}, ""),
        ({"require_signing": True}, ", signed"),
        ({"require_encryption": True}, ", encrypted"),
        ({"encrypt_share": True, "require_signing": True}, ", encrypted"),
        ({"require_encryption": True, "rdma_transforms": (1,)}, ", encrypted"),
    ],
)
def test_it_says_how_data_moves(tmp_path: Path, settings: dict[str, Any], way: str) -> None:
    async def scene(acted: Scene) -> None:
        result = await examined(acted)
        assert result.verdict == f"RDMA is used: iwarp{way} (4096 KiB written, 4096 KiB read)"
        assert not [f for f in result.findings if f.verdict is Verdict.WARNING]
        (data,) = [f.text for f in result.findings if f.subject == "iwarp data"]
        assert data.startswith(f"RDMA{way}: 4096 KiB written, 4096 KiB read, ")
        if way:
            assert any(f.text.endswith(f": data can go by RDMA{way}") for f in result.findings)

    play(tmp_path, scene, **settings)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"require_signing": True, "rdma_transforms": (1,)},
            "the server requires signing, and without an RDMA transform for signing its data goes inline",
        ),
        (
            {"require_encryption": True, "rdma_transforms": ()},
            "the server encrypts every session, and without an RDMA transform for encryption its data goes inline",
        ),
        (
            {"encrypt_share": True, "rdma_transforms": (2,)},
            "share data is encrypted, and without an RDMA transform for encryption its data goes inline",
        ),
        (
            {"require_signing": True, "max_dialect": 0x0302},
            "the server requires signing, and without an RDMA transform for signing its data goes inline",
        ),
    ],
)
def test_it_says_what_to_do_without_transforms(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    async def scene(acted: Scene) -> None:
        result = await examined(acted)
        assert result.verdict == f"RDMA is not used, although iwarp answers: {why}"
        warnings = [f for f in result.findings if f.verdict is Verdict.WARNING]
        assert [f.text for f in warnings if f.text == why]
        (data,) = [f for f in warnings if f.subject == "iwarp data"]
        assert data.text.startswith("inline: 4096 KiB written, 4096 KiB read, ")
        assert all("let the server offer RDMA transforms" in f.remedy for f in warnings)

    play(tmp_path, scene, **settings)


def test_counters_prove_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that only believes that it used RDMA is found out."""

    async def inline(tree: Tree, file: RemoteFile, offset: int, data: memoryview) -> int:
        return await tree._write_inline(file, offset, data)

    async def scene(acted: Scene) -> None:
        result = await examined(acted)
        assert result.answer is Answer.UNKNOWN
        assert "4194304 bytes should have gone by RDMA" in result.verdict

    monkeypatch.setattr(Tree, "_write_piece", inline)
    play(tmp_path, scene)


@pytest.mark.parametrize("size", [0, 100, 100_000, 6 << 20])
def test_a_share_that_is_read_only(tmp_path: Path, size: int) -> None:
    async def scene(acted: Scene) -> None:
        acted.service.server.share_list["data"].read_only = True
        (tmp_path / "share" / "folder").mkdir()
        (tmp_path / "share" / "small").write_bytes(b"small")
        (tmp_path / "share" / "large").write_bytes(os.urandom(size))
        result = await examined(acted)
        if size < 4096:
            assert result.answer is Answer.POSSIBLE
            assert result.verdict == "RDMA could be used (iwarp answers), but nothing was moved"
            assert any("none moved" in f.text and "no file of 4096 bytes" in f.text for f in result.findings)
        else:
            assert result.answer is Answer.USED
            assert f"iwarp (0 KiB written, {min(size, 4 << 20) >> 10} KiB read)" in result.verdict
        assert {path.name for path in (tmp_path / "share").iterdir()} == {"folder", "small", "large"}

    play(tmp_path, scene)


def test_questions_that_cannot_be_answered(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        result = await asked(acted, "data", password="wrong")
        assert result.answer is Answer.UNKNOWN
        assert "the logon failed: STATUS_LOGON_FAILURE" in result.verdict
        (logon,) = [finding for finding in result.findings if finding.subject == "logon"]
        assert logon.remedy == "check name and password"
        result = await asked(acted, "data", "u", "")
        (logon,) = [finding for finding in result.findings if finding.subject == "logon"]
        assert "put it into the variable SMB3SERVER_PASSWORD" in logon.remedy
        result = await asked(acted, "missing")
        assert result.answer is Answer.UNKNOWN
        assert "share missing cannot be used: STATUS_BAD_NETWORK_NAME" in result.verdict
        result = await asked(acted, "")
        assert result.answer is Answer.POSSIBLE
        assert result.verdict == "RDMA could be used (iwarp answers), but nothing was moved"

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, EXIT_RDMA),
        ({"require_signing": True}, EXIT_RDMA),
        ({"require_signing": True, "rdma_transforms": ()}, EXIT_NO_RDMA),
        ({"password": "wrong"}, EXIT_UNKNOWN),
    ],
    ids=["used", "signed", "signed without transforms", "unknown"],
)
def test_exit_status_is_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], status: int
) -> None:
    password = settings.pop("password", "pw")

    async def scene(acted: Scene) -> None:
        port = acted.service.listeners[0].address[1]
        rdma_port = str(acted.service.fabrics.listeners[0][1].address[1])
        target = f"smb://127.0.0.1:{port}/data"
        arguments = [target, "--user", f"u:{password}", "--fabrics", "iwarp", "--rdma-port", rdma_port, "--json"]
        assert await asyncio.to_thread(cli_main, ["doctor", *arguments]) == status
        document = json.loads(capsys.readouterr().out)
        assert document["rdma"] is (status == EXIT_RDMA)
        assert document["answer"] == {0: "used", 1: "not-used", 2: "unknown"}[status]

    play(tmp_path, scene, **settings)


@pytest.mark.parametrize("text", ["//h/s", r"\\h\s", "smb://h/s", "h/s", "//h:1445/s", "//[fe80::1%eth0]/s"])
def test_ways_to_write_a_share(text: str) -> None:
    target = doctor._target(text, "u:pw", None, None)
    assert (target.host, target.share) in (("h", "s"), ("fe80::1%eth0", "s"))
    assert (target.port, target.user, target.password) == (1445 if "1445" in text else 445, "u", "pw")


def test_an_unreachable_host_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asyncio raises then has an errno and a text of its own, which does not say what is wrong."""

    async def unreachable(self: object, sock: socket.socket, address: object) -> None:
        raise OSError(113, f"Connect call failed {address}")

    monkeypatch.setattr("asyncio.selector_events.BaseSelectorEventLoop.sock_connect", unreachable)
    result = asyncio.run(consult(Target("127.0.0.1", 445, "x", "u", "p", ("iwarp",), 5445)))
    assert result.answer is Answer.UNKNOWN
    assert "No route to host" in result.verdict
    lines = [finding.line() for finding in result.findings]
    assert lines[0].startswith("problem  tcp: 127.0.0.1 port 445: No route to host: a router or firewall on the way")
    (attempt,) = result.attempts
    assert attempt.text == "connect: device or network failure: No route to host"


def test_a_refused_connection_is_the_peers_doing() -> None:
    async def run() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionLost, match=r"closed by the peer: Connection refused$"):
                await IwarpProvider().connect("127.0.0.1", unused.getsockname()[1], lambda endpoint: None)

    asyncio.run(run())


def test_exit_statuses_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main(["doctor", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Exit status: 0 if RDMA is used (without a target: served, or can be), 1 if not, 2 if that could not" in said
    page = (Path(__file__).parents[3] / "docs" / "rdma-used.md").read_text()
    assert "0 if RDMA is used" in " ".join(page.split())


def test_the_password_comes_from_the_variable_that_all_commands_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWD", "of Samba")
    assert logon_password("alice") == "of Samba"
    monkeypatch.setenv("SMB3SERVER_PASSWORD", "of all")
    assert logon_password("alice") == "of all"
