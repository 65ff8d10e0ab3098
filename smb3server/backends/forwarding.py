"""A handle that passes everything on to another one: the base of handles that do a few things in their own way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import update_wrapper
from typing import Concatenate, ParamSpec, TypeVar

from smb3server.backends.base import Handle, Path

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _passed_on(method: Callable[Concatenate[Handle, _P], _R]) -> Callable[Concatenate[ForwardingHandle, _P], _R]:
    """Return a method of a handle that calls this one of the handle behind it."""
    name = method.__name__

    def call(self: ForwardingHandle, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        found: _R = getattr(self.open(), name)(*args, **kwargs)
        return found

    # Not its dictionary: that says that the method is abstract.
    return update_wrapper(call, method, updated=())


class ForwardingHandle(Handle):
    """A handle in front of another one, whose methods it calls."""

    __slots__ = ()

    @abstractmethod
    def open(self) -> Handle:
        """Return the handle that the methods are passed on to. Raises ``OSError``."""

    @property
    def path(self) -> Path:
        return self.open().path

    fileno = _passed_on(Handle.fileno)
    describe = _passed_on(Handle.describe)
    info = _passed_on(Handle.info)
    data_version = _passed_on(Handle.data_version)
    read_into = _passed_on(Handle.read_into)
    cached = _passed_on(Handle.cached)
    storage_failed = _passed_on(Handle.storage_failed)
    write_from = _passed_on(Handle.write_from)
    take_in = _passed_on(Handle.take_in)
    flush = _passed_on(Handle.flush)
    shrinking = _passed_on(Handle.shrinking)
    allocating = _passed_on(Handle.allocating)
    zeroing = _passed_on(Handle.zeroing)
    filling = _passed_on(Handle.filling)
    truncate = _passed_on(Handle.truncate)
    allocate = _passed_on(Handle.allocate)
    zero_range = _passed_on(Handle.zero_range)
    allocated_ranges = _passed_on(Handle.allocated_ranges)
    copy_range = _passed_on(Handle.copy_range)
    clone_range = _passed_on(Handle.clone_range)
    set_times = _passed_on(Handle.set_times)
    set_attributes = _passed_on(Handle.set_attributes)
    set_compressed = _passed_on(Handle.set_compressed)
    eas = _passed_on(Handle.eas)
    set_ea = _passed_on(Handle.set_ea)
    set_eas = _passed_on(Handle.set_eas)
    security_descriptor = _passed_on(Handle.security_descriptor)
    set_security_descriptor = _passed_on(Handle.set_security_descriptor)
    set_permissions = _passed_on(Handle.set_permissions)
    set_mode = _passed_on(Handle.set_mode)
    streams = _passed_on(Handle.streams)
    listing_streams = _passed_on(Handle.listing_streams)
    finder_data = _passed_on(Handle.finder_data)
    lasting_number = _passed_on(Handle.lasting_number)
    removing_streams = _passed_on(Handle.removing_streams)
    rename = _passed_on(Handle.rename)
    rename_stream = _passed_on(Handle.rename_stream)
    link = _passed_on(Handle.link)
    check_unlink = _passed_on(Handle.check_unlink)
    unlink = _passed_on(Handle.unlink)
    retained = _passed_on(Handle.retained)
    note_deletion = _passed_on(Handle.note_deletion)
    reparse_point = _passed_on(Handle.reparse_point)
    set_reparse_point = _passed_on(Handle.set_reparse_point)
    scan = _passed_on(Handle.scan)
    has_vetoed = _passed_on(Handle.has_vetoed)
    search = _passed_on(Handle.search)
