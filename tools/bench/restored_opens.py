"""Measure the memory of restored persistent opens while their clients are away.

``python -m tools.bench.restored_opens [OPENS]`` stores records of so many opens, each with its own file and lease,
restores them into a new server, and prints the bytes per open: of Python objects (tracemalloc), and of the process
(resident set), which grows in steps.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tempfile
import tracemalloc
from pathlib import Path

from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.backends.local.backend import LocalBackend
from smb3server.persistence.journal import Domain, Persistence
from smb3server.persistence.records import key_of
from smb3server.persistence.restore import restore
from smb3server.persistence.sqlite import SqliteStore
from smb3server.persistence.store import Put
from smb3server.process import output
from smb3server.settings.share import ShareRules
from smb3server.state.server_state import ServerState
from smb3server.state.share import Share

OPENS = 10_000
_BATCH = 100
_PAGE = 4096


def _record(number: int, path: Path) -> bytes:
    """Return the record of an open for reading and writing, with a lease of the strongest kind."""
    lease = [7, False, 0, 0, 0, f"{number:032x}", f"{number % 100:032x}", 2, 1, ""]
    return json.dumps(
        {
            "format": 2, "id": number, "share": "data", "path": [path.name], "stream": "",
            "inode": path.stat().st_ino, "directory": False, "create_guid": f"{number:032x}",
            "client_guid": f"{number % 100:032x}", "identity": ["user", "", False, False], "timeout": 300.0,
            "access": [0x0012019F, 0x001F01FF, 7], "options": 0, "action": 1, "delete": [False, False],
            "caching": lease, "locks": "", "sequences": [], "app": None, "app_version": None,
        }
    ).encode()  # fmt: skip


def _resident() -> int:
    """Return the resident bytes of the process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


async def _is_there(share: Share) -> bool:
    return True


async def measure(folder: Path, count: int, traced: bool) -> float:
    """Return the bytes that one of ``count`` restored opens uses.

    With ``traced`` they are those of Python objects; tracing itself uses memory. Otherwise they are those of the
    process.
    """
    share = Share("data", backend=LocalBackend(folder), rules=ShareRules(continuous_availability=True))
    store = await SqliteStore.open(folder.parent / "store.db")
    paths = [folder / f"file{number}" for number in range(1, count + 1)]
    for start in range(0, count, _BATCH):
        batch: list[Put] = []
        for number, path in enumerate(paths[start : start + _BATCH], start + 1):
            path.touch()
            batch.append(Put(key_of("", number), _record(number, path)))
        await store.commit(batch)
    del paths, batch
    users = UserDatabase()
    users.add(Account("user", nt_hash("password")))
    server = ServerState(users=users)
    server.add_share(share)
    persistence = server.opens.persistence = Persistence()
    domain = Domain(store, "")
    persistence.serve(domain, [share])
    gc.collect()
    if traced:
        tracemalloc.start()
    before = _resident()
    restored = await restore(server, domain, [share], is_there=_is_there)
    # The store's thread keeps its last answer until the next one; here it would be all records.
    await store.version()
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] if traced else _resident() - before
    tracemalloc.stop()
    if restored != count:
        raise RuntimeError(f"{restored} of {count} opens were restored")
    for opened in list(server.opens.by_id.values()):
        server.opens.abandon(opened)
    await store.close()
    return taken / count


def main() -> int:
    """Print the figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else OPENS
    with tempfile.TemporaryDirectory() as folder:
        taken: list[float] = []
        for name, traced in (("process", False), ("objects", True)):
            place = Path(folder) / name / "share"
            place.mkdir(parents=True)
            taken.append(asyncio.run(measure(place, count, traced)))
    print(f"{count} restored opens: {taken[1]:.0f} bytes each in Python objects, {taken[0]:.0f} in the process")
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
