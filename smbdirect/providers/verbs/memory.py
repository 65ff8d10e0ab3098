"""Registered memory of one protection domain.

Local buffers are found by address among standing registrations (the pools that the transport registered), so the data
path registers nothing. Remote access always has a registration of its own, with exactly the requested length and
rights.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import weakref
from collections.abc import Callable
from typing import NamedTuple

from smbdirect.errors import ProviderError
from smbdirect.providers.base import Access, DomainUser
from smbdirect.providers.verbs import abi
from smbdirect.providers.verbs.device import Device

STAGING_SLOT = 4096
"""Bytes of unregistered segments (headers) of one Send or Write that are copied to a slot."""
STAGING_GROWTH = 64
"""Slots that are registered together."""


class StagingSlot(NamedTuple):
    """Registered memory for small unregistered segments of one work request."""

    address: int
    lkey: int
    view: memoryview


def address_of(view: memoryview) -> int:
    """Return the address of writable memory."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class Registration:
    """One memory region of the device. Implements ``base.MemoryRegion``. ``memory`` keeps the memory alive."""

    __slots__ = (
        "__weakref__", "_domain", "_handle", "address", "end", "length", "lkey", "memory", "on_gone", "token", "valid",
    )  # fmt: skip

    def __init__(self, domain: Domain, memory: memoryview, access: int) -> None:
        if not len(memory):
            raise ProviderError("cannot register an empty region")
        if memory.readonly or not memory.c_contiguous:
            raise ProviderError("only writable, contiguous memory can be registered")
        self.memory = memory
        self.length = memory.nbytes
        self.address = address_of(memory)
        self.end = self.address + self.length
        handle = domain.device.libraries.verbs.ibv_reg_mr(domain.pd, self.address, self.length, access)
        if not handle:
            raise ProviderError(f"{abi.oserror('ibv_reg_mr')} ({self.length} bytes; see `ulimit -l`)")
        self._domain = domain
        self._handle: int | None = handle
        self.lkey = abi.uint_at(handle + abi.MR_LKEY)
        self.token = abi.uint_at(handle + abi.MR_RKEY)
        self.valid = True
        self.on_gone: Callable[[Registration], None] | None = None
        """Called after deregistration: the endpoint forgets the registration."""
        domain.live.add(self)

    def invalidate(self) -> None:
        """End the registration: user space has no local invalidate for plain regions. Raise ``ProviderError`` if the
        device refuses. Idempotent."""
        handle, self._handle = self._handle, None
        self.valid = False
        if handle is not None:
            self._domain.forget(self)
            if self._domain.device.libraries.verbs.ibv_dereg_mr(handle):
                raise ProviderError(str(abi.oserror("ibv_dereg_mr")))

    def deregister(self) -> None:
        self.invalidate()
        self.memory = memoryview(b"")
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone(self)


class Domain:
    """One protection domain and its standing registrations. Implements ``base.ProtectionDomain``. Raises
    ``ProviderError`` if the device refuses."""

    def __init__(self, device: Device) -> None:
        self.device = device
        pd = device.libraries.verbs.ibv_alloc_pd(device.context)
        if not pd:
            raise ProviderError(str(abi.oserror(f"{device.name}: ibv_alloc_pd")))
        self.pd: int = pd
        self.live: weakref.WeakSet[Registration] = weakref.WeakSet()
        self._users: weakref.WeakSet[DomainUser] = weakref.WeakSet()
        # Invariant: _standing is sorted by address, and _starts has the addresses of its registrations.
        self._starts: list[int] = []
        self._standing: list[Registration] = []
        self._free_slots: list[StagingSlot] = []

    def add_user(self, user: DomainUser) -> None:
        self._users.add(user)

    def register(self, memory: memoryview, access: Access) -> Registration:
        if access & Access.REMOTE_ATOMIC and not self.device.capabilities.atomics:
            raise ProviderError(f"{self.device.name} has no atomic operations")
        writes = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_ATOMIC
        rights = abi.ACCESS_LOCAL_WRITE if access & writes else 0
        if access & Access.REMOTE_READ:
            rights |= abi.ACCESS_REMOTE_READ
        if access & Access.REMOTE_WRITE:
            rights |= abi.ACCESS_REMOTE_WRITE
        if access & Access.REMOTE_ATOMIC:
            rights |= abi.ACCESS_REMOTE_ATOMIC
        registration = Registration(self, memory, rights)
        if rights & abi.ACCESS_LOCAL_WRITE:
            at = bisect.bisect(self._starts, registration.address)
            self._starts.insert(at, registration.address)
            self._standing.insert(at, registration)
        return registration

    def read_sink(self, memory: memoryview) -> Registration:
        """Return a registration for the sink of one Read, for devices that require the remote right on it."""
        return Registration(self, memory, abi.ACCESS_LOCAL_WRITE | abi.ACCESS_REMOTE_WRITE)

    def temporary(self, data: memoryview) -> Registration:
        """Return a registered copy for one work request."""
        return Registration(self, memoryview(bytearray(data)), 0)

    def find(self, address: int, length: int) -> int | None:
        """Return the local key of a standing registration that contains the range, or None."""
        at = bisect.bisect(self._starts, address) - 1
        while at >= 0:
            registration = self._standing[at]
            if registration.end >= address + length:
                return registration.lkey
            if registration.end <= address:
                return None
            at -= 1
        return None

    def forget(self, registration: Registration) -> None:
        """Remove a registration from the standing ones; only its ``invalidate`` calls this."""
        at = bisect.bisect_left(self._starts, registration.address)
        while at < len(self._starts) and self._starts[at] == registration.address:
            if self._standing[at] is registration:
                del self._starts[at], self._standing[at]
                return
            at += 1

    def staging_slot(self) -> StagingSlot:
        """Return a registered slot for small unregistered segments. Give it back with ``return_slot``."""
        if not self._free_slots:
            memory = memoryview(mmap.mmap(-1, STAGING_SLOT * STAGING_GROWTH))
            registration = self.register(memory, Access.LOCAL_WRITE)
            for start in range(0, len(memory), STAGING_SLOT):
                view = memory[start : start + STAGING_SLOT]
                self._free_slots.append(StagingSlot(registration.address + start, registration.lkey, view))
        return self._free_slots.pop()

    def return_slot(self, slot: StagingSlot) -> None:
        """Take back a slot of ``staging_slot``."""
        self._free_slots.append(slot)

    def close(self) -> None:
        """Notify the users, end every registration and release the domain."""
        for user in list(self._users):
            user.domain_closed()
        self._free_slots.clear()
        for registration in list(self.live):
            registration.invalidate()
        self.device.libraries.verbs.ibv_dealloc_pd(self.pd)
