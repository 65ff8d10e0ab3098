"""A server in a program: objects in place of a command line, and nothing of the process changes."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends.memory.backend import MemoryBackend
from smb3server.client.sync import connect
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.net.listener import listening_socket
from smb3server.service import ConfigError, Service, Share, User, tcp_ports
from tools.support import own_user

ALICE = User("alice", password="wonderland")
HERE: dict[str, Any] = {"listen": ["127.0.0.1"], "port": 0}


def share(path: Path, **keys: Any) -> Share:
    return Share("data", str(path), force_user=own_user.NAME, **keys)


@pytest.mark.skipif(shutil.which("smbclient") is None, reason="needs smbclient, of the package smbclient")
def test_smbclient_uses_what_a_program_serves(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("hello")

    async def main() -> None:
        async with Service(shares=[share(tmp_path)], users=[ALICE], **HERE, rdma="iwarp", rdma_port=0) as service:
            assert [address.split()[0] for address in service.addresses()] == ["tcp", "iwarp"]
            words = ["smbclient", "//127.0.0.1/data", "-p", str(service.address[1]), "-U", "alice%wonderland"]
            words += ["-c", "get a -; put /etc/hostname b"]
            done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and "hello" in done.stdout, done.stdout + done.stderr
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*service.address)

    asyncio.run(main())
    assert (tmp_path / "b").read_bytes() == Path("/etc/hostname").read_bytes()


def test_a_block_that_blocks_and_two_servers_at_once(tmp_path: Path) -> None:
    other = share(tmp_path / "other", read_only=True)
    (tmp_path / "other").mkdir()
    with (
        Service(shares=[share(tmp_path)], users=[ALICE], **HERE) as one,
        Service(shares=[other], users=[User("bob", password="b")], **HERE) as two,
    ):
        with connect(f"smb://alice@127.0.0.1:{one.address[1]}/data", password="wonderland") as found:
            found.write_text("b", "ho")
        bob = connect(f"smb://bob@127.0.0.1:{two.address[1]}/data", password="b")
        with bob as found, pytest.raises(PermissionError):
            found.write_text("c", "ho")
        with pytest.raises(PermissionError), connect(f"smb://bob@127.0.0.1:{one.address[1]}/data", password="b"):
            pass
    assert (tmp_path / "b").read_text() == "ho"
    assert not [thread for thread in threading.enumerate() if thread.name == "smb3server"]


def test_the_process_stays_as_it_is(tmp_path: Path) -> None:
    def state() -> tuple[Any, ...]:
        mask = os.umask(0o077)
        os.umask(mask)
        root = logging.getLogger()
        return (
            [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
            (root.level, list(root.handlers), logging.getLogger("smb3server").level),
            (resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE), mask),
        )

    async def main() -> None:
        before = state()
        async with Service(shares=[share(tmp_path)], users=[ALICE], **HERE) as service:
            await service.reload()
            assert state() == before
        assert state() == before

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 2000), hard))
    logging.getLogger().setLevel(logging.ERROR)
    try:
        asyncio.run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_keys_and_sections(tmp_path: Path) -> None:
    staff = share(tmp_path, users=["@staff"], create_mask="0640", hosts_allow=["127.0.0.1"])
    service = Service(
        shares=[staff], users=[ALICE], **HERE, name="FILES", groups={"staff": ["alice"]}, limits={"max_connections": 7}
    )
    config = service.config
    assert (config.settings.server_name, config.settings.max_connections) == ("FILES", 7)
    assert config.shares[0].users == {"alice"} and config.shares[0].create_mask == 0o640
    assert config.users_file is None, "this machine's own users are not let in"
    assert Service(shares=[staff], users=[ALICE], groups={"staff": ["alice"]}, state=tmp_path.parent).config.users_file


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no user could log on: give users="),
        ({"users": [User("bob")]}, "user bob: one of password, nt_hash and password_file is needed"),
        ({"users": [User("bob", password="")]}, "user bob: password: the password is empty"),
        ({"prot": 1}, r"\[server\] prot: unknown key; did you mean port\?"),
        ({"port": "x"}, r"\[server\] port: must be an integer from 0 to 65535"),
        ({"rdma": "ib"}, "ib is not one of auto, off, iwarp"),
        ({"run_as": "nobody"}, r"\[server\] run_as: concerns the whole process"),
        ({"limits": {"max_connections": 0}}, r"\[limits\] max_connections: must be"),
        ({"users": [ALICE], "shares": [Share("data", "/nowhere")]}, "Share 'data': /nowhere does not exist"),
        ({"users": [ALICE], "shares": [Share("a/b", "/")]}, "not a valid share name"),
        ({"users": [ALICE], "shares": [Share("a", "/"), Share("A", "/")]}, "share A: given twice$"),
        ({"users": [ALICE], "shares": [Share("a", "/", users=["alic"])]}, "there is no user alic; did you mean alice"),
        ({"users": [ALICE], "shares": [Share("a", "/", read_only="no")]}, "read_only: must be true or false"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Service(**given)


def test_a_port_is_chosen_that_is_free_on_all_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has the first two choices on the second address."""
    taken: list[socket.socket] = []

    def listening(host: str, port: int) -> socket.socket:
        if port and len(taken) < 2:
            taken.append(listening_socket(host, port))
        return listening_socket(host, port)

    async def main() -> None:
        async with Service(
            shares=[share(tmp_path)], users=[ALICE], listen=["127.0.0.1", "127.0.0.2"], port=0
        ) as service:
            ports = {listener.address[1] for listener in service.listeners}
            assert len(ports) == 1 and ports.isdisjoint(sock.getsockname()[1] for sock in taken)

    monkeypatch.setattr(tcp_ports, "listening_socket", listening)
    try:
        asyncio.run(main())
    finally:
        for sock in taken:
            sock.close()
    assert len(taken) == 2


def test_a_store_and_a_share_of_one_name(tmp_path: Path) -> None:
    service = Service(shares=[share(tmp_path)], users=[ALICE], **HERE)
    with pytest.raises(ConfigError, match="there is one of this name"):
        service.add_store("DATA", MemoryBackend())
    service.add_store("memory", MemoryBackend())
    with service, connect(f"smb://alice@127.0.0.1:{service.address[1]}/memory", password="wonderland") as found:
        found.write_text("d", "in memory")
        assert found.listdir() == ["d"]


def test_a_configuration_excludes_objects(tmp_path: Path) -> None:
    config = parse_arguments(["--share", own_user.option("data", tmp_path), "--user", "alice:pw", "--port", "0"])
    assert Service(config).config is config
    with pytest.raises(TypeError, match="either a config, or shares"):
        Service(config, users=[ALICE])
