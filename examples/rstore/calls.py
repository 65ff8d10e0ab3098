"""The control path: requests and answers in JSON, over the messages of an RDMA connection. Both ends may ask."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from smbdirect import rdma

log = logging.getLogger(__name__)

MESSAGE_SIZE = 256 << 10
RECEIVES = 16
HEARTBEAT = 1.0
"""Seconds between two signs of life."""
PATIENCE = 3.0
"""Seconds without a sign after which the other end counts as dead."""

Answers = dict[str, Callable[..., Awaitable[Any]]]
"""What the other end may ask, by name."""


class StoreRefused(Exception):
    """The other end refused a request; ``kind`` says why: exists, gone, lost, full, bad."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Calls:
    """One control connection. ``run`` serves it until it ends."""

    def __init__(self, connection: rdma.Connection, answers: Answers) -> None:
        self.connection = connection
        self._answers = answers
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._heard = asyncio.get_running_loop().time()

    async def call(self, what: str, timeout: float = 30.0, **fields: Any) -> Any:
        """Ask the other end. Raise ``StoreRefused`` with its reason, ``rdma.ConnectionLost`` or ``TimeoutError``."""
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._send({"ask": what, "number": number, "fields": fields})
                return await future
        finally:
            self._waiting.pop(number, None)

    async def _send(self, message: dict[str, Any]) -> None:
        await self.connection.send(json.dumps(message).encode())

    async def run(self) -> None:
        """Serve the connection until it ends, or the other end shows no sign of life."""
        beating = asyncio.create_task(self._beat())
        try:
            while True:
                message = json.loads(await self.connection.receive())
                self._heard = asyncio.get_running_loop().time()
                if "ask" in message:
                    task = asyncio.create_task(self._answer(message))
                    self._serving.add(task)
                    task.add_done_callback(self._serving.discard)
                elif message.get("number") in self._waiting:
                    self._finish(self._waiting[message["number"]], message)
        except rdma.ConnectionLost:
            log.debug("control connection ended: %s", self.connection.close_reason)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("%s: not a control message: %s", self.connection.peer_address, error)
        finally:
            beating.cancel()
            self.connection.abort("control connection ended")
            for task in tuple(self._serving):
                task.cancel()
            await asyncio.gather(beating, *self._serving, return_exceptions=True)
            for future in self._waiting.values():
                self._finish(future, {"lost": True})

    def _finish(self, future: asyncio.Future[Any], message: dict[str, Any]) -> None:
        if future.done():
            return
        if "lost" in message:
            future.set_exception(rdma.ConnectionLost(self.connection.close_reason))
        elif "refused" in message:
            future.set_exception(StoreRefused(*message["refused"]))
        else:
            future.set_result(message.get("answer"))

    async def _answer(self, message: dict[str, Any]) -> None:
        try:
            answer = await self._answers[message["ask"]](**message.get("fields", {}))
            reply = {"number": message["number"], "answer": answer}
        except StoreRefused as error:
            reply = {"number": message["number"], "refused": [error.kind, str(error)]}
        except (KeyError, TypeError, ValueError) as error:
            reply = {"number": message.get("number"), "refused": ["bad", f"bad request: {error!r}"]}
        try:
            await self._send(reply)
        except rdma.ConnectionLost:
            log.debug("nobody waits for an answer any more")

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(HEARTBEAT)
                if loop.time() - self._heard > PATIENCE:
                    self.connection.abort(f"no sign of life for {PATIENCE:g} s")
                    return
                await self._send({})
        except rdma.ConnectionLost:
            return
