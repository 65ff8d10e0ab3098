"""``python -m tools.soak.server FOLDER``: a server that says, for each line of its input, what it holds."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import sys
import threading
from collections import Counter
from pathlib import Path

from smb3server import commands
from smb3server.auth.users import Account, nt_hash
from smb3server.config.model import Config, ShareConfig
from smb3server.process import output
from smb3server.service.service import Service
from smb3server.settings.server import Settings
from tools.soak.limits import raise_descriptor_limit
from tools.support import own_user

USER, BAD_USER, PASSWORD, SHARE = "good", "bad", "pw", "share"
"""Bad clients are another user: they shall not use up what good ones may have."""
KINDS = (
    "Connection", "Session", "Open", "TreeConnect", "File", "TcpTransport", "SmbDirectTransport", "IwarpEndpoint",
    "Region", "Dispatcher", "Chain", "Pending", "Lease", "Oplock", "Lock", "Waiter", "Watcher",
)  # fmt: skip
"""Classes whose living objects are counted."""


def _memory() -> dict[str, int]:
    """Return resident and proportional memory in KiB. [proc(5), smaps_rollup]"""
    text = Path("/proc/self/smaps_rollup").read_text()
    return {key: int(value) for key, value in re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.MULTILINE)}


def holds(service: Service) -> dict[str, int]:
    """Return what there is: numbers by name."""
    gc.collect()
    server = service.server
    alive = Counter(type(found).__name__ for found in gc.get_objects())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "connection_list": len(server.connection_list),
        "sessions": len(server.sessions.by_id),
        "opens": len(server.opens.by_id),
        "files": len(server.file_table),
        "buffers lent": server.buffers.lent,
        "unauthenticated bytes": server.buffers.unauthenticated.taken,
        **{kind: alive[kind] for kind in KINDS},
        **_memory(),
    }


async def _serve(folder: Path) -> None:
    commands.load()
    settings = Settings(
        negotiate_timeout=5.0, authentication_timeout=45.0, watchdog=1.0, max_unauthenticated_per_address=4096
    )
    config = Config(
        shares=[ShareConfig(SHARE, folder, force_user=own_user.CREDENTIALS)],
        accounts=[Account(name, nt_hash(PASSWORD)) for name in (USER, BAD_USER)],
        settings=settings,
        listen=["127.0.0.1"],
        port=0,
        rdma="iwarp",
        rdma_port=0,
    )
    settings.max_user_share = 1.0
    settings.max_sessions_per_user = 1 << 20
    service = Service(config)
    await service.start()
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    ports = [service.listeners[0].address[1], service.fabrics.listeners[0][1].address[1]]
    print(json.dumps(ports), flush=True)
    while await lines.get():
        print(json.dumps(holds(service)), flush=True)
    await service.stop()


def main() -> None:
    """Serve until the input ends."""
    raise_descriptor_limit()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(Path(sys.argv[1])))
    else:
        uvloop.run(_serve(Path(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(output.run(main))
