"""Create contexts of both directions. [MS-SMB2 2.2.13.2, 2.2.14.2]"""

from __future__ import annotations

from collections.abc import Iterator

from smb3server.wire import create
from smb3server.wire import create_contexts as contexts
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.file_info import NEED_EA, EaEntry, encode_eas
from smb3server.wire.status import StatusError
from smbdirect.errors import DecodeError
from tools.fuzz import seeds
from tools.fuzz.target import Target, choice, each_choice


def _requests(data: memoryview) -> None:
    contexts.decode_requests(contexts.parse_contexts(data))


def _responses(data: memoryview) -> None:
    for context in contexts.parse_contexts(data):
        if context.name in contexts.RESPONSES:
            contexts.RESPONSES[context.name](context.data)


SUBJECTS = (_requests, _responses, contexts.parse_eas)


def _seeds() -> Iterator[bytes]:
    known = [RawContext(name, bytes(size)) for name in contexts.REQUESTS for size in (0, 8, 16, 20, 32, 36, 52)]
    yield from each_choice(SUBJECTS, (contexts.pack_contexts([context]) for context in known))
    yield from each_choice(
        SUBJECTS, [b"".join(encode_eas([EaEntry(b"NAME", b"value"), EaEntry(b"OTHER", b"", NEED_EA)]))]
    )
    for message in seeds.smb2_messages():
        if message[12:14] == b"\x05\0" and not message[16] & 1:
            found = create.parse_request(memoryview(message))[2]
            yield b"\0" + contexts.pack_contexts(found)


TARGET = Target(choice(SUBJECTS), _seeds, declared=(DecodeError, StatusError))
