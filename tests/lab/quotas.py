"""A table of quotas in place of the kernel's, which many test machines do not have."""

from __future__ import annotations

from smb3server.backends.base import Quota, Quotas, User


class Table(Quotas):
    """What the kernel answers, without what it enforces."""

    def __init__(self, *quotas: Quota, enforced: bool = True) -> None:
        self.enforced = enforced
        self.known = {quota.uid: quota for quota in quotas}

    def get(self, uid: int) -> Quota:
        return self.known.get(uid, Quota(uid, 0, 0, 0))

    def following(self, uid: int) -> Quota | None:
        return next((self.known[found] for found in sorted(self.known) if found >= uid), None)

    def set(self, uid: int, soft: int, hard: int) -> None:
        self.known[uid] = self.get(uid)._replace(soft=soft, hard=hard)

    def of_user(self, user: User | None) -> Quota | None:
        return self.get(user.uid) if user is not None and self.enforced else None
