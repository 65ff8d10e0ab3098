"""The folder that a new file is made in: whether it may be added, and what it inherits (MS-FSA 2.1.5.1.1)."""

from __future__ import annotations

from smb3server.access import decide, tokens
from smb3server.access.caller import Caller
from smb3server.access.descriptor import unpack
from smb3server.backends.base import Backend, Handle, OpenRequest, Path, PathNotFound, User
from smb3server.wire.status import NtStatus, StatusError


def open_folder(backend: Backend, path: Path, user: User | None) -> Handle:
    """Open the folder ``path``. Raises ``PathNotFound``, OBJECT_PATH_NOT_FOUND if it is none."""
    try:
        return backend.open(OpenRequest(path, directory=True, user=user))
    except FileNotFoundError as error:
        raise PathNotFound(*error.args) from None
    except NotADirectoryError:
        raise StatusError(NtStatus.OBJECT_PATH_NOT_FOUND) from None


def new_descriptor(parent: bytes | None, given: bytes | None, directory: bool, caller: Caller) -> bytes | None:
    """Return the security descriptor to store with a new file; None: its mode says all.

    ``parent``: the folder's. ``given``: the client's. Raises ``StatusError`` for one that the caller may not give."""
    try:
        if given is not None:
            creator = unpack(given)
            decide.check_creator(caller.token, creator.owner, creator.group, creator.sacl is not None)
        return tokens.new_descriptor(parent, given, directory, caller.token, caller.user)
    except ValueError:
        raise StatusError(NtStatus.INVALID_SECURITY_DESCR) from None
