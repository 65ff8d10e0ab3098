"""Fifty reloads while clients work over TCP and SMB Direct: no request of theirs fails, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.client.protocol import Client, Tree, open_rdma, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.config.model import Config, ShareConfig
from smb3server.service.service import Service
from smb3server.state.share import Share
from smb3server.wire.create import CreateDisposition
from smbdirect.providers.iwarp import IwarpProvider
from tests.lab.services import port_of
from tests.lab.serving import serving
from tools.support import own_user

RELOADS = 50
USERS = "".join(f'[[user]]\nname = "{name}"\npassword = "pw"\n' for name in ("alice", "bob"))
KINDS = (Share, LocalBackend, Config, ShareConfig)


def text(folder: Path, number: int) -> str:
    """A configuration that differs from the one before, except for what the clients use."""
    shares = {"data": f'remark = "{number}"\nhide_dot_files = {"true" if number % 2 else "false"}\n'}
    if number % 2:
        shares["sometimes"] = ""
    shares[f"changing{number % 3}"] = "read_only = true\n"
    lines = [f"[limits]\nmax_opens = {100 + number}\n", USERS]
    if number % 3:
        lines.append('[[user]]\nname = "carol"\npassword = "pw"\n')
    for name, more in shares.items():
        (folder / name).mkdir(exist_ok=True)
        lines.append(f'[[share]]\nname = "{name}"\npath = "{folder / name}"\n{own_user.LINE}{more}')
    return "".join(lines)


@asynccontextmanager
async def tree_over(service: Service, rdma: bool, user: str) -> AsyncIterator[Tree]:
    if rdma:
        transport = await open_rdma(IwarpProvider(), "127.0.0.1", port_of(service, "iwarp", "127.0.0.1"))
    else:
        transport = await open_tcp("127.0.0.1", service.listeners[0].address[1])
    client = await Client.connect(transport)
    try:
        yield await (await client.log_on(user, "pw")).tree_connect("data")
    finally:
        await client.close()


async def work(service: Service, rdma: bool, user: str, number: int, done: asyncio.Event) -> int:
    """Open, write, read and close until ``done``. One file stays open all the time. Return the number of rounds."""
    rounds = 0
    async with tree_over(service, rdma, user) as tree:
        kept = await tree.create(f"kept{number}", READ_WRITE, CreateDisposition.OPEN_IF)
        while not done.is_set():
            content = bytes([rounds % 256]) * 70000
            file = await tree.create(f"file{number}", READ_WRITE, CreateDisposition.OVERWRITE_IF)
            for opened in (file, kept):
                await tree.write(opened, 0, content)
                assert await tree.read(opened, 0, len(content)) == content
            await tree.close(file)
            rounds += 1
    return rounds


async def smbclient(service: Service, folder: Path) -> tuple[int, str]:
    """Return the exit status and the output of a client that nobody here wrote."""
    (folder / "up").write_bytes(b"x" * 10000)
    commands = f"lcd {folder};" + "put up; get up down; ls;" * 60
    port = str(service.listeners[0].address[1])
    process = await asyncio.create_subprocess_exec(
        *("smbclient", "//127.0.0.1/data", "-p", port, "-U", "bob%pw", "-c", commands),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


def counts() -> Counter[str]:
    gc.collect()
    return Counter(type(entry).__name__ for entry in gc.get_objects() if isinstance(entry, KINDS))


@pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")
def test_reload_under_load(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "smb3server.toml"
        options = ("--rdma", "iwarp", "--rdma-port", "0")
        async with serving(tmp_path, text(tmp_path, 0), *options) as service:
            done = asyncio.Event()
            workers = [
                asyncio.create_task(work(service, rdma, user, number, done))
                for number, (rdma, user) in enumerate(
                    [(False, "alice"), (True, "alice"), (False, "bob"), (True, "bob")]
                )
            ]
            other = asyncio.create_task(smbclient(service, tmp_path))
            seen = []
            for number in range(1, RELOADS + 1):
                file.write_text(text(tmp_path, number))
                outcome = await service.reload()
                assert outcome.changes and not outcome.restart
                await asyncio.sleep(0.01)
                if number % 6 == 0:
                    # The configuration is of the same shape each time.
                    seen.append(counts())
            status, output = await other
            done.set()
            rounds = await asyncio.gather(*workers)
            assert status == 0 and "NT_STATUS" not in output
            assert all(rounds)
            assert all(found == seen[1] for found in seen[2:]), seen

    asyncio.run(main())
