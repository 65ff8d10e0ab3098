"""The snapshots that backup programs ask for, as shares, and the file that keeps them over a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.local.snapshot_making import CannotError, SnapshotMaker, TakenError
from smb3server.config.error import ConfigError
from smb3server.config.values import snapshot_pattern
from smb3server.files.notify import NotifyHub
from smb3server.persistence import shadow_copies as stored
from smb3server.process.own_files import replace_file
from smb3server.server.server import Server
from smb3server.service.shares import snapshots_below
from smb3server.state import endings
from smb3server.state.shadow_copies import Error, ShadowCopyError, ShadowCopySet
from smb3server.state.share import Share

log = logging.getLogger(__name__)

_MAX_NAME = 80
_A_SECOND = 1.05
"""Seconds until a snapshot gets another name than the last one."""


def showing(share: Share, name: str, seconds: int) -> Share:
    """Return a share that shows a snapshot of ``share``, for reading. It admits those whom that admits now; if that
    changes, those whom both admit."""
    backend, pattern = share.backend, _pattern(share)
    if not isinstance(backend, LocalBackend) or pattern is None:
        raise ShadowCopyError(Error.NOT_SUPPORTED)
    rules = msgspec.structs.replace(share.rules, continuous_availability=False, recycle=False, comment="")
    return replace(
        share,
        name=name,
        rules=rules,
        snapshots=snapshots_below(pattern, backend.options, backend.queue),
        as_of=seconds,
        original=share,
        read_only=True,
        recycling=None,
        hidden=True,
        notify=NotifyHub(),
        stores_opens=False,
        bytes_read=0,
        bytes_written=0,
    )


def follow(shown: Share, share: Share) -> None:
    """Let users act in a share that shows a snapshot as whom they act as in its original now."""
    for name in ("user", "default_user", "audit"):
        setattr(shown, name, getattr(share, name))


def _pattern(share: Share) -> Any:
    return snapshot_pattern(share.rules.snapshots, share.path, share.rules.snapshot_times)


class ServedShadowCopies:
    """Implements ``state.shadow_copies.ShadowCopyStore``."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.state: Path | None = None
        """The folder of the server's state. None: nothing is kept."""

    def find(self, name: str) -> Share | None:
        """See the port."""
        share = self._server.share_list.get(name.casefold())
        return share if share is not None and share.backend is not None and not share.as_of else None

    def _maker(self, share: Share) -> SnapshotMaker:
        pattern = _pattern(share)
        if pattern is None or not share.rules.shadow_copies or share.service:
            raise ShadowCopyError(Error.NOT_SUPPORTED)
        return SnapshotMaker(pattern, share.path)

    def volume(self, share: Share) -> str:
        """See the port."""
        try:
            return self._maker(share).volume()
        except CannotError as error:
            log.warning("share %s: no shadow copies: %s", share.name, error)
            raise ShadowCopyError(Error.NOT_SUPPORTED, str(error)) from error

    async def make(self, share: Share) -> tuple[int, str]:
        """See the port."""
        maker = self._maker(share)
        try:
            try:
                return await asyncio.to_thread(maker.make)
            except TakenError:
                await asyncio.sleep(_A_SECOND)
                return await asyncio.to_thread(maker.make)
        except CannotError as error:
            log.warning("share %s: no shadow copy: %s", share.name, error)
            raise ShadowCopyError(Error.FAILED, str(error)) from error

    async def remove(self, name: str, snapshot: str) -> None:
        """See the port."""
        share = self.find(name)
        if share is None:
            raise ShadowCopyError(Error.NOT_FOUND, "its share is not served")
        try:
            await asyncio.to_thread(self._maker(share).remove, snapshot)
        except CannotError as error:
            raise ShadowCopyError(Error.FAILED, str(error)) from error

    def expose(self, share: Share, name: str, seconds: int) -> Share:
        """See the port."""
        if len(name) > _MAX_NAME:
            raise ShadowCopyError(Error.NOT_SUPPORTED, f"{name} is too long for the name of a share")
        shown = showing(share, name, seconds)
        self._server.add_share(shown)
        log.info("share %s shows a snapshot of %s", name, share.name)
        return shown

    def withdraw(self, share: Share) -> None:
        """See the port."""
        self._server.remove_share(share)
        endings.end_share(self._server, share)
        if share.snapshots is not None:
            share.snapshots.close()

    async def keep(self, sets: Iterable[ShadowCopySet]) -> None:
        """See the port."""
        if self.state is None:
            return
        path, content = self.state / stored.FILE_NAME, stored.encode(sets)
        try:
            await asyncio.to_thread(replace_file, path, content)
        except OSError as error:
            log.error("%s: %s; shadow copies are not served after a restart", path, error.strerror)

    def read(self) -> list[ShadowCopySet]:
        """Return the sets of an earlier run. Raises ``ConfigError``."""
        if self.state is None:
            return []
        try:
            return stored.read(self.state)
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{error}; remedy: remove it; the snapshots stay") from error
