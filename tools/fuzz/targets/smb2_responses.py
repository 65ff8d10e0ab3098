"""Responses and notifications of SMB2, each decoder by itself. [MS-SMB2 2.2]"""

from __future__ import annotations

from smb3server.wire import close, create, error, flush, ioctl, lock, oplock_break, query_info, read_write
from smbdirect.errors import DecodeError
from tools.fuzz import seeds
from tools.fuzz.target import Target, choice

SUBJECTS = (
    create.parse_response,
    close.parse_response,
    flush.parse_response,
    read_write.parse_read_response,
    read_write.parse_write_response,
    lock.parse_response,
    ioctl.parse_ioctl_response,
    query_info.parse_output_response,
    oplock_break.parse_notification,
    error.parse_response,
)
TARGET = Target(choice(SUBJECTS), lambda: seeds.fitting(SUBJECTS), declared=(DecodeError,))
