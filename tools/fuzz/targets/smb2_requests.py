"""Requests of SMB2, each decoder by itself. [MS-SMB2 2.2]"""

from __future__ import annotations

from smb3server.wire import (
    change_notify,
    close,
    create,
    flush,
    header,
    ioctl,
    lock,
    negotiate,
    oplock_break,
    query_directory,
    query_info,
    read_write,
    session,
    set_info,
)
from smbdirect.errors import DecodeError
from tools.fuzz import seeds
from tools.fuzz.target import Target, choice


def _negotiate(message: memoryview) -> None:
    request = negotiate.NEGOTIATE_REQUEST.parse(message)
    negotiate.dialects_of(message, request)
    for _, data in negotiate.contexts_of(message, request):
        negotiate.numbers_of(data)


SUBJECTS = (
    _negotiate,
    session.SESSION_SETUP_REQUEST.parse_both,
    header.HEADER.unpack,
    negotiate.smb1_dialects,
    create.parse_request,
    close.parse_request,
    flush.parse_request,
    read_write.parse_read_request,
    read_write.parse_write_request,
    lock.parse_request,
    ioctl.parse_ioctl_request,
    query_directory.parse_query_directory_request,
    query_info.parse_query_info_request,
    set_info.parse_set_info_request,
    change_notify.parse_change_notify_request,
    oplock_break.parse_acknowledgment,
)
TARGET = Target(choice(SUBJECTS), lambda: seeds.fitting(SUBJECTS), declared=(DecodeError,))
