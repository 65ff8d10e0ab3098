"""QUERY_INFO and SET_INFO for the quotas of users. [MS-SMB2 3.3.5.20.4, 3.3.5.21.4, MS-FSA 2.1.5.21, 2.1.5.22]

Users are the host's: S-1-22-1-uid, or the accounts that act as them. An account that shares its user of the host with
others has no quota of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from smb3server.access.descriptor import Sid
from smb3server.access.posix import uid_of, user_sid
from smb3server.backends.base import Quota, Quotas
from smb3server.dispatch.request import Response, TreeRequest
from smb3server.state.objects import Open
from smb3server.wire import quota as wire
from smb3server.wire.create import Access
from smb3server.wire.query_info import QueryInfoRequest, build_output_response
from smb3server.wire.quota import DELETE, NO_LIMIT, QuotaEntry
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import DecodeError

log = logging.getLogger(__name__)

FILE_NAME = "$extend\\$quota:$q:$index_allocation"
"""The name, in lower case, by which clients open what they ask for quotas. [MS-FSA 2.1.5.21 note]"""
_ADMINISTRATORS = Sid(5, (32, 544))
"""BUILTIN_ADMINISTRATORS. [MS-DTYP 2.4.2.4]"""
_MOST = 1024
"""Entries of one response: each takes a system call."""


def query(request: TreeRequest, opened: Open, body: QueryInfoRequest, data: memoryview) -> Response:
    """Return quotas of users. [MS-SMB2 3.3.5.20.4]

    Everybody may ask for their own. All others are for administrators."""
    quotas = _quotas_of(opened)
    try:
        asked = wire.decode_query(data)
        listed = [Sid.unpack(sid) for sid in asked.sids]
        start = Sid.unpack(asked.start) if asked.start else None
    except (DecodeError, ValueError):
        raise StatusError(NtStatus.INVALID_PARAMETER) from None
    most = 1 if asked.single else _MOST
    if listed:
        entries = [_entry(sid, _found(request, opened, quotas, sid)) for sid in listed[:most]]
        output, count = wire.encode_entries(entries, body.output_buffer_length)
        if not count:
            raise StatusError(NtStatus.BUFFER_TOO_SMALL)
        return _response(output)
    _check_administrator(request, opened)
    if start is not None:
        first = _uid_of(request, start)
        if first is None:
            raise StatusError(NtStatus.INVALID_PARAMETER)
    else:
        first = 0 if asked.restart else opened.next_quota
    found: list[Quota] = []
    output, count = wire.encode_entries(_scan(quotas, first, most, found), body.output_buffer_length)
    if not found:
        raise StatusError(NtStatus.NO_MORE_ENTRIES)
    if not count:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    opened.next_quota = found[count - 1].uid + 1
    return _response(output)


def set_quotas(request: TreeRequest, opened: Open, data: memoryview) -> None:
    """Set limits of users, all or none as far as it can be known before. [MS-SMB2 3.3.5.21.4]"""
    quotas = _quotas_of(opened)
    _check_administrator(request, opened)
    if not opened.tree.maximal_access & Access.WRITE_DATA:
        raise StatusError(NtStatus.ACCESS_DENIED)
    try:
        entries = [(Sid.unpack(entry.sid), entry) for entry in wire.decode_entries(data)]
    except (DecodeError, ValueError):
        raise StatusError(NtStatus.INVALID_PARAMETER) from None
    changes = [change for sid, entry in entries if (change := _change(request, quotas, sid, entry)) is not None]
    for uid, soft, hard in changes:
        quotas.set(uid, soft, hard)
        log.info(
            "share %s: %s sets the quota of uid %d to %d bytes, with a warning at %d",
            opened.tree.share.name,
            opened.session.identity,
            uid,
            hard,
            soft,
        )


def _change(request: TreeRequest, quotas: Quotas, sid: Sid, entry: QuotaEntry) -> tuple[int, int, int] | None:
    """Return uid, soft and hard limit that an entry sets. None: it changes nothing."""
    if entry.threshold < NO_LIMIT or entry.limit < DELETE:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if sid == _ADMINISTRATORS:
        if entry.limit != NO_LIMIT:
            raise StatusError(NtStatus.ACCESS_DENIED)
        return None
    uid = _uid_of(request, sid)
    if uid is None:
        raise StatusError(NtStatus.NONE_MAPPED)
    if uid == 0:
        # The kernel never limits root.
        raise StatusError(NtStatus.ACCESS_DENIED)
    if entry.limit == DELETE:
        present = quotas.get(uid)
        if not (present.soft or present.hard or present.used):
            raise StatusError(NtStatus.NO_MATCH)
        return uid, 0, 0
    return uid, max(entry.threshold, 0), max(entry.limit, 0)


def _quotas_of(opened: Open) -> Quotas:
    """Return the quotas of an open's store. Raises NOT_SUPPORTED if it has none."""
    quotas = opened.store.quotas if opened.store is not None else None
    if quotas is None:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    return quotas


def _check_administrator(request: TreeRequest, opened: Open) -> None:
    if not request.server.accounts.administers(opened.session.identity):
        raise StatusError(NtStatus.ACCESS_DENIED)


def _uid_of(request: TreeRequest, sid: Sid) -> int | None:
    """Return the uid of the one user of the host whom a SID stands for. None: there is no such user."""
    uid = uid_of(sid)
    if uid is not None:
        return uid
    users = request.server.accounts.host_users(sid)
    return users[0].uid if len(users) == 1 else None


def _found(request: TreeRequest, opened: Open, quotas: Quotas, sid: Sid) -> Quota:
    """Return the quota of a SID, which is empty if that stands for no user of the host."""
    uid = _uid_of(request, sid)
    own = opened.tree.user
    if uid is None or own is None or own.uid != uid:
        _check_administrator(request, opened)
    return quotas.get(uid) if uid is not None else Quota(0, 0, 0, 0)


def _scan(quotas: Quotas, first: int, most: int, found: list[Quota]) -> Iterator[QuotaEntry]:
    """Return the entries from a uid on, and note in ``found`` which users they are of."""
    while len(found) < most:
        quota = quotas.following(first)
        if quota is None:
            return
        found.append(quota)
        first = quota.uid + 1
        yield _entry(user_sid(quota.uid), quota)


def _entry(sid: Sid, quota: Quota) -> QuotaEntry:
    return QuotaEntry(sid.pack(), quota.used, quota.soft or NO_LIMIT, quota.hard or NO_LIMIT)


def _response(output: bytes) -> Response:
    return Response([build_output_response(len(output)), output])
