"""Seals, credentials and the calls of Netlogon, against controllers that lie."""

import os
from typing import Any

import pytest
from impacket.dcerpc.v5 import nrpc

from smb3server.domain import netlogon_calls as calls
from smb3server.domain import secure_channel
from smb3server.domain.netlogon_calls import ChannelRefused, Network, Secret
from smb3server.domain.rpc_client import RpcError
from smb3server.domain.secure_channel import NEGOTIATED, Credentials, Sealing
from smb3server.wire.status import NtStatus

KEY = bytes(range(16))
SECRET = Secret("CONTOSO", "FILES", os.urandom(16))


class ServerSide:
    """The controller's end of a sealed connection, made with impacket's code."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.sequence = 0

    def open(self, sealed: bytes, token: bytes) -> bytes:
        plain, _ = nrpc.UNSEAL(sealed, token, self.key, True)
        self.sequence += 1
        return bytes(plain)

    def seal(self, stub: bytes) -> tuple[bytes, bytes]:
        # impacket seals for clients only: the bit of their direction is in the number of the message.
        original = nrpc.deriveSequenceNumber
        try:
            nrpc.deriveSequenceNumber = lambda number: bytes(original(number)[:4]) + b"\0\0\0\0"
            sealed, signature = nrpc.SEAL(stub, os.urandom(8), self.sequence, self.key, True)
        finally:
            nrpc.deriveSequenceNumber = original
        self.sequence += 1
        return sealed, bytes(signature.getData())


def test_seals_are_those_of_another_implementation() -> None:
    ours, theirs = Sealing(KEY, "CONTOSO", "FILES"), ServerSide(KEY)
    for number in range(3):
        stub = os.urandom(48 + number * 16)
        sealed, token = ours.seal(stub)
        assert sealed != stub
        assert theirs.open(sealed, token) == stub
        assert ours.unseal(*theirs.seal(b"answer" + stub)) == b"answer" + stub


@pytest.mark.parametrize("changed", ["stub", "checksum", "number", "confounder", "algorithm", "short", "replayed"])
def test_answers_that_were_changed_are_refused(changed: str) -> None:
    ours, theirs = Sealing(KEY, "CONTOSO", "FILES"), ServerSide(KEY)
    theirs.open(*ours.seal(bytes(16)))
    sealed, token = theirs.seal(b"a stub of an answer")
    if changed == "replayed":
        assert ours.unseal(sealed, token) == b"a stub of an answer"
        ours.seal(bytes(16))
    place = {"checksum": 16, "number": 8, "confounder": 24, "algorithm": 2}.get(changed)
    if place is not None:
        token = token[:place] + bytes((token[place] ^ 1,)) + token[place + 1 :]
    if changed == "stub":
        sealed = sealed[:-1] + bytes((sealed[-1] ^ 1,))
    with pytest.raises(RpcError):
        ours.unseal(sealed, token[:40] if changed == "short" else token)


@pytest.mark.parametrize("token", [b"", b"\x01", b"\0\0\0\0\0\0\0\0"])
def test_a_secure_bind_needs_an_answer(token: bytes) -> None:
    with pytest.raises(RpcError):
        Sealing(KEY, "CONTOSO", "FILES").check_answer(token)


class Controller:
    """Answers the calls of a member. ``lie`` says in which way it is no controller of the domain."""

    def __init__(self, lie: str = "") -> None:
        self.lie = lie
        self.challenge = os.urandom(8)
        self.client_challenge = b""
        self.key = b""
        self.status = 0

    def call(self, opnum: int, stub: bytes) -> bytes:
        answer = {4: self._challenge, 26: self._authenticate, 21: self._capabilities, 39: self._logon}[opnum](stub)
        return answer[:-6] if self.lie == "short" else answer

    def _challenge(self, stub: bytes) -> bytes:
        self.client_challenge = bytes(nrpc.NetrServerReqChallenge(stub)["ClientChallenge"])
        answer = nrpc.NetrServerReqChallengeResponse()
        answer["ServerChallenge"], answer["ErrorCode"] = self.challenge, 0
        return bytes(answer.getData())

    def _authenticate(self, stub: bytes) -> bytes:
        request = nrpc.NetrServerAuthenticate3(stub)
        known = os.urandom(16) if self.lie == "password" else SECRET.nt_hash
        self.key = nrpc.ComputeSessionKeyAES("", self.client_challenge, self.challenge, known)
        proof = nrpc.ComputeNetlogonCredentialAES(self.client_challenge, self.key)
        right = self.lie == "password" or proof == bytes(request["ClientCredential"])
        answer = nrpc.NetrServerAuthenticate3Response()
        answer["ServerCredential"] = nrpc.ComputeNetlogonCredentialAES(self.challenge, self.key)
        answer["NegotiateFlags"] = 0x4000 if self.lie == "weak" else request["NegotiateFlags"] & NEGOTIATED
        answer["AccountRid"] = 1000
        answer["ErrorCode"] = 0 if right and self.lie != "refuses" else 0xC0000022
        return bytes(answer.getData())

    def _capabilities(self, stub: bytes) -> bytes:
        request = nrpc.NetrLogonGetCapabilities(stub)
        stored = nrpc.ComputeNetlogonCredentialAES(self.client_challenge, self.key)
        time = request["Authenticator"]["Timestamp"]
        low = (int.from_bytes(stored[:4], "little") + time + 1) & 0xFFFFFFFF
        proof = nrpc.ComputeNetlogonCredentialAES(low.to_bytes(4, "little") + stored[4:], self.key)
        answer = nrpc.NetrLogonGetCapabilitiesResponse()
        answer["ReturnAuthenticator"]["Credential"] = bytes(8) if self.lie == "authenticator" else proof
        answer["ReturnAuthenticator"]["Timestamp"] = 0
        answer["ServerCapabilities"]["tag"] = 1
        answer["ServerCapabilities"]["ServerCapabilities"] = 0x4000 if self.lie == "stripped" else NEGOTIATED
        answer["ErrorCode"] = 0
        return bytes(answer.getData())

    def _logon(self, stub: bytes) -> bytes:
        answer = nrpc.NetrLogonSamLogonExResponse()
        answer["ValidationInformation"]["tag"] = 2
        answer["ValidationInformation"]["ValidationSam"] = nrpc.NULL
        answer["Authoritative"], answer["ExtraFlags"] = 1, 0
        answer["ErrorCode"] = self.status
        return bytes(answer.getData())


def _established(controller: Any) -> Credentials:
    key, credentials = calls.authenticate(controller, "dc01", SECRET)
    calls.check_capabilities(controller, SECRET, credentials)
    assert key == controller.key
    return credentials


def test_a_controller_that_knows_the_password_is_believed() -> None:
    _established(Controller())


@pytest.mark.parametrize("lie", ["password", "weak", "short", "authenticator", "stripped"])
def test_a_controller_that_lies_is_refused(lie: str) -> None:
    with pytest.raises(RpcError) as refused:
        _established(Controller(lie))
    assert not isinstance(refused.value, ChannelRefused)


def test_a_controller_that_does_not_know_the_machine_is_told_from_one_that_lies() -> None:
    with pytest.raises(ChannelRefused, match=r"FILES\$: ACCESS_DENIED"):
        _established(Controller("refuses"))


LOGON = Network("alice", "CONTOSO", "", bytes(8), b"", bytes(60))


@pytest.mark.parametrize("status", [0xC000006A, 0xC0000064, 0xC0000072, 0xC0000234, 0xC0FFEE00])
def test_the_status_of_a_refused_logon_is_the_controllers(status: int) -> None:
    controller: Any = Controller()
    controller.status = status
    answer = calls.logon(controller, "dc01", SECRET, LOGON)
    known = status in set(NtStatus)
    assert (answer.status, answer.known_status) == (status, status if known else NtStatus.LOGON_FAILURE)


@pytest.mark.parametrize("status", [0xC0000022, 0xC000005E, 0])
def test_what_is_no_answer_about_the_user_is_no_logon(status: int) -> None:
    # A refused call, and a success without the structure that says who it is.
    controller: Any = Controller()
    controller.status = status
    with pytest.raises(RpcError):
        calls.logon(controller, "dc01", SECRET, LOGON)


def test_names_that_the_request_has_no_room_for_are_refused_before() -> None:
    controller: Any = None
    answer = calls.logon(controller, "dc01", SECRET, LOGON._replace(name="x" * 40000))
    assert answer.status == NtStatus.INVALID_PARAMETER


def test_session_keys_are_those_of_another_implementation() -> None:
    hashed, ours, theirs = os.urandom(16), os.urandom(8), os.urandom(8)
    assert secure_channel.session_key(hashed, ours, theirs) == nrpc.ComputeSessionKeyAES("", ours, theirs, hashed)
    assert secure_channel.encrypt(KEY, b"12345678") == nrpc.ComputeNetlogonCredentialAES(b"12345678", KEY)


@pytest.mark.parametrize(("error", "cut"), [(0, False), (1, False), (0, True)])
def test_the_domains_of_the_forest_are_those_that_are_marked(error: int, cut: bool) -> None:
    """[MS-NRPC 2.2.1.6.2]"""
    domains = []
    for number, flags in ((1, 0x9), (2, 0x1), (3, 0x2)):
        entry = nrpc.DS_DOMAIN_TRUSTSW()
        entry["NetbiosDomainName"], entry["DnsDomainName"] = f"D{number}\0", f"d{number}.test\0"
        entry["Flags"], entry["ParentIndex"], entry["TrustType"], entry["TrustAttributes"] = flags, 0, 2, 0
        entry["DomainSid"].fromCanonical(f"S-1-5-21-{number}-2-3")
        domains.append(entry)
    answer = nrpc.DsrEnumerateDomainTrustsResponse()
    answer["Domains"]["DomainCount"], answer["Domains"]["Domains"], answer["ErrorCode"] = 3, domains, error

    class Answers:
        def call(self, opnum: int, stub: bytes) -> bytes:
            assert (opnum, nrpc.DsrEnumerateDomainTrusts(stub)["Flags"]) == (40, 1)
            return bytes(answer.getData()[: 40 if cut else None])

    connection: Any = Answers()
    if error or cut:
        with pytest.raises(RpcError):
            calls.forest_domains(connection, "dc01")
    else:
        found = {str(sid) for sid in calls.forest_domains(connection, "dc01")}
        assert found == {"S-1-5-21-1-2-3", "S-1-5-21-2-2-3"}
