"""SESSION_SETUP and LOGOFF. [MS-SMB2 3.3.5.5, 3.3.5.6]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from functools import partial

from smb3server.auth.acceptor import Acceptor
from smb3server.auth.guessing import LogonDelayed
from smb3server.crypto import preauth
from smb3server.crypto.algorithms import SigningAlgorithm
from smb3server.crypto.encryption import SessionCipher
from smb3server.crypto.kdf import derive_session_keys, derive_signing_key
from smb3server.crypto.signing import make_signer
from smb3server.dispatch.request import Interim, Pending, Request, Response, SessionRequest, handles
from smb3server.dispatch.waiting import answer
from smb3server.state.objects import Channel, Connection, Session, SessionState
from smb3server.wire.fields import tail
from smb3server.wire.header import HEADER_SIZE, Command, HeaderFlags
from smb3server.wire.negotiate import Dialect, SecurityMode
from smb3server.wire.session import (
    BINDING,
    EMPTY,
    SESSION_SETUP_REQUEST,
    SESSION_SETUP_RESPONSE,
    Empty,
    SessionFlags,
    SessionSetupRequest,
    SessionSetupResponse,
)
from smb3server.wire.status import NtStatus, Reason, StatusError
from smbdirect.codec import Buffer

_NO_SESSION = Reason("no_session", "there is no such session")
_UNSIGNED = Reason("not_signed", "the request is not signed with the session's key")
_TOO_MANY = Reason("too_many", "there are too many connections or sessions")
_OTHER_SIGNING = Reason("not_bindable", "the session's other channels sign in another way")


@handles(Command.SESSION_SETUP, Request)
def session_setup(request: Request) -> Response | Pending:
    """Log a user on, log on again, or bind a session to one more connection. [MS-SMB2 3.3.5.5]"""
    connection = request.connection
    server = request.server
    body = SESSION_SETUP_REQUEST.unpack(request.message, HEADER_SIZE)
    if body.structure_size != 25:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    token = bytes(
        tail(request.message, body.security_buffer_offset, body.security_buffer_length, SESSION_SETUP_REQUEST.end)
    )
    session_id = request.header.session_id
    binding = bool(body.flags & BINDING)
    try:
        session = _session_for(request, session_id, binding)
    except StatusError as error:
        server.events.logon_refused(connection, "", error, binding)
        raise
    return _authenticate(request, session, body, token)


def _session_for(request: Request, session_id: int, binding: bool) -> Session:
    """Return the session to be authenticated: a new one, one that gets one more channel, or one that logs on again.
    Raises ``StatusError``. [MS-SMB2 3.3.5.5]"""
    connection, server = request.connection, request.server
    if server.settings.require_encryption and not connection.cipher_id:
        why = Reason("encryption_required", "encryption is required, and the client cannot encrypt")
        raise StatusError(NtStatus.ACCESS_DENIED, reason=why)
    if not session_id:
        session = server.sessions.begin(connection)
        request.session = session
    elif binding:
        session = _check_binding(request)
    else:
        known = connection.session_table.get(session_id)
        if known is None:
            raise StatusError(NtStatus.USER_SESSION_DELETED, reason=_NO_SESSION)
        session = known
        # If clients sign or encrypt on a session, its reauthentication must be protected, too.
        channel = session.channel_list.get(connection)
        if (
            channel is not None
            and session.signing_required
            and not (request.signed or _encrypted_with(request, session))
        ):
            raise StatusError(NtStatus.ACCESS_DENIED, reason=_UNSIGNED)
    return session


def _encrypted_with(request: Request, session: Session) -> bool:
    """Return whether the request was encrypted with the key of ``session``. A compound may name several sessions."""
    return (
        request.encrypted
        and request.header.flags & HeaderFlags.RELATED_OPERATIONS == 0
        and request.chain.cipher_session is session
    )


def _check_binding(request: Request) -> Session:
    """Return the session for one more channel if all conditions hold. Raises ``StatusError``. [MS-SMB2 3.3.5.5, 4.]

    Once the signature has been verified, refusals are signed with the key of the session, too: clients accept no
    others. A session without a key, whose logon is not complete or who is a guest's, has a status of its own."""
    connection = request.connection
    server = request.server
    session = server.sessions.by_id.get(request.header.session_id)
    signed = request.header.flags & HeaderFlags.SIGNED
    channels = connection.dialect >= Dialect.SMB_3_0 and server.settings.multichannel
    if not channels and (session is None or not signed):
        raise _unbindable(NtStatus.REQUEST_NOT_ACCEPTED, "there is no multichannel")
    if session is None:
        raise StatusError(NtStatus.USER_SESSION_DELETED, reason=_NO_SESSION)
    first = session.connection
    if not signed:
        raise StatusError(NtStatus.INVALID_PARAMETER, reason=_UNSIGNED)
    signer = session.signer
    if signer is not None:
        if not (request.signed or signer.verify(request.message)):
            raise StatusError(NtStatus.ACCESS_DENIED, reason=_UNSIGNED)
        request.session, request.signed, request.signer = session, True, signer
    if signer is not None and connection.signing_algorithm_id != session.signing_algorithm_id:
        # Windows: a key used with AES-GMAC, whose nonces must not repeat, is used with no other algorithm.
        if session.signing_algorithm_id == SigningAlgorithm.AES_GMAC:
            raise StatusError(NtStatus.REQUEST_OUT_OF_SEQUENCE, reason=_OTHER_SIGNING)
        if connection.signing_algorithm_id == SigningAlgorithm.AES_GMAC:
            raise StatusError(NtStatus.NOT_SUPPORTED, reason=_OTHER_SIGNING)
    if not channels:
        raise _unbindable(NtStatus.REQUEST_NOT_ACCEPTED, "there is no multichannel")
    if session.transport_secured and not connection.accepts_transport_security:
        raise _unbindable(NtStatus.ACCESS_DENIED, "its messages are not encrypted, since its transport encrypts them")
    if connection in session.channel_list:
        raise _unbindable(NtStatus.REQUEST_NOT_ACCEPTED, "the connection is a channel of the session")
    if first.dialect != connection.dialect:
        raise _unbindable(NtStatus.INVALID_PARAMETER, "the session's other channels have another dialect")
    if session.state is SessionState.IN_PROGRESS:
        raise _unbindable(NtStatus.REQUEST_NOT_ACCEPTED, "the session's logon is not complete")
    if session.state is SessionState.EXPIRED:
        raise _unbindable(NtStatus.NETWORK_SESSION_EXPIRED, "the session has expired")
    if session.is_guest or session.is_anonymous:
        raise _unbindable(NtStatus.NOT_SUPPORTED, "guests and anonymous users have one channel")
    if len(session.channel_list) >= server.settings.max_channels:
        raise _unbindable(NtStatus.INSUFFICIENT_RESOURCES, "the session has max_channels channels")
    if session.cipher is not None and first.cipher_id != connection.cipher_id:
        # All channels use one key, so they must use one cipher.
        raise _unbindable(NtStatus.INVALID_PARAMETER, "the session's other channels have another cipher")
    return session


def _unbindable(status: int, why: str) -> StatusError:
    return StatusError(status, reason=Reason("not_bindable", why))


def _authenticate(request: Request, session: Session, body: SessionSetupRequest, token: bytes) -> Response | Pending:
    """Pass the token to the security package and answer, with a delay if the logon failed. [MS-SMB2 3.3.5.5.3]"""
    connection = request.connection
    key = session.session_id
    hashes = connection.preauth_session_table
    if connection.dialect == Dialect.SMB_3_1_1:
        start = hashes.get(key, connection.preauth_integrity_hash)
        hashes[key] = preauth.extend(start, (_as_received(request),))
    acceptor = connection.acceptors.get(key)
    if acceptor is None:
        acceptor = connection.acceptors[key] = request.server.new_acceptor(connection.client_name)
    try:
        return _step(request, session, body, token, acceptor)
    except LogonDelayed as delay:
        return _Postponed(request, session, body, token, acceptor, delay.seconds).pending
    except StatusError as error:
        _forget_failed(request, session, acceptor, error)
        pending = request.pend(Interim.NEVER, lambda: None)
        # Answer after a delay, to slow down the guessing of passwords.
        connection.loop.call_later(request.server.settings.failed_logon_delay, pending.fail, error)
        return pending


def _step(request: Request, session: Session, body: SessionSetupRequest, token: bytes, acceptor: Acceptor) -> Response:
    """Pass the client's token to the acceptor, and make the session valid once the client is authenticated. Raises
    ``StatusError`` and ``LogonDelayed``."""
    connection = request.connection
    key = session.session_id
    hashes = connection.preauth_session_table
    answer = acceptor.step(token)
    if acceptor.identity is not None:
        flags = _complete(request, session, body)
    if acceptor.identity is None:
        refusal = acceptor.take_refusal()
        if refusal is not None:
            _report(request, session, acceptor, StatusError(NtStatus.LOGON_FAILURE, reason=refusal))
        if connection.dialect == Dialect.SMB_3_1_1:
            request.on_encoded = partial(_hash_reply, connection, key)
        return _response(answer, 0, NtStatus.MORE_PROCESSING_REQUIRED)
    connection.acceptors.pop(key, None)
    hashes.pop(key, None)
    return _response(answer, flags, NtStatus.SUCCESS)


@dataclass(eq=False)
class _Postponed:
    """A logon whose token is processed later, as too many logons to its account or from its address have failed."""

    request: Request
    session: Session
    body: SessionSetupRequest
    token: bytes
    acceptor: Acceptor
    seconds: InitVar[float]

    def __post_init__(self, seconds: float) -> None:
        self.timer = self.request.connection.loop.call_later(seconds, self._resume)
        self.pending = self.request.pend(Interim.NEVER, self._gone)

    def _gone(self) -> None:
        self.timer.cancel()
        self.pending.fail(StatusError(NtStatus.USER_SESSION_DELETED))

    def _resume(self) -> None:
        connection = self.request.connection
        if connection.closed or connection.acceptors.get(self.session.session_id) is not self.acceptor:
            self._gone()
            return
        # A failure removes the session. That must not cancel the request which is about to report it.
        self.pending.on_cancel = lambda: None
        answer(self.pending, self._attempt)

    def _attempt(self) -> Response | None:
        try:
            return _step(self.request, self.session, self.body, self.token, self.acceptor)
        except LogonDelayed as delay:
            self.pending.on_cancel = self._gone
            self.timer = self.request.connection.loop.call_later(delay.seconds, self._resume)
            return None
        except StatusError as error:
            _forget_failed(self.request, self.session, self.acceptor, error)
            raise


def _as_received(request: Request) -> Buffer:
    """Return the request with its signature, which the verification has set to zero."""
    signature = request.header.signature
    if not request.signed or not any(signature):
        return request.message
    message = bytearray(request.message)
    message[48:64] = signature
    return message


def _hash_reply(connection: Connection, session_id: int, segments: Sequence[Buffer]) -> None:
    table = connection.preauth_session_table
    if session_id in table:
        table[session_id] = preauth.extend(table[session_id], segments)


def _forget_failed(request: Request, session: Session, acceptor: Acceptor, error: StatusError) -> None:
    """Remove the session, new or reauthenticated, after a failed logon. A failed binding does not remove it."""
    connection = request.connection
    connection.acceptors.pop(session.session_id, None)
    connection.preauth_session_table.pop(session.session_id, None)
    _report(request, session, acceptor, error)
    if session.state is SessionState.IN_PROGRESS or connection in session.channel_list:
        request.server.sessions.remove(session)


def _report(request: Request, session: Session, acceptor: Acceptor, error: StatusError) -> None:
    connection = request.connection
    bound = session.state is not SessionState.IN_PROGRESS and connection not in session.channel_list
    request.server.events.logon_refused(connection, acceptor.claimed, error, bound)


def _response(token: bytes, flags: int, status: int) -> Response:
    fixed = SESSION_SETUP_RESPONSE.pack(SessionSetupResponse(session_flags=flags, security_buffer_length=len(token)))
    return Response((fixed + token,), status)


def _complete(request: Request, session: Session, body: SessionSetupRequest) -> int:
    """Make the session or the channel valid. Return SessionFlags of the response. Raises ``StatusError``."""
    connection = request.connection
    acceptor = connection.acceptors[session.session_id]
    identity = acceptor.identity
    server = request.server
    if identity is None:
        raise StatusError(NtStatus.INTERNAL_ERROR)
    if not server.has_room(connection):
        raise StatusError(NtStatus.INSUFFICIENT_RESOURCES, reason=_TOO_MANY)
    if not identity.anonymous:
        connection.constrained = False
    if session.state is not SessionState.IN_PROGRESS:
        if connection not in session.channel_list:
            if session.identity is None or not session.identity.same_user(identity):
                raise _unbindable(NtStatus.ACCESS_DENIED, "the session belongs to another user")
            server.sessions.count_channel(session, connection)
            _add_channel(request, session, acceptor.session_key)
            request.signer = None
        else:
            # 3.3.5.5.2: the user may be a different one. Opens keep their granted access, and the keys do not change.
            session.identity = identity
            session.state = SessionState.VALID
            session.expiration_time = acceptor.expiration_time
        request.session = session
        request.signed = True
        return _flags(session)
    unproven = identity.guest or identity.anonymous
    if unproven and (server.settings.require_signing or server.settings.require_encryption):
        who, what = ("guests", "guest") if identity.guest else ("anonymous users", "anonymous")
        needed = "encryption" if server.settings.require_encryption else "signing"
        why = Reason(what, f"{needed} is required, for which {who} have no keys")
        raise StatusError(NtStatus.ACCESS_DENIED, reason=why)
    server.sessions.enter_client(connection)
    if body.previous_session_id and body.previous_session_id != session.session_id:
        server.sessions.close_previous(body.previous_session_id, identity)
    server.sessions.count(session, connection, identity)
    session.identity = identity
    session.expiration_time = acceptor.expiration_time
    if identity.guest:
        session.channel_list[connection] = Channel(connection, b"", None)
    elif identity.anonymous:
        # By the letter there are no keys for encryption, and a client that requires signing must sign. Windows makes
        # the keys, and serves unsigned requests: its own clients do not sign as nobody, whatever they require.
        _make_keys(connection, session, acceptor.session_key)
        session.keys_are_public = True
    else:
        _make_keys(connection, session, acceptor.session_key)
        # 3.3.5.4 (Connection.ShouldSign), 3.3.5.5.3: any of the three may require signing.
        mode = body.security_mode | connection.client_security_mode | connection.server_security_mode
        session.signing_required = bool(mode & SecurityMode.SIGNING_REQUIRED)
        session.transport_secured = connection.accepts_transport_security
        needs = server.settings.require_encryption and not session.transport_secured
        session.encrypt_data = needs and session.cipher is not None
        request.signed = True
    session.state = SessionState.VALID
    if session.deadline is not None:
        session.deadline.cancel()
    request.host.authenticated()
    connection.note_user(str(identity))
    server.events.logon_accepted(session, connection, acceptor.mechanism)
    return _flags(session)


def _flags(session: Session) -> int:
    flags = 0
    if session.is_guest:
        flags |= SessionFlags.IS_GUEST
    if session.is_anonymous:
        flags |= SessionFlags.IS_NULL
    if session.encrypt_data:
        flags |= SessionFlags.ENCRYPT_DATA
    return flags


def _make_keys(connection: Connection, session: Session, full_key: bytes) -> None:
    """Derive the keys of a new session and its first channel."""
    session.full_session_key = full_key
    session.session_key = full_key[:16].ljust(16, b"\0")
    keys = derive_session_keys(
        connection.dialect,
        session.session_key,
        full_key,
        connection.cipher_id,
        connection.preauth_session_table.get(session.session_id, b""),
    )
    session.application_key = keys.application
    session.signer = make_signer(connection.signing_algorithm_id, keys.signing)
    session.signing_algorithm_id = connection.signing_algorithm_id
    session.channel_list[connection] = Channel(connection, keys.signing, session.signer)
    if connection.cipher_id:
        session.cipher = SessionCipher(connection.cipher_id, session.session_id, keys.encryption, keys.decryption)


def _add_channel(request: Request, session: Session, full_key: bytes) -> None:
    """Bind the session to the connection. The channel signs with a key of its own, derived from the key of this
    exchange. [MS-SMB2 3.3.5.5.3]"""
    connection = request.connection
    key = derive_signing_key(
        connection.dialect,
        full_key[:16].ljust(16, b"\0"),
        connection.preauth_session_table.get(session.session_id, b""),
    )
    session.channel_list[connection] = Channel(connection, key, make_signer(connection.signing_algorithm_id, key))
    connection.session_table[session.session_id] = session
    request.host.authenticated()
    session.channels_changed()
    connection.note_user(str(session.identity))
    request.server.events.channel_bound(session, connection)


@handles(Command.LOGOFF, SessionRequest)
def logoff(request: SessionRequest) -> Response:
    """End the session. [MS-SMB2 3.3.5.6]"""
    request.server.events.session_ended(request.session, request.connection, "logoff")
    request.server.sessions.remove(request.session)
    return Response((EMPTY.pack(Empty()),))
