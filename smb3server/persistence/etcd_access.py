"""Getting into etcd: a user's token, and what to do when etcd does not let this node in."""

from __future__ import annotations

import json
import ssl
import threading
from typing import Any

from smb3server.persistence.store import LeaseLost, StoreError, StoreFull
from smb3server.settings.store_access import EtcdAccess

AUTHENTICATE = "/v3/auth/authenticate"
_LEASE_NOT_FOUND = "requested lease not found"
_NO_SPACE = "database space exceeded"
_TOO_LARGE = "request is too large"
_DENIED = "permission denied"
_TOKEN_REFUSED = ("invalid auth token", "revision of auth store is old", "user name is empty")
"""Also what etcd says to a request that has no token."""
_WRONG_PASSWORD = "authentication failed"
_NO_AUTHENTICATION = "authentication is not enabled"
_COMMON_NAME = "CommonName of client sending a request against gateway"
_PLAIN_TO_TLS = "HTTP request to an HTTPS server"
_SHOWN = 200
"""Characters of an answer that is not understood."""

# verify_code of OpenSSL (x509_vfy.h).
_EXPIRED, _NOT_YET = 10, 9
_UNKNOWN_CA = frozenset([2, 18, 19, 20, 21])
_WRONG_NAME = frozenset([62, 64])


class AccessRefused(StoreError):
    """etcd does not let this node do it, and will not unless somebody changes something."""


class TokenRefused(AccessRefused):
    """The token has expired, or was never given; nothing was done."""


class Login:
    """A user's token, shared by the threads that talk to etcd. Tokens expire (by default 300 s after their last use),
    and are gone when a member starts anew: then the next request brings a new one."""

    def __init__(self, access: EtcdAccess) -> None:
        self.user = access.user
        self._password = access.password
        self._token = ""
        self._lock = threading.Lock()

    def token(self) -> str:
        """The one to use; empty: there is none now."""
        return self._token

    def request(self) -> bytes:
        """The body of the request for a token."""
        return json.dumps({"name": self.user, "password": self._password}).encode()

    def take(self, answer: dict[str, Any]) -> str:
        """The token out of etcd's answer. Raises ``StoreError``. Where etcd asks nobody for a user, it is empty."""
        try:
            raise_error(answer)
        except AccessRefused:
            raise
        except StoreError as error:
            if _NO_AUTHENTICATION not in str(error):
                raise
            return ""
        token = answer.get("token")
        if not isinstance(token, str) or not token.isprintable() or not token.isascii():
            raise StoreError("etcd: no token in its answer")
        with self._lock:
            self._token = token
        return token

    def refused(self, token: str) -> None:
        """It is no good any more. Another that somebody has brought meanwhile stays."""
        with self._lock:
            if self._token == token:
                self._token = ""


def headers(token: str) -> dict[str, str]:
    """Of a request to the JSON gateway."""
    return {"Authorization": token} if token else {}


def parse_answer(data: bytes) -> dict[str, Any]:
    """An answer of the JSON gateway. Raises ``AccessRefused`` for what etcd says in plain text instead, ``ValueError``
    for anything else that is no JSON object."""
    try:
        answer = json.loads(data)
    except ValueError:
        text = data[:_SHOWN].decode("latin-1").strip()
        if _COMMON_NAME in text:
            raise AccessRefused(
                "etcd takes no certificate that has a common name from nodes with a user; remedy: make `cert`, and the "
                "certificates of etcd's members, with a subject that has an organization (O) and no CN"
            ) from None
        if _PLAIN_TO_TLS in text:
            raise AccessRefused("etcd speaks TLS there; remedy: write etcds:// for etcd://") from None
        raise ValueError(f"no JSON: {text!r}") from None
    if not isinstance(answer, dict):
        raise ValueError("not an object")
    return answer


def raise_error(answer: dict[str, Any]) -> None:
    """Raises ``StoreError`` or what it is in particular, if that is etcd's answer."""
    error = answer.get("error")
    if error:
        raise error_of(error if isinstance(error, str) else str(error.get("message", error)))


def error_of(text: str) -> StoreError:
    """What etcd's words mean."""
    if _LEASE_NOT_FOUND in text:
        return LeaseLost(text)
    if _NO_SPACE in text or _TOO_LARGE in text:
        return StoreFull(text)
    if any(words in text for words in _TOKEN_REFUSED):
        return TokenRefused(f"{text}; remedy: etcd requires a user: give `user` and `password_file`")
    if _DENIED in text:
        return AccessRefused(
            f"{text}; remedy: grant the user a role that may read and write the prefix of the cluster's name "
            "(etcdctl role grant-permission ROLE --prefix=true readwrite NAME/)"
        )
    if _WRONG_PASSWORD in text:
        return AccessRefused(f"{text}; remedy: check `user` and `password_file`")
    return StoreError(text)


def explain(error: BaseException | None) -> str:
    """Why a connection failed, for people, with the remedy where TLS is the reason."""
    # The innermost: aiohttp's errors are some of ssl's, too, without what these say.
    found, link = None, error
    while link is not None:
        found = link if isinstance(link, ssl.SSLError) else found
        link = link.__cause__ or link.__context__
    if found is None:
        return "" if error is None else str(error) or type(error).__name__
    if isinstance(found, ssl.SSLCertVerificationError):
        code = found.verify_code
        if code in (_EXPIRED, _NOT_YET):
            return f"{found.verify_message}; remedy: renew the certificate of etcd, or set this machine's clock"
        if code in _UNKNOWN_CA:
            return f"{found.verify_message}; remedy: `ca` must be the authority that signed the certificate of etcd"
        if code in _WRONG_NAME:
            return f"{found.verify_message} remedy: write the host as it is in the certificate of etcd"
        return found.verify_message
    reason = found.reason or ""
    if reason == "WRONG_VERSION_NUMBER":
        return "no TLS there; remedy: have etcd speak TLS, or write etcd:// for etcds:// in a network that is trusted"
    if "ALERT" in reason:
        return (
            f"etcd refuses this node's certificate ({reason.lower().replace('_', ' ')}); remedy: `cert` must be one "
            "that etcd's trusted CA signed, for clients, and that has not expired"
        )
    return reason.lower().replace("_", " ") or str(found)
