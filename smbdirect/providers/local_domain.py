"""A protection domain without a device: what it holds is a matter of bookkeeping (``base.ProtectionDomain``)."""

from __future__ import annotations

import weakref
from collections import Counter

from smbdirect.codec import Buffer
from smbdirect.errors import ProviderError
from smbdirect.providers.base import Access, DomainUser


class LocalRegistration:
    """Memory that work requests may use locally; keeps ``base.MemoryRegion``, with no token that anybody accepts."""

    __slots__ = ("_domain", "address", "length", "memory", "token", "valid")

    def __init__(self, domain: LocalDomain, memory: memoryview) -> None:
        self._domain = domain
        self.token = 0
        self.address = 0
        self.length = len(memory)
        self.memory = memory
        self.valid = True

    def invalidate(self) -> None:
        if self.valid:
            self.valid = False
            self._domain.gone(self)

    def deregister(self) -> None:
        self.invalidate()
        self.memory = memoryview(b"")


class LocalDomain:
    def __init__(self) -> None:
        self.live: set[LocalRegistration] = set()
        self.closed = False
        self._owners: Counter[int] = Counter()
        self._users: weakref.WeakSet[DomainUser] = weakref.WeakSet()

    def add_user(self, user: DomainUser) -> None:
        self._users.add(user)

    def register(self, memory: memoryview, access: Access) -> LocalRegistration:
        """Raises ``ProviderError`` for a remote right, which is for regions of one endpoint, and after the end."""
        if self.closed:
            raise ProviderError("the protection domain is closed")
        if access & (Access.REMOTE_READ | Access.REMOTE_WRITE):
            raise ProviderError("a remote right in a domain that endpoints share")
        registration = LocalRegistration(self, memory)
        self.live.add(registration)
        self._owners[id(memory.obj)] += 1
        return registration

    def gone(self, registration: LocalRegistration) -> None:
        self.live.discard(registration)
        owner = id(registration.memory.obj)
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]

    def covers(self, segment: Buffer) -> bool:
        return id(memoryview(segment).obj) in self._owners

    def close(self) -> None:
        self.closed = True
        for user in list(self._users):
            user.domain_closed()
        for registration in list(self.live):
            registration.deregister()
