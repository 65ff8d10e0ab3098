"""Requests and responses of SMB2, each decoder by itself. [MS-SMB2 2.2]"""

from __future__ import annotations

from collections.abc import Iterator

from smb3server.wire import (
    change_notify,
    close,
    create,
    error,
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
from smb3server.wire.fields import fixed
from smbdirect.errors import DecodeError
from tools.fuzz import seeds
from tools.fuzz.target import Target, choice


def _negotiate(message: memoryview) -> None:
    request = fixed(negotiate.NEGOTIATE_REQUEST, message, 36)
    negotiate.dialects_of(message, request)
    for _, data in negotiate.contexts_of(message, request):
        negotiate.numbers_of(data)


def _session_setup(message: memoryview) -> None:
    request = fixed(session.SESSION_SETUP_REQUEST, message, 25)
    session.part(
        message, request.security_buffer_offset, request.security_buffer_length, session.SESSION_SETUP_REQUEST.size
    )


SUBJECTS = (
    _negotiate,
    _session_setup,
    header.HEADER.unpack,
    negotiate.smb1_dialects,
    create.parse_request,
    create.parse_response,
    close.parse_request,
    close.parse_response,
    flush.parse_request,
    flush.parse_response,
    read_write.parse_read_request,
    read_write.parse_read_response,
    read_write.parse_write_request,
    read_write.parse_write_response,
    lock.parse_request,
    lock.parse_response,
    ioctl.parse_ioctl_request,
    ioctl.parse_ioctl_response,
    query_directory.parse_query_directory_request,
    query_info.parse_query_info_request,
    query_info.parse_output_response,
    set_info.parse_set_info_request,
    change_notify.parse_change_notify_request,
    oplock_break.parse_acknowledgment,
    oplock_break.parse_notification,
    error.parse_response,
)


def _seeds() -> Iterator[bytes]:
    for message in seeds.smb2_messages():
        for number in range(len(SUBJECTS)):
            try:
                SUBJECTS[number](memoryview(message))
            except DecodeError:
                continue
            yield bytes((number,)) + message


TARGET = Target(choice(SUBJECTS), _seeds, declared=(DecodeError,))
