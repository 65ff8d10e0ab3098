"""The registry of create contexts, by which those of a request are decoded. [MS-SMB2 2.2.13.2, 3.3.5.9]

What CREATE asks at several of its steps is a field of ``contexts.CreateContexts``: lease, durability, attributes of a
new file. Any other context is a ``Kind``, which its module registers when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from smb3server.backends.base import FileInfo
from smb3server.commands.create.contexts import NOTHING, CreateContexts
from smb3server.commands.create.opening import Opening
from smb3server.state.objects import Open
from smb3server.wire import create_contexts as wire
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus, StatusError

_SINCE_3_0 = (wire.DURABLE_REQUEST_V2, wire.DURABLE_RECONNECT_V2)
_ABOUT_DURABILITY = frozenset((wire.DURABLE_REQUEST, wire.DURABLE_RECONNECT, *_SINCE_3_0))


class Described(NamedTuple):
    """What an answer may say of an open."""

    info: FileInfo
    """The metadata that the client sees."""
    maximal_access: int
    volume_serial: int
    opened: Open


class Kind(NamedTuple):
    """What the server does with one create context. ``Any`` is the decoded data of the request."""

    name: bytes
    since: int = Dialect.SMB_2_0_2
    """The first dialect that has the context. In an earlier one it is ignored."""
    before: Callable[[Opening, Any], None] | None = None
    """Called before the file is opened. Raises ``StatusError`` to refuse the request."""
    after: Callable[[Opening, Open, Any], None] | None = None
    """Called when the file is open, before a durable handle is granted and the open is stored."""
    parse: Callable[[bytes], Any] | None = None
    """Decodes the data of the request. Raises ``DecodeError``. None: ``wire.REQUESTS`` has the decoder."""
    answer: Callable[[Described, Any], bytes | None] | None = None
    """Returns the data of the response's context of the same name. None, or no function: the response has none."""


KINDS: dict[bytes, Kind] = {}
"""By name, in the order of the answers."""
PARSERS: dict[bytes, Callable[[bytes], Any]] = {}
"""The decoders of kinds that ``wire.REQUESTS`` does not have."""


def register(kind: Kind) -> None:
    """Serve a create context from now on."""
    if kind.name in KINDS:
        raise ValueError(f"create context {kind.name!r} is served already")
    KINDS[kind.name] = kind
    if kind.parse is not None:
        PARSERS[kind.name] = kind.parse


def decode(raw: Sequence[wire.RawContext], dialect: int) -> CreateContexts:
    """Decode the contexts of a request. Raises INVALID_PARAMETER for contexts that cannot come together."""
    if not raw:
        return NOTHING
    found = wire.decode_requests(raw, PARSERS)
    if wire.DURABLE_RECONNECT in found:
        # 3.3.5.9.7: a version 1 request beside it is ignored.
        found.pop(wire.DURABLE_REQUEST, None)
    # 3.3.5.9.6, 3.3.5.9.7, 3.3.5.9.10: they exclude each other whatever the dialect, which may ignore one of them.
    if len(_ABOUT_DURABILITY & found.keys()) > 1:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if dialect < Dialect.SMB_3_0:
        for name in _SINCE_3_0:
            found.pop(name, None)
    return _named(found, dialect)


def _named(found: dict[bytes, Any], dialect: int) -> CreateContexts:
    eas = found.get(wire.EA_BUFFER)
    allocation = found.get(wire.ALLOCATION_SIZE)
    timewarp = found.get(wire.TIMEWARP)
    return CreateContexts(
        eas=tuple(eas) if eas is not None else None,
        security_descriptor=found.get(wire.SD_BUFFER),
        allocation_size=allocation.allocation_size if allocation is not None else None,
        timewarp=timewarp.timestamp if timewarp is not None else 0,
        lease=_lease(found.get(wire.REQUEST_LEASE), dialect),
        durable=wire.DURABLE_REQUEST in found,
        durable_v2=found.get(wire.DURABLE_REQUEST_V2),
        reconnect=found.get(wire.DURABLE_RECONNECT) or found.get(wire.DURABLE_RECONNECT_V2),
        others={name: found[name] for name in KINDS if name in found and dialect >= KINDS[name].since},
    )


def _lease(asked: wire.Lease | wire.LeaseV2 | None, dialect: int) -> wire.Lease | wire.LeaseV2 | None:
    """Return a requested lease if the dialect has it: version 1 since 2.1, version 2 since 3.0. [MS-SMB2 3.3.5.9.8]"""
    known = Dialect.SMB_3_0 if isinstance(asked, wire.LeaseV2) else Dialect.SMB_2_1
    return asked if dialect >= known else None
