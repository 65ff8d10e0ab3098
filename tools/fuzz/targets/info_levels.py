"""Levels of QUERY_INFO, SET_INFO, QUERY_DIRECTORY and CHANGE_NOTIFY. [MS-FSCC 2.4, 2.5, 2.7]"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from smb3server.wire import change_notify, directory_info, file_info
from smb3server.wire.change_notify import Action, Notification
from smb3server.wire.file_info import EaEntry, RenameInformation, StreamEntry
from smbdirect.codec import Codec
from smbdirect.errors import DecodeError
from tools.fuzz.target import Target, choice, each_choice

SUBJECTS: tuple[Callable[[memoryview], object], ...] = (
    file_info.decode_name_information,
    file_info.decode_all,
    file_info.decode_eas,
    file_info.decode_get_eas,
    file_info.decode_rename,
    partial(file_info.decode_rename, extended=True),
    partial(file_info.chain, minimum=24),
    change_notify.decode_notifications,
    *(partial(directory_info.decode_directory, level) for level in sorted(directory_info.LEVELS)),
    *(codec.unpack for codec in vars(file_info).values() if isinstance(codec, Codec)),
)


def _seeds() -> Iterator[bytes]:
    yield from each_choice(
        SUBJECTS,
        [
            file_info.encode_name_information("name"),
            b"".join(file_info.encode_eas([EaEntry(b"A", b"1"), EaEntry(b"B", b"22")])),
            file_info.encode_rename(RenameInformation(1, 0, "folder\\name")),
            change_notify.encode_notifications([Notification(Action.ADDED, "a"), Notification(Action.REMOVED, "bc")]),
            b"".join(file_info.encode_streams([StreamEntry("::$DATA", 1, 4096), StreamEntry(":s:$DATA", 2, 4096)])),
            bytes(120),
        ],
    )


TARGET = Target(choice(SUBJECTS), _seeds, declared=(DecodeError,))
