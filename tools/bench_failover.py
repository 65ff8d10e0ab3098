"""``python -m tools.bench_failover``: how long clients wait when the owner of a service is killed.

An etcd, two nodes on loopback and simulated clients with real sockets, each with a persistent open, a lease, a lock
and writes under way. The owner is killed with SIGKILL; for every client the time to its first write acknowledged by the
other node is taken. Afterwards every acknowledged write must be in the files, and every other be whole or absent.
``--filled`` fills the store up to that many persistent opens first, as if their clients were there, too.

The clients share the machine with the server, so the numbers are an upper bound for a server that has it to itself.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from smb3server.buffers import BufferPool
from smb3server.client.persistent import PersistentFile, PersistentShare
from smb3server.client.transports import MAX_MESSAGE_SIZE
from smb3server.ha.etcd_store import EtcdStore
from smb3server.ha.records import key_of
from smb3server.ha.store import Put, StoreError
from smb3server.ha.store_url import parse_url
from smb3server.transports.tcp import TcpTransport
from smb3server.wire.oplock_break import LeaseState
from smbdirect.message_transport import MessageTransport

BLOCK = 4096
_RWH = int(LeaseState.READ | LeaseState.HANDLE | LeaseState.WRITE)
_USER, _PASSWORD = "bench", "bench"
_LOGONS_AT_ONCE = 32
_STATE = "smb3server/state/bench/"


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


class Setup:
    """Processes and files of one run."""

    def __init__(self, folder: Path, ttl: int) -> None:
        self.folder = folder
        self.share = folder / "share"
        self.share.mkdir()
        client, peer, *self.ports = free_ports(4)
        self.url = f"etcd://127.0.0.1:{client}"
        self.health = f"http://127.0.0.1:{client}/health"
        log = (folder / "etcd.log").open("wb")
        self.etcd = subprocess.Popen(
            ["etcd", "--data-dir", str(folder / "etcd"), "--name", "bench", "--listen-client-urls",
             f"http://127.0.0.1:{client}", "--advertise-client-urls", f"http://127.0.0.1:{client}",
             "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls",
             f"http://127.0.0.1:{peer}", "--initial-cluster", f"bench=http://127.0.0.1:{peer}", "--logger", "zap"],
            stdout=log, stderr=log,
        )  # fmt: skip
        log.close()
        self.nodes: list[subprocess.Popen[str]] = []
        self.ttl = ttl

    def start(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                with urllib.request.urlopen(self.health, timeout=1) as answer:
                    if b'"true"' in answer.read():
                        break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        for number, port in enumerate(self.ports):
            config = self.folder / f"node{number}.toml"
            config.write_text(
                f'[server]\nlisten = ["127.0.0.1"]\nport = {port}\nstate = "{self.folder / f"node{number}"}"\n'
                f'max_connections = 50000\nlog_level = "info"\n[cluster]\nttl = {self.ttl}\n'
                f'[[service]]\nname = "bench"\nnodes = ["node0", "node1"]\n'
                f'[[share]]\nname = "data"\npath = "{self.share}"\ncontinuous_availability = true\n'
                f'service = "bench"\n[[user]]\nname = "{_USER}"\npassword = "{_PASSWORD}"\n'
            )
            log = (self.folder / f"node{number}.log").open("w")
            process = subprocess.Popen(
                [sys.executable, "-m", "smb3server", "--config", str(config), "--cluster", self.url, "--node",
                 f"node{number}"],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
            log.close()
            self.nodes.append(process)
            for line in process.stdout or ():
                if line.startswith("ready"):
                    break

    def stop(self) -> None:
        self.etcd.kill()
        self.etcd.wait()
        for process in self.nodes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@dataclass(slots=True)
class SimulatedClient:
    number: int
    share: PersistentShare
    file: PersistentFile | None = None
    acknowledged: int = 0
    """Blocks."""
    resumed_at: float = 0.0
    killed_at: float = 0.0

    async def open(self) -> None:
        self.file = await self.share.open(f"c{self.number}", share=1, lease_state=_RWH, timeout=300)
        await self.file.lock(1 << 40, 1)

    async def write(self, stop: asyncio.Event, pause: float) -> None:
        while self.file is not None and not stop.is_set():
            data = (self.number << 32 | self.acknowledged).to_bytes(8, "little") * (BLOCK // 8)
            generation = self.share.generation
            await self.file.write(self.acknowledged * BLOCK, data)
            self.acknowledged += 1
            if self.killed_at and not self.resumed_at and self.share.generation != generation:
                self.resumed_at = time.monotonic()
            await asyncio.sleep(pause)


@dataclass(slots=True)
class Result:
    clients: int
    filled: int
    detection: float
    """Seconds from the kill to a service that is served again."""
    restored: int
    times: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def row(self) -> str:
        ordered = sorted(self.times)
        picks = [ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.9, 0.99)]
        return (
            f"{self.clients:8} {self.filled:8} {self.restored:9} {self.detection:9.2f} "
            + " ".join(f"{value:7.2f}" for value in (*picks, ordered[-1]))
            + f"  {'ok' if not self.errors else '; '.join(self.errors[:3])}"
        )


async def _open_from(source: str, port: int) -> MessageTransport:
    sock = socket.socket()
    sock.setblocking(False)
    try:
        sock.bind((source, 0))
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port)), 5.0)
    except BaseException:
        sock.close()
        raise
    return TcpTransport(sock, BufferPool(), MAX_MESSAGE_SIZE)


async def fill(setup: Setup, count: int) -> None:
    """Records like the first client's, of as many files and clients."""
    store = EtcdStore(parse_url(setup.url))
    try:
        (template, *_) = await store.scan(f"{_STATE}opens/")
        record: dict[str, Any] = json.loads(template.value)
        futures = []
        for number in range(count):
            name = f"filled{number}"
            path = setup.share / name
            more = {
                "id": secrets.randbits(62) | 1 << 62,
                "path": [name],
                "inode": path.stat().st_ino,
                "create_guid": os.urandom(16).hex(),
                "client_guid": os.urandom(16).hex(),
                "timeout": 300.0,
                "locks": base64.b64encode(b"").decode(),
            }
            value = {**record, **more}
            caching = list(value["caching"])
            caching[5], caching[6] = os.urandom(16).hex(), more["client_guid"]
            value["caching"] = caching
            futures.append(store.submit([Put(key_of(_STATE, value["id"]), json.dumps(value).encode())]))
            if len(futures) == 50:
                # Not so fast that the nodes cannot renew their leases beside it.
                await asyncio.gather(*futures)
                futures.clear()
                await asyncio.sleep(0.02)
        await asyncio.gather(*futures)
    finally:
        await store.close()


async def _serving(setup: Setup, node: int) -> int:
    """Wait until the node serves; how many opens it restored."""
    log = setup.folder / f"node{node}.log"
    while True:
        for line in log.read_text().splitlines():
            if "is served here" in line:
                return int(line.split("here, ")[1].split()[0])
        await asyncio.sleep(0.05)


async def run(setup: Setup, clients: int, filled: int, pause: float, limit: float) -> Result:
    await _serving(setup, 0)
    node = [0]
    at_once = asyncio.Semaphore(_LOGONS_AT_ONCE)

    async def connect(number: int) -> MessageTransport:
        """From many addresses: what a server takes from one is limited."""
        source = f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
        return await _open_from(source, setup.ports[node[0]])

    everybody = [
        SimulatedClient(number, PersistentShare(partial(connect, number), "data", _USER, _PASSWORD, limit))
        for number in range(clients)
    ]

    async def open_one(client: SimulatedClient) -> None:
        async with at_once:
            await client.open()

    await asyncio.gather(*(open_one(client) for client in everybody))
    if filled > clients:
        await fill(setup, filled - clients)
    stop = asyncio.Event()
    writers = [asyncio.ensure_future(client.write(stop, pause)) for client in everybody]
    await asyncio.sleep(1.0)
    early = "is served here" in (setup.folder / "node1.log").read_text()
    start = time.monotonic()
    for client in everybody:
        client.killed_at = start
    setup.nodes[0].send_signal(signal.SIGKILL)
    node[0] = 1
    restored = await _serving(setup, 1)
    result = Result(clients, max(filled, clients), time.monotonic() - start, restored)
    if early:
        result.errors.append("the machine was too busy to renew a lease: the service had moved before the kill")
    while any(not client.resumed_at for client in everybody) and time.monotonic() < start + limit:
        await asyncio.sleep(0.03)
    stop.set()
    outcomes = await asyncio.gather(*writers, return_exceptions=True)
    result.errors += [repr(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
    late = sum(not client.resumed_at for client in everybody)
    if late:
        result.errors.append(f"{late} clients not back after {limit:g} s")
    if result.errors:
        show_logs(setup)
    result.times = [(client.resumed_at or start + limit) - start for client in everybody]
    result.errors += [error for client in everybody if (error := check(setup, client))]
    for client in everybody:
        client.share.drop()
    return result


def show_logs(setup: Setup) -> None:
    """What the nodes said about their membership and services."""
    for number in range(len(setup.nodes)):
        for line in (setup.folder / f"node{number}.log").read_text().splitlines():
            if "smb3server.ha" in line:
                print(f"node{number}: {line}", file=sys.stderr)


def check(setup: Setup, client: SimulatedClient) -> str:
    """Acknowledged blocks are there, others whole or absent; empty if so."""
    content = (setup.share / f"c{client.number}").read_bytes()
    if len(content) < client.acknowledged * BLOCK or len(content) % BLOCK:
        return f"client {client.number}: {len(content)} bytes, {client.acknowledged} blocks acknowledged"
    for number in range(len(content) // BLOCK):
        wanted = (client.number << 32 | number).to_bytes(8, "little") * (BLOCK // 8)
        if content[number * BLOCK : (number + 1) * BLOCK] != wanted:
            return f"client {client.number}: block {number} is not what was written"
    return ""


def extrapolate(results: Sequence[Result], clients: int) -> float | None:
    """A straight line through the slowest clients' times; None for less than two sizes, or if nothing grew: then the
    sizes are too small to tell."""
    sizes = [float(result.clients) for result in results]
    if len(set(sizes)) < 2:
        return None
    slope, base = statistics.linear_regression(sizes, [max(result.times) for result in results])
    return base + slope * clients if slope > 0 else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_failover", description=__doc__)
    parser.add_argument("--clients", default="50,100,200", help="numbers of clients, one run each")
    parser.add_argument("--filled", type=int, default=0, help="persistent opens in the store")
    parser.add_argument("--ttl", type=int, default=4, help="seconds of the nodes' lease")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between a client's writes")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds to wait for all clients")
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    parser.add_argument(
        "--folder",
        default=memory,
        help="for everybody's files (default: in memory, so that etcd's "
        "and the nodes' fsyncs do not wait for each other on one disk)",
    )
    parser.add_argument("--target", type=int, default=20000, help="clients to extrapolate to")
    options = parser.parse_args(arguments)
    if shutil.which("etcd") is None:
        print("etcd is not installed (Debian: etcd-server)", file=sys.stderr)
        return 2
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    results = []
    print(" clients    opens  restored   service     50 %    90 %    99 %     all  (seconds after the kill)")
    for clients in map(int, options.clients.split(",")):
        with tempfile.TemporaryDirectory(prefix="failover-", dir=options.folder) as folder:
            setup = Setup(Path(folder), options.ttl)
            try:
                # Before there is a server that would notice every one of them.
                for number in range(options.filled):
                    (setup.share / f"filled{number}").touch()
                setup.start()
                result = asyncio.run(run(setup, clients, options.filled, options.pause, options.limit))
            except (StoreError, OSError) as error:
                print(f"{clients:8} failed: {error}")
                return 1
            finally:
                setup.stop()
        results.append(result)
        print(result.row(), flush=True)
    expected = extrapolate(results, options.target)
    if expected is not None:
        print(f"extrapolated to {options.target} clients: all are back after {expected:.1f} s")
    return 1 if any(result.errors for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
