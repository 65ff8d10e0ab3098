"""Asynchronous events of RDMA devices, from a library that is made up."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections import deque
from typing import Any

import pytest

from smbdirect.providers.base import CloseReason
from smbdirect.providers.verbs import abi
from smbdirect.providers.verbs.events import DeviceEvents


class Library:
    """What ``events`` calls of libibverbs."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, int]] = deque()
        self.acknowledged = 0
        self.at_the_end = errno.EAGAIN

    def ibv_get_async_event(self, context: int, event: Any) -> int:
        if not self.waiting:
            ctypes.set_errno(self.at_the_end)
            return -1
        event._obj.event_type, event._obj.element = self.waiting.popleft()
        return 0

    def ibv_ack_async_event(self, event: Any) -> None:
        self.acknowledged += 1

    def ibv_event_type_str(self, kind: int) -> bytes:
        return f"event {kind}".encode()


class Device:
    def __init__(self, name: str) -> None:
        self.name = name
        self.context = 1
        self.async_fd, self.written = os.pipe()


class Member:
    def __init__(self, device: Any, port: int, queue_pair: int = 0) -> None:
        self.device = device
        self.port = port
        self.queue_pair = queue_pair
        self.heard: list[str] = []

    def lost(self, reason: CloseReason) -> None:
        self.heard.append(str(reason))

    def restored(self) -> None:
        self.heard.append("restored")


class Scene:
    """Two devices; the first has two ports."""

    def __init__(self) -> None:
        self.library = Library()
        self.devices = [Device("a0"), Device("b0")]
        self.events = DeviceEvents(abi.Libraries(self.library, None), asyncio.get_running_loop())  # type: ignore[arg-type]
        first, second = self.devices
        self.members = [Member(first, 1, 0x7000), Member(first, 2, 0x8000), Member(second, 1, 0x9000), Member(None, 0)]
        self.events.members.update(self.members)
        for device in self.devices:
            self.events.watch(device)  # type: ignore[arg-type]

    async def happens(self, device: int, *events: tuple[int, int]) -> list[list[str]]:
        """What each member heard."""
        self.library.waiting.extend(events)
        os.write(self.devices[device].written, b"x")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        os.read(self.devices[device].async_fd, 1)
        heard = [member.heard for member in self.members]
        for member in self.members:
            member.heard = []
        return heard

    def close(self) -> None:
        for device in self.devices:
            asyncio.get_running_loop().remove_reader(device.async_fd)
            os.close(device.async_fd)
            os.close(device.written)


def play(scene: Any) -> None:
    async def main() -> None:
        acted = Scene()
        try:
            await scene(acted)
        finally:
            acted.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("event", "heard"),
    [
        ((abi.EVENT_PORT_ERROR, 1), [["device or network failure: port 1 of a0 is down"], [], [], []]),
        ((abi.EVENT_PORT_ERROR, 2), [[], ["device or network failure: port 2 of a0 is down"], [], []]),
        ((abi.EVENT_PORT_ACTIVE, 2), [[], ["restored"], [], []]),
        ((abi.EVENT_DEVICE_FATAL, 0), [["device or network failure: a0: event 8"]] * 2 + [[], []]),
        ((abi.EVENT_QP_ACCESS_ERROR, 0x8000), [[], ["invalid token, range or right: a0: event 3"], [], []]),
        ((abi.EVENT_QP_REQUEST_ERROR, 0x7000), [["invalid token, range or right: a0: event 2"], [], [], []]),
        ((abi.EVENT_QP_FATAL, 0x7000), [["device or network failure: a0: event 1"], [], [], []]),
        ((abi.EVENT_QP_FATAL, 0), [[], [], [], []]),
        ((4, 0x7000), [[], [], [], []]),
    ],
)
def test_who_hears_of_it(event: tuple[int, int], heard: list[list[str]]) -> None:
    async def scene(acted: Scene) -> None:
        assert await acted.happens(0, event) == heard
        assert acted.library.acknowledged == 1

    play(scene)


def test_down_and_up_in_one_go() -> None:
    async def scene(acted: Scene) -> None:
        heard = await acted.happens(1, (abi.EVENT_PORT_ERROR, 1), (abi.EVENT_PORT_ACTIVE, 1))
        assert heard == [[], [], ["device or network failure: port 1 of b0 is down", "restored"], []]
        assert acted.library.acknowledged == 2

    play(scene)


def test_whoever_left_hears_nothing() -> None:
    async def scene(acted: Scene) -> None:
        acted.events.members.discard(acted.members[0])
        assert await acted.happens(0, (abi.EVENT_PORT_ERROR, 1)) == [[], [], [], []]

    play(scene)


def test_a_device_that_is_removed() -> None:
    """Its descriptor stays readable for ever: nobody may go on reading it."""

    async def scene(acted: Scene) -> None:
        acted.library.at_the_end = errno.EIO
        assert await acted.happens(0) == [["device or network failure: a0: device removed"]] * 2 + [[], []]
        assert await acted.happens(0) == [[], [], [], []]
        assert not asyncio.get_running_loop().remove_reader(acted.devices[0].async_fd)

    play(scene)
