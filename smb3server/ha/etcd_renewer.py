"""Renewing an etcd lease without an event loop, through the JSON gateway: one connection, one member at a time."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

from smb3server.ha.etcd_members import Members
from smb3server.ha.store import LeaseLost, Renewer, StoreError, StoreFull

_LEASE_NOT_FOUND = "requested lease not found"
_NO_SPACE = "database space exceeded"
_TOO_LARGE = "request is too large"
_LONGEST_ANSWER = 1 << 16


def raise_error(answer: dict[str, Any]) -> None:
    """Raises ``StoreError`` or what it is in particular, if that is etcd's answer."""
    error = answer.get("error")
    if not error:
        return
    text = error if isinstance(error, str) else str(error.get("message", error))
    if _LEASE_NOT_FOUND in text:
        raise LeaseLost(text)
    if _NO_SPACE in text or _TOO_LARGE in text:
        raise StoreFull(text)
    raise StoreError(text)


def check_renewal(answer: dict[str, Any], lease: int) -> None:
    """A lease that etcd does not know has no time to live. Raises ``LeaseLost``."""
    result = answer.get("result")
    if not isinstance(result, dict) or int(result.get("TTL", 0)) <= 0:
        raise LeaseLost(f"lease {lease:x}")


class EtcdRenewer(Renewer):
    """``on_silent`` is called with the endpoint of a member that did not answer as it should, on the thread that
    renews."""

    def __init__(self, members: Members, on_silent: Callable[[str], None]) -> None:
        self._members = members
        self._on_silent = on_silent
        self._endpoint = ""
        """Where the connection goes."""
        self._connection: http.client.HTTPConnection | None = None

    @property
    def members(self) -> int:
        return len(self._members)

    def renew(self, lease: int, timeout: float) -> None:
        if self._endpoint != self._members.first:
            self.close()
            self._endpoint = self._members.first
        try:
            answer = self._post("/v3/lease/keepalive", json.dumps({"ID": str(lease)}).encode(), timeout)
            raise_error(answer)
            check_renewal(answer, lease)
        except LeaseLost:
            raise
        except (OSError, http.client.HTTPException, ValueError, StoreError) as error:
            self.close()
            self._members.avoid(self._endpoint)
            self._on_silent(self._endpoint)
            raise StoreError(f"{self._endpoint}: {error or type(error).__name__}") from error

    def _post(self, path: str, body: bytes, timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._endpoint.removeprefix("http://"))
        connection = self._connection
        if connection.sock is None:
            connection.timeout = timeout
            connection.connect()
        # Requests and answers fit into a packet: each of these is one system call.
        connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
        connection.request("POST", path, body)
        connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
        with connection.getresponse() as response:
            answer = json.loads(response.read(_LONGEST_ANSWER))
        if not isinstance(answer, dict):
            raise ValueError("not an object")
        return answer

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
