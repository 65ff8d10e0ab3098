"""A server with a log file, an audit, metrics and traces: from its configuration to what operators read."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

from smb3server.cli.server import log_level, metrics, trace
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.error import ConfigError
from smb3server.config.schema import AuditEvent
from smb3server.process import log_levels, log_output
from smb3server.process.log_levels import COMPONENTS, Levels
from smb3server.service.service import Service
from smb3server.state.audit import KINDS
from tests.lab.served import open_up
from tests.lab.serving import make, serving, status_of_logon, tree_of

USERS = '[[user]]\nname = "alice"\npassword = "pw"\n'


def text(root: Path, server: str = "", share: str = "", more: str = "") -> str:
    (root / "data").mkdir(exist_ok=True)
    open_up(root / "data")
    (root / "data").chmod(0o777)
    return (
        f'[server]\nstate = "{root / "state"}"\n{server}\n'
        f'[[share]]\nname = "data"\npath = "{root / "data"}"\n{share}\n{USERS}{more}'
    )


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    log_levels.apply(Levels("warning"))
    root.setLevel(level)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_kinds_and_components_of_the_configuration_are_those_of_the_server() -> None:
    assert set(get_args(AuditEvent)) == set(KINDS)
    assert set(COMPONENTS) == {"auth", "rdma", "files", "rpc", "cluster", "net"}


def test_a_share_has_an_audit_and_a_reload_changes_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = f'audit_file = "{path}"'

    async def run() -> None:
        made = serving(tmp_path, text(tmp_path, file, "audit = true"))
        async with made as service, tree_of(service, "alice", "data") as tree:
            await make(tree, "a")
        assert [entry["event"] for entry in records(path)] == ["connect", "create", "write"]

    asyncio.run(run())
    assert {entry["user"] for entry in records(path)} == {"alice"}


def test_an_audit_begins_and_ends_with_a_reload(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = f'audit_file = "{path}"'
    config = tmp_path / "own.toml"

    def read() -> Any:
        return parse_arguments(["--config", str(config), "--listen", "127.0.0.1", "--port", "0"])

    def write(share: str) -> None:
        config.write_text(text(tmp_path, file, share))
        config.chmod(0o600)

    async def run() -> None:
        write("")
        service = Service(read(), None, read)
        await service.start()
        try:
            async with tree_of(service, "alice", "data") as tree:
                await make(tree, "a")
                write('audit = true\naudit_events = ["create"]')
                await service.reload()
                await make(tree, "b")
                write("")
                await service.reload()
                await make(tree, "c")
        finally:
            await service.stop()

    asyncio.run(run())
    assert [(entry["event"], entry["path"]) for entry in records(path)] == [("create", "b")]


def test_the_audit_may_go_to_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        made = serving(tmp_path, text(tmp_path, "", "audit = true"))
        async with made as service, tree_of(service, "alice", "data"):
            pass

    asyncio.run(run())
    (line,) = [entry.getMessage() for entry in caplog.records if entry.name == "smb3server.audit"]
    assert json.loads(line)["event"] == "connect"


@pytest.mark.parametrize(
    ("server", "share", "told"),
    [
        (
            'audit_file = "/nonexistent/audit.log"',
            "audit = true",
            "audit_file: /nonexistent is not there; remedy: install -d -o",
        ),
        ("", 'audit_events = ["opne"]', "must be one of connect, open"),
        ('log_format = "xml"', "", "must be one of text, json"),
        ('log_level = "loud"', "", "must be one of debug"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, server: str, share: str, told: str) -> None:
    async def run() -> None:
        async with serving(tmp_path, text(tmp_path, server, share)):
            pass

    with pytest.raises(ConfigError, match=told):
        asyncio.run(run())


def test_levels_of_components_are_read(tmp_path: Path) -> None:
    file = tmp_path / "smb3server.toml"
    file.write_text(text(tmp_path, 'log_level = "warning"', "", '[log]\nauth = "debug"\nnet = "info"\n'))
    file.chmod(0o600)
    assert parse_arguments(["--config", str(file)]).log_level == "warning,auth:debug,net:info"
    # The command line wins.
    given = parse_arguments(["--config", str(file), "--log-level", "error,auth:info"])
    assert given.log_level == "error,auth:info,net:info"
    with pytest.raises(ConfigError, match="did you mean auth"):
        parse_arguments(["--config", str(file), "--log-level", "error,atuh:info"])


def play(root: Path, more: str, body: Callable[[Service, Path], Awaitable[None]], *options: str) -> None:
    async def run() -> None:
        async with serving(root, text(root, "", "", more), *options) as service:
            assert service.admin is not None
            await body(service, service.admin.path)

    asyncio.run(run())


async def call(command: Any, *arguments: str) -> tuple[int, str]:
    """Run a command of ours in a thread, as it blocks. Return its exit status and what it prints."""
    result = await asyncio.to_thread(CliRunner().invoke, command, arguments, standalone_mode=False)
    if result.exception is not None:
        return 1, str(result.exception)
    return int(result.return_value), result.output


def test_metrics_come_by_http_and_by_the_command(tmp_path: Path) -> None:
    async def body(service: Service, socket: Path) -> None:
        assert service.observing.port is not None
        host, port = service.observing.port.address
        assert await status_of_logon(service, "alice", "wrong")
        url = f"http://{host}:{port}/metrics"
        page = (await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())).decode()
        assert 'smb3server_logon_failures_total{reason="wrong_password"} 1.0' in page
        assert 'smb3server_request_duration_seconds_count{command="session_setup"} 2.0' in page
        status, printed = await call(metrics.command, "--socket", str(socket))
        assert (status, 'reason="wrong_password"} 1.0' in printed) == (0, True)

    play(tmp_path, '[metrics]\nlisten = "127.0.0.1"\nport = 0\n', _on_any_port(body))


def _on_any_port(body: Callable[[Service, Path], Awaitable[None]]) -> Callable[[Service, Path], Awaitable[None]]:
    """Port 0 means that there is no port: open one as a configured one would be."""

    async def with_port(service: Service, socket: Path) -> None:
        assert service.observing.port is None
        service.observing._listen("127.0.0.1", 0)
        await body(service, socket)

    return with_port


def test_without_metrics_nothing_is_counted_until_somebody_asks(tmp_path: Path) -> None:
    async def body(service: Service, socket: Path) -> None:
        assert service.observing.port is None
        assert service.server.measuring.timings is None
        status, printed = await call(metrics.command, "--socket", str(socket))
        assert (status, "smb3server_info" in printed) == (0, True)
        assert service.server.measuring.timings is not None

    play(tmp_path, "", body)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        other = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = other.sockets[0].getsockname()[1]
        try:
            async with serving(tmp_path, text(tmp_path, "", "", f"[metrics]\nport = {port}\n")):
                pass
        finally:
            other.close()

    with pytest.raises(ConfigError, match=r"\[metrics\]: cannot listen on 127.0.0.1 port \d+: "):
        asyncio.run(run())


def test_levels_change_while_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(service: Service, socket: Path) -> None:
        log_levels.apply(Levels("info"))
        assert await call(log_level.command, "--socket", str(socket)) == (0, "info\n")
        assert await call(log_level.command, "files=debug", "--socket", str(socket)) == (0, "info,files:debug\n")
        assert service.server.measuring.observer is not None
        status, told = await call(log_level.command, "files=lots", "--socket", str(socket))
        assert (status, "not a level" in told) == (1, True)
        assert await call(log_level.command, "files=default", "--socket", str(socket)) == (0, "info\n")

    play(tmp_path, "", body)


def test_a_trace_is_made_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "t.pcapng"

    async def body(service: Service, socket: Path) -> None:
        arguments = ("127.0.0.1", "--out", str(path), "--seconds", "1", "--socket", str(socket))
        tracing = asyncio.create_task(call(trace.command, *arguments))
        async with asyncio.timeout(10):
            while not service.observing.traces.running:
                await asyncio.sleep(0.01)
        assert not await status_of_logon(service, "alice", "pw")
        status, printed = await tracing
        assert status == 0, printed
        assert f"bytes in {path}" in printed
        status, told = await call(trace.command, *arguments)
        assert (status, "exists; remove it" in told) == (1, True)
        status, told = await call(trace.command, "alice", *arguments[1:])
        assert (status, "is not a client" in told) == (1, True)

    play(tmp_path, "", body)
    assert path.stat().st_size > 1000


def test_a_trace_begins_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "t.pcapng"

    async def body(service: Service, socket: Path) -> None:
        assert not await status_of_logon(service, "alice", "pw")

    play(tmp_path, "", body, f"--trace=127.0.0.0/8={path},decrypt")
    assert path.stat().st_size > 1000
    with pytest.raises(ConfigError, match="--trace"):
        parse_arguments(["--share", f"d={tmp_path}", "--user", "a:b", "--trace", "somebody"])


def test_a_reload_opens_the_log_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    root = logging.getLogger()
    handlers = root.handlers[:]
    output = log_output.start(log_levels.parse("info"), path, "json")

    async def body(service: Service, socket: Path) -> None:
        path.rename(tmp_path / "log.1")
        await service.reload()

    try:
        play(tmp_path, "", body)
    finally:
        root.handlers[:] = handlers
        output.close()
    assert [entry["message"] for entry in records(path)][-1] == "configuration reloaded"
    assert "configuration reloaded" not in (tmp_path / "log.1").read_text()
