"""The shadow copies that backup programs make: sets of them, and the steps of making one. [MS-FSRVP 3.1.1, 3.1.4]"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from smb3server.state.share import Share

log = logging.getLogger(__name__)

SHORT, LONG = 180.0, 1800.0
"""Seconds that the Message Sequence Timer gives a client for its next call. [MS-FSRVP 3.1.2]"""
MAX_RETRIES = 5
"""SetContext calls of one client, each of which gives up the set that was begun. [MS-FSRVP 3.1.4.2, footnote 5]"""
MAX_SETS = 64
"""Sets that are kept. Each has snapshots that take space."""


class Attribute(enum.IntFlag):
    """SHADOW_COPY_ATTRIBUTES. [MS-FSRVP 2.2.2.1]"""

    PERSISTENT = 0x00000001
    NO_AUTO_RECOVERY = 0x00000002
    NO_AUTO_RELEASE = 0x00000008
    NO_WRITERS = 0x00000010
    AUTO_RECOVERY = 0x00400000


CONTEXTS = frozenset({0x00000000, 0x00000010, 0x00000019, 0x00000009})
"""CONTEXT_VALUES, without the attributes about recovery. [MS-FSRVP 2.2.2.2]"""


class Error(enum.IntEnum):
    """What calls fail with. [MS-FSRVP 2.2.4]"""

    ACCESS_DENIED = 0x80070005
    INVALID_ARGUMENT = 0x80070057
    FAILED = 0x80004005
    BAD_STATE = 0x80042301
    IN_PROGRESS = 0x80042316
    NOT_SUPPORTED = 0x8004230C
    WAIT_TIMEOUT = 0x00000102
    TIMEOUT = 0x80042500
    ALREADY_EXISTS = 0x8004230D
    NOT_FOUND = 0x80042308
    UNSUPPORTED_CONTEXT = 0x8004231B
    ID_MISMATCH = 0x80042501


class ShadowCopyError(Exception):
    """A call failed. Nothing has changed, unless the call says otherwise."""

    def __init__(self, error: Error, why: str = "") -> None:
        super().__init__(why or error.name)
        self.error = error


class Stage(enum.IntEnum):
    """ShadowCopySet.Status. Exposed sets are recovered at once. [MS-FSRVP 3.1.1.2]"""

    STARTED = 0
    ADDED = 1
    CREATION_IN_PROGRESS = 2
    COMMITTED = 3
    RECOVERED = 4


@dataclass(slots=True, eq=False)
class ShadowCopy:
    """A share in a set, and its snapshot. There is one share for each shadow copy. [MS-FSRVP 3.1.1.3, 3.1.1.4]"""

    id: uuid.UUID
    share: str
    """The name of the share."""
    unc: str
    """The same as the client wrote it."""
    volume: str
    created: float
    """When it was added, in seconds since 1970."""
    seconds: int = 0
    """The time of the snapshot; 0 before the commit."""
    snapshot: str = ""
    """The name of the snapshot's folder."""
    exposed: Share | None = None


@dataclass(slots=True, eq=False)
class ShadowCopySet:
    """A set of shadow copies. [MS-FSRVP 3.1.1.2]"""

    id: uuid.UUID
    context: int
    stage: Stage = Stage.STARTED
    copies: list[ShadowCopy] = field(default_factory=list)


class ShadowCopyStore(Protocol):
    """Makes snapshots of shares, and serves and keeps them. What may take long is a coroutine."""

    def find(self, name: str) -> Share | None:
        """Return the share of this name, if it is one with files."""
        ...

    def volume(self, share: Share) -> str:
        """Return what has the share's files. Raises ``ShadowCopyError``: NOT_SUPPORTED if there can be no snapshot."""
        ...

    async def make(self, share: Share) -> tuple[int, str]:
        """Make a snapshot. Return its time in seconds since 1970 and its name. Raises ``ShadowCopyError``."""
        ...

    async def remove(self, name: str, snapshot: str) -> None:
        """Remove a snapshot of the share ``name``. Raises ``ShadowCopyError``."""
        ...

    def expose(self, share: Share, name: str, seconds: int) -> Share:
        """Serve a snapshot as a share, ``name``, for reading. Raises ``ShadowCopyError``."""
        ...

    def withdraw(self, share: Share) -> None:
        """Stop serving such a share."""
        ...

    async def keep(self, sets: Iterable[ShadowCopySet]) -> None:
        """Store the sets that have snapshots, so that a restart knows of them. Errors are logged."""
        ...


class ShadowCopyAgent:
    """All sets, of which one at most is being made. All methods raise ``ShadowCopyError``. [MS-FSRVP 3.1.1.1]"""

    def __init__(self, store: ShadowCopyStore) -> None:
        self._store = store
        # Invariant: at most one set has not reached RECOVERED.
        self.sets: dict[uuid.UUID, ShadowCopySet] = {}
        self._context: int | None = None
        """CurrentContext; None while ContextSet is FALSE."""
        self._client = ""
        self._retries = 0
        self._timer: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()
        """Held by a call that changes something."""
        self._ending: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """End the timer. The snapshots of a set that is not finished stay."""
        self._stop_timer()

    # The Message Sequence Timer

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._elapsed)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _elapsed(self) -> None:
        """Give up the set that is being made. [MS-FSRVP 3.1.5]"""
        self._timer = None
        log.warning("backup program at %s: it made no call for too long; its shadow copy set is given up", self._client)

        async def end() -> None:
            async with self._turn:
                await self._give_up()

        task = asyncio.get_running_loop().create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _give_up(self) -> None:
        """Remove the set that is being made, and its context."""
        self._stop_timer()
        self._context, self._client = None, ""
        for found in [found for found in self.sets.values() if found.stage is not Stage.RECOVERED]:
            del self.sets[found.id]
            for copy in found.copies:
                await self._discard(copy)
            await self._keep()

    async def _discard(self, copy: ShadowCopy) -> None:
        """Remove a shadow copy. Errors are logged."""
        if copy.exposed is not None:
            self._store.withdraw(copy.exposed)
            copy.exposed = None
        if copy.snapshot:
            try:
                await self._store.remove(copy.share, copy.snapshot)
            except ShadowCopyError as error:
                log.warning("share %s: snapshot %s stays: %s", copy.share, copy.snapshot, error)

    # Making a set

    async def set_context(self, client: str, context: int) -> None:
        """Begin. ``client``: its address. [MS-FSRVP 3.1.4.2]"""
        if context & ~int(Attribute.NO_AUTO_RECOVERY) not in CONTEXTS:
            # AUTO_RECOVERY asks for snapshots that the client may change, which there are none of.
            raise ShadowCopyError(Error.UNSUPPORTED_CONTEXT)
        async with self._turn:
            if self._context is None:
                self._retries = 0
            else:
                if client != self._client:
                    raise ShadowCopyError(Error.IN_PROGRESS)
                await self._give_up()
                self._retries += 1
                if self._retries > MAX_RETRIES:
                    raise ShadowCopyError(Error.IN_PROGRESS)
            self._context, self._client = context, client
            self._start_timer(SHORT)

    async def start(self) -> ShadowCopySet:
        """Begin a set. [MS-FSRVP 3.1.4.3]"""
        async with self._turn:
            if self._context is None:
                raise ShadowCopyError(Error.BAD_STATE)
            if any(found.stage is not Stage.RECOVERED for found in self.sets.values()) or len(self.sets) >= MAX_SETS:
                raise ShadowCopyError(Error.IN_PROGRESS)
            made = ShadowCopySet(uuid.uuid4(), self._context)
            self.sets[made.id] = made
            self._start_timer(SHORT)
            return made

    def _set(self, number: uuid.UUID, *stages: Stage) -> ShadowCopySet:
        found = self.sets.get(number)
        if found is None:
            raise ShadowCopyError(Error.ID_MISMATCH)
        if found.stage not in stages:
            raise ShadowCopyError(Error.BAD_STATE)
        return found

    def _begun(self, number: uuid.UUID, *stages: Stage) -> ShadowCopySet:
        """Return a set for a call that makes it."""
        if number not in self.sets:
            # By the letter ID_MISMATCH. Windows answers this, as smbtorture's rpc.fsrvp.seq_timeout says.
            raise ShadowCopyError(Error.INVALID_ARGUMENT)
        return self._set(number, *stages)

    def share(self, unc: str) -> Share:
        """Return the share that a path of a client names. The name of the server may be any."""
        parts = unc.replace("/", "\\").strip("\\").split("\\")
        if not unc.startswith("\\\\") or len(parts) < 2:
            raise ShadowCopyError(Error.INVALID_ARGUMENT)
        found = self._store.find(parts[1])
        if found is None:
            raise ShadowCopyError(Error.NOT_FOUND)
        return found

    def volume(self, unc: str) -> str:
        """Return what has the files of a share: IsPathSupported succeeds for it. [MS-FSRVP 3.1.4.9]"""
        return self._store.volume(self.share(unc))

    async def add(self, number: uuid.UUID, unc: str) -> ShadowCopy:
        """Add a share to a set. [MS-FSRVP 3.1.4.4]"""
        async with self._turn:
            share = self.share(unc)
            volume = self._store.volume(share)
            found = self._begun(number, Stage.STARTED, Stage.ADDED)
            if any(copy.volume == volume for copy in found.copies):
                self._start_timer(SHORT)
                raise ShadowCopyError(Error.ALREADY_EXISTS)
            copy = ShadowCopy(uuid.uuid4(), share.name, unc, volume, time.time())
            found.copies.append(copy)
            found.stage = Stage.ADDED
            self._start_timer(LONG)
            return copy

    async def prepare(self, number: uuid.UUID) -> None:
        """Prepare a set. There is nothing to do for it. [MS-FSRVP 3.1.4.13]"""
        async with self._turn:
            self._begun(number, Stage.ADDED)
            self._start_timer(LONG)

    async def commit(self, number: uuid.UUID) -> None:
        """Make the snapshots, all or none. [MS-FSRVP 3.1.4.5]"""
        async with self._turn:
            found = self._begun(number, Stage.ADDED, Stage.CREATION_IN_PROGRESS)
            self._stop_timer()
            found.stage = Stage.CREATION_IN_PROGRESS
            try:
                for copy in found.copies:
                    share = self._store.find(copy.share)
                    if share is None:
                        raise ShadowCopyError(Error.NOT_FOUND)
                    copy.seconds, copy.snapshot = await self._store.make(share)
                    log.info(
                        "share %s: snapshot %s for the backup program at %s", share.name, copy.snapshot, self._client
                    )
            except BaseException:
                found.stage = Stage.ADDED
                for copy in found.copies:
                    await self._discard(copy)
                    copy.seconds, copy.snapshot = 0, ""
                self._start_timer(SHORT)
                raise
            found.stage = Stage.COMMITTED
            self._start_timer(SHORT)
            await self._keep()

    async def expose(self, number: uuid.UUID) -> None:
        """Serve the snapshots as shares. [MS-FSRVP 3.1.4.6]"""
        async with self._turn:
            found = self._begun(number, Stage.COMMITTED)
            self._start_timer(SHORT)
            for copy in found.copies:
                self._expose(copy)
            # Nobody may change what is read-only, so there is nothing to recover. Clients that know this
            # (rpcclient) make no further call.
            await self._finish(found)

    async def _finish(self, found: ShadowCopySet) -> None:
        self._stop_timer()
        self._context, self._client = None, ""
        found.stage = Stage.RECOVERED
        await self._keep()

    def _expose(self, copy: ShadowCopy) -> None:
        share = self._store.find(copy.share)
        if share is None:
            raise ShadowCopyError(Error.NOT_FOUND)
        if copy.exposed is None:
            ending = "$" if share.name.endswith("$") else ""
            name = f"{share.name}@{{{str(copy.id).upper()}}}{ending}"
            copy.exposed = self._store.expose(share, name, copy.seconds)

    async def recovered(self, number: uuid.UUID) -> None:
        """Answer a client that has nothing more to do with its set, which is finished. [MS-FSRVP 3.1.4.7]"""
        async with self._turn:
            self._set(number, Stage.RECOVERED)

    async def abort(self, number: uuid.UUID) -> None:
        """Remove a set. [MS-FSRVP 3.1.4.8]"""
        async with self._turn:
            found = self._set(number, *Stage)
            if found.stage is not Stage.RECOVERED:
                await self._give_up()
                return
            del self.sets[number]
            for copy in found.copies:
                await self._discard(copy)
            await self._keep()

    # Finished sets

    def is_copied(self, unc: str) -> bool:
        """Return whether there is a shadow copy of what has the files of a share. [MS-FSRVP 3.1.4.10]"""
        volume = self.volume(unc)
        found = (entry for entry in self.sets.values() if entry.stage >= Stage.COMMITTED)
        return any(copy.volume == volume for entry in found for copy in entry.copies)

    def mapping(self, number: uuid.UUID, copy_id: uuid.UUID, unc: str) -> tuple[ShadowCopySet, ShadowCopy]:
        """Return a share in an exposed set. [MS-FSRVP 3.1.4.11]"""
        found = self._set(number, Stage.RECOVERED)
        copy = self._copy(found, copy_id, unc)
        if copy is None:
            raise ShadowCopyError(Error.INVALID_ARGUMENT)
        return found, copy

    def _copy(self, found: ShadowCopySet, copy_id: uuid.UUID, unc: str) -> ShadowCopy | None:
        name = unc.replace("/", "\\").strip("\\").rpartition("\\")[2].casefold()
        return next((copy for copy in found.copies if copy.id == copy_id and copy.share.casefold() == name), None)

    async def delete_mapping(self, number: uuid.UUID, copy_id: uuid.UUID, unc: str) -> None:
        """Remove a shadow copy, and its set if it was the last one. [MS-FSRVP 3.1.4.12]"""
        async with self._turn:
            found = self.sets.get(number)
            if found is None:
                raise ShadowCopyError(Error.NOT_FOUND)
            if found.stage is not Stage.RECOVERED:
                raise ShadowCopyError(Error.BAD_STATE)
            if all(copy.id != copy_id for copy in found.copies):
                # By the letter NOT_FOUND. Windows answers this, as smbtorture's rpc.fsrvp.bad_id says.
                raise ShadowCopyError(Error.INVALID_ARGUMENT)
            copy = self._copy(found, copy_id, unc)
            if copy is None:
                raise ShadowCopyError(Error.NOT_FOUND)
            found.copies.remove(copy)
            await self._discard(copy)
            if not found.copies:
                del self.sets[number]
            await self._keep()

    async def _keep(self) -> None:
        await self._store.keep([found for found in self.sets.values() if found.stage >= Stage.COMMITTED])

    async def restore(self, sets: Iterable[ShadowCopySet]) -> None:
        """Take over the sets of an earlier run. Those that are finished and to outlive it are served again, the
        snapshots of the others are removed."""
        async with self._turn:
            for found in sets:
                if not found.context & Attribute.PERSISTENT or found.stage is not Stage.RECOVERED:
                    for copy in found.copies:
                        await self._discard(copy)
                    continue
                self.sets[found.id] = found
                for copy in found.copies:
                    try:
                        self._expose(copy)
                    except ShadowCopyError as error:
                        log.warning("share %s: its shadow copy %s is not served: %s", copy.share, copy.snapshot, error)
            await self._keep()
