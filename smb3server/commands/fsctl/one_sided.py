"""Private FSCTLs by which a session gets files to read and write by RDMA without requests. docs/flashnet.md describes
them, and says why each condition is there."""

from __future__ import annotations

import logging

from smb3server.commands.fsctl.ioctl import NO_FILE, Control, fsctl
from smb3server.dispatch.long_work import run_steps
from smb3server.dispatch.lookup import handle_of
from smb3server.dispatch.request import Pending, Response
from smb3server.files import write_times
from smb3server.files.caching import READ, WRITE, Lease, Oplock
from smb3server.state.change_reports import report_write
from smb3server.state.objects import Open
from smb3server.wire import one_sided as wire
from smb3server.wire.create import Access, CreateOptions
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.one_sided import LendRights
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer
from smbdirect.errors import ProviderError
from smbdirect.rdma import Handle, RdmaError

log = logging.getLogger(__name__)


def _refuse(status: NtStatus, why: str) -> StatusError:
    log.debug("not lent: %s", why)
    return StatusError(status)


@fsctl(Fsctl.ONE_SIDED_TICKET)
def ticket(control: Control) -> Buffer:
    """Return a ticket for the session's line, the RDMA connection for what is lent. An earlier line ends first."""
    if control.file_id != NO_FILE:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if control.max_output < wire.TICKET_RESPONSE.size:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    server, session = control.request.server, control.request.session
    # Whoever asks is about to go on by requests: no byte of an earlier line may come after them.
    server.one_sided.session_ends(session, "a new line is asked for")
    _check_session(control)
    return wire.TICKET_RESPONSE.pack(wire.TicketResponse(wire.VERSION, 0, server.one_sided.ticket(session)))


def _check_session(control: Control) -> None:
    """Raise ``StatusError`` unless the session may have a line, and its share lends files."""
    server, session = control.request.server, control.request.session
    if not control.request.tree.share.rules.one_sided:
        raise _refuse(NtStatus.NOT_SUPPORTED, "the share does not have one_sided")
    if server.fence is not None:
        raise _refuse(NtStatus.NOT_SUPPORTED, "a node of a cluster must look before each answer")
    if session.is_guest or session.is_anonymous:
        raise _refuse(NtStatus.ACCESS_DENIED, "guests and anonymous users prove nothing")
    if server.settings.require_signing:
        raise _refuse(NtStatus.ACCESS_DENIED, "the server requires signing, and these bytes would not be signed")
    if session.encrypts:
        raise _refuse(NtStatus.ACCESS_DENIED, "the session encrypts, and these bytes would not be")


@fsctl(Fsctl.ONE_SIDED_LEND)
def lend(control: Control) -> Buffer | Response | Pending:
    """Lend the file of an open, from its begin to its end, and return the handle."""
    opened = control.open()
    if len(control.data) != wire.LEND_REQUEST.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    body = wire.LEND_REQUEST.unpack(control.data)
    if body.version != wire.VERSION or not body.rights or body.rights & ~int(LendRights.READ | LendRights.WRITE):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    rights = LendRights(body.rights)
    if control.max_output < Handle.SIZE:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    _check(control, opened, rights)
    steps = handle_of(opened).filling() if LendRights.WRITE in rights else None
    if steps is None:
        return _lend(control, opened, rights)
    # Without holes no write needs space. Much may happen until they are filled: everything is checked again.
    return run_steps(control.request, opened, steps, lambda: control.respond(_lend(control, opened, rights)))


def _check(control: Control, opened: Open, rights: LendRights) -> Oplock[Open] | Lease[Open]:
    """Return the caching rights that the loan stands on. Raise ``StatusError`` if the open cannot be lent."""
    _check_session(control)
    file = opened.file
    if opened.is_directory or file is None or file.stream:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    granted = opened.granted_access
    if (LendRights.READ in rights and not granted & Access.READ_DATA) or (
        LendRights.WRITE in rights and not granted & Access.WRITE_DATA
    ):
        raise StatusError(NtStatus.ACCESS_DENIED)
    share = opened.tree.share
    if opened.descriptor is None or share.rules.posix_locks or share.queue is not None:
        raise _refuse(NtStatus.NOT_SUPPORTED, "the store has no plain file, or locks of the host count")
    through = opened.write_through or opened.create_options & CreateOptions.WRITE_THROUGH
    if LendRights.WRITE in rights and through:
        raise _refuse(NtStatus.NOT_SUPPORTED, "writes must be on the disk when they are done")
    if file.locks.locks or file.locks.waiters:
        raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
    if file.delete_pending or file.link_deletions:
        raise StatusError(NtStatus.DELETE_PENDING)
    holder = opened.caching
    needs = READ | WRITE if LendRights.WRITE in rights else READ
    if holder is None or holder.breaking or needs & ~holder.state:
        raise _refuse(NtStatus.OPLOCK_NOT_GRANTED, "the open does not have the caching rights for it")
    return holder


def _lend(control: Control, opened: Open, rights: LendRights) -> bytes:
    holder = _check(control, opened, rights)
    line = control.request.server.one_sided.lines.get(control.request.session)
    if line is None or not line.connection.is_open:
        raise _refuse(NtStatus.INVALID_DEVICE_STATE, "the session has no line")
    size = handle_of(opened).info().end_of_file
    if not size:
        raise StatusError(NtStatus.END_OF_FILE)
    if LendRights.WRITE in rights:
        # As for a WRITE: what others see of the file's times, and who watches it.
        write_times.changing(opened)
        report_write(opened)
    assert opened.descriptor is not None
    try:
        return line.lend(opened, holder, opened.descriptor, size, rights).handle.pack()
    except (RdmaError, ProviderError) as error:
        raise _refuse(NtStatus.NOT_SUPPORTED, str(error)) from error
