"""Asynchronous events of RDMA devices, ports and queue pairs, which are passed to the connections and listeners on
them.

When a port goes down, its connections end: the fabric would retry for seconds, but a client that is notified
immediately continues over another channel. Listeners are notified as well, so that the server stops announcing their
addresses.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from typing import Protocol

from smbdirect.providers.base import CloseCause, CloseReason
from smbdirect.providers.verbs import abi
from smbdirect.providers.verbs.device import Device

_QUEUE_PAIR_EVENTS = {
    abi.EVENT_QP_FATAL: CloseCause.DEVICE,
    abi.EVENT_QP_REQUEST_ERROR: CloseCause.REMOTE_ACCESS,  # siw also reports a Read with a bad token by this
    abi.EVENT_QP_ACCESS_ERROR: CloseCause.REMOTE_ACCESS,
}


class Member(Protocol):
    """A connection or a listener on a device's port."""

    device: Device | None
    port: int
    queue_pair: int
    """Address of its ``struct ibv_qp``; 0 if it has none."""

    def lost(self, reason: CloseReason) -> None:
        """Handle the loss of the port, the device or the queue pair."""

    def restored(self) -> None:
        """Handle the return of the port's link."""


class DeviceEvents:
    """Reads the events of opened devices on one event loop and notifies the members."""

    def __init__(self, libraries: abi.Libraries, loop: asyncio.AbstractEventLoop) -> None:
        self.members: set[Member] = set()
        self._libraries = libraries
        self._loop = loop

    def watch(self, opened: Device) -> None:
        """Read the events of ``opened`` from now on."""
        os.set_blocking(opened.async_fd, False)
        self._loop.add_reader(opened.async_fd, self._on_readable, opened)

    def _on_readable(self, opened: Device) -> None:
        verbs = self._libraries.verbs
        event = abi.AsyncEvent()
        ctypes.set_errno(0)
        while not verbs.ibv_get_async_event(opened.context, ctypes.byref(event)):
            kind, element = event.event_type, event.element
            # Acknowledged first: to destroy the object that an event names, the library waits for this.
            verbs.ibv_ack_async_event(ctypes.byref(event))
            self._happened(opened, kind, element or 0)
            ctypes.set_errno(0)
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            # The device was removed from the kernel; its descriptor would stay readable.
            self._loop.remove_reader(opened.async_fd)
            self._lost(self._of(opened), f"{opened.name}: device removed")

    def _of(self, opened: Device, port: int = 0) -> list[Member]:
        """Return the members on the device, or on one of its ports."""
        return [member for member in self.members if member.device is opened and port in (0, member.port)]

    def _happened(self, opened: Device, kind: int, element: int) -> None:
        port = element & 0xFFFFFFFF  # the union's int, for events of ports
        if kind == abi.EVENT_DEVICE_FATAL:
            self._lost(self._of(opened), f"{opened.name}: {self._text(kind)}")
        elif kind == abi.EVENT_PORT_ERROR:
            self._lost(self._of(opened, port), f"port {port} of {opened.name} is down")
        elif kind == abi.EVENT_PORT_ACTIVE:
            for member in self._of(opened, port):
                member.restored()
        elif kind in _QUEUE_PAIR_EVENTS:
            named = [member for member in self._of(opened) if member.queue_pair == element != 0]
            self._lost(named, f"{opened.name}: {self._text(kind)}", _QUEUE_PAIR_EVENTS[kind])

    def _text(self, kind: int) -> str:
        text: bytes = self._libraries.verbs.ibv_event_type_str(kind)
        return text.decode()

    @staticmethod
    def _lost(members: list[Member], detail: str, cause: CloseCause = CloseCause.DEVICE) -> None:
        for member in members:
            member.lost(CloseReason(cause, detail))
