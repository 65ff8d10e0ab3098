"""A simulated kernel with an RDMA device, and simulated libraries, for tests without a device.

Like Linux, it refuses writes to descriptors from a thread whose credentials are not the same object as when they were
opened (``ib_safe_file_access``).
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
import threading
from collections import deque
from typing import Any

import pytest

from smbdirect.providers.verbs import abi, device, provider

WORK, FLUSHED = 0, 5
SIW_PAGE = 4096
"""siw gives TCP the pages of unsignalled requests from this size on."""


def _gather(elements: list[tuple[int, int]]) -> bytes:
    return b"".join(ctypes.string_at(address, length) for address, length in elements)


class Kernel:
    """The simulated kernel, which also acts as both libraries. ``writing`` means that work is posted by write(2)."""

    def __init__(self, writing: bool) -> None:
        self.writing = writing
        self.calls: list[str] = []
        """Names of the called functions, in order."""
        self.sent: list[bytes] = []
        """The data of Sends and Writes, in order."""
        self.vendor_id = 0
        self.refuse_after: int | None = None
        """Accept so many more send requests, refuse the next one, and accept all later ones."""
        self.refuse_notify = False
        self.posting_threads: set[int] = set()
        self.on_arming: Any = lambda: None
        self.events: deque[tuple[int, int, int]] = deque()
        self._credentials: dict[int, object] = {}
        self._kept: dict[int, Any] = {}
        self._receives: deque[int] = deque()
        self._completions: deque[tuple[int, int, int, int]] = deque()
        self._in_place: list[tuple[int, list[tuple[int, int]]]] = []
        self._armed = False
        self._cm_fd = self._cm_written = self._cq_written = -1
        self._context = self._make(1024)
        self._operations = [
            abi.PollCq(self._poll),
            abi.ReqNotifyCq(self._notify),
            abi.PostWork(self._post_send),
            abi.PostWork(self._post_receive),
        ]
        offsets = (abi.OPS_POLL_CQ, abi.OPS_REQ_NOTIFY_CQ, abi.OPS_POST_SEND, abi.OPS_POST_RECV)
        for offset, operation in zip(offsets, self._operations, strict=True):
            self._put(self._context + offset, "Q", ctypes.cast(operation, ctypes.c_void_p).value or 0)
        self._async_fd, self._async_written = os.pipe()
        self._put(self._context + abi.CONTEXT_ASYNC_FD, "i", self._async_fd)

    # ------------------------------------------------------------------ credentials

    def _mine(self) -> object:
        return self._credentials.setdefault(threading.get_ident(), object())

    def change_credentials(self) -> None:
        """Replace the credentials of the calling thread, as setfsuid(2) and capset(2) do."""
        self._credentials[threading.get_ident()] = object()

    def _may_write(self) -> bool:
        if self._mine() is self._opener:
            return True
        ctypes.set_errno(errno.EACCES)
        return False

    # ------------------------------------------------------------------ memory

    def _make(self, size: int) -> int:
        memory = ctypes.create_string_buffer(size)
        self._kept[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    @staticmethod
    def _put(address: int, kind: str, value: int) -> None:
        ctypes.memmove(address, struct.pack("=" + kind, value), struct.calcsize("=" + kind))

    # ------------------------------------------------------------------ libibverbs and librdmacm

    def __getattr__(self, name: str) -> Any:
        """Return a function for any other name: it writes, and succeeds."""
        if not name.startswith(("ibv_", "rdma_")):
            raise AttributeError(name)
        return lambda *arguments: self._written(name)

    def _written(self, name: str) -> int:
        self.calls.append(name)
        return 0 if self._may_write() else -1

    def _made(self, name: str, size: int = 64) -> int | None:
        return None if self._written(name) else self._make(size)

    def ibv_get_device_name(self, _: int) -> bytes:
        return b"fake0"

    def ibv_query_device(self, _: int, attributes: Any) -> int:
        found = attributes._obj
        found.vendor_id = self.vendor_id
        found.max_qp_wr, found.max_sge, found.max_sge_rd, found.max_qp_rd_atom = 64, 4, 4, 4
        return self._written("ibv_query_device")

    def ibv_alloc_pd(self, _: int) -> int | None:
        return self._made("ibv_alloc_pd")

    def ibv_reg_mr(self, *_: int) -> int | None:
        return self._made("ibv_reg_mr")

    def ibv_create_cq(self, *_: Any) -> int | None:
        return self._made("ibv_create_cq")

    def ibv_create_comp_channel(self, _: int) -> int | None:
        made = self._made("ibv_create_comp_channel")
        if made is not None:
            fd, self._cq_written = os.pipe()
            self._put(made + abi.CHANNEL_FD, "i", fd)
        return made

    def ibv_destroy_comp_channel(self, channel: int) -> int:
        os.close(abi.int_at(channel + abi.CHANNEL_FD))
        os.close(self._cq_written)
        return self._written("ibv_destroy_comp_channel")

    def ibv_get_async_event(self, *_: Any) -> int:
        ctypes.set_errno(errno.EAGAIN)
        return -1

    def ibv_get_cq_event(self, channel: int, *_: Any) -> int:
        try:
            os.read(abi.int_at(channel + abi.CHANNEL_FD), 1)
        except BlockingIOError:
            return -1
        return 0

    def ibv_ack_cq_events(self, *_: int) -> None:
        pass

    def rdma_ack_cm_event(self, _: Any) -> int:
        return 0

    def rdma_get_src_port(self, _: int) -> int:
        return 0x4515

    def rdma_create_event_channel(self) -> int:
        self._opener = self._mine()
        self._cm_fd, self._cm_written = os.pipe()
        made = self._make(16)
        self._put(made, "i", self._cm_fd)
        return made

    def rdma_create_id(self, _: int, made: Any, *rest: Any) -> int:
        made._obj.value = self.new_id()
        return self._written("rdma_create_id")

    def rdma_create_qp(self, cm_id: int, *_: Any) -> int:
        self._put(cm_id + abi.CM_ID_QP, "Q", self._make(64))
        return self._written("rdma_create_qp")

    def rdma_get_cm_event(self, _: int, event: Any) -> int:
        if not self._may_write():
            return -1
        if not self.events:
            ctypes.set_errno(errno.EAGAIN)
            return -1
        kind, cm_id, listen_id = self.events.popleft()
        os.read(self._cm_fd, 1)
        self.last_event = abi.CmEvent(id=cm_id, listen_id=listen_id, event=kind)
        event._obj.contents = self.last_event
        return 0

    def rdma_accept(self, cm_id: int, _: Any) -> int:
        result = self._written("rdma_accept")
        if not result:
            self.happens(abi.CM_ESTABLISHED, cm_id)
        return result

    def rdma_disconnect(self, _: int) -> int:
        result = self._written("rdma_disconnect")
        if not result:
            while self._receives:
                self._completes(self._receives.popleft(), FLUSHED, abi.WC_RECV)
        return result

    def ibv_wc_status_str(self, code: int) -> bytes:
        return str(code).encode()

    # ------------------------------------------------------------------ what happens

    def new_id(self) -> int:
        made = self._make(400)
        self._put(made + abi.CM_ID_VERBS, "Q", self._context)
        self._put(made + abi.CM_ID_SOURCE, "H", 2)
        self._put(made + abi.CM_ID_DESTINATION, "H", 2)
        return made

    def happens(self, kind: int, cm_id: int, listen_id: int = 0) -> None:
        """Report an event of the connection manager."""
        self.events.append((kind, cm_id, listen_id))
        os.write(self._cm_written, b"x")

    def receives(self, length: int) -> None:
        """Complete the oldest receive with a message of ``length`` bytes."""
        self._completes(self._receives.popleft(), WORK, abi.WC_RECV, length)

    def transmit(self) -> None:
        """Send out of their memory, as it is now, the data of requests that siw has not copied."""
        for position, elements in self._in_place:
            self.sent[position] = _gather(elements)
        self._in_place.clear()

    def _completes(self, number: int, status: int, operation: int, length: int = 0) -> None:
        self._completions.append((number, status, operation, length))
        if self._armed:
            self._armed = False
            os.write(self._cq_written, b"x")

    # ------------------------------------------------------------------ the operations of the device

    def _told(self, name: str) -> bool:
        self.calls.append(name)
        self.posting_threads.add(threading.get_ident())
        return not self.writing or self._may_write()

    def _poll(self, _: int, most: int, at: int) -> int:
        count = 0
        while self._completions and count < most:
            number, status, operation, length = self._completions.popleft()
            entry = abi.WC.pack(number, status, operation, 0, length, 0, 1, 1, 0)
            ctypes.memmove(at + count * abi.WC_SIZE, entry, len(entry))
            count += 1
        return count

    def _notify(self, _: int, __: int) -> int:
        if not self._told("req_notify_cq") or self.refuse_notify:
            return errno.EACCES
        self.on_arming()
        self._armed = True
        return 0

    def _post_send(self, _: int, at: int, bad_at: int) -> int:
        told = self._told("post_send")
        while at:
            number, following, list_at, count, *_rest = abi.SEND_WR.unpack(ctypes.string_at(at, abi.SEND_WR.size))
            if not told or self.refuse_after == 0:
                self._put(bad_at, "Q", at)
                self.refuse_after = None
                return errno.EACCES
            if self.refuse_after is not None:
                self.refuse_after -= 1
            elements = [abi.SGE.unpack(ctypes.string_at(list_at + 16 * index, 16))[:2] for index in range(count)]
            signalled = _rest[1] & abi.SEND_SIGNALED
            if self.vendor_id == device.SIW_VENDOR and not signalled and sum(size for _, size in elements) >= SIW_PAGE:
                self._in_place.append((len(self.sent), elements))
            self.sent.append(_gather(elements))
            if signalled:
                self._completes(number, WORK, abi.WC_SEND)
            at = following
        return 0

    def _post_receive(self, _: int, at: int, bad_at: int) -> int:
        if not self._told("post_recv"):
            self._put(bad_at, "Q", at)
            return errno.EACCES
        self._receives.append(abi.RECV_WR.unpack(ctypes.string_at(at, abi.RECV_WR.size))[0])
        return 0

    # ------------------------------------------------------------------ its end

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop stop reading the descriptors."""
        for fd in (self._async_fd, self._cm_fd):
            loop.remove_reader(fd)

    def close(self) -> None:
        """Close the descriptors."""
        for fd in (self._async_fd, self._async_written, self._cm_fd, self._cm_written):
            if fd >= 0:
                os.close(fd)

    def provider(self, patch: pytest.MonkeyPatch) -> provider.VerbsProvider:
        """Return a provider on this kernel."""
        patch.setattr(device, "posts_by_write", lambda name: self.writing)
        patch.setattr(abi, "load", lambda: abi.Libraries(self, self))  # type: ignore[arg-type]
        return provider.VerbsProvider()
