"""A protection domain without a device, which only records its registrations."""

from __future__ import annotations

import weakref
from collections import Counter

from smbdirect.codec import Buffer
from smbdirect.errors import ProviderError
from smbdirect.providers.base import Access, DomainUser


class LocalRegistration:
    """Memory that work requests may use locally. Implements ``base.MemoryRegion``, with a token that is never
    accepted."""

    __slots__ = ("_domain", "address", "length", "memory", "token", "valid")

    def __init__(self, domain: LocalDomain, memory: memoryview) -> None:
        self._domain = domain
        self.token = 0
        self.address = 0
        self.length = len(memory)
        self.memory = memory
        self.valid = True

    def invalidate(self) -> None:
        """See ``base.MemoryRegion``."""
        if self.valid:
            self.valid = False
            self._domain.gone(self)

    def deregister(self) -> None:
        """See ``base.MemoryRegion``."""
        self.invalidate()
        self.memory = memoryview(b"")


class LocalDomain:
    """A protection domain in this process. Implements ``base.ProtectionDomain``."""

    def __init__(self) -> None:
        self.live: set[LocalRegistration] = set()
        self.closed = False
        self._owners: Counter[int] = Counter()
        """By the ``id`` of the object behind the memory: how many of ``live`` register it. Invariant: no count is 0."""
        self._users: weakref.WeakSet[DomainUser] = weakref.WeakSet()

    def add_user(self, user: DomainUser) -> None:
        """See ``base.ProtectionDomain``."""
        self._users.add(user)

    def register(self, memory: memoryview, access: Access) -> LocalRegistration:
        """See ``base.ProtectionDomain``. Raise ``ProviderError`` if ``access`` has a remote right, which only regions
        of one endpoint may give, or if the domain is closed."""
        if self.closed:
            raise ProviderError("the protection domain is closed")
        if access & (Access.REMOTE_READ | Access.REMOTE_WRITE):
            raise ProviderError("a remote right in a domain that endpoints share")
        registration = LocalRegistration(self, memory)
        self.live.add(registration)
        self._owners[id(memory.obj)] += 1
        return registration

    def gone(self, registration: LocalRegistration) -> None:
        """Remove a registration; only its ``invalidate`` calls this."""
        self.live.discard(registration)
        owner = id(registration.memory.obj)
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]

    def covers(self, segment: Buffer) -> bool:
        """Return whether the object behind ``segment`` is registered here."""
        return id(memoryview(segment).obj) in self._owners

    def close(self) -> None:
        """Notify the users, then end every registration."""
        self.closed = True
        for user in list(self._users):
            user.domain_closed()
        for registration in list(self.live):
            registration.deregister()
