"""``python -m tools.kernel_lab.atomics serve|use FABRIC HOST``: atomic operations between two fabrics that meet on one
network, such as the kernel's rxe and RoCEv2 in user space. Each end checks what it can see."""

from __future__ import annotations

import asyncio
import sys

from smb3server.process import output
from smbdirect import rdma

PORT = 5000
ADDITIONS = 200
SWAPPED = 0x0123456789ABCDEF


async def serve(fabric: str, host: str) -> None:
    """Give a number to the client, and check it at the end."""
    memory = bytearray(24)
    async with rdma.listen(fabric, host, PORT) as listener:
        print("listening", flush=True)
        connection = await listener.accept()
        region = connection.register(memory, readable=True, atomic=True)
        await connection.send(region.handle.pack())
        await connection.receive()
    found = [int.from_bytes(memory[at : at + 8], sys.byteorder) for at in (0, 8, 16)]
    if found != [0, ADDITIONS, SWAPPED]:
        raise SystemExit(f"the memory has {found}")
    print("the number was changed as it should be")


async def use(fabric: str, host: str) -> None:
    """Change the server's numbers, and check what comes back."""
    async with rdma.connect(fabric, host, PORT) as connection:
        handle = rdma.Handle.unpack(await connection.receive())
        # Several at once: they are carried out in the order in which they were begun.
        found = await asyncio.gather(*(connection.fetch_and_add(handle, 1, 8) for _ in range(ADDITIONS)))
        if found != list(range(ADDITIONS)):
            raise SystemExit(f"additions found {found}")
        swaps = [(0, SWAPPED, 0), (1, 2, SWAPPED), (SWAPPED, SWAPPED, SWAPPED)]
        for expected, new, before in swaps:
            if (number := await connection.compare_and_swap(handle, expected, new, 16)) != before:
                raise SystemExit(f"compare-and-swap found {number:#x}, not {before:#x}")
        into = bytearray(24)
        await connection.read(handle, into)
        await connection.send(b"done")
        await connection.wait_closed()
    if int.from_bytes(into[8:16], sys.byteorder) != ADDITIONS:
        raise SystemExit("a read after the additions saw something else")
    print("every answer was right")


async def _run(what: str, fabric: str, host: str) -> None:
    async with asyncio.timeout(120):
        await (serve if what == "serve" else use)(fabric, host)


def main() -> int:
    """Run one end."""
    asyncio.run(_run(*sys.argv[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
