"""Run a server while a block of a program runs: in its event loop, or on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Running(ABC):
    """Gives ``start`` and ``stop`` the statements ``async with`` and ``with``.

    ``async with`` runs the server in the event loop of the block. ``with`` runs it on a thread of its own, so that the
    block may block: then all other methods belong to that thread's event loop.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    """That of the thread, while there is one."""

    @abstractmethod
    async def start(self) -> None:
        """Start serving."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop serving, also after a start that failed."""

    async def __aenter__(self) -> Self:
        """Start. Raises as ``start``."""
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    def __enter__(self) -> Self:
        """Start on a thread of its own. Raises as ``start``."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="smb3server", daemon=True)
        self._thread.start()
        try:
            return asyncio.run_coroutine_threadsafe(self.__aenter__(), loop).result()
        except BaseException:
            self._end_thread(loop)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait for the end."""
        assert self._loop is not None
        try:
            asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result()
        finally:
            self._end_thread(self._loop)

    def _end_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        # The loop's own workers end first: no thread is left.
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()
        self._loop = None
