"""Measure the throughput of the RoCEv2 provider between two processes on two loopback addresses.

    python -m tools.bench.roce [--size BYTES] [--seconds S] [--depth N] [--mtu BYTES] [--no-segmentation]

Each operation is that of a server for one READ (RDMA Write + Send) or one WRITE (RDMA Read). One GB is 1e9 bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from smb3server.process import output
from smbdirect.providers.base import Access, ConnectionRequest, Send
from smbdirect.providers.roce import RoceProvider
from tools.bench.iwarp import DESCRIPTOR, Bench, Peer

SERVER = "127.0.0.2"


def provider(options: argparse.Namespace) -> RoceProvider:
    """Make the provider that the options describe."""
    return RoceProvider(options.udp_port, max_mtu=options.mtu, segmentation=not options.no_segmentation)


def peer_process(pipe: Connection, options: argparse.Namespace) -> None:
    """Run the client's process."""

    async def main() -> None:
        peer = Peer(options.size)
        endpoint = await provider(options).connect(SERVER, pipe.recv(), peer.prepare)
        region = endpoint.register(peer.memory, Access.REMOTE_READ | Access.REMOTE_WRITE)
        endpoint.post([Send([DESCRIPTOR.pack(region.address, region.token, region.length)])])
        await peer.closed.wait()
        pipe.send(endpoint.counters)

    asyncio.run(main())


def processor_time(process: int) -> float:
    """Return the processor time in seconds that the threads of ``process`` have used."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Result(NamedTuple):
    """What one kind of operation reached."""

    rate: float
    """Bytes per second."""
    server: float
    """Processor time of the server for one operation, in seconds."""
    client: float
    """That of the client."""


async def measure(kind: str, bench: Bench, client: int) -> Result:
    """Measure one kind of operation. ``client`` is the other process."""
    before = processor_time(os.getpid()), processor_time(client)
    rate = await bench.measure(kind)
    after = processor_time(os.getpid()), processor_time(client)
    server_time, client_time = ((after[side] - before[side]) / bench.operations for side in (0, 1))
    return Result(rate, server_time, client_time)


async def bench(options: argparse.Namespace) -> tuple[dict[str, Result], dict[str, int], dict[str, int]]:
    """Return the result of each kind, and both ends' counters."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=peer_process, args=(theirs, options), daemon=True)
    process.start()
    measured = Bench(options.size, options.seconds, options.depth)
    tasks: list[asyncio.Task[None]] = []

    def on_request(request: ConnectionRequest) -> None:
        measured.prepare(request.prepare())
        tasks.append(asyncio.ensure_future(request.accept()))

    listener = await provider(options).listen(SERVER, 0, on_request)
    ours.send(listener.address[1])
    await measured.ready
    assert process.pid is not None
    results = {kind: await measure(kind, measured, process.pid) for kind in ("write", "read")}
    measured.endpoint.disconnect()
    counters = await asyncio.to_thread(ours.recv)
    await listener.close()
    process.join()
    return results, dict(measured.endpoint.counters), counters


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.roce", description=__doc__)
    parser.add_argument("--size", type=int, default=512 * 1024)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--mtu", type=int, default=4096)
    parser.add_argument("--udp-port", type=int, default=14791)
    parser.add_argument("--no-segmentation", action="store_true", help="send packets one by one")
    options = parser.parse_args()
    results, ours, theirs = asyncio.run(bench(options))
    for name, kind in (("RDMA Write + Send", "write"), ("RDMA Read", "read")):
        result = results[kind]
        times = f"server {result.server * 1e6:.0f} us, client {result.client * 1e6:.0f} us"
        print(f"{name:19} {result.rate / 1e9:6.2f} GB/s, processor time per operation: {times}")
    for name, counters in (("server", ours), ("client", theirs)):
        notable = ("retransmissions", "timeouts", "duplicates", "naks_sent", "crc_errors")
        print(name, {key: counters[key] for key in notable})


if __name__ == "__main__":
    sys.exit(output.run(main))
