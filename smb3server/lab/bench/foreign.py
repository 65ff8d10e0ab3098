"""``smb3server bench --against``: measure a server that runs already, on any machine, in a folder of one of its shares.

The folder is made for the run and removed after it. What the server spends cannot be seen from here: rates and times of
answers are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from smb3server.client.address import Address
from smb3server.client.connecting import connect
from smb3server.client.credentials import Login
from smb3server.client.share import Share, together
from smb3server.lab.bench import machine, page
from smb3server.lab.bench.cases import FILES, Case
from smb3server.lab.bench.client import Client, Target, build
from smb3server.lab.bench.errors import BenchError
from smb3server.lab.bench.figures import Sample

_AT_ONCE = 64
"""Files that are made at a time."""
_BLOCK = 16 << 20
"""Bytes of random data, which is written again and again: too much for what compresses data on its way."""


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _ipv4(address: Address) -> str:
    try:
        found = socket.getaddrinfo(address.host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise BenchError(f"{address.host}: {error.strerror}; the bench's client speaks IPv4") from None
    return str(found[0][4][0])


def _connected(address: Address, login: Login) -> contextlib.AbstractAsyncContextManager[Share]:
    root = Address(address.host, address.share, "", address.port)
    return connect(str(root), user=login.user, password=login.password, rdma="off")


async def _make(address: Address, login: Login, folder: str) -> None:
    async with _connected(address, login) as share:
        await share.mkdir(folder)


async def _furnish(address: Address, login: Login, folder: str, megabytes: int) -> None:
    async with _connected(address, login) as share:
        await share.mkdir(f"{folder}/dir10k")
        names = iter(range(FILES))
        while some := list(islice(names, _AT_ONCE)):
            await together(share.write_bytes(f"{folder}/dir10k/file-{number:05}.dat", b"") for number in some)
        block = memoryview(os.urandom(min(_BLOCK, megabytes << 20)))
        async with await share.open(f"{folder}/big.bin", "xb") as file:
            for at in range(0, megabytes << 20, len(block)):
                await file.write(block[: (megabytes << 20) - at])


async def _remove(address: Address, login: Login, folder: str) -> None:
    async with _connected(address, login) as share:
        await share.rmtree(folder, ignore_missing=True)


@contextlib.contextmanager
def furnished(address: Address, login: Login, megabytes: int) -> Iterator[Target]:
    """Make a folder of files below ``address`` during a ``with`` block, and yield the server as a target.

    Raises ``BenchError``, and what ``connect`` and the methods of ``Share`` raise.
    """
    if not login.user or login.kerberos or login.guest or login.domain:
        raise BenchError("the bench's client logs on as a user of the server, with a password")
    if not address.share:
        raise BenchError(f"{address}: no share; write smb://USER@HOST/SHARE")
    host = _ipv4(address)
    folder = "/".join(filter(None, (address.path, f"smb3server-bench-{secrets.token_hex(8)}")))
    _say(f"making {FILES:,} files and one of {megabytes} MiB in {folder}")
    asyncio.run(_make(address, login, folder))
    try:
        asyncio.run(_furnish(address, login, folder, megabytes))
        inside = folder.replace("/", "\\")
        yield Target(
            address.host,
            0,
            host,
            address.port,
            None,
            ("-f", rf"{inside}\big.bin", "-D", rf"{inside}\dir10k", "-M", inside + "\\"),
            share=address.share,
            user=login.user,
            password=login.password,
        )
    finally:
        _say(f"removing {folder}")
        asyncio.run(_remove(address, login, folder))


def run(client: Client, target: Target, cases: Sequence[Case], rounds: int) -> list[page.Row]:
    """Measure the cases on one server, round by round. A case that the server refuses is said and left out."""
    samples: dict[str, list[Sample]] = {case.name: [] for case in cases}
    for number in range(rounds):
        for case in cases:
            if case.name not in samples:
                continue
            _say(f"round {number + 1} of {rounds}: {case.name}")
            try:
                samples[case.name].append(client.measure(target, case))
            except BenchError as error:
                _say(f"left out: {error}")
                del samples[case.name]
    return [page.Row(case, samples[case.name], [], foreign=True) for case in cases if case.name in samples]


def measure(
    address: Address, login: Login, cases: Sequence[Case], rounds: int, seconds: float, megabytes: int
) -> tuple[dict[str, str], list[page.Row]]:
    """Do a whole run; return its circumstances and the rows of figures. Raises as ``furnished``, and ``BenchError`` if
    the server refused every case."""
    began = machine.Beginning.now()
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        program = build(Path(place))
        with furnished(address, login, megabytes) as target:
            rows = run(Client(program, seconds, megabytes, (), [os.getpid()]), target, cases, rounds)
    if not rows:
        raise BenchError(f"{address.host} refused every case")
    samples = [sample for row in rows for sample in row.samples]
    circumstances = machine.describe(
        began, f"{rounds} rounds of {seconds:g} s", f"{megabytes} MiB", {"Server": str(address)}, samples
    )
    return circumstances, rows
