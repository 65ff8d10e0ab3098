"""Access to etcd: its members, the user's token, errors with remedies, and renewing a lease without an event loop."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from smb3server.net.store_access import EtcdAccess
from smb3server.persistence.store import LeaseLost, Renewer, StoreError, StoreFull


class Members:
    """The members of one etcd cluster, in the order in which all threads use them: one that fails is avoided by all."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        """``endpoints``: base addresses, used in turn."""
        self._endpoints = deque(endpoints)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._endpoints)

    @property
    def first(self) -> str:
        """The endpoint to use now."""
        return self._endpoints[0]

    def sorted(self) -> list[str]:
        """Return all endpoints, in the same order each time."""
        with self._lock:
            return sorted(self._endpoints)

    def avoid(self, endpoint: str) -> None:
        """Use the next endpoint instead of one that does not work properly. Does nothing if it is not the first."""
        with self._lock:
            if self._endpoints[0] == endpoint:
                self._endpoints.rotate(-1)


AUTHENTICATE = "/v3/auth/authenticate"
_LEASE_NOT_FOUND = "requested lease not found"
_NO_SPACE = "database space exceeded"
_TOO_LARGE = "request is too large"
_DENIED = "permission denied"
_TOKEN_REFUSED = ("invalid auth token", "revision of auth store is old", "user name is empty")
"""Errors of etcd for a token that is not valid, or for a request without one."""
_WRONG_PASSWORD = "authentication failed"
_NO_AUTHENTICATION = "authentication is not enabled"
_COMMON_NAME = "CommonName of client sending a request against gateway"
_PLAIN_TO_TLS = "HTTP request to an HTTPS server"
_SHOWN = 200
"""Characters that are shown of an unexpected answer."""

# verify_code of OpenSSL (x509_vfy.h).
_EXPIRED, _NOT_YET = 10, 9
_UNKNOWN_CA = frozenset([2, 18, 19, 20, 21])
_WRONG_NAME = frozenset([62, 64])


class AccessRefused(StoreError):
    """etcd does not allow this node to do it. Trying again does not help until an administrator changes something."""


class TokenRefused(AccessRefused):
    """The token has expired, or none was sent. etcd has done nothing."""


class Login:
    """A user's token, shared by the threads that talk to etcd.

    Tokens expire, by default 300 s after their last use. A member that restarts forgets them. The next request then
    gets a new one."""

    def __init__(self, access: EtcdAccess) -> None:
        self.user = access.user
        self._password = access.password
        self._token = ""
        self._lock = threading.Lock()
        """Held to change ``_token``."""

    def token(self) -> str:
        """Return the present token; empty if there is none."""
        return self._token

    def request(self) -> bytes:
        """Return the body of the request for a token."""
        return json.dumps({"name": self.user, "password": self._password}).encode()

    def take(self, answer: dict[str, Any]) -> str:
        """Store and return the token in etcd's answer; empty if etcd requires no users. Raises ``StoreError``."""
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
        """Forget ``token``, which etcd has refused. A newer one that another thread got meanwhile stays."""
        with self._lock:
            if self._token == token:
                self._token = ""


def headers(token: str) -> dict[str, str]:
    """Return the HTTP headers of a request to the JSON gateway. ``token``: empty for none."""
    return {"Authorization": token} if token else {}


def parse_answer(data: bytes) -> dict[str, Any]:
    """Parse an answer of the JSON gateway.

    Raises ``AccessRefused`` for refusals that etcd sends as plain text, ``ValueError`` for anything else that is not a
    JSON object."""
    try:
        answer = json.loads(data)
    except ValueError:
        text = data[:_SHOWN].decode("latin-1").strip()
        if _COMMON_NAME in text:
            raise AccessRefused(
                "etcd does not accept a certificate with a common name from nodes with a user; remedy: make `cert`, "
                "and the certificates of etcd's members, with a subject that has an organization (O) and no CN"
            ) from None
        if _PLAIN_TO_TLS in text:
            raise AccessRefused("etcd uses TLS there; remedy: write etcds:// instead of etcd://") from None
        raise ValueError(f"no JSON: {text!r}") from None
    if not isinstance(answer, dict):
        raise ValueError("not an object")
    return answer


def raise_error(answer: dict[str, Any]) -> None:
    """Raise ``StoreError``, or one of its subclasses, if etcd's answer is an error."""
    error = answer.get("error")
    if error:
        raise error_of(error if isinstance(error, str) else str(error.get("message", error)))


def error_of(text: str) -> StoreError:
    """Return the exception that stands for an error text of etcd."""
    if _LEASE_NOT_FOUND in text:
        return LeaseLost(text)
    if _NO_SPACE in text:
        return StoreFull(
            f"{text}; remedy: etcdctl compact, defrag and alarm disarm (`smb3server cluster status` shows the commands)"
        )
    if _TOO_LARGE in text:
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
    """Return why a connection failed, as text for an operator, with the remedy if TLS is the reason."""
    # The innermost ssl error has the details. Some of aiohttp's errors are ssl errors as well, but without details.
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
            # OpenSSL's message ends with a full stop here.
            return f"{found.verify_message} remedy: write the host as it is in the certificate of etcd"
        return found.verify_message
    reason = found.reason or ""
    if reason == "WRONG_VERSION_NUMBER":
        return "no TLS there; remedy: make etcd use TLS, or write etcd:// instead of etcds:// in a trusted network"
    if "ALERT" in reason:
        return (
            f"etcd refuses this node's certificate ({reason.lower().replace('_', ' ')}); remedy: `cert` must be one "
            "that etcd's trusted CA signed, for clients, and that has not expired"
        )
    return reason.lower().replace("_", " ") or str(found)


_LONGEST_ANSWER = 1 << 16


def check_renewal(answer: dict[str, Any], lease: int) -> None:
    """Raise ``LeaseLost`` if etcd does not know the lease: its answer then has no time to live."""
    result = answer.get("result")
    if not isinstance(result, dict) or int(result.get("TTL", 0)) <= 0:
        raise LeaseLost(f"lease {lease:x}")


class EtcdRenewer(Renewer):
    """Renews leases in etcd through the JSON gateway: one connection, one member at a time."""

    def __init__(
        self,
        members: Members,
        on_silent: Callable[[str], None],
        access: EtcdAccess | None = None,
        login: Login | None = None,
    ) -> None:
        """``on_silent``: called on the thread that renews, with the endpoint of a member that did not answer properly.
        ``login``: shared with the store's other requests."""
        self._access = access or EtcdAccess()
        self._login = login or Login(self._access)
        self._members = members
        self._on_silent = on_silent
        self._endpoint = ""
        """The endpoint that the connection goes to."""
        self._connection: http.client.HTTPConnection | None = None

    @property
    def members(self) -> int:
        return len(self._members)

    def renew(self, lease: int, timeout: float) -> None:
        if self._endpoint != self._members.first:
            self.close()
            self._endpoint = self._members.first
        try:
            check_renewal(self._keep_alive(lease, timeout), lease)
        except LeaseLost:
            raise
        except (OSError, http.client.HTTPException, ValueError, StoreError) as error:
            self.close()
            self._members.avoid(self._endpoint)
            self._on_silent(self._endpoint)
            raise StoreError(f"{self._endpoint}: {explain(error)}") from error

    def _keep_alive(self, lease: int, timeout: float) -> dict[str, Any]:
        body = json.dumps({"ID": str(lease)}).encode()
        token = self._login.token()
        answer = self._post("/v3/lease/keepalive", body, timeout, token)
        try:
            raise_error(answer)
        except TokenRefused:
            if not self._login.user:
                raise
            self._login.refused(token)
            token = self._login.take(self._post(AUTHENTICATE, self._login.request(), timeout, ""))
            answer = self._post("/v3/lease/keepalive", body, timeout, token)
            raise_error(answer)
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        scheme, _, host = self._endpoint.partition("://")
        if scheme == "https":
            return http.client.HTTPSConnection(host, context=self._access.tls)
        return http.client.HTTPConnection(host)

    def _post(self, path: str, body: bytes, timeout: float, token: str) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        if connection.sock is None:
            connection.timeout = timeout
            connection.connect()
        # Requests and answers fit into a packet: sending and receiving take one system call each.
        connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
        connection.request("POST", path, body, headers(token))
        connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
        with connection.getresponse() as response:
            return parse_answer(response.read(_LONGEST_ANSWER))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
