"""The sandbox: calls that a file server never makes fail, everything it does goes on."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from smb3server.client.protocol import Client, open_rdma
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.process import sandbox
from smb3server.wire.create import CreateDisposition
from smbdirect.providers.iwarp.provider import IwarpProvider
from tests.lab.served import ROOT, served
from tools.support import own_user

pytestmark = pytest.mark.skipif(platform.machine() not in sandbox.MACHINES, reason="no filter for this machine")

DENIED = """
import ctypes, errno, os, threading
from smb3server.process import sandbox

libc = ctypes.CDLL(None, use_errno=True)
begun, entered, outcomes = threading.Event(), threading.Event(), []

def attempts():
    found = {}
    for name, call in {
        "execve": lambda: os.execv("/bin/true", ["true"]),
        "mknod": lambda: os.mknod("/tmp/never-made-%d" % os.getpid()),
    }.items():
        try:
            call()
        except OSError as error:
            found[name] = error.errno
    for name, arguments in {
        "ptrace": (0, 0, 0, 0),
        "unshare": (0x10000000,),
        "mount": (b"none", b"/nowhere", b"tmpfs", 0, None),
        "chroot": (b"/",),
        "personality": (0xFFFFFFFF,),
    }.items():
        ctypes.set_errno(0)
        assert getattr(libc, name)(*arguments) == -1, name
        found[name] = ctypes.get_errno()
    return found

def other():
    begun.set()
    entered.wait(10)
    outcomes.append(attempts())

thread = threading.Thread(target=other)
thread.start()
begun.wait(10)
sandbox.enter()
entered.set()
thread.join()
outcomes.append(attempts())
for found in outcomes:
    assert len(found) == 7 and set(found.values()) == {errno.EPERM}, outcomes
assert os.getpid() and os.stat("/")
threading.Thread(target=os.getpid).start()
print("held")
"""


def test_denied_calls_fail_in_every_thread() -> None:
    """Also in those that were there before."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", DENIED], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert done.stdout == "held\n", done.stderr


def test_the_same_calls_are_denied_on_all_machines() -> None:
    first, second = (set(machine.denied) for machine in sandbox.MACHINES.values())
    # What AArch64 never had: calls of x86 alone, and older forms.
    assert first - second == {"iopl", "ioperm", "modify_ldt", "mknod"}
    assert second <= first


def test_a_server_in_the_sandbox_serves(tmp_path: Path) -> None:
    """Over TCP and SMB Direct, with flushes, streams, locks and persistent opens; all its threads are in it."""
    (tmp_path / "share").mkdir()
    file = tmp_path / "server.toml"
    file.touch(0o600)
    file.write_text(
        '[server]\nsandbox = true\nrdma = "iwarp"\nrdma_port = 0\n'
        f'[[share]]\nname = "data"\npath = "{tmp_path / "share"}"\n{own_user.LINE}continuous_availability = true\n'
        '[[user]]\nname = "u"\npassword = "pw"\n'
    )
    with served(tmp_path, "--config", str(file)) as server:

        async def use() -> None:
            async with server.tree("u") as tree:
                for name in ("f", "f:stream"):
                    opened = await tree.create(name, READ_WRITE, CreateDisposition.CREATE)
                    await tree.write(opened, 0, b"x" * 100_000)
                    await tree.flush(opened)
                    assert bytes(await tree.read(opened, 0, 100_000)) == b"x" * 100_000
                    await tree.close(opened)
            client = await Client.connect(await open_rdma(IwarpProvider(), "127.0.0.1", server.port))
            tree = await (await client.log_on("u", "pw")).tree_connect("data")
            opened = await tree.create("f", READ_WRITE, CreateDisposition.OPEN)
            rdma = client.transport.rdma
            assert rdma is not None
            memory = bytearray(100_000)
            sink = rdma.register(memoryview(memory), writable=True)
            assert await tree.read_into(opened, 0, sink.descriptors, 100_000) == 100_000
            assert memory == b"x" * 100_000
            await client.close()

        asyncio.run(use())
        threads = server.threads()
        assert len(threads) > 1
        assert {status["Seccomp"] for status in threads} == {"2"}
        assert server.report()["sandbox"] is True


def test_a_machine_without_the_filter_does_not_pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    with pytest.raises(OSError, match="not known on vax"):
        sandbox.enter()


def test_programs_end_where_they_should() -> None:
    """Each jump leads to the refusal or to the next instruction."""
    for machine in sandbox.MACHINES.values():
        code = [sandbox._INSTRUCTION.unpack_from(part) for part in _parts(sandbox.program(machine))]
        last = len(code) - 1
        assert code[last][3] == 0x00050001 and code[last - 1][3] == 0x7FFF0000
        for index, (operation, if_true, if_false, _) in enumerate(code):
            if operation in (0x15, 0x35):
                assert {index + 1 + if_true, index + 1 + if_false} == {last, index + 1}


def _parts(code: bytes) -> list[bytes]:
    return [code[at : at + 8] for at in range(0, len(code), 8)]
