"""``python -m tools.bench.failover``: measure how long clients wait when the owner of a service is killed.

The bench runs an etcd, two nodes on loopback and simulated clients with real sockets (``tools.failover``). Each client
has a persistent open, a lease, a lock and writes in progress. The owner is killed with SIGKILL; for every client the
bench measures the time to its first write acknowledged by the other node. Afterwards every acknowledged write must be
in the files, and every other write must be whole or absent. ``--filled`` first fills the store up to that many
persistent opens, as if their clients existed, too.

Until the service is served again, clients' connections are refused, as by an unused address. With ``--impatient`` they
connect to the other node immediately, and are turned away at their tree connect.

The clients share the machine with the server. Therefore there are two extrapolations: a straight line of the times, and
one of the server's own processor time per client, for a server with a processor to itself.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import resource
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from smb3server import cluster
from smb3server.cli.cluster.admin import make_secret
from smb3server.net.store_access import StoreAccess
from smb3server.persistence.etcd import open_store
from smb3server.persistence.records import key_of
from smb3server.persistence.store import Put, StoreError
from smb3server.process import output
from smb3server.settings.cluster import DEFAULT_NAME
from tools.failover.client import Step, percentiles
from tools.failover.crowd import Options, Outcome, work
from tools.support import own_user
from tools.support.ports import free_port, free_ports

_USER, _PASSWORD = "bench", "bench"
_STATE = "smb3server/state/bench/"
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_ANSWER_TIMEOUT = 300.0
"""Seconds that a process of clients may take for an answer; on a busy machine its clients come first."""
_LONG = 4.0
"""Seconds beyond the ttl from which a takeover counts as slow, and the logs are worth reading."""


class Setup:
    """The processes and files of one run."""

    def __init__(self, folder: Path, ttl: int, connections: int, pinned: bool = False) -> None:
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
        self.access = StoreAccess(secret_file=folder / "cluster.secret")
        make_secret(folder / "cluster.secret")
        self.ttl = ttl
        self.pinned = pinned
        self.connections = connections
        """Largest number of connections of a node; it keeps descriptors free for them."""

    def start(self) -> None:
        """Start etcd and both nodes."""
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
            config.touch(0o600)
            config.write_text(
                f'[server]\nlisten = ["127.0.0.1"]\nport = {port}\nstate = "{self.folder / f"node{number}"}"\n'
                f'log_level = "info"\n[limits]\nmax_connections = {self.connections}\n'
                # One user has all of them.
                f"max_user_share = 1.0\nmax_sessions_per_user = {self.connections}\n"
                f"[cluster]\nttl = {self.ttl}\n"
                f'secret_file = "{self.access.secret_file}"\n'
                f'[[service]]\nname = "bench"\nnodes = ["node0", "node1"]\n'
                f'[[share]]\nname = "data"\npath = "{self.share}"\n{own_user.LINE}continuous_availability = true\n'
                f'service = "bench"\n[[user]]\nname = "{_USER}"\npassword = "{_PASSWORD}"\n'
            )
            log = (self.folder / f"node{number}.log").open("w")
            process = subprocess.Popen(
                [sys.executable, "-m", "smb3server", "--config", str(config), "--cluster", self.url, "--node",
                 f"node{number}"],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
            log.close()
            if self.pinned:
                os.sched_setaffinity(process.pid, set(range(1, os.cpu_count() or 1)))
            self.nodes.append(process)
            for line in process.stdout or ():
                if line.startswith("ready"):
                    break
            else:
                raise OSError((self.folder / f"node{number}.log").read_text()[-500:])

    def stop(self) -> None:
        """Stop all processes."""
        self.etcd.kill()
        self.etcd.wait()
        for process in self.nodes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def processor_seconds(pid: int) -> float:
    """Return the user and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


@dataclass(slots=True)
class Result:
    """The figures of one run."""

    clients: int
    filled: int
    service: float
    """Seconds from the kill until the service is served again."""
    restored: int
    restoring: float = 0.0
    """Processor seconds of the new owner, from the kill until it served."""
    serving: float = 0.0
    """Processor seconds of the new owner, from then until the last client was back."""
    crowds: float = 0.0
    """Processor seconds of the clients."""
    times: list[float] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    @property
    def per_client(self) -> float:
        """Processor seconds of the server per client."""
        return self.serving / self.clients

    def row(self) -> str:
        """Return the result as a line of the table."""
        return (
            f"{self.clients:8} {self.filled:7} {self.restored:8} {self.service:8.2f} "
            + " ".join(f"{value:7.2f}" for value in percentiles(self.times))
            + f" {self.restoring:9.2f} {self.per_client * 1000:10.2f} {self.crowds / self.clients * 1000:10.2f}"
            + f"  {'ok' if not self.errors else '; '.join(self.errors[:3])}"
        )


class Crowds:
    """The processes that contain the clients."""

    def __init__(self, setup: Setup, clients: int, processes: int, pause: float, processor: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for index in range(processes):
            first, last = clients * index // processes, clients * (index + 1) // processes
            address = ("127.0.0.1", setup.ports[0])
            folder = str(setup.share)
            options = Options(first, last - first, address, "data", folder, _USER, _PASSWORD, pause, processor, index)
            here, there = context.Pipe()
            process = context.Process(target=work, args=(options, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def wait_open(self) -> None:
        """Wait until every client has its file and its lock."""
        for pipe in self._pipes:
            self._receive(pipe)

    def tell(self, order: str, value: object = None) -> None:
        """Send an order to every crowd."""
        for pipe in self._pipes:
            pipe.send((order, value))

    def back(self) -> int:
        """Return the number of clients with a write acknowledged by the new owner."""
        self.tell("back")
        return sum(self._receive(pipe) for pipe in self._pipes)

    def outcome(self) -> Outcome:
        """Collect the outcomes of all crowds."""
        self.tell("stop")
        total = Outcome()
        for pipe in self._pipes:
            part: Outcome = self._receive(pipe)
            total.resumed_at += part.resumed_at
            total.acknowledged += part.acknowledged
            total.errors += part.errors
            total.refusals += part.refusals
            total.processor_seconds += part.processor_seconds
        return total

    @staticmethod
    def _receive(pipe: Connection) -> Any:
        if not pipe.poll(_ANSWER_TIMEOUT):
            raise OSError("a process of clients does not answer")
        try:
            return pipe.recv()
        except EOFError:
            raise OSError("a process of clients is gone") from None

    def close(self) -> None:
        """End the processes of clients."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()


async def fill(setup: Setup, count: int) -> None:
    """Store records like the first client's, for ``count`` files and clients."""
    store = open_store(setup.url, DEFAULT_NAME, setup.access)
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
                # Slow enough that the nodes can renew their leases in the meantime.
                await asyncio.gather(*futures)
                futures.clear()
                await asyncio.sleep(0.02)
        await asyncio.gather(*futures)
    finally:
        await store.close()


def _serving(setup: Setup, node: int, limit: float) -> int:
    """Wait until the node serves, and return how many opens it restored."""
    log = setup.folder / f"node{node}.log"
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if "is served here" in line:
                return int(line.split("here, ")[1].split()[0])
        time.sleep(0.02)
    raise OSError(f"node{node} does not serve")


STEPS = {
    Step.CONNECT: "connection",
    Step.NEGOTIATE: "NEGOTIATE",
    Step.CHALLENGE: "SESSION_SETUP, challenge",
    Step.LOGON: "SESSION_SETUP, authentication",
    Step.TREE: "TREE_CONNECT",
    Step.OPEN: "CREATE, persistent, of a new file",
    Step.LOCK: "LOCK",
}


def steps(clients: int, folder: Path) -> None:
    """Print the server's processor time for each step of a client's way to its first lock.

    It is the difference between servers whose clients went one step further each.
    """
    before = 0.0
    for last, name in STEPS.items():
        used = min(_until(last, clients, folder / f"{last.name}{attempt}") for attempt in range(3))
        print(f"{name:36} {(used - before) / clients * 1e6:7.0f} us")
        before = used
    print(f"{'all':36} {before / clients * 1e6:7.0f} us")


def _until(last: Step, clients: int, folder: Path) -> float:
    """Return the processor seconds of a fresh server for clients that stop after this step."""
    share = folder / "share"
    share.mkdir(parents=True)
    port = free_port()
    config = folder / "smb.toml"
    config.touch(0o600)
    config.write_text(
        f'[server]\nlisten = ["127.0.0.1"]\nport = {port}\nstate = "{folder / "state"}"\nlog_level = "warning"\n'
        f'[limits]\nmax_connections = 50000\n[[share]]\nname = "data"\npath = "{share}"\n{own_user.LINE}'
        f'continuous_availability = true\n[[user]]\nname = "{_USER}"\npassword = "{_PASSWORD}"\n'
    )
    with subprocess.Popen(
        [sys.executable, "-m", "smb3server", "--config", str(config)], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            if not any(line.startswith("ready") for line in server.stdout or ()):
                raise OSError("the server does not start")
            start = processor_seconds(server.pid)
            options = Options(0, clients, ("127.0.0.1", port), "data", str(share), _USER, _PASSWORD, 1.0, last=last)
            context = multiprocessing.get_context("spawn")
            here, there = context.Pipe()
            process = context.Process(target=work, args=(options, there), daemon=True)
            process.start()
            there.close()
            try:
                if not here.poll(_ANSWER_TIMEOUT):
                    raise OSError("clients do not come to an end")
                here.recv()
                return processor_seconds(server.pid) - start
            finally:
                process.kill()
                process.join()
                here.close()
        finally:
            server.kill()


@dataclass(slots=True)
class Plan:
    """The options of a run."""

    filled: int
    pause: float
    limit: float
    processes: int
    impatient: bool
    pinned: bool


def run(setup: Setup, clients: int, plan: Plan) -> Result:
    """Do one run and return its result."""
    _serving(setup, 0, plan.limit)
    crowds = Crowds(setup, clients, plan.processes, plan.pause, 0 if plan.pinned else None)
    try:
        return _run(setup, crowds, clients, plan)
    finally:
        crowds.close()


def _run(setup: Setup, crowds: Crowds, clients: int, plan: Plan) -> Result:
    crowds.wait_open()
    if plan.filled > clients:
        asyncio.run(fill(setup, plan.filled - clients))
    crowds.tell("write")
    time.sleep(1.0)
    early = "is served here" in (setup.folder / "node1.log").read_text()
    heir = setup.nodes[1].pid
    there = ("127.0.0.1", setup.ports[1])
    before, start = processor_seconds(heir), time.monotonic()
    setup.nodes[0].send_signal(signal.SIGKILL)
    if plan.impatient:
        crowds.tell("address", there)
    restored = _serving(setup, 1, plan.limit)
    served = processor_seconds(heir)
    result = Result(clients, max(plan.filled, clients), time.monotonic() - start, restored, served - before)
    if not plan.impatient:
        crowds.tell("address", there)
    if early:
        result.errors.append("the machine was too busy to renew a lease: the service had moved before the kill")
    back = 0
    while back < clients and time.monotonic() < start + plan.limit:
        time.sleep(0.1)
        result.serving = processor_seconds(heir) - served
        back = crowds.back()
    outcome = crowds.outcome()
    result.errors += outcome.errors
    result.refusals = outcome.refusals
    result.crowds = outcome.processor_seconds
    if back < clients:
        result.errors.append(f"{clients - back} clients not back after {plan.limit:g} s")
    if result.errors or result.service > setup.ttl + _LONG:
        show_logs(setup)
    result.times = [(at or start + plan.limit) - start for at in outcome.resumed_at]
    return result


def show_logs(setup: Setup) -> None:
    """Print the nodes' log lines about their membership and services."""
    for number in range(len(setup.nodes)):
        for line in (setup.folder / f"node{number}.log").read_text().splitlines():
            if cluster.__name__ in line:
                print(f"node{number}: {line}", file=sys.stderr)


def extrapolate(results: Sequence[Result], clients: int) -> float | None:
    """Extrapolate the slowest clients' times by a straight line, in seconds.

    Return None for fewer than two sizes, or if nothing grew: then the sizes are too small.
    """
    sizes = [float(result.clients) for result in results]
    if len(set(sizes)) < 2:
        return None
    slope, base = statistics.linear_regression(sizes, [max(result.times) for result in results])
    return base + slope * clients if slope > 0 else None


def by_processor(result: Result, clients: int, ttl: float) -> float:
    """Return the seconds until all clients are back at a server with a processor to itself and no idle time.

    The lease expires and etcd reports that, every open is restored, and every client is served.
    """
    detection = ttl + 1.0
    restoring = result.restoring / max(result.restored, 1) * clients
    return detection + restoring + result.per_client * clients


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.failover", description=__doc__)
    parser.add_argument("--clients", default="500,1000,2000", help="numbers of clients, one run each")
    parser.add_argument("--filled", type=int, default=0, help="persistent opens in the store")
    parser.add_argument("--ttl", type=int, default=4, help="seconds of the nodes' lease")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between a client's writes; 0: as many allow")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds to wait for all clients")
    parser.add_argument("--processes", type=int, default=2, help="processes of clients")
    parser.add_argument("--impatient", action="store_true", help="clients go to the other node before it serves")
    parser.add_argument("--pinned", action="store_true", help="clients on the first processor, nodes on the others")
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    parser.add_argument(
        "--folder",
        default=memory,
        help="for everybody's files (default: in memory, so that etcd's "
        "and the nodes' fsyncs do not wait for each other on one disk)",
    )
    parser.add_argument("--target", type=int, default=20000, help="clients to extrapolate to")
    parser.add_argument("--steps", type=int, default=0, metavar="CLIENTS", help="only what each step of a logon costs")
    options = parser.parse_args(arguments)
    if options.steps:
        with tempfile.TemporaryDirectory(prefix="failover-", dir=options.folder) as folder:
            steps(options.steps, Path(folder))
        return 0
    if shutil.which("etcd") is None:
        print("etcd is not installed (Debian: etcd-server)", file=sys.stderr)
        return 2
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    results = []
    print("seconds after the kill; then processor time: of the new owner until it serves (s) and for each client after")
    print("that (ms), and of a simulated client (ms)")
    print(" clients   opens restored  service    50 %    90 %    99 %     all restoring per client  simulated")
    for clients in map(int, options.clients.split(",")):
        # A server with tens of thousands of clients cannot process two writes of each client per second.
        pause = options.pause or max(0.5, clients / 500)
        plan = Plan(options.filled, pause, options.limit, options.processes, options.impatient, options.pinned)
        with tempfile.TemporaryDirectory(prefix="failover-", dir=options.folder) as folder:
            setup = Setup(Path(folder), options.ttl, clients + 500, options.pinned)
            try:
                # Done before there is a server that would be notified of every one of them.
                for number in range(options.filled):
                    (setup.share / f"filled{number}").touch()
                setup.start()
                result = run(setup, clients, plan)
            except (StoreError, OSError) as error:
                print(f"{clients:8} failed: {error}")
                show_logs(setup)
                return 1
            finally:
                setup.stop()
        results.append(result)
        print(result.row(), flush=True)
        print(f"{'':9}{dict(result.refusals.most_common(4))}", flush=True)
    expected = extrapolate(results, options.target)
    if expected is not None:
        print(f"extrapolated to {options.target} clients by a straight line of the times: {expected:.1f} s")
    alone = by_processor(results[-1], options.target, options.ttl)
    print(f"extrapolated to {options.target} clients by the server's processor time alone: {alone:.1f} s")
    return 1 if any(result.errors for result in results) else 0


if __name__ == "__main__":
    sys.exit(output.run(main))
