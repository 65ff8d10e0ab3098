"""Every share on slow storage, whatever it lies on, if the environment has ``SLOW_SHARES=1``.

    SLOW_SHARES=1 python -m pytest tests/smb3server/dispatch

What differs then from a plain run is a fault of the product, or a test that takes an order for granted which no client
may (docs/slow-storage.md). Shares with ``slow_storage = false`` are left alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "SLOW_SHARES"
_SITE = Path(__file__).parent / "slow_site"
"""Python imports ``sitecustomize`` out of it at its start."""

_LANES = "the lanes for small and frequent requests, whose use it asserts, are not used"
_CACHE = "data is not sent out of the page cache, nor received into it"
_ORDER = "requests of one connection may be answered in any order, and others go on meanwhile"
_CLOSES = "files are closed a moment after their client has gone"
NOT_THE_SAME = {
    "dispatch/test_fast_lane.py": _LANES,
    "dispatch/test_fast_lane_rdma.py": _LANES,
    "dispatch/test_look_lane.py": _LANES,
    "dispatch/test_create_lane.py": _LANES,
    "dispatch/test_write_rows.py": _LANES,
    "commands/test_payload_writes.py": _CACHE,
    "commands/test_file_replies.py::test_large_reads_come_out_of_the_page_cache": _CACHE,
    "commands/test_file_replies.py::test_what_is_not_in_memory_is_read_by_a_worker": _CACHE,
    "commands/test_file_replies.py::test_a_read_that_is_overtaken_by_a_write_may_show_it": _CACHE,
    "commands/test_file_replies.py::test_close_leaves_what_is_being_sent": _CACHE,
    "commands/test_file_replies.py::test_a_lost_connection_lets_go_of_the_file": _CACHE,
    "commands/test_rdma_descriptors.py::"
    "test_a_completion_that_fails_ends_the_request[write_from-_failing_plain_write]": _LANES,
    "commands/fsctl/test_one_sided.py": "files are not lent",
    "commands/apple/test_streams_by_rdma.py": _CLOSES,
    "dispatch/test_compressed_messages.py::test_writes_and_reads": _ORDER,
    "dispatch/test_waiting.py::test_a_create_that_may_not_wait_leaves_no_open": "a TREE_CONNECT has to wait, too",
    "dispatch/test_host_failures.py::": "a slow share asks its store through handles of its own, which do not fail",
    "dispatch/test_waiting.py::test_padded_reads": "smbtorture's FSCTL pads what is answered at once",
    "files/test_locks.py::test_a_great_many_locks_take_no_great_time": "each request takes two switches of threads",
}
"""Which tests cannot hold on slow storage, by the beginning of their names below tests/smb3server, and why."""


def wanted() -> bool:
    return os.environ.get(VARIABLE) == "1"


INTERIM_DELAY = 0.5 if wanted() else 0.02
"""Seconds until the interim reply in servers of tests. A request that waits for its turn gets one as well."""


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

    LocalBackend.may_answer_late = lambda store: True  # type: ignore[assignment, method-assign]
    Share.__post_init__ = post_init  # type: ignore[assignment, method-assign]


def leave_out(items: list[pytest.Item]) -> None:
    """Skip the tests that cannot hold."""
    for item in items:
        name = item.nodeid.removeprefix("tests/smb3server/")
        for beginning, why in NOT_THE_SAME.items():
            if name.startswith(beginning):
                item.add_marker(pytest.mark.skip(reason=why))
