"""One core under test, fed message by message: what the conformance tests share."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from smbdirect import native
from smbdirect.core.connection import Connection, Role
from smbdirect.core.messages import (
    DATA_TRANSFER,
    NEGOTIATE_REQUEST,
    NEGOTIATE_RESPONSE,
    DataTransfer,
    Event,
    NegotiateRequest,
    NegotiateResponse,
)
from smbdirect.core.settings import Settings
from smbdirect.errors import ProtocolError
from smbdirect.rdma.pool import BufferPool

START = 1000.0

REQUEST = NegotiateRequest(
    min_version=0x0100,
    max_version=0x0100,
    reserved=0,
    credits_requested=10,
    preferred_send_size=1024,
    max_receive_size=1024,
    max_fragmented_size=131_072,
)
RESPONSE = NegotiateResponse(
    min_version=0x0100,
    max_version=0x0100,
    negotiated_version=0x0100,
    reserved=0,
    credits_requested=10,
    credits_granted=10,
    status=0,
    max_read_write_size=1_048_576,
    preferred_send_size=1024,
    max_receive_size=1024,
    max_fragmented_size=131_072,
)


class Subject:
    """A core with its receives posted as it wants them, and what it sent."""

    def __init__(self, role: Role, settings: Settings) -> None:
        self.pool = BufferPool()
        self.core = Connection(role, settings, START, self.pool.acquire)
        self.now = START
        self.sent: list[bytes] = []
        self.tokens: list[int | None] = []
        self.post_limit: int | None = None
        """If set, how many more receives can be posted."""

    def pump(self) -> list[bytes]:
        """Post and send all there is; returns the messages sent by this call."""
        first = len(self.sent)
        while True:
            wanted = self.core.receives_wanted
            if self.post_limit is not None:
                wanted = min(wanted, self.post_limit)
                self.post_limit -= wanted
            self.core.receives_were_posted(wanted)
            sends = self.core.pending_sends(self.now)
            for item in sends:
                self.sent.append(b"".join(item.segments))
                self.tokens.append(item.invalidate)
            if not wanted and not sends:
                return self.sent[first:]

    def receive(self, data: bytes, invalidated: int | None = None) -> Event | None:
        return self.core.receive_message(memoryview(bytearray(data)), self.now, invalidated)

    def headers(self, messages: Sequence[bytes]) -> list[DataTransfer]:
        return [DATA_TRANSFER.unpack(message) for message in messages]

    def refuses(self, data: bytes, rule: str) -> None:
        """``data`` terminates the connection for breaking ``rule``, and changes nothing else."""
        core = self.core
        credits = core.credits
        before = (credits.send_credits, credits.receive_credits, credits.receive_credit_target, core.max_send_size)
        with pytest.raises(ProtocolError) as caught:
            self.receive(data)
        assert rule in caught.value.rule
        assert core.role is Role.CLOSED
        assert before == (
            credits.send_credits,
            credits.receive_credits,
            credits.receive_credit_target,
            core.max_send_size,
        )
        assert core.next_deadline() is None
        assert core.pending_sends(self.now) == []
        assert self.pool.lent == 0


def acceptor(settings: Settings | None = None) -> Subject:
    """A server that waits for the Negotiate Request."""
    subject = Subject(Role.PASSIVE, settings or Settings())
    assert subject.pump() == []
    return subject


def initiator(settings: Settings | None = None) -> Subject:
    """A client that has sent its Negotiate Request."""
    subject = Subject(Role.ACTIVE, settings or Settings())
    subject.core.start()
    assert len(subject.pump()) == 1
    return subject


def request(**changes: int) -> bytes:
    return NEGOTIATE_REQUEST.pack(REQUEST._replace(**changes))


def response(**changes: int) -> bytes:
    return NEGOTIATE_RESPONSE.pack(RESPONSE._replace(**changes))


def server(settings: Settings | None = None, grant: int = 10, **changes: int) -> Subject:
    """A server that has negotiated and was granted ``grant`` credits by an empty message."""
    subject = acceptor(settings)
    subject.receive(request(**changes))
    subject.pump()
    if grant:
        subject.receive(data(granted=grant))
        subject.pump()
    return subject


def client(settings: Settings | None = None, **changes: int) -> Subject:
    """A client that has negotiated and granted its first credits."""
    subject = initiator(settings)
    subject.receive(response(**changes))
    subject.pump()
    return subject


def data(payload: bytes = b"", requested: int = 10, granted: int = 0, remaining: int = 0, **changes: Any) -> bytes:
    """A Data Transfer message; ``changes`` override header fields after they were computed."""
    header = DataTransfer(requested, granted, 0, 0, remaining, 24 if payload else 0, len(payload))._replace(**changes)
    return DATA_TRANSFER.pack(header) + (bytes(4) + payload if payload else b"")


SHORT = "smbdirect.core._native"


def short_calls(kind: str) -> ModuleType:
    """The short way of whole messages: in Python, or in C. Skips the test if that is not built."""
    if kind == "python":
        from smbdirect.core import short_calls as found

        return found
    why = native.problem(SHORT)
    if why is not None:
        pytest.skip(f"{SHORT}: {why}")
    from smbdirect.core import _native

    return _native
