"""The calls of the Netlogon service that a member makes. [MS-NRPC 3.5.4]"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from impacket.dcerpc.v5 import nrpc
from impacket.dcerpc.v5.dtypes import NULL

from smb3server.access.descriptor import Sid
from smb3server.domain import secure_channel
from smb3server.domain.rpc_client import Interface, RpcConnection, RpcError, decode
from smb3server.domain.secure_channel import NEGOTIATED, REQUIRED, Credentials, encrypt
from smb3server.wire.status import NtStatus

NETLOGON = Interface("12345678-1234-abcd-ef00-01234567cffb", 1)
_WORKSTATION = nrpc.NETLOGON_SECURE_CHANNEL_TYPE.WorkstationSecureChannel
_TRUST_ACCOUNTS = 0x820
"""ParameterControl: workstations and controllers may log on, too. [MS-NRPC 2.2.1.4.15, K and G]"""
_SAM_INFO_4 = nrpc.NETLOGON_VALIDATION_INFO_CLASS.NetlogonValidationSamInfo4
_NETWORK = nrpc.NETLOGON_LOGON_INFO_CLASS.NetlogonNetworkInformation
_PASSWORD_BUFFER = 512
_MAX_NAME = 0x7FFF
"""Most characters of a name: its size in bytes has 16 bits."""


class ChannelRefused(RpcError):
    """A controller does not accept the machine account."""


class Secret(NamedTuple):
    """What a machine account proves itself with."""

    domain: str
    """NetBIOS name of the domain."""
    machine: str
    """Name of the account, without its $."""
    nt_hash: bytes

    @property
    def account(self) -> str:
        return f"{self.machine}$"


class Network(NamedTuple):
    """An NTLM logon that a client has made. [MS-NRPC 2.2.1.4.5]"""

    name: str
    domain: str
    workstation: str
    challenge: bytes
    lm_response: bytes
    nt_response: bytes


class Answer(NamedTuple):
    """What a controller says about a logon."""

    status: int
    validation: Any
    """NETLOGON_VALIDATION_SAM_INFO4, if the status is SUCCESS."""

    @property
    def known_status(self) -> NtStatus:
        """The status; LOGON_FAILURE for one that this server has no name for."""
        try:
            return NtStatus(self.status)
        except ValueError:
            return NtStatus.LOGON_FAILURE

    @property
    def realm(self) -> str:
        """Realm of the user's domain. Empty if the controller does not name it."""
        return str(self.validation["DnsLogonDomainName"]).rstrip("\0").upper()

    @property
    def session_key(self) -> bytes:
        """SessionBaseKey. At this level it has no encryption of its own. [MS-NRPC 2.2.1.4.13]"""
        return bytes(self.validation["UserSessionKey"])

    @property
    def words(self) -> str:
        """The status for the log."""
        try:
            return NtStatus(self.status).name
        except ValueError:
            return f"0x{self.status:08x}"


def _request(kind: Any, **fields: Any) -> bytes:
    request = kind()
    for name, value in fields.items():
        request[name] = value
    return bytes(request.getData())


def _call(connection: RpcConnection, kind: Any, answer: Any, **fields: Any) -> Any:
    return decode(answer, connection.call(kind.opnum, _request(kind, **fields)))


def _zero_ended(text: str) -> str:
    return f"{text}\0"


def authenticate(connection: RpcConnection, server: str, secret: Secret) -> tuple[bytes, Credentials]:
    """Prove the machine account to a controller, and the controller to us. Return session key and credentials.

    Raises ``ChannelRefused``, ``RpcError`` and ``OSError``. [MS-NRPC 3.1.4.1, 3.5.4.4.1, 3.5.4.4.2]
    """
    challenge = os.urandom(8)
    answer = _call(
        connection,
        nrpc.NetrServerReqChallenge,
        nrpc.NetrServerReqChallengeResponse,
        PrimaryName=_zero_ended(f"\\\\{server}"),
        ComputerName=_zero_ended(secret.machine),
        ClientChallenge=challenge,
    )
    if answer["ErrorCode"]:
        raise ChannelRefused(f"the controller gives no challenge: {_words(answer)}")
    theirs = bytes(answer["ServerChallenge"])
    key = secure_channel.session_key(secret.nt_hash, challenge, theirs)
    credentials = Credentials(key, challenge)
    answer = _call(
        connection,
        nrpc.NetrServerAuthenticate3,
        nrpc.NetrServerAuthenticate3Response,
        PrimaryName=_zero_ended(f"\\\\{server}"),
        AccountName=_zero_ended(secret.account),
        SecureChannelType=_WORKSTATION,
        ComputerName=_zero_ended(secret.machine),
        ClientCredential=credentials.first,
        NegotiateFlags=NEGOTIATED,
    )
    if answer["ErrorCode"]:
        raise ChannelRefused(f"the controller refuses the machine account {secret.account}: {_words(answer)}")
    if not credentials.accepts(theirs, bytes(answer["ServerCredential"])):
        raise RpcError("the controller does not know the password of the machine account: it is not the domain's")
    if answer["NegotiateFlags"] & REQUIRED != REQUIRED:
        raise RpcError(f"the controller offers too little protection (flags 0x{answer['NegotiateFlags']:08x})")
    return key, credentials


def _words(answer: Any) -> str:
    return Answer(answer["ErrorCode"] & 0xFFFFFFFF, None).words


def _authenticator(credentials: Credentials) -> Any:
    found = nrpc.NETLOGON_AUTHENTICATOR()
    found["Timestamp"], found["Credential"] = credentials.next()
    return found


def check_capabilities(connection: RpcConnection, secret: Secret, credentials: Credentials) -> None:
    """Check over the sealed connection that nobody has weakened what was negotiated in the clear.

    Raises ``RpcError`` and ``OSError``. [MS-NRPC 3.5.4.4.10]
    """
    empty = nrpc.NETLOGON_AUTHENTICATOR()
    empty["Credential"], empty["Timestamp"] = bytes(8), 0
    answer = _call(
        connection,
        nrpc.NetrLogonGetCapabilities,
        nrpc.NetrLogonGetCapabilitiesResponse,
        ServerName=_zero_ended("\\\\"),
        ComputerName=_zero_ended(secret.machine),
        Authenticator=_authenticator(credentials),
        ReturnAuthenticator=empty,
        QueryLevel=1,
    )
    if answer["ErrorCode"]:
        raise RpcError(f"the controller does not confirm its capabilities: {_words(answer)}")
    credentials.check(bytes(answer["ReturnAuthenticator"]["Credential"]))
    if answer["ServerCapabilities"]["ServerCapabilities"] & REQUIRED != REQUIRED:
        raise RpcError("the controller's capabilities are not those that were negotiated")


def set_password(
    connection: RpcConnection, secret: Secret, credentials: Credentials, key: bytes, password: str
) -> None:
    """Set the machine account's password. Raises ``RpcError``, ``OSError`` and ``ValueError``. [MS-NRPC 3.5.4.4.5]"""
    clear = password.encode("utf-16-le")
    if not 0 < len(clear) <= _PASSWORD_BUFFER:
        raise ValueError("a machine password of a wrong length")
    block = os.urandom(_PASSWORD_BUFFER - len(clear)) + clear + len(clear).to_bytes(4, "little")
    answer = _call(
        connection,
        nrpc.NetrServerPasswordSet2,
        nrpc.NetrServerPasswordSet2Response,
        PrimaryName=NULL,
        AccountName=_zero_ended(secret.account),
        SecureChannelType=_WORKSTATION,
        ComputerName=_zero_ended(secret.machine),
        Authenticator=_authenticator(credentials),
        ClearNewPassword=encrypt(key, block),
    )
    if answer["ErrorCode"]:
        raise RpcError(f"the controller does not take the new password: {_words(answer)}")
    credentials.check(bytes(answer["ReturnAuthenticator"]["Credential"]))


def logon(connection: RpcConnection, server: str, secret: Secret, given: Network) -> Answer:
    """Ask who has made an NTLM response. Raises ``RpcError`` and ``OSError``. [MS-NRPC 3.5.4.5.1]"""
    if max(map(len, (given.name, given.domain, given.workstation, given.nt_response))) > _MAX_NAME:
        return Answer(NtStatus.INVALID_PARAMETER, None)
    request = nrpc.NetrLogonSamLogonEx()
    request["LogonServer"] = _zero_ended(f"\\\\{server}")
    request["ComputerName"] = _zero_ended(secret.machine)
    request["LogonLevel"] = _NETWORK
    request["LogonInformation"]["tag"] = _NETWORK
    info = request["LogonInformation"]["LogonNetwork"]
    info["Identity"]["LogonDomainName"] = given.domain
    info["Identity"]["ParameterControl"] = _TRUST_ACCOUNTS
    info["Identity"]["UserName"] = given.name
    info["Identity"]["Workstation"] = given.workstation
    info["LmChallenge"] = given.challenge
    info["NtChallengeResponse"] = given.nt_response
    info["LmChallengeResponse"] = given.lm_response
    request["ValidationLevel"] = _SAM_INFO_4
    request["ExtraFlags"] = 0
    stub = connection.call(nrpc.NetrLogonSamLogonEx.opnum, bytes(request.getData()))
    answer = decode(nrpc.NetrLogonSamLogonExResponse, stub)
    status = answer["ErrorCode"] & 0xFFFFFFFF
    if status in _OF_THE_CHANNEL:
        raise RpcError(f"the controller refuses the call: {_words(answer)}")
    if status:
        return Answer(status, None)
    found = answer["ValidationInformation"]
    if found["tag"] != _SAM_INFO_4:
        raise RpcError("the controller's answer is of another level")
    return Answer(NtStatus.SUCCESS, found["ValidationSam4"])


def forest_domains(connection: RpcConnection, server: str) -> frozenset[Sid]:
    """Ask for the domains of the controller's forest. Raises ``RpcError`` and ``OSError``. [MS-NRPC 3.5.4.7.1]"""
    answer = _call(
        connection,
        nrpc.DsrEnumerateDomainTrusts,
        nrpc.DsrEnumerateDomainTrustsResponse,
        ServerName=_zero_ended(f"\\\\{server}"),
        Flags=_IN_FOREST,
    )
    if answer["ErrorCode"]:
        raise RpcError(f"the controller does not say which domains its forest has: {_words(answer)}")
    try:
        entries = answer["Domains"]["Domains"]
        sids = [one["DomainSid"] for one in entries if int(one["Flags"]) & _IN_FOREST]
        return frozenset(Sid.parse(sid.formatCanonical()) for sid in sids if not isinstance(sid, bytes))
    except Exception as error:
        # impacket's structures may raise any exception for what a controller should not have sent.
        raise RpcError(f"a malformed list of domains: {error!r}"[:200]) from error


_IN_FOREST = 0x1
"""DS_DOMAIN_IN_FOREST: a domain of the controller's own forest. [MS-NRPC 2.2.1.6.2]"""
_OF_THE_CHANNEL = frozenset({NtStatus.ACCESS_DENIED, 0xC000005E, 0xC0000192, 0xC00000DC})
"""ACCESS_DENIED, NO_LOGON_SERVERS, NETLOGON_NOT_STARTED, INVALID_SERVER_STATE: another controller may answer."""
