"""An application that fails over to another client: its create contexts close what it had open there. [MS-SMB2
2.2.13.2.13, 2.2.13.2.15, 3.3.5.9.13]"""

from __future__ import annotations

from smb3server.backends.name_rules import same_stream
from smb3server.commands.create.opening import Opening
from smb3server.commands.create.registry import Kind, register
from smb3server.state.objects import Open
from smb3server.state.opens import client_guid_of
from smb3server.wire import create_contexts as wire
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus, StatusError


def _version(opening: Opening) -> tuple[int, int] | None:
    asked = opening.contexts.others.get(wire.APP_INSTANCE_VERSION)
    return (asked.version_high, asked.version_low) if asked is not None else None


def _close_same(opening: Opening, asked: wire.AppInstanceId) -> None:
    """Close the opens of the application on other clients. Raises FILE_FORCED_CLOSED if the other instance is newer."""
    opener, opens, version = opening.opener, opening.opens, _version(opening)
    for opened in list(opens.by_application.get(asked.app_instance_id, ())):
        if (
            client_guid_of(opened) == opener.client_guid
            or opened.tree.share is not opener.tree.share
            or not opening.backend.name_rules.same(opened.path, opening.path)
            or (opened.file is not None and not same_stream(opened.file.stream, opening.stream))
        ):
            continue
        if opened.app_instance_version is not None and (version is None or opened.app_instance_version >= version):
            raise StatusError(NtStatus.FILE_FORCED_CLOSED)
        if opened.handle is not None and opening.may_read(opened.handle):
            opens.close(opened)


def _join(opening: Opening, opened: Open, asked: wire.AppInstanceId) -> None:
    opening.opens.join_application(opened, asked.app_instance_id)
    opened.app_instance_version = _version(opening)


register(Kind(wire.APP_INSTANCE_ID, Dialect.SMB_3_0, before=_close_same, after=_join))
register(Kind(wire.APP_INSTANCE_VERSION, Dialect.SMB_3_1_1))
