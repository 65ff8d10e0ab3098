"""One RoCEv2 connection between two processes on two loopback addresses. ``fabrics`` is the command.

The operations are those of ``iwarp``.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from typing import NamedTuple

from smbdirect.providers.base import Access, ConnectionRequest, Send
from smbdirect.providers.roce import RoceProvider
from tools.bench.iwarp import DESCRIPTOR, Bench, Meter, Peer, Result

SERVER = "127.0.0.2"
_TROUBLE = ("retransmissions", "timeouts", "duplicates", "naks_sent", "crc_errors")


class Setting(NamedTuple):
    """How the two ends are made."""

    udp_port: int
    mtu: int
    segmentation: bool

    def provider(self) -> RoceProvider:
        return RoceProvider(self.udp_port, max_mtu=self.mtu, segmentation=self.segmentation)


def peer_process(pipe: Connection, size: int, setting: Setting) -> None:
    """Run the client's process."""

    async def main() -> None:
        peer = Peer(size)
        endpoint = await setting.provider().connect(SERVER, pipe.recv(), peer.prepare)
        region = endpoint.register(peer.memory, Access.REMOTE_READ | Access.REMOTE_WRITE)
        endpoint.post([Send([DESCRIPTOR.pack(region.address, region.token, region.length)])])
        await peer.closed.wait()
        pipe.send(endpoint.counters)

    asyncio.run(main())


async def bench_roce(
    size: int, seconds: float, depth: int, setting: Setting, placed: str = ""
) -> tuple[dict[str, Result], int]:
    """Measure each kind of operation. Return the results, and how often packets were lost, late or damaged."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=peer_process, args=(theirs, size, setting), daemon=True)
    process.start()
    bench = Bench(size, seconds, depth)
    tasks: list[asyncio.Task[None]] = []

    def on_request(request: ConnectionRequest) -> None:
        bench.prepare(request.prepare())
        tasks.append(asyncio.ensure_future(request.accept()))

    listener = await setting.provider().listen(SERVER, 0, on_request)
    ours.send(listener.address[1])
    await bench.ready
    results = {}
    for kind in ("write", "read"):
        meter = Meter(process.pid or 0, placed)
        rate = await bench.measure(kind)
        results[kind] = meter.result(rate, bench.operations)
    bench.endpoint.disconnect()
    counters = await asyncio.to_thread(ours.recv)
    await listener.close()
    process.join()
    return results, sum(end[name] for end in (counters, bench.endpoint.counters) for name in _TROUBLE)
