"""CLOSE. [MS-SMB2 3.3.5.10]"""

from __future__ import annotations

from functools import partial

from smb3server.backends.base import FileInfo
from smb3server.commands.info import presentation, waits
from smb3server.dispatch.chain import Fresh
from smb3server.dispatch.lookup import find_open, fresh_of
from smb3server.dispatch.request import Pending, Response, TreeRequest, handles
from smb3server.dispatch.short_forms import SHORT_FORMS, Body, Found, ShortForm, ordinary_open
from smb3server.dispatch.waiting import until
from smb3server.state.objects import Connection, Open, Opens, Session, TreeConnect
from smb3server.state.opens import settle_write_time
from smb3server.wire.close import CLOSE_REQUEST, CLOSE_RESPONSE, POSTQUERY_ATTRIB, CloseResponse, parse_request
from smb3server.wire.header import HEADER_SIZE, Command

NO_ATTRIBUTES = CLOSE_RESPONSE.pack(CloseResponse())
"""The body of a response without attributes."""


@handles(Command.CLOSE, TreeRequest)
def close(request: TreeRequest) -> Response | Pending:
    """Close an open and return its attributes if requested."""
    body = parse_request(request.message)
    opened = find_open(request, (body.persistent, body.volatile))
    queried = bool(body.flags & POSTQUERY_ATTRIB)
    if opened.delete_on_close and opened.file is not None and opened.file.caching.holders:
        return _close_and_delete(request, opened, queried)
    disk = opened.virtual_disk
    if disk is not None and disk.disk.closes_slowly and not request.server.has_lost(opened.tree.share):
        return _close_disk(request, opened, queried)
    return _closed(request, opened, queried)


def _closed(request: TreeRequest, opened: Open, queried: bool) -> Response:
    answer = _attributes(opened, fresh_of(request, opened)) if queried else NO_ATTRIBUTES
    request.host.server.opens.close(opened)
    return Response([answer])


def _close_disk(request: TreeRequest, opened: Open, queried: bool) -> Pending:
    """Close the last open of a virtual disk when its logs are empty, which a worker thread sees to."""
    device = opened.virtual_disk
    assert device is not None
    empty = partial(request.server.flushes.add, device.disk.empty_logs)
    return until(request, empty, partial(_closed, request, opened, queried))


def _close_and_delete(request: TreeRequest, opened: Open, queried: bool) -> Response | Pending:
    """Close an open that deletes its file, after others have given up handles that they only cache.

    Windows waits for them. MS-FSA 2.1.5.5 has no check for it."""

    def attempt() -> Response:
        waits.break_handles(opened, [opened.file] if opened.file is not None else [])
        return _closed(request, opened, queried)

    return waits.change(request, opened, attempt)


def _attributes(opened: Open, fresh: Fresh | None) -> bytes:
    """Return the response with the attributes. They are read last, to include the final write time."""
    if opened.handle is None:
        return NO_ATTRIBUTES
    if fresh is None or (opened.file is not None and opened.file.write_time is not None):
        settle_write_time(opened)
        info = opened.handle.info()
    else:
        info = fresh.info
    return response(presentation.shown(opened, info))


def response(info: FileInfo) -> bytes:
    """Return the body of a response with attributes, as the client sees them."""
    return CLOSE_RESPONSE.pack(
        CloseResponse(
            flags=POSTQUERY_ATTRIB,
            creation_time=info.creation_time,
            last_access_time=info.last_access_time,
            last_write_time=info.last_write_time,
            change_time=info.change_time,
            allocation_size=info.allocation_size,
            end_of_file=info.end_of_file,
            file_attributes=info.attributes,
        )
    )


def _look(
    connection: Connection, session: Session, tree: TreeConnect | None, sequence: int, message: memoryview
) -> Found | None:
    """Return what answers a CLOSE that deletes and reports nothing, and ends no other request."""
    if len(message) < CLOSE_REQUEST.end:
        return None
    size, flags, _, persistent, volatile = CLOSE_REQUEST.fields_from(message, HEADER_SIZE)
    if size != _STRUCTURE_SIZE:
        return None
    opened = ordinary_open(session, tree, sequence, persistent, volatile)
    if (
        opened is None
        or opened.file is None
        or opened.durable is not None
        or opened.virtual_disk is not None
        or opened.on_close
    ):
        return None
    file, opens = opened.file, connection.host.opens
    if opened.delete_on_close or file.delete_pending or file.link_deletions or opens.persistence is not None:
        return None
    return opened, partial(_close_now, opens, opened, flags & POSTQUERY_ATTRIB), None


def _close_now(opens: Opens, opened: Open, queried: int) -> Body:
    """Close the open."""
    answer = _attributes(opened, None) if queried else NO_ATTRIBUTES
    opens.close(opened)
    return answer, None


_STRUCTURE_SIZE = 24


SHORT_FORMS[Command.CLOSE] = ShortForm(close, _look, ends_row=True)
