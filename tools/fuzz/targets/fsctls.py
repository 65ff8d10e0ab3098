"""Data of IOCTLs and reparse points, and the redirection to another server. [MS-SMB2 2.2.31, MS-FSCC 2.1.2, 2.3]"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import ip_address

from smb3server.backends.local import reparse
from smb3server.wire import fsctl, share_redirect
from smbdirect.codec import Codec
from smbdirect.errors import DecodeError
from tools.fuzz.target import Target, choice, each_choice


def _reparse(data: memoryview) -> None:
    reparse.check(bytes(data))


def _redirect(data: memoryview) -> None:
    share_redirect.parse(bytes(data))


SUBJECTS: tuple[Callable[[memoryview], object], ...] = (
    partial(fsctl.decode_copy_chunks, most=256),
    _reparse,
    _redirect,
    *(value.unpack for value in vars(fsctl).values() if isinstance(value, Codec)),
)


def _seeds() -> Iterator[bytes]:
    chunks = fsctl.COPY_CHUNK_HEADER.pack(fsctl.CopyChunkHeader(bytes(24), 2, 0)) + bytes(48)
    moved = share_redirect.pack([ip_address("10.0.0.1"), ip_address("fd00::1")], "FILES")
    yield from each_choice(SUBJECTS, [chunks, moved, reparse.symlink_buffer("a/b"), reparse.symlink_buffer("/")])


TARGET = Target(choice(SUBJECTS), _seeds, declared=(DecodeError, OSError, ValueError))
