"""The create context of POSIX opens. [POSIX-SMB2 2.2.13.2.16, 2.2.14.2.16]"""

from __future__ import annotations

from smb3server.commands.create.contexts import CreateContexts
from smb3server.commands.create.registry import Described, Kind, register
from smb3server.commands.info import posix
from smb3server.state.objects import Connection
from smb3server.state.share import Share
from smb3server.wire import posix as wire
from smb3server.wire.negotiate import Dialect


def agreed(asked: CreateContexts, connection: Connection, share: Share) -> CreateContexts:
    """Return the contexts of a request that has this one, with the mode that it asks for.

    Without it, as if it had not been sent, if the extensions were not agreed upon, or the share does not have them.
    Raises ``DecodeError`` if it is malformed."""
    data = asked.others[wire.VERSION]
    if connection.posix_extensions and share.rules.posix and share.backend is not None and share.backend.as_posix():
        return asked._replace(posix=wire.decode_mode(data))
    return asked._replace(others={name: found for name, found in asked.others.items() if name != wire.VERSION})


def _answer(found: Described, _: bytes) -> bytes:
    return posix.create_response(found.info)


register(Kind(wire.VERSION, Dialect.SMB_3_1_1, parse=bytes, answer=_answer))
