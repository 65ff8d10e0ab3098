"""Measure the throughput of the RoCEv2 provider between two processes on two loopback addresses.

    python -m tools.bench.roce [--size BYTES] [--seconds S] [--depth N] [--mtu BYTES] [--no-icrc] [--segmentation]

Each operation is that of a server for one READ (RDMA Write + Send) or one WRITE (RDMA Read). One GB is 1e9 bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
from multiprocessing.connection import Connection

from smb3server.process import output
from smbdirect.providers.base import Access, ConnectionRequest, Send
from smbdirect.providers.roce import RoceProvider
from tools.bench.iwarp import DESCRIPTOR, Bench, Peer

SERVER = "127.0.0.2"


def provider(options: argparse.Namespace) -> RoceProvider:
    """Make the provider that the options describe."""
    segmentation = True if options.segmentation else None
    return RoceProvider(options.udp_port, not options.no_icrc, max_mtu=options.mtu, segmentation=segmentation)


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


async def bench(options: argparse.Namespace) -> tuple[dict[str, float], dict[str, int], dict[str, int]]:
    """Return the bytes per second of each kind, and both ends' counters."""
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
    results = {kind: await measured.measure(kind) for kind in ("write", "read")}
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
    parser.add_argument("--no-icrc", action="store_true", help="do not check received ICRCs")
    parser.add_argument("--segmentation", action="store_true", help="UDP_SEGMENT batches on loopback, too")
    options = parser.parse_args()
    results, ours, theirs = asyncio.run(bench(options))
    print(f"RDMA Write + Send   {results['write'] / 1e9:6.2f} GB/s")
    print(f"RDMA Read           {results['read'] / 1e9:6.2f} GB/s")
    for name, counters in (("server", ours), ("client", theirs)):
        notable = ("retransmissions", "timeouts", "duplicates", "naks_sent", "crc_errors")
        print(name, {key: counters[key] for key in notable})


if __name__ == "__main__":
    sys.exit(output.run(main))
