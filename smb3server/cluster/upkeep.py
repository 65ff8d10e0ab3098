"""Looking after etcd: its history is compacted before it fills the database, and what is wrong with it is logged.

Each change of a persistent open leaves some hundred bytes of history in etcd, which keeps all of it unless it is told
otherwise. One node, the first by name of those that are up, tells it what may go. A margin stays, so that watches which
were interrupted can go on.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from smb3server.cluster.lease_keeper import boottime
from smb3server.persistence.etcd_health import MemberState, Problem, problems
from smb3server.persistence.store import StoreError
from smb3server.status.model import EtcdMember, EtcdProblem, EtcdRecord

log = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two looks at etcd."""
MARGIN = 120.0
"""Seconds of history that stay."""
SHORT_MARGIN = 20.0
"""Seconds of history that stay if the database has used up half of its quota."""
PERIOD = 300.0
"""Seconds after which history is compacted, however little it is."""
MANY = 20_000
"""Revisions that are compacted at once, about 8 MB."""
_DIGITS = re.compile(r"[\d.]+")


class Maintained(Protocol):
    """What this module needs of the store."""

    async def members_state(self) -> list[MemberState]:
        """Return the state of all members. Does not raise."""
        ...

    async def compact(self, revision: int) -> None:
        """Remove the history before a revision. Raises ``StoreError``."""
        ...

    async def version(self, prefix: str = "\0") -> int:
        """Return the version of the latest change."""
        ...


class Upkeep:
    """Looks after etcd for one node. ``run`` it as a task."""

    def __init__(self, store: Maintained, prefix: str, node: str, nodes: Callable[[], Iterable[str]]) -> None:
        """``prefix``: of keys that this node may read. ``nodes``: returns the nodes that are up."""
        self._store = store
        self._prefix = prefix
        self._node = node
        self._nodes = nodes
        self._seen: deque[tuple[float, int]] = deque()
        """Moments, and the latest revision then. Invariant: no more than ``PERIOD`` and ``MARGIN`` need."""
        self._compacted = 0
        self._compacted_at = boottime()
        self._said: set[str] = set()
        """What was logged, without numbers."""
        self._refused = ""
        """Why etcd does not let this node compact; empty if it does."""
        self.members: list[MemberState] = []
        """The members at the last look."""
        self.latency: float | None = None
        """Seconds that a read took at the last look; None if it failed."""

    async def run(self) -> None:
        """Look after etcd until the task is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL)

    async def look(self) -> None:
        """Read the state of etcd, log what is new, and compact history if that is due and this node's task."""
        start = boottime()
        try:
            await self._store.version(self._prefix)
            self.latency = boottime() - start
        except StoreError as error:
            self.latency = None
            log.debug("etcd: %s", error)
        self.members = await self._store.members_state()
        self._write_log()
        revision = max((member.revision for member in self.members), default=0)
        if revision:
            self._seen.append((boottime(), revision))
        # A new node has the task at once if the one before it dies.
        if self._node == min(self._nodes(), default=""):
            await self._compact()
        while len(self._seen) > 1 and self._seen[1][0] < boottime() - MARGIN:
            self._seen.popleft()

    def problems(self) -> list[Problem]:
        """Return what is wrong with etcd, as of the last look."""
        found = problems(self.members)
        if self._refused:
            found.append(
                Problem(
                    False,
                    f"this node may not compact etcd's history ({self._refused}); remedy: start etcd with "
                    "--auto-compaction-mode=periodic --auto-compaction-retention=5m",
                )
            )
        return found

    def report(self) -> EtcdRecord:
        """Return the state of etcd for reports."""
        members = [EtcdMember(**member.as_json()) for member in self.members]
        return EtcdRecord(self.latency, members, [EtcdProblem(*problem) for problem in self.problems()])

    def _write_log(self) -> None:
        """Log the problems that are new, each once, and the end of all."""
        # Numbers in a text change with each look.
        found = {_DIGITS.sub("", problem.text): problem for problem in self.problems()}
        for kind in found.keys() - self._said:
            log.log(logging.ERROR if found[kind].is_error else logging.WARNING, "%s", found[kind].text)
        if self._said and not found:
            log.info("etcd is well again")
        self._said = set(found)

    async def _compact(self) -> None:
        target = self._due()
        if target is None:
            return
        try:
            await self._store.compact(target)
        except StoreError as error:
            self._refused = str(error)
            return
        self._refused = ""
        log.debug("etcd: history before revision %d is compacted", target)
        self._compacted, self._compacted_at = target, boottime()

    def _due(self) -> int | None:
        """Return the revision to compact to; None if it is not time yet."""
        now = boottime()
        tight = _half_full(self.members)
        margin = SHORT_MARGIN if tight else MARGIN
        old = [revision for moment, revision in self._seen if moment <= now - margin]
        if not old or old[-1] <= self._compacted:
            return None
        is_due = tight or old[-1] - self._compacted >= MANY or now >= self._compacted_at + PERIOD
        return old[-1] if is_due else None


def _half_full(members: Sequence[MemberState]) -> bool:
    return any(2 * member.size >= member.limit for member in members if not member.error)
