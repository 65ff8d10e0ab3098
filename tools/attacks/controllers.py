"""Attacks on a member of a domain by what answers in its controller's place. [MS-NRPC 3.1.4.1, 3.3.4.2]"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from smb3server.auth.ntlm_messages import nt_hash
from smb3server.client.protocol import ServerError
from smb3server.domain.secure_channel import NEGOTIATED, Sealing, encrypt, session_key
from smb3server.rpc import dcerpc
from smb3server.rpc.dcerpc import BIND_BODY, COMMON, CONTEXT_RESULT, REQUEST_BODY, BindBody, CommonHeader, ContextResult
from smb3server.wire.status import NtStatus
from tools.attacks.lab import Target, case, password
from tools.support.ports import free_port

_MEMBER = """
[domain]
realm = "EXAMPLE.TEST"
workgroup = "EXAMPLE"
machine = "FILES"
secret = "$FOLDER/domain.secret"
keytab = "$FOLDER/domain.keytab"
controllers = ["localhost"]
rotation = "never"
idmap = "none"
"""
_HOSTS = ["127.0.0.1", "::1"]
_MAPPER_PORT = 135
_MAP, _CHALLENGE, _CAPABILITIES, _AUTHENTICATE, _LOGON = 3, 4, 21, 26, 39
"""Numbers of calls. [C706 appendix O, MS-NRPC 3.5.4]"""
_TRAILER = struct.Struct("<BBBBI")
_NETLOGON, _PRIVACY, _CONTEXT = 0x44, 6, 1
_WEAK = 0x4000
_OTHER_SID = "S-1-5-21-7-7-7"
_USER = "alice"


class _Lie(NamedTuple):
    """A way in which a controller lies."""

    name: str
    status: NtStatus
    says: str
    """Words of the server's log."""


_LIES = (
    _Lie("password", NtStatus.NO_LOGON_SERVERS, "it is not the domain's"),
    _Lie("weak", NtStatus.NO_LOGON_SERVERS, "too little protection"),
    _Lie("verifier", NtStatus.NO_LOGON_SERVERS, "authenticator is wrong"),
    _Lie("stripped", NtStatus.NO_LOGON_SERVERS, "not those that were negotiated"),
    _Lie("unsealed", NtStatus.NO_LOGON_SERVERS, "without protection"),
    _Lie("replayed", NtStatus.NO_LOGON_SERVERS, "out of its order"),
    _Lie("damaged", NtStatus.NO_LOGON_SERVERS, "seal is broken"),
    _Lie("garbled", NtStatus.NO_LOGON_SERVERS, "malformed NetrLogonSamLogonExResponse"),
    _Lie("cut off", NtStatus.NO_LOGON_SERVERS, "has closed the connection"),
    _Lie("endless", NtStatus.NO_LOGON_SERVERS, "more than 1048576 bytes"),
    _Lie("slow", NtStatus.NO_LOGON_SERVERS, "timed out|no answer in time"),
    _Lie("another domain's SID", NtStatus.LOGON_FAILURE, "another domain gives out"),
    _Lie("nobody's SID", NtStatus.LOGON_FAILURE, "the user has no RID"),
)


@case(config="guest = false\n", sections=_MEMBER, alone=True, needs=("impacket",))
async def lying_controllers(target: Target) -> None:
    """Answer in the controller's place: with wrong proofs, less protection, replayed, damaged, cut, endless and slow
    answers, and with another user's SIDs."""
    async with _listening() as controller:
        if (found := await _log_on(target)) != NtStatus.SUCCESS:
            target.fail(f"an honest controller's answer is refused, so that the others prove nothing: 0x{found:08x}")
        for lie in _LIES:
            controller.lie = lie.name
            before = target.server.log_size()
            controller.hang_up()
            found = await _log_on(target)
            logged = target.server.log_text(before)
            if found != lie.status:
                target.fail(f"{lie.name}: the logon has status 0x{found:08x}")
            if not any(words in logged for words in lie.says.split("|")):
                target.fail(f"the log does not say what is wrong with {lie.name}: {logged[-400:]!r}")
        controller.lie = ""
        controller.hang_up()
        if await _log_on(target) != NtStatus.SUCCESS:
            target.fail("the honest controller's answer is refused afterwards")
    target.note(f"{len(_LIES)} lies")


async def _log_on(target: Target) -> int:
    """Log on by NTLM as a user of the domain, and return the status."""
    client = await target.connect()
    try:
        await client.log_on(_USER, password(_USER), "EXAMPLE")
    except ServerError as error:
        return error.status
    finally:
        client.transport.abort("done")
    return NtStatus.SUCCESS


@contextlib.asynccontextmanager
async def _listening() -> AsyncIterator[_Controller]:
    controller = _Controller(free_port())
    async with contextlib.AsyncExitStack() as stack:
        for port in (_MAPPER_PORT, controller.port):
            await stack.enter_async_context(await asyncio.start_server(controller.serve, _HOSTS, port))
        yield controller
        controller.hang_up()


class _Theirs(Sealing):
    """The controller's end of a sealed connection."""

    def _number(self, initiator: bool) -> bytes:
        return super()._number(not initiator)


class _Controller:
    """Endpoint mapper and Netlogon, as far as a member uses them."""

    def __init__(self, port: int) -> None:
        """``port``: that of Netlogon."""
        from tools.attacks import forging

        self.port = port
        self.lie = ""
        self._domain_sid = forging.DOMAIN_SID
        self._machine_hash = nt_hash(forging.PASSWORD)
        self._challenge = self._client_challenge = bytes(8)
        self._key = bytes(16)
        self._proof = bytes(8)
        """The client's stored credential. [MS-NRPC 3.1.4.5]"""
        self._open: set[asyncio.StreamWriter] = set()

    def hang_up(self) -> None:
        """End all connections."""
        for writer in self._open:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. The member ends it as soon as an answer is wrong."""
        self._open.add(writer)
        sealing: _Theirs | None = None
        last = b""
        with contextlib.suppress(EOFError, OSError):
            while True:
                header = COMMON.unpack(await reader.readexactly(COMMON.size))
                body = await reader.readexactly(header.fragment_length - COMMON.size)
                if header.type == dcerpc.BIND:
                    sealing = _Theirs(self._key, "", "") if header.auth_length else None
                    writer.write(_bind_ack(header))
                    continue
                opnum = REQUEST_BODY.unpack(body).opnum
                answer = self._answer(opnum, _opened(sealing, header, body))
                if opnum == _LOGON and self.lie in ("endless", "slow", "cut off", "replayed"):
                    await self._misbehave(writer, header, sealing, answer, last)
                    break
                last = self._sent(header, sealing, answer, opnum)
                writer.write(last)
                await writer.drain()
        self._open.discard(writer)
        writer.close()

    def _sent(self, header: CommonHeader, sealing: _Theirs | None, answer: bytes, opnum: int) -> bytes:
        lie = self.lie if opnum == _LOGON else ""
        if lie == "garbled":
            answer = os.urandom(len(answer) // 2)
        sent = _response(header, None if lie == "unsealed" else sealing, answer)
        if lie == "damaged":
            at = COMMON.size + REQUEST_BODY.size + 3
            sent = sent[:at] + bytes((sent[at] ^ 1,)) + sent[at + 1 :]
        return sent

    async def _misbehave(
        self, writer: asyncio.StreamWriter, header: CommonHeader, sealing: _Theirs | None, answer: bytes, last: bytes
    ) -> None:
        """Answer in a way in which there is no end, or another one."""
        if self.lie == "replayed":
            # What was the answer to the call before, with the number of this call.
            writer.write(last[:12] + struct.pack("<I", header.call_id) + last[COMMON.size :])
            await writer.drain()
            return
        if self.lie == "cut off":
            sent = _response(header, sealing, answer)
            writer.write(sent[: len(sent) // 2])
            await writer.drain()
        elif self.lie == "slow":
            sent = _response(header, sealing, answer)
            for at in range(len(sent)):
                writer.write(sent[at : at + 1])
                await writer.drain()
                await asyncio.sleep(1)
        else:
            part = bytes(4096)
            end = time.monotonic() + 30
            while time.monotonic() < end:
                writer.write(_response(header, sealing, part, flags=0))
                await writer.drain()

    def _answer(self, opnum: int, stub: bytes) -> bytes:
        if opnum == _MAP:
            return self._map(stub)
        answers: dict[int, Callable[[bytes], Any]] = {
            _CHALLENGE: self._give_challenge,
            _AUTHENTICATE: self._authenticate,
            _CAPABILITIES: self._capabilities,
            _LOGON: self._logon,
        }
        return bytes(answers[opnum](stub).getData())

    def _map(self, stub: bytes) -> bytes:
        """Return a stub with one tower, which has one floor: TCP. [C706 appendices I and O]"""
        tower = struct.pack("<HHBH", 1, 1, 7, 2) + struct.pack(">H", self.port)
        towers = struct.pack("<IIIIIII", 1, 1, 0, 1, 1, len(tower), len(tower)) + tower
        return bytes(20) + towers + bytes(-len(towers) % 4) + bytes(4)

    def _give_challenge(self, stub: bytes) -> Any:
        from impacket.dcerpc.v5 import nrpc

        self._client_challenge = bytes(nrpc.NetrServerReqChallenge(stub)["ClientChallenge"])
        self._challenge = os.urandom(8)
        answer = nrpc.NetrServerReqChallengeResponse()
        answer["ServerChallenge"], answer["ErrorCode"] = self._challenge, 0
        return answer

    def _authenticate(self, stub: bytes) -> Any:
        from impacket.dcerpc.v5 import nrpc

        known = os.urandom(16) if self.lie == "password" else self._machine_hash
        self._key = session_key(known, self._client_challenge, self._challenge)
        self._proof = encrypt(self._key, self._client_challenge)
        answer = nrpc.NetrServerAuthenticate3Response()
        answer["ServerCredential"] = encrypt(self._key, self._challenge)
        answer["NegotiateFlags"] = _WEAK if self.lie == "weak" else NEGOTIATED
        answer["AccountRid"], answer["ErrorCode"] = 1000, 0
        return answer

    def _capabilities(self, stub: bytes) -> Any:
        from impacket.dcerpc.v5 import nrpc

        request = nrpc.NetrLogonGetCapabilities(stub)
        number = int.from_bytes(self._proof[:4], "little") + int(request["Authenticator"]["Timestamp"]) + 1
        proof = encrypt(self._key, (number & 0xFFFFFFFF).to_bytes(4, "little") + self._proof[4:])
        answer = nrpc.NetrLogonGetCapabilitiesResponse()
        answer["ReturnAuthenticator"]["Credential"] = bytes(8) if self.lie == "verifier" else proof
        answer["ReturnAuthenticator"]["Timestamp"] = 0
        answer["ServerCapabilities"]["tag"] = 1
        answer["ServerCapabilities"]["ServerCapabilities"] = _WEAK if self.lie == "stripped" else NEGOTIATED
        answer["ErrorCode"] = 0
        return answer

    def _logon(self, stub: bytes) -> Any:
        from impacket.dcerpc.v5 import nrpc
        from impacket.dcerpc.v5.dtypes import NULL

        request = nrpc.NetrLogonSamLogonEx(stub)["LogonInformation"]["LogonNetwork"]
        name, domain = request["Identity"]["UserName"], request["Identity"]["LogonDomainName"]
        own = hmac.digest(nt_hash(password(_USER)), (name.upper() + domain).encode("utf-16-le"), "md5")
        base = hmac.digest(own, bytes(request["NtChallengeResponse"])[:16], "md5")
        answer = nrpc.NetrLogonSamLogonExResponse()
        answer["ValidationInformation"]["tag"] = 6
        found = answer["ValidationInformation"]["ValidationSam4"]
        found["EffectiveName"], found["LogonDomainName"], found["DnsLogonDomainName"] = name, "EXAMPLE", "example.test"
        found["LMKey"] = bytes(8)
        found["UserId"] = 0 if self.lie == "nobody's SID" else 1104
        found["PrimaryGroupId"], found["GroupCount"], found["GroupIds"] = 513, 0, NULL
        found["LogonDomainId"].fromCanonical(_OTHER_SID if self.lie == "another domain's SID" else self._domain_sid)
        found["UserSessionKey"], found["SidCount"], found["ExtraSids"] = base, 0, NULL
        answer["Authoritative"], answer["ExtraFlags"], answer["ErrorCode"] = 1, 0, 0
        return answer


def _bind_ack(header: CommonHeader) -> bytes:
    address = struct.pack("<H4sxx", 4, b"135\0")
    result = CONTEXT_RESULT.pack(ContextResult(dcerpc.ACCEPTANCE, 0, dcerpc.NDR))
    body = BIND_BODY.pack(BindBody(dcerpc.MAX_FRAGMENT, dcerpc.MAX_FRAGMENT, 1)) + address + b"\1\0\0\0" + result
    token = struct.pack("<II", 1, 0) if header.auth_length else b""
    return _pdu(header, dcerpc.BIND_ACK, body, token)


def _response(header: CommonHeader, sealing: _Theirs | None, stub: bytes, flags: int = 3) -> bytes:
    token, padding = b"", 0
    if sealing is not None:
        padding = -len(stub) % 16
        stub, token = sealing.seal(stub + bytes(padding))
    body = REQUEST_BODY.pack(dcerpc.RequestBody(len(stub))) + stub
    return _pdu(header, dcerpc.RESPONSE, body, token, flags, padding)


def _pdu(header: CommonHeader, kind: int, body: bytes, token: bytes, flags: int = 3, padding: int = 0) -> bytes:
    trailer = _TRAILER.pack(_NETLOGON, _PRIVACY, padding, 0, _CONTEXT) if token else b""
    size = COMMON.size + len(body) + len(trailer) + len(token)
    made = CommonHeader(type=kind, flags=flags, fragment_length=size, auth_length=len(token), call_id=header.call_id)
    return COMMON.pack(made) + body + trailer + token


def _opened(sealing: _Theirs | None, header: CommonHeader, body: bytes) -> bytes:
    """Return the stub of a request."""
    if sealing is None:
        return body[REQUEST_BODY.size :]
    at = len(body) - header.auth_length - _TRAILER.size
    padding = _TRAILER.unpack_from(body, at)[2]
    stub = sealing.unseal(body[REQUEST_BODY.size : at], body[at + _TRAILER.size :])
    return stub[: len(stub) - padding]
