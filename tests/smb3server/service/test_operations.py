"""What an operator meets: state directories, ports, logs, pipes, files that other programs read."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from smb3server.cli.main import main as cli_main
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.error import ConfigError
from smb3server.process import output
from smb3server.process.state_lock import StateLock
from smb3server.service.service import Service
from smbdirect.errors import ProviderError
from tests.lab.services import configured, running
from tools.support import own_user
from witness.cluster import ClientMove, IpChange, ResourceChanged, ServiceMove, ShareMove
from witness.ndr import AddressInfo

ROOT = Path(__file__).parents[3]
PATIENCE = 60


def start_command(tmp_path: Path, *options: str) -> list[str]:
    share = tmp_path / "share"
    share.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "smb3server", "--share", own_user.option("share", share), "--user", "u:pw"]
    return [*command, "--port", "0", "--listen", "127.0.0.1", *options]


def until_ready(server: subprocess.Popen[str]) -> list[str]:
    """What the server prints until it serves."""
    assert server.stdout is not None
    lines = []
    for line in server.stdout:
        lines.append(line.rstrip())
        if line.startswith("ready"):
            return lines
    raise AssertionError(f"it ended: {lines}")


def test_a_state_directory_has_one_server(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = start_command(tmp_path, "--state", str(state))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        try:
            until_ready(first)
            second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
            assert second.returncode == 1
            assert second.stderr == (
                f"smb3server: state directory {state}: another server uses it: process {first.pid}\n"
            )
            assert (state / "admin.sock").exists()
        finally:
            # However it ends, the next one may have the directory.
            first.send_signal(signal.SIGKILL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as third:
        until_ready(third)
        third.send_signal(signal.SIGTERM)


def test_a_server_that_stopped_leaves_its_state_directory(tmp_path: Path) -> None:
    async def test() -> None:
        config = configured(tmp_path, "--listen", "127.0.0.1", "--state", str(tmp_path / "state"))
        async with running(config):
            with pytest.raises(ConfigError, match=rf"another server uses it: process {os.getpid()}$"):
                await Service(config).start()
        async with running(config):
            pass
        (tmp_path / "state" / "lock").unlink()
        (tmp_path / "elsewhere").touch()
        (tmp_path / "state" / "lock").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError):
            StateLock(tmp_path / "state")

    asyncio.run(test())


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_named_fabric_whose_port_is_taken_on_a_wildcard_does_not_start(tmp_path: Path, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if family == socket.AF_INET6 and not socket.has_ipv6:
        pytest.skip("no IPv6")
    with socket.socket(family) as other:
        if family == socket.AF_INET6:
            other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind((host, 0))
        other.listen()
        port = other.getsockname()[1]

        async def test(*options: str) -> list[str]:
            config = configured(tmp_path, "--rdma-port", str(port), *options)
            async with running(config) as service:
                return service.fabrics.problems

        with pytest.raises(ProviderError, match=rf"iwarp not served on .*TCP port {port} belongs to .*{os.getpid()}"):
            asyncio.run(test("--rdma=iwarp"))
        assert any("iwarp not served" in problem for problem in asyncio.run(test("--rdma=auto")))


def test_debug_logs_are_the_servers_own(tmp_path: Path) -> None:
    command = start_command(tmp_path, "--log-level", "debug", "--rdma=off")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        until_ready(server)
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=PATIENCE)
    loggers = {line.split()[3].rstrip(":") for line in errors.splitlines() if re.match(r"\d{4}-\d\d-\d\d ", line)}
    assert {name.partition(".")[0] for name in loggers} <= {"smb3server", "smbdirect", "witness"}, errors[:2000]


def test_warnings_of_libraries_are_logged_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import logging; from smb3server.process import log_levels, log_output;"
        "log_output.start(log_levels.parse('debug'));"
        "import spnego; logging.getLogger('spnego.x').warning('kept'); logging.getLogger('spnego.x').info('not');"
        "logging.getLogger('smb3server.x').debug('own')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert re.findall(r"(\w+)$", ended.stderr, re.MULTILINE) == ["kept", "own"]


@pytest.mark.parametrize(
    "command",
    [
        ["smb3server", "doctor", "--json"],
        ["smb3server", "doctor"],
        ["smb3server", "pcap", *sorted(str(path) for path in (ROOT / "pcaps").rglob("*.pcap*"))[:1]],
    ],
    ids=lambda command: " ".join(command[:2])[:30],
)
def test_whoever_reads_the_output_may_stop(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", *command], stdout=writing, stderr=subprocess.PIPE, timeout=PATIENCE, check=False
        )
    finally:
        os.close(writing)
    assert ended.stderr == b""
    assert ended.returncode == output.EXIT_CLOSED


def test_every_command_that_prints_does_so_by_the_same_helper() -> None:
    """A ``main`` of a module that is run with ``-m`` is called by ``output.run``, or through the command's."""
    plain = {
        "tools/bench/quick/counted.py",  # the server itself
        "tools/check_layers/__main__.py",
        "tools/flaky/__main__.py",
        "tools/kernel_lab/holder.py",
        "tools/support/innocent.py",
        "tools/support/late_files.py",  # a daemon, which prints nothing
    }
    for path in sorted((ROOT / "tools").rglob("*.py")):
        text = path.read_text()
        if 'if __name__ == "__main__":' in text and str(path.relative_to(ROOT)) not in plain:
            ends = ("    sys.exit(output.run(main))\n", '    sys.exit(main(["bench", *sys.argv[1:]]))\n')
            assert text.endswith(ends), path


def test_other_broken_pipes_are_not_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise BrokenPipeError("a socket's")

    with pytest.raises(BrokenPipeError, match="a socket's"):
        output.run(fail)


def test_the_cluster_command_reads_the_file_of_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.toml"
    shares = '[[share]]\nname = "data"\npath = "/srv/only-on-nodes"\nservice = "files"\n'
    file.write_text(f'[server]\nkeytab = "/not/here"\n{shares}[cluster]\netcd = "etcd://127.0.0.1:1"\nnode = "a"\n')
    assert cli_main(["cluster", "--config", str(file), "status"]) == 1
    said = capsys.readouterr().err
    assert "only-on-nodes" not in said
    assert said.startswith("smb3server cluster status: no etcd member answers in ")
    assert said.endswith(" s (last http://127.0.0.1:1: Connection refused)\n")
    file.write_text("[cluster]\nwrong = 1\n")
    assert cli_main(["cluster", "--config", str(file), "status"]) == 2
    assert "[cluster] wrong: unknown key" in capsys.readouterr().err


def test_a_witness_address_that_is_not_here_is_named(tmp_path: Path) -> None:
    text = '[witness]\nlisten = ["192.0.2.77"]\nport = 0\n'

    async def test() -> None:
        async with running(configured(tmp_path, "--listen", "127.0.0.1", text=text)):
            pass

    with pytest.raises(ConfigError, match=r"^\[witness\]: cannot listen on 192.0.2.77 port 0: this machine does not"):
        asyncio.run(test())


def test_the_symlinks_option_can_be_set(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    file = tmp_path / "smb.toml"

    def symlinks(value: str) -> str:
        file.write_text(f'[server]\nguest = true\n[[share]]\nname = "data"\npath = "{share}"\nsymlinks = "{value}"\n')
        return parse_arguments(["--config", str(file)]).shares[0].symlinks

    assert symlinks("never") == "never"
    with pytest.raises(ConfigError, match=r"share data: symlinks: must be one of beneath, never, not"):
        symlinks("always")

    async def test() -> None:
        symlinks("never")
        async with running(parse_arguments(["--config", str(file), "--port", "0", "--listen", "127.0.0.1"])) as service:
            backend = service.server.share_list["data"].backend
            assert backend is not None
            assert not backend.resolver.follow_symlinks  # type: ignore[attr-defined]

    asyncio.run(test())


def test_documents_for_operators_name_no_source_for_settings() -> None:
    """Keys stand in configuration.md, each once in its table. Where to put a change is for developers."""
    for path in (ROOT / "docs").glob("*.md"):
        text = path.read_text()
        if path.name == "where-to-put.md":
            continue
        assert "smb3server/settings/server.py" not in text, path
        assert "smb3server/config/reader.py" not in text, path
    text = (ROOT / "docs" / "configuration.md").read_text()
    for section in text.split("\n## "):
        keys = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
        assert len(keys) == len(set(keys)), section[:40]


def test_the_log_says_what_clients_were_told_in_words() -> None:
    where = (AddressInfo(ipaddress.ip_address("192.0.2.1")), AddressInfo(ipaddress.ip_address("192.0.2.2"), False))
    events = {
        str(ResourceChanged("FILES", False)): "FILES is unavailable",
        str(ClientMove("PC", where)): "client PC moves to 192.0.2.1, 192.0.2.2 (offline)",
        str(ShareMove("FILES", "data", where[:1])): "share data of FILES moves to 192.0.2.1",
        str(ServiceMove("FILES", frozenset(), ())): "FILES moves to nowhere",
        str(IpChange("NODE-A", where[1:])): "NODE-A has changed addresses: 192.0.2.2 (offline)",
    }
    assert list(events) == list(events.values())


def test_a_server_without_witness_is_named_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        state = tmp_path / "state"
        async with running(configured(tmp_path, "--listen", "127.0.0.1", "--state", str(state))):
            assert await asyncio.to_thread(cli_main, ["witness", "status", "--state", str(state)]) == 1

    asyncio.run(test())
    said = capsys.readouterr().err
    assert said == "smb3server witness status: this server has no Witness service: add [witness] to its configuration\n"
