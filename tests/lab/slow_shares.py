"""Every share on slow storage, whatever it lies on, if the environment has ``SLOW_SHARES=1``.

    SLOW_SHARES=1 python -m pytest tests/smb3server/dispatch

What differs then from a plain run is a fault of the product, or a test that takes an order for granted which no client
may (docs/slow-storage.md). Shares with ``slow_storage = false`` are left alone.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "SLOW_SHARES"
_SITE = Path(__file__).parent / "slow_site"
"""Python imports ``sitecustomize`` out of it at its start."""


def wanted() -> bool:
    return os.environ.get(VARIABLE) == "1"


def python_path(*folders: Path) -> str:
    """Return PYTHONPATH for a server that is a process of its own."""
    return os.pathsep.join(str(folder) for folder in ((_SITE, *folders) if wanted() else folders))


def force() -> None:
    """Make the shares of this process slow."""
    from smb3server.backends.local.backend import LocalBackend
    from smb3server.backends.slow_store import make_slow
    from smb3server.process.storage_queue import StorageQueue
    from smb3server.state.share import Share

    made = Share.__post_init__

    def post_init(share: Share) -> None:
        """Shares that a test makes without a service have their stores made slow here."""
        store = share.backend
        if store is not None and store.queue is None and getattr(share.rules, "slow_storage", "auto") is not False:
            make_slow(store, StorageQueue(f"share {share.name}"))
        made(share)

    LocalBackend.may_answer_late = lambda store: True  # type: ignore[method-assign]
    Share.__post_init__ = post_init  # type: ignore[method-assign]
