"""Ways to take one protection out of our SMB Direct server. The client of the conformance cases shares none of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from smbdirect.codec import Buffer
from smbdirect.core.connection import Connection
from smbdirect.core.constants import DATA_OFFSET
from smbdirect.core.messages import (
    DATA_TRANSFER,
    NEGOTIATE_REQUEST,
    NEGOTIATE_RESPONSE,
    DataTransfer,
    Event,
    NegotiateRequest,
    NegotiateResponse,
)
from smbdirect.errors import ProtocolError
from smbdirect.transport import smb_direct
from smbdirect.transport.smb_direct import SmbDirectTransport

Patch = pytest.MonkeyPatch
Breaker = Callable[[Patch], None]


def parts(data: bytes) -> tuple[DataTransfer, bytes]:
    """Return header and payload of a message, or what there is of it."""
    header = DATA_TRANSFER.unpack(data.ljust(DATA_TRANSFER.size, b"\0"))
    return header, data[header.data_offset : header.data_offset + header.data_length]


def message(header: DataTransfer, payload: bytes) -> bytes:
    """Return a good message with the payload at its usual place."""
    if not payload:
        return DATA_TRANSFER.pack(header._replace(data_offset=0, data_length=0))
    header = header._replace(data_offset=DATA_OFFSET, data_length=len(payload))
    return DATA_TRANSFER.pack(header).ljust(DATA_OFFSET, b"\0") + payload


def reads(fix: Callable[[Connection, bytes], bytes]) -> Breaker:
    """The server reads each Data Transfer message as ``fix`` makes it: without a check, or wrongly."""

    def breaker(patch: Patch) -> None:
        original = Connection._receive_data

        def receive(self: Connection, view: memoryview, now: float, invalidated: int | None) -> Event | None:
            return original(self, memoryview(bytearray(fix(self, bytes(view)))), now, invalidated)

        patch.setattr(Connection, "_receive_data", receive)
        # The short way parses for itself.
        patch.setattr(smb_direct, "accepted", lambda connection, kind, items, *_: (list(items), 0, 0))

    return breaker


def refuses(wrong: Callable[[DataTransfer, bytes], object]) -> Breaker:
    """The server terminates the connection for Data Transfer messages that are good."""

    def fix(connection: Connection, data: bytes) -> bytes:
        if wrong(DATA_TRANSFER.unpack(data), data):
            raise ProtocolError("refused on purpose")
        return data

    return reads(fix)


def reads_request(fix: Callable[[NegotiateRequest], NegotiateRequest]) -> Breaker:
    """The server reads each Negotiate Request as ``fix`` makes it, which may raise ``ProtocolError``."""

    def breaker(patch: Patch) -> None:
        original = Connection._receive_negotiate_request

        def receive(self: Connection, view: memoryview, now: float) -> Event:
            request = NEGOTIATE_REQUEST.unpack(bytes(view).ljust(NEGOTIATE_REQUEST.size, b"\0"))
            return original(self, memoryview(NEGOTIATE_REQUEST.pack(fix(request))), now)

        patch.setattr(Connection, "_receive_negotiate_request", receive)

    return breaker


def refuses_request(wrong: Callable[[NegotiateRequest], object]) -> Breaker:
    """The server terminates the connection for Negotiate Requests that are good."""

    def fix(request: NegotiateRequest) -> NegotiateRequest:
        if wrong(request):
            raise ProtocolError("refused on purpose")
        return request

    return reads_request(fix)


def _sends(fix: Callable[[bytes], bytes]) -> Breaker:
    def breaker(patch: Patch) -> None:
        original = SmbDirectTransport._queue_send

        def queue(self: SmbDirectTransport, segments: list[Buffer], *others: object) -> None:
            original(self, [fix(b"".join(segments))], *others)  # type: ignore[arg-type]

        patch.setattr(SmbDirectTransport, "_queue_send", queue)

    return breaker


def _is_response(data: bytes) -> bool:
    """Return whether a Send of the server is a Negotiate Response: nothing else begins with two versions."""
    return len(data) == NEGOTIATE_RESPONSE.size and data[:4] == b"\0\1\0\1"


def responds(fix: Callable[[NegotiateResponse], NegotiateResponse]) -> Breaker:
    """The server's Negotiate Response is as ``fix`` makes it."""

    def change(data: bytes) -> bytes:
        return NEGOTIATE_RESPONSE.pack(fix(NEGOTIATE_RESPONSE.unpack(data))) if _is_response(data) else data

    return _sends(change)


def sends(fix: Callable[[DataTransfer], DataTransfer]) -> Breaker:
    """The headers of the server's Data Transfer messages are as ``fix`` makes them."""

    def change(data: bytes) -> bytes:
        if _is_response(data):
            return data
        return DATA_TRANSFER.pack(fix(DATA_TRANSFER.unpack(data))) + data[DATA_TRANSFER.size :]

    return _sends(change)


def sends_bytes(fix: Callable[[bytes], bytes]) -> Breaker:
    """The server's Data Transfer messages are as ``fix`` makes them."""
    return _sends(lambda data: data if _is_response(data) else fix(data))


def replaces(owner: type, name: str, value: object) -> Breaker:
    """An attribute of a class of the server is another."""

    def breaker(patch: Patch) -> None:
        patch.setattr(owner, name, value)

    return breaker


def around(owner: type, name: str, change: Callable[..., object]) -> Breaker:
    """A method of the server is ``change``, which gets the original and then the arguments."""

    def breaker(patch: Patch) -> None:
        original = getattr(owner, name)

        def changed(self: object, *arguments: object, **options: object) -> object:
            return change(partial(original, self), self, *arguments, **options)

        patch.setattr(owner, name, changed)

    return breaker
