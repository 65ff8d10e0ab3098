"""Stores whose storage may answer late: what they ask it lets the event loop go on (``process.storage_queue``).

A slow store is an ordinary one whose class was replaced by one that is made here. That has the same methods, and each
that may ask the storage does so ``away``. What such a method returns (handles, searches, remembered files) becomes slow
as well. Stores that are not slow have nothing of this, and pay nothing for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, new_class
from typing import Any, TypeVar

from smb3server.backends.base import Backend, Handle, OpenedFile, Remembered, Search
from smb3server.process.storage_queue import StorageQueue, away

_T = TypeVar("_T")

_AT_ONCE = {
    Backend: frozenset(
        # These ask no storage, but ``watch``: it registers with the event loop, and its watcher is away by itself.
        ["begin_row", "end_row", "expect", "storage", "watch"]
    ),
    Handle: frozenset(["fileno"]),
    Search: frozenset(["unread"]),
    Remembered: frozenset[str](),
}
"""By contract: the methods that are not called ``away``."""


def make_slow(store: Backend, queue: StorageQueue) -> None:
    """Make a store slow, before it is used. The work on it is done by ``queue``."""
    _slow(store, queue)


def _slow(thing: _T, queue: StorageQueue) -> _T:
    """Make one of the things of a contract slow, and return it. Anything else is returned as it is."""
    if isinstance(thing, OpenedFile):
        _slow(thing.handle, queue)
        return thing
    for contract in _AT_ONCE:
        if isinstance(thing, contract):
            kind = type(thing)
            if not issubclass(kind, _Slow):
                thing.__class__ = _slow_class(kind, contract, queue)
            break
    return thing


class _Slow:
    """Marks the classes that are made here."""

    __slots__ = ()


def _slow_class(kind: type[Any], contract: type[Any], queue: StorageQueue) -> type[Any]:
    """Return the class of slow things whose class was ``kind``."""
    found = queue.classes.get(kind)
    if found is None:
        names = {
            name
            for base in contract.__mro__
            for name, member in vars(base).items()
            if isinstance(member, FunctionType) and not name.startswith("_")
        }
        methods = {name: _away(getattr(kind, name), queue) for name in sorted(names - _AT_ONCE[contract])}
        name = f"Slow{kind.__name__.lstrip('_')}"
        members = {"__slots__": (), "queue": queue, **methods}
        found = queue.classes[kind] = new_class(name, (kind, _Slow), exec_body=lambda body: body.update(members))
    return found


def _away(method: Callable[..., Any], queue: StorageQueue) -> Callable[..., Any]:
    """Return a method that calls another one away from the event loop, and makes its result slow."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _slow(away(method, *args, **kwargs), queue)

    return call
