"""The guest's requests to the host: files that the guest puts into the shared folder."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_SECONDS = 0.02


@contextlib.contextmanager
def answering(out: Path, pattern: str, answer: Callable[[Path], None]) -> Iterator[None]:
    """While the block runs, call ``answer`` with each file ``out/CASE/pattern`` on a thread, and remove the file."""
    end = threading.Event()

    def look() -> None:
        while not end.wait(POLL_SECONDS):
            for wish in out.glob(f"*/{pattern}"):
                answer(wish)
                wish.unlink()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
