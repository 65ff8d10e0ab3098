"""What a fuzzed request needs to get further than the first checks."""

from __future__ import annotations

from smb3server.wire.header import HEADER, HEADER_SIZE, Command
from tools.fuzz.in_memory import RawClient

SECOND, KEEP_ID, KEEP_SESSION, KEEP_TREE, KEEP_FILE, WAIT = 1, 2, 4, 8, 16, 32
"""Bits of a message's first byte."""
FILE_ID_AT = {5: 0, 6: 8, 7: 8, 8: 16, 9: 16, 10: 8, 11: 8, 14: 8, 15: 8, 16: 24, 17: 16}
"""Where the FileId is in the body, by command."""


def put_right(client: RawClient, flags: int, message: bytes) -> bytes:
    """Return the message with the identifiers that its client has, except for those that the flags keep."""
    if len(message) < HEADER_SIZE:
        return message
    header = HEADER.unpack(message)._replace(protocol_id=b"\xfeSMB", structure_size=HEADER_SIZE)
    if not flags & KEEP_ID:
        header = header._replace(message_id=client.message_id, credit_charge=1, credits=32)
        client.message_id += 1
    if not flags & KEEP_SESSION and client.session is not None:
        header = header._replace(session_id=client.session.session_id)
    if not flags & KEEP_TREE:
        header = header._replace(tree_id=client.trees[header.tree_id & 1])
    body = bytearray(message[HEADER_SIZE:])
    at = FILE_ID_AT.get(header.command, 0)
    if at and len(body) >= at + 16 and client.files and not flags & KEEP_FILE:
        body[at : at + 16] = client.files[body[at] % len(client.files)]
    return HEADER.pack(header) + body


def note_opens(client: RawClient) -> None:
    """Take the FileIds out of the replies that have come."""
    for reply in client.replies:
        if len(reply) >= HEADER_SIZE + 80 and reply[8:12] == bytes(4) and reply[12] == Command.CREATE:
            client.files.append(reply[HEADER_SIZE + 64 : HEADER_SIZE + 80])
    client.replies.clear()
