"""Renewing an etcd lease without an event loop, through the JSON gateway: one connection, one member at a time."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

from smb3server.persistence.etcd_access import (
    AUTHENTICATE,
    Login,
    TokenRefused,
    explain,
    headers,
    parse_answer,
    raise_error,
)
from smb3server.persistence.etcd_members import Members
from smb3server.persistence.store import LeaseLost, Renewer, StoreError
from smb3server.settings.store_access import EtcdAccess

_LONGEST_ANSWER = 1 << 16


def check_renewal(answer: dict[str, Any], lease: int) -> None:
    """Raise ``LeaseLost`` if etcd does not know the lease: its answer then has no time to live."""
    result = answer.get("result")
    if not isinstance(result, dict) or int(result.get("TTL", 0)) <= 0:
        raise LeaseLost(f"lease {lease:x}")


class EtcdRenewer(Renewer):
    """Renews leases in etcd, through one connection at a time."""

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
