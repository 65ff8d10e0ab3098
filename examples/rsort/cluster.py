"""The workers: processes on this machine, or a dask cluster that somebody has started."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import distributed
from distributed.client import AllExit

EXAMPLES = Path(__file__).resolve().parents[1]
ANSWER_WITHIN = 10.0
"""Seconds in which a scheduler must answer."""
_dask: Any = distributed


@contextmanager
def local_cluster(workers: int) -> Iterator[Any]:
    """Start ``workers`` processes on this machine, and yield a client of dask. They end with the block, and with this
    process."""
    # The workers import this package.
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(EXAMPLES), before)))
    # Ctrl-C is for this process, which ends them.
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rsort-"))
            stack.enter_context(dask.config.set(temporary_directory=folder))
            cluster = stack.enter_context(
                _dask.LocalCluster(
                    n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
                )
            )
            client = stack.enter_context(_dask.Client(cluster))
            signal.signal(signal.SIGINT, interrupted)
            _quiet()
            yield client
    finally:
        signal.signal(signal.SIGINT, interrupted)
        os.environ["PYTHONPATH"] = before


@contextmanager
def at_scheduler(address: str) -> Iterator[Any]:
    """Yield a client of a cluster whose scheduler is at ``tcp://HOST:8786``. Its workers need this project and its
    folder ``examples`` in PYTHONPATH. Raise ``OSError`` if nobody answers, ``ImportError`` if a worker lacks them."""
    with _dask.Client(address, timeout=ANSWER_WITHIN) as client:
        _quiet()
        lacks = [worker for worker, has in client.run(_has_rsort).items() if not has]
        if lacks:
            raise ImportError(
                f"worker {lacks[0]} has no module rsort: start it with PYTHONPATH={EXAMPLES.parent}:{EXAMPLES}"
            )
        yield client


def _quiet() -> None:
    """Let dask say nothing of workers that die: what becomes of the sort is reported."""
    for name in tuple(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for what dask's loop raises when the program was interrupted while it waited for tasks."""
    return not (record.exc_info and isinstance(record.exc_info[1], AllExit))


def _has_rsort() -> bool:
    return importlib.util.find_spec("rsort") is not None and importlib.util.find_spec("smbdirect") is not None
