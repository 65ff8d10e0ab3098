"""Read and write the memory of another process, without its help. No RDMA NIC, no root.

python examples/rdma_in_thirty_lines.py              both ends in this process
python examples/rdma_in_thirty_lines.py 4000         a server, which prints what it has
python examples/rdma_in_thirty_lines.py HOST 4000    a client of it
"""

import asyncio
import sys

from smbdirect import rdma

FABRIC = "iwarp"  # or "roce": RoCEv2 in user space


async def serve(port: int, ready: "asyncio.Future[int] | None" = None) -> None:
    memory = bytearray(b"what the server has".ljust(64, b"."))
    with rdma.domain(FABRIC) as domain:  # registered once, for all clients
        region = domain.register(memory, readable=True, writable=True)
        async with rdma.listen(FABRIC, "0.0.0.0" if ready is None else "127.0.0.1", port, domain=domain) as listener:
            if ready is not None:
                ready.set_result(listener.address[1])
            async for connection in listener:
                await connection.send(region.handle.pack())  # the control path: once
                await connection.receive()  # the client is done; the data path never came here
                print("the server has:", memory[:40].decode())
                if ready is not None:
                    return


async def use(host: str, port: int) -> None:
    async with rdma.connect(FABRIC, host, port) as connection:
        handle = rdma.Handle.unpack(await connection.receive())
        found = bytearray(19)
        await connection.read(handle, found)  # one-sided: the server's program does nothing
        print("the client read:", found.decode())
        await connection.write(handle[9:15], b"client")
        await connection.send(b"done")  # arrives after what was written before it


async def both() -> None:
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(0, ready))
    await use("127.0.0.1", await ready)
    await serving


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(use(sys.argv[1], int(sys.argv[2])))
    else:
        asyncio.run(serve(int(sys.argv[1])) if len(sys.argv) == 2 else both())
