"""DCE/RPC over TCP without sockets: fragments, concurrent calls, cancels, security trailers, limits, noise."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
import spnego
from hypothesis import given, settings
from hypothesis import strategies as st
from spnego.iov import BufferType

from smb3server.rpc import dcerpc
from smb3server.rpc.association import AUTH3, HEADER_SIGNING, Association
from smb3server.rpc.dcerpc import (
    ALTER,
    BIND,
    BIND_ACK,
    BIND_NAK,
    CANCEL,
    COMMON,
    FAULT,
    FIRST_FRAGMENT,
    LAST_FRAGMENT,
    MAX_PENDING_CALLS,
    MAX_STUB,
    NDR,
    ORPHANED,
    REQUEST,
    RESPONSE,
    CommonHeader,
    RequestBody,
)
from smb3server.rpc.security import AUTH_TRAILER, NTLM, SPNEGO, AuthTrailer, Level
from tests.lab.association import SINGLE, UUID, Service, bind_body, pdu, request
from tests.lab.examples import examples


@pytest.fixture
def service() -> Service:
    return Service()


def answers(association: Association) -> list[tuple[CommonHeader, bytes]]:
    """What came out since the last time."""
    output, association.output = association.output, []
    return [(COMMON.unpack(entry), entry[COMMON.size :]) for entry in output]


def bound(service: Service) -> Association:
    association = service.association()
    association.feed(pdu(BIND, bind_body((0, UUID, NDR))))
    ((header, body),) = answers(association)
    assert header.type == BIND_ACK
    assert body[8:15] == b"\x05\x004711\x00"
    return association


def fault(association: Association) -> int:
    ((header, body),) = answers(association)
    assert header.type == FAULT
    return int.from_bytes(body[8:12], "little")


def test_contexts_are_judged_one_by_one(service: Service) -> None:
    association = service.association()
    features = bytes.fromhex("2c1cb76c12984045") + b"\x07" + bytes(7) + b"\x01\x00\x00\x00"
    association.feed(
        pdu(BIND, bind_body((0, UUID, NDR), (1, bytes(16), NDR), (2, UUID, bytes(20)), (3, UUID, features)))
    )
    ((_, body),) = answers(association)
    results = body[-4 * 24 :]
    found = [struct.unpack_from("<HH", results, at * 24) for at in range(4)]
    assert found == [(0, 0), (2, 1), (2, 2), (3, 3)]
    association.feed(pdu(ALTER, bind_body((7, UUID, NDR)), 2))
    assert answers(association)[0][0].type == dcerpc.ALTER_RESPONSE
    association.feed(pdu(REQUEST, request(0, b"x", 7), 3))
    assert answers(association)[0][1][8:] == b"x"


def test_second_bind_is_a_protocol_error(service: Service) -> None:
    association = bound(service)
    association.feed(pdu(BIND, bind_body((1, UUID, NDR)), 2))
    assert fault(association) == dcerpc.FAULT_PROTOCOL


def test_large_stubs_both_ways_in_fragments(service: Service) -> None:
    association = bound(service)
    stub = bytes(range(256)) * 60
    parts = [stub[at : at + 1000] for at in range(0, len(stub), 1000)]
    for number, part in enumerate(parts):
        flags = (FIRST_FRAGMENT if number == 0 else 0) | (LAST_FRAGMENT if number == len(parts) - 1 else 0)
        association.feed(pdu(REQUEST, request(0, part), 9, flags))
    found = answers(association)
    assert b"".join(body[8:] for _, body in found) == stub
    assert all(header.fragment_length <= 4280 for header, _ in found)
    assert [header.flags for header, _ in found][:: len(found) - 1] == [FIRST_FRAGMENT, LAST_FRAGMENT]


def test_fragments_of_two_calls_in_turn(service: Service) -> None:
    association = bound(service)
    for call_id, flags, part in ((1, 1, b"a"), (2, 1, b"x"), (1, 2, b"b"), (2, 2, b"y")):
        association.feed(pdu(REQUEST, request(0, part), call_id, flags))
    assert [(header.call_id, body[8:]) for header, body in answers(association)] == [(1, b"ab"), (2, b"xy")]


def test_calls_overtake_one_that_waits(service: Service) -> None:
    association = bound(service)
    association.feed(pdu(REQUEST, request(1), 1) + pdu(REQUEST, request(0, b"quick"), 2))
    assert [header.call_id for header, _ in answers(association)] == [2]
    service.waiting[0].resolve(b"late")
    ((header, body),) = answers(association)
    assert (header.call_id, header.type, body[8:]) == (1, RESPONSE, b"late")
    service.waiting[0].resolve(b"again")
    assert answers(association) == []


@pytest.mark.parametrize("kind", [CANCEL, ORPHANED])
def test_cancelled_and_orphaned_calls_are_abandoned(service: Service, kind: int) -> None:
    association = bound(service)
    association.feed(pdu(REQUEST, request(1), 1))
    association.feed(pdu(kind, b"", 1))
    if kind == CANCEL:
        assert fault(association) == dcerpc.FAULT_CANCEL
    else:
        assert answers(association) == []
    assert service.abandoned == 1
    service.waiting[0].resolve(b"late")
    assert answers(association) == []
    association.feed(pdu(kind, b"", 1))
    assert answers(association) == []


def test_calls_that_wait_are_abandoned_with_the_connection_and_bounded(service: Service) -> None:
    association = bound(service)
    for call_id in range(MAX_PENDING_CALLS):
        association.feed(pdu(REQUEST, request(1), call_id + 1))
    association.feed(pdu(REQUEST, request(1), 1000))
    assert fault(association) == dcerpc.FAULT_SERVER_TOO_BUSY
    association.feed(pdu(REQUEST, request(1), 1))
    assert fault(association) == dcerpc.FAULT_PROTOCOL, "identifier in use"
    association.close()
    assert service.abandoned == MAX_PENDING_CALLS


def test_faults(service: Service) -> None:
    association = bound(service)
    association.feed(pdu(REQUEST, request(9), 2))
    assert fault(association) == dcerpc.FAULT_OPNUM_RANGE
    association.feed(pdu(REQUEST, request(0, b"", 5), 3))
    assert fault(association) == dcerpc.FAULT_UNKNOWN_INTERFACE
    association.feed(pdu(REQUEST, request(2), 4))
    assert fault(association) == dcerpc.FAULT_UNSPECIFIED
    association.feed(pdu(REQUEST, request(0, b"z"), 5, LAST_FRAGMENT))
    assert fault(association) == dcerpc.FAULT_PROTOCOL
    association.feed(pdu(REQUEST, request(0, b"ok"), 6))
    assert answers(association)[0][1][8:] == b"ok"


def test_endless_requests_are_dropped(service: Service) -> None:
    association = bound(service)
    part = bytes(60000)
    association.feed(pdu(REQUEST, request(0, part), 1, FIRST_FRAGMENT))
    for _ in range(MAX_STUB // len(part) - 1):
        association.feed(pdu(REQUEST, request(0, part), 1, 0))
    assert answers(association) == []
    association.feed(pdu(REQUEST, request(0, part), 1, 0))
    assert fault(association) == dcerpc.FAULT_PROTOCOL
    for call_id in range(dcerpc.MAX_PARTIAL_CALLS):
        association.feed(pdu(REQUEST, request(0, b"x"), call_id, FIRST_FRAGMENT))
    association.feed(pdu(REQUEST, request(0, b"x"), 99, FIRST_FRAGMENT))
    assert fault(association) == dcerpc.FAULT_PROTOCOL


def test_groups_run_down_with_their_last_connection(service: Service) -> None:
    first, second, third = bound(service), service.association(), bound(service)
    assert first.group is not None and third.group is not None and first.group is not third.group
    second.feed(pdu(BIND, bind_body((0, UUID, NDR), group=first.group.number)))
    assert second.group is first.group
    gone: list[int] = []
    first.group.on_rundown.append(lambda: gone.append(1))
    first.close()
    assert gone == []
    second.close()
    assert gone == [1]


class SecureClient:
    """A client of pyspnego's on an association."""

    def __init__(
        self, service: Service, level: Level, provider: int = NTLM, header_signing: bool = True, password: str = "pw"
    ) -> None:
        protocol = "ntlm" if provider == NTLM else "negotiate"
        options = spnego.NegotiateOptions.use_ntlm if provider == NTLM else spnego.NegotiateOptions.use_negotiate
        self.context = spnego.client("u", password, protocol=protocol, options=options)
        self.association = service.association()
        self.trailer = AuthTrailer(provider, level, 0, 0, 77)
        flags = SINGLE | (HEADER_SIGNING if header_signing else 0)
        token = self.context.step()
        self.association.feed(pdu(BIND, bind_body((0, UUID, NDR)), 1, flags, self._auth(token)))
        self.call_id = 1
        ((header, body),) = answers(self.association)
        assert header.type == BIND_ACK
        assert header.flags == flags
        token = self.context.step(body[len(body) - header.auth_length :])
        while token is not None:
            self.call_id += 1
            if provider == NTLM:
                self.association.feed(pdu(AUTH3, bytes(4), 1, SINGLE, self._auth(token)))
                break
            self.association.feed(pdu(ALTER, bind_body((0, UUID, NDR)), self.call_id, SINGLE, self._auth(token)))
            ((header, body),) = answers(self.association)
            if header.type == FAULT or not header.auth_length:
                break
            token = self.context.step(body[len(body) - header.auth_length :])

    def _auth(self, token: bytes | None) -> bytes:
        return AUTH_TRAILER.pack(self.trailer) + (token or b"")

    def request(self, opnum: int, stub: bytes, flags: int = SINGLE) -> bytes:
        """A protected request."""
        self.call_id += 1
        pad = -len(stub) % 16
        stub += bytes(pad)
        trailer = AUTH_TRAILER.pack(self.trailer._replace(pad_length=pad))
        body = dcerpc.REQUEST_BODY.pack(RequestBody(len(stub), 0, opnum))
        length = COMMON.size + len(body) + len(stub) + len(trailer) + 16
        header = COMMON.pack(CommonHeader(5, 0, REQUEST, flags, fragment_length=length, auth_length=16,
                                          call_id=self.call_id)) + body  # fmt: skip
        if self.trailer.level == Level.PRIVACY:
            buffers = self.context.wrap_iov(
                [BufferType.header, (BufferType.sign_only, header), stub, (BufferType.sign_only, trailer)]
            ).buffers
            stub, verifier = buffers[2].data or b"", buffers[0].data or b""
        else:
            verifier = self.context.sign(header + stub + trailer)
        return header + stub + trailer + verifier

    def response(self) -> bytes:
        """Verified and put together."""
        whole = b""
        for header, body in answers(self.association):
            assert header.type == RESPONSE
            start = len(body) - header.auth_length - AUTH_TRAILER.size
            trailer, verifier = body[start : start + AUTH_TRAILER.size], body[start + AUTH_TRAILER.size :]
            head, stub = COMMON.pack(header) + body[:8], body[8:start]
            if self.trailer.level == Level.PRIVACY:
                buffers = self.context.unwrap_iov(
                    [(BufferType.header, verifier), (BufferType.sign_only, head), stub, (BufferType.sign_only, trailer)]
                ).buffers
                stub = buffers[2].data or b""
            else:
                self.context.verify(head + stub + trailer, verifier)
            assert (start % 4, len(stub) % 16) == (0, 0)
            whole += stub[: len(stub) - AUTH_TRAILER.unpack(trailer).pad_length]
        return whole


@pytest.mark.parametrize("header_signing", [True, False])
@pytest.mark.parametrize("provider", [NTLM, SPNEGO])
@pytest.mark.parametrize("level", [Level.PACKET, Level.INTEGRITY, Level.PRIVACY])
def test_protected_calls(service: Service, level: Level, provider: int, header_signing: bool) -> None:
    client = SecureClient(service, level, provider, header_signing)
    client.association.feed(client.request(3, b""))
    assert client.response().endswith(b"u")
    stub = bytes(range(251)) * 50
    client.association.feed(client.request(0, stub[:4000], FIRST_FRAGMENT))
    client.call_id -= 1
    client.association.feed(client.request(0, stub[4000:], LAST_FRAGMENT))
    assert client.response() == stub


def test_late_answers_are_protected(service: Service) -> None:
    client = SecureClient(service, Level.PRIVACY)
    client.association.feed(client.request(1, b"") + client.request(0, b"quick"))
    assert client.response() == b"quick"
    service.waiting[0].resolve(b"late")
    assert client.response() == b"late"


@pytest.mark.parametrize("level", [Level.INTEGRITY, Level.PRIVACY])
@pytest.mark.parametrize("position", [4, 22, 30, -30, -20, -3])
def test_altered_calls_are_refused(service: Service, level: Level, position: int) -> None:
    client = SecureClient(service, level)
    altered = bytearray(client.request(0, b"harmless data"))
    altered[position] ^= 0x10
    client.association.feed(bytes(altered))
    assert client.association.broken
    assert all(header.type != RESPONSE for header, _ in answers(client.association))


def test_replayed_and_unprotected_calls_are_refused(service: Service) -> None:
    client = SecureClient(service, Level.INTEGRITY)
    call = client.request(0, b"once")
    client.association.feed(call)
    assert client.response() == b"once"
    client.association.feed(call)
    assert fault(client.association) == dcerpc.FAULT_ACCESS_DENIED
    assert client.association.broken
    client = SecureClient(service, Level.INTEGRITY)
    client.association.feed(pdu(REQUEST, request(0, b"plain"), 5))
    assert fault(client.association) == dcerpc.FAULT_ACCESS_DENIED


def test_wrong_password(service: Service) -> None:
    client = SecureClient(service, Level.INTEGRITY, password="no")
    client.association.feed(client.request(0, b""))
    assert fault(client.association) == dcerpc.FAULT_ACCESS_DENIED
    assert not client.association.authenticated
    client = SecureClient(service, Level.INTEGRITY, SPNEGO, password="no")
    assert client.association.broken


@pytest.mark.parametrize(("provider", "level"), [(68, 6), (NTLM, 1), (NTLM, 7), (NTLM, 0)])
def test_unknown_providers_and_levels(service: Service, provider: int, level: int) -> None:
    association = service.association()
    auth = AUTH_TRAILER.pack(AuthTrailer(provider, level, 0, 0, 1)) + bytes(16)
    association.feed(pdu(BIND, bind_body((0, UUID, NDR)), 1, SINGLE, auth))
    ((header, body),) = answers(association)
    assert (header.type, body[0]) == (BIND_NAK, dcerpc.NAK_AUTHENTICATION_TYPE)
    assert association.broken


def test_security_contexts_are_bounded(service: Service) -> None:
    association = bound(service)
    for number in range(9):
        token = spnego.client("u", "pw", protocol="ntlm", options=spnego.NegotiateOptions.use_ntlm).step()
        auth = AUTH_TRAILER.pack(AuthTrailer(NTLM, 5, 0, 0, number)) + (token or b"")
        association.feed(pdu(ALTER, bind_body(), 1, SINGLE, auth))
    kinds = [header.type for header, _ in answers(association)]
    assert kinds == [dcerpc.ALTER_RESPONSE] * 8 + [FAULT]
    assert association.broken


def _noise() -> Iterator[st.SearchStrategy[bytes]]:
    kinds = st.sampled_from([BIND, ALTER, AUTH3, REQUEST, CANCEL, ORPHANED, RESPONSE, 1, 255])
    trailer = st.builds(
        AuthTrailer,
        st.sampled_from([9, 10, 16, 1]),
        st.integers(0, 7),
        st.integers(0, 255),
        st.just(0),
        st.integers(0, 2),
    ).map(AUTH_TRAILER.pack)
    bodies = st.one_of(
        st.binary(max_size=80), st.binary(max_size=40).map(lambda tail: bind_body((0, UUID, NDR)) + tail)
    )
    auth = st.one_of(
        st.just(b""), st.builds(lambda head, tail: head + tail, trailer, st.binary(min_size=1, max_size=60))
    )
    yield st.builds(pdu, kinds, bodies, st.integers(0, 3), st.integers(0, 255), auth)
    yield st.binary(max_size=64)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.one_of(*_noise()), max_size=6))
def test_noise_never_raises(fragments: list[bytes]) -> None:
    association = Service().association()
    for fragment in fragments:
        association.feed(fragment)
    association.close()
    assert association.group is None
