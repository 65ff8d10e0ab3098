"""Faults of MS-SMB2."""

from __future__ import annotations

import struct

from smb3server.lab.pcap.smb2 import (
    CREATE,
    NEGOTIATE,
    QUERY_INFO,
    READ,
    SESSION_SETUP,
    STATUS_PENDING,
    TREE_CONNECT,
    TREE_DISCONNECT,
    WRITE,
)
from smb3server.lab.pcap.tcp import Direction
from tests.lab.hostile_captures.over_tcp import (
    BODY,
    FLAGS_AT,
    MESSAGE_ID_AT,
    NEXT_AT,
    SESSION_ID_AT,
    SIGNATURE_AT,
    TREE_ID_AT,
    Message,
    TcpSession,
)
from tests.lab.hostile_captures.table import SEALED, SIGNED, over_tcp

CHARGE_AT, CREDITS_AT = 6, 14
RESPONSE, ASYNC, RELATED, SIGNED_FLAG = 1, 2, 4, 8
LARGE = 65536


def _last(session: TcpSession, message: Message) -> Message:
    session.end_after(message)
    return message


# -- Forms ----------------------------------------------------------------------------------------------------------


@over_tcp("smb2.frame", "client")
def frame_of_another_type(session: TcpSession) -> None:
    _last(session, session.request(CREATE)).frame = 1


@over_tcp("smb2.header", "client")
def another_protocol(session: TcpSession) -> None:
    _last(session, session.request(CREATE)).put("<H", 4, 65)


@over_tcp("smb2.next-command", "client")
def unaligned_chain(session: TcpSession) -> None:
    compound = next(m for m in session.messages if m.direction is Direction.TO_SERVER and m.get("<I", NEXT_AT))
    _last(session, compound).put("<I", NEXT_AT, compound.get("<I", NEXT_AT) - 4)


@over_tcp("smb2.body", "client")
def another_structure_size(session: TcpSession) -> None:
    _last(session, session.request(TREE_DISCONNECT)).put("<H", BODY, 5)


@over_tcp("smb2.buffer", "client")
def name_behind_the_end(session: TcpSession) -> None:
    request = _last(session, session.request(TREE_CONNECT))
    request.put("<H", BODY + 6, len(request.data))


@over_tcp("smb2.value", "server")
def create_action_9(session: TcpSession) -> None:
    _last(session, session.response_to(session.request(CREATE))).put("<I", BODY + 4, 9)


@over_tcp("smb2.reserved", "client")
def reserved_bytes_in_use(session: TcpSession) -> None:
    _last(session, session.request(TREE_DISCONNECT)).put("<H", BODY + 2, 1)


@over_tcp("smb2.entries", "client")
def context_behind_the_end(session: TcpSession) -> None:
    request = session.request(CREATE)
    contexts = request.get("<I", BODY + 48)
    assert contexts
    _last(session, request).put("<I", contexts, 1 << 20)


@over_tcp("smb2.negotiate-contexts", "client")
def more_contexts_than_there_are(session: TcpSession) -> None:
    _last(session, session.request(NEGOTIATE)).put("<H", BODY + 32, 200)


@over_tcp("smb2.direction", "client")
def request_marked_as_response(session: TcpSession) -> None:
    request = _last(session, session.request(TREE_DISCONNECT))
    request.put("<I", FLAGS_AT, request.get("<I", FLAGS_AT) | RESPONSE)


@over_tcp("smb2.related", "client")
def related_to_nothing(session: TcpSession) -> None:
    request = _last(session, session.request(TREE_DISCONNECT))
    request.put("<I", FLAGS_AT, request.get("<I", FLAGS_AT) | RELATED)


# -- MessageIds, credits, identifiers -------------------------------------------------------------------------------


@over_tcp("smb2.message-id", "client")
def used_twice(session: TcpSession) -> None:
    request = _last(session, session.request(TREE_DISCONNECT))
    request.put("<Q", MESSAGE_ID_AT, request.message_id - 1)


@over_tcp("smb2.credits-overdrawn", "client")
def far_ahead(session: TcpSession) -> None:
    request = _last(session, session.request(TREE_DISCONNECT))
    request.put("<Q", MESSAGE_ID_AT, request.message_id + 100_000)


@over_tcp("smb2.credit-charge", "client")
def large_and_cheap(session: TcpSession) -> None:
    _last(session, session.request(READ, LARGE)).put("<H", 6, 1)


@over_tcp("smb2.credits-starved", "server")
def no_credit_left(session: TcpSession) -> None:
    _last(session, session.response_to(session.request(NEGOTIATE))).put("<H", 14, 0)


@over_tcp("smb2.response", "server")
def answered_twice(session: TcpSession) -> None:
    response = _last(session, session.response_to(session.request(TREE_DISCONNECT)))
    session.messages.append(response.copy())


@over_tcp("smb2.async", "server")
def another_async_id(session: TcpSession) -> None:
    request = session.request(TREE_DISCONNECT)
    final = _last(session, session.response_to(request))
    interim = final.copy()
    interim.data[BODY:] = struct.pack("<HHIB", 9, 0, 0, 0)
    interim.put("<I", 8, STATUS_PENDING)
    for message, identifier in ((interim, 7), (final, 8)):
        message.put("<I", FLAGS_AT, RESPONSE | ASYNC)
        message.put("<Q", MESSAGE_ID_AT + 8, identifier)
    final.put("<H", CREDITS_AT, 0)
    session.messages.insert(session.place(final), interim)


@over_tcp("smb2.response-ids", "server")
def response_of_another_session(session: TcpSession) -> None:
    response = _last(session, session.response_to(session.request(TREE_DISCONNECT)))
    response.put("<I", TREE_ID_AT, response.get("<I", TREE_ID_AT) + 99)


@over_tcp("smb2.response-charge", "server")
def another_charge(session: TcpSession) -> None:
    _last(session, session.response_to(session.request(TREE_DISCONNECT))).put("<H", CHARGE_AT, 77)


@over_tcp("smb2.credits-granted", "server")
def generous_grant(session: TcpSession) -> None:
    _last(session, session.response_to(session.request(TREE_DISCONNECT))).put("<H", CREDITS_AT, 9000)


@over_tcp("smb2.dialect", "server")
def dialect_that_nobody_offered(session: TcpSession) -> None:
    _last(session, session.response_to(session.request(NEGOTIATE))).put("<H", BODY + 4, 0x0210)


@over_tcp("smb2.session-id", "client")
def unknown_session(session: TcpSession) -> None:
    request = _last(session, session.request(TREE_DISCONNECT))
    request.put("<Q", SESSION_ID_AT, request.get("<Q", SESSION_ID_AT) ^ 1)


@over_tcp("smb2.tree-id", "client")
def unknown_tree(session: TcpSession) -> None:
    request = _last(session, session.request(CREATE))
    request.put("<I", TREE_ID_AT, request.get("<I", TREE_ID_AT) + 99)


@over_tcp("smb2.file-id", "client")
def file_that_nobody_opened(session: TcpSession) -> None:
    request = _last(session, session.request(READ, LARGE))
    request.put("<Q", BODY + 16, request.get("<Q", BODY + 16) + 99)


@over_tcp("smb2.max-size", "client")
def larger_than_negotiated(session: TcpSession) -> None:
    session.response_to(session.request(NEGOTIATE)).put("<I", BODY + 32, LARGE)
    session.end_after(session.request(READ, LARGE))


@over_tcp("smb2.read-length", "server")
def more_than_asked_for(session: TcpSession) -> None:
    request = session.request(READ, LARGE)
    session.end_after(session.response_to(request))
    request.put("<I", BODY + 4, 512)


@over_tcp("smb2.write-count", "server")
def more_than_was_sent(session: TcpSession) -> None:
    response = _last(session, session.response_to(session.request(WRITE)))
    response.put("<I", BODY + 4, response.get("<I", BODY + 4) + 1)


# -- Protection -----------------------------------------------------------------------------------------------------


@over_tcp("smb2.signed", "client", SIGNED)
def unsigned_request(session: TcpSession) -> None:
    request = session.request(TREE_DISCONNECT)
    request.put("<I", FLAGS_AT, request.get("<I", FLAGS_AT) & ~SIGNED_FLAG)
    request.data[SIGNATURE_AT : SIGNATURE_AT + 16] = bytes(16)


@over_tcp("smb2.signature", "server", SIGNED, password=True)
def changed_status(session: TcpSession) -> None:
    response = session.response_to(session.request(QUERY_INFO))
    response.data[-1] ^= 1


def _sealed(session: TcpSession, direction: Direction, nth: int) -> Message:
    """The nth encrypted message of a direction."""
    found = [m for m in session.messages if m.direction is direction and m.data[:4] == b"\xfdSMB"]
    return found[nth]


@over_tcp("smb2.encrypted", "client", SEALED)
def request_in_the_clear(session: TcpSession) -> None:
    """An ECHO after the session has said that it encrypts."""
    response = [m for m in session.messages if m.direction is Direction.TO_CLIENT and m.command == SESSION_SETUP][-1]
    session.end_after(response)
    # SMB2_SESSION_FLAG_ENCRYPT_DATA. The server of this capture lets the client choose.
    response.put("<H", BODY + 2, 4)
    header = struct.pack("<4sHHIHHIIQIIQ16s", b"\xfeSMB", 64, 1, 0, 13, 1, 0, 0, 3, 0, 0, 0, b"")
    echo = Message(Direction.TO_SERVER, response.time, bytearray(header + struct.pack("<HH", 4, 0)))
    echo.put("<Q", SESSION_ID_AT, response.get("<Q", SESSION_ID_AT))
    echo.put("<Q", MESSAGE_ID_AT, response.message_id + 1)
    session.messages.append(echo)


@over_tcp("smb2.transform", "server", SEALED)
def another_size(session: TcpSession) -> None:
    message = _sealed(session, Direction.TO_CLIENT, 3)
    message.put("<I", 36, message.get("<I", 36) + 1)


@over_tcp("smb2.decryption", "client", SEALED, password=True)
def changed_ciphertext(session: TcpSession) -> None:
    _last(session, _sealed(session, Direction.TO_SERVER, 3)).data[-1] ^= 1


@over_tcp("smb2.nonce", "server", SEALED)
def same_nonce(session: TcpSession) -> None:
    one, other = (_sealed(session, Direction.TO_CLIENT, nth) for nth in (3, 5))
    other.data[20:36] = one.data[20:36]
