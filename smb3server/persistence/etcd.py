"""The store of a cluster: etcd, through the JSON gateway of its v3 interface.

Versions are etcd's mod revisions. Batches are sent in order, one transaction at a time. Batches that wait meanwhile
share the next transaction if they change different keys under the same conditions.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import aiohttp

from smb3server.net.store_access import EtcdAccess, StoreAccess, cluster_secret, etcd_access
from smb3server.net.store_url import parse_url
from smb3server.persistence.etcd_access import (
    AUTHENTICATE,
    AccessRefused,
    EtcdRenewer,
    Login,
    Members,
    TokenRefused,
    error_of,
    explain,
    headers,
    parse_answer,
    raise_error,
)
from smb3server.persistence.etcd_health import MemberState, quota_of, state_of
from smb3server.persistence.seal import Seal, SealedStore
from smb3server.persistence.store import (
    MAX_BATCH,
    Change,
    Condition,
    ConditionFailed,
    Delete,
    DeletePrefix,
    Entry,
    HistoryGone,
    LeaseLost,
    Operation,
    Put,
    Renewer,
    Store,
    StoreError,
    StoreFull,
    check_batch,
    prefix_end,
)

log = logging.getLogger(__name__)

REQUEST_TIMEOUT = 3.0
"""Seconds for one request, over all endpoints."""
_CONNECT_TIMEOUT = 1.0
_RETRY_DELAY = 0.05
_PAGE = 5000
"""Keys per request of a scan. A busy node does much other work between two answers."""
PAGE_TIMEOUT = 10.0
"""Seconds for one page. Long enough for a machine that thousands of clients come back to, because a takeover that fails
begins anew."""
WATCH_SILENCE = 5.0
"""Seconds without a change after which a watch connects anew, because its member may be unreachable."""
_LINE_LIMIT = 8 << 20
_COMPACTED = "required revision has been compacted"

Json = dict[str, Any]


class _Batch(NamedTuple):
    operations: tuple[Operation, ...]
    conditions: tuple[Condition, ...]
    future: asyncio.Future[int]


def _b64(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def _key(text: str) -> str:
    """Decode the name of a key.

    A name that is not UTF-8 belongs to another application. It must not stop this node from reading on."""
    return base64.b64decode(text).decode(errors="backslashreplace")


def _request_of(operation: Operation) -> Json:
    if isinstance(operation, Put):
        put: Json = {"key": _b64(operation.key), "value": _b64(operation.value)}
        if operation.lease:
            put["lease"] = str(operation.lease)
        return {"request_put": put}
    if isinstance(operation, Delete):
        return {"request_delete_range": {"key": _b64(operation.key)}}
    return {"request_delete_range": {"key": _b64(operation.prefix), "range_end": _b64(prefix_end(operation.prefix))}}


def _compare_of(condition: Condition) -> Json:
    return {
        "key": _b64(condition.key),
        "target": "MOD",
        "result": "EQUAL",
        "mod_revision": str(condition.version),
    }


class EtcdStore(Store):
    """A store in an etcd cluster."""

    def __init__(
        self, endpoints: Sequence[str], timeout: float = REQUEST_TIMEOUT, access: EtcdAccess | None = None
    ) -> None:
        """``endpoints``: base addresses, tried in turn. ``timeout``: seconds for one request. ``access``: None means
        that etcd requires neither a user nor TLS."""
        self.timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._members = Members(endpoints)
        self._access = access or EtcdAccess()
        self._login = Login(self._access)
        self._logging_on = asyncio.Lock()
        connector = aiohttp.TCPConnector(limit=0, ssl=self._access.tls or True)
        self._session = aiohttp.ClientSession(connector=connector, read_bufsize=1 << 18)
        # Invariant: while there are batches in the queue, ``_sender`` is a task that sends them.
        self._batches: deque[_Batch] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._last: asyncio.Future[int] | None = None
        """The future of the batch that was submitted last."""
        self._closed = False
        self.stale = False
        """Whether reads are answered by any member from what it has, also without a quorum."""
        self._quotas: dict[str, int] = {}
        """By endpoint, for those that have been asked."""
        self._watching: dict[aiohttp.ClientResponse, str] = {}
        """Watches under way, with the endpoints that they are connected to."""
        self.transactions = 0
        """Number of transactions committed so far. It shows how many batches share one (group commit)."""

    # Requests

    async def _call(self, path: str, body: Json) -> Json:
        """Send a request once, and return its answer. Raises ``StoreError``.

        Skip endpoints that do not accept the connection. Do not repeat a request that was sent, because etcd may have
        executed it."""
        if self._closed:
            raise StoreError("store is closed")
        failure: Exception | None = None
        endpoint = self._members.first
        try:
            async with asyncio.timeout(self.timeout):
                for _ in range(len(self._members)):
                    endpoint = self._members.first
                    try:
                        return await self._post(endpoint, path, body)
                    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                        failure = error
                    self._avoid(endpoint)
        except TimeoutError:
            # The next request goes to another member: this one may have lost its leader, or its network.
            self._avoid(endpoint)
            raise StoreError(f"no answer from etcd in {self.timeout} s") from None
        except (aiohttp.ClientError, ValueError) as error:
            self._avoid(endpoint)
            raise StoreError(f"etcd: {_why(error)}") from error
        raise StoreError(f"no etcd member can be reached: {_why(failure)}")

    async def _ask(self, path: str, body: Json, timeout: float = 0.0) -> Json:
        """Send a request that may be executed twice to one member after the other, and return the first answer.

        Each member gets a part of the time only, so a member that is cut off, or that waits for a leader, delays the
        request little. Each further round gives every member more time, in case this machine is the slow one.
        ``timeout``: seconds in all, 0 means those for one request. Raises ``StoreError``."""
        if self._closed:
            raise StoreError("store is closed")
        timeout = timeout or self.timeout
        share = self.timeout / (2 * max(2, len(self._members)))
        deadline = self._loop.time() + timeout
        attempts = 0
        failure: Exception | None = None
        while True:
            endpoint = self._members.first
            try:
                async with asyncio.timeout(min(share, deadline - self._loop.time())):
                    return await self._post(endpoint, path, body)
            except (StoreFull, LeaseLost, AccessRefused):
                raise
            except (StoreError, aiohttp.ClientError, ValueError, TimeoutError) as error:
                if failure is None or not isinstance(error, TimeoutError):
                    # The last attempt has hardly any time: an earlier error says more than its timeout.
                    failure = error
            self._avoid(endpoint)
            if self._loop.time() + _RETRY_DELAY > deadline:
                raise StoreError(
                    f"no etcd member answers in {timeout:g} s (last {endpoint}: {_reason(failure)})"
                ) from failure
            attempts += 1
            if attempts % len(self._members) == 0:
                share *= 2
            await asyncio.sleep(_RETRY_DELAY)

    def _avoid(self, endpoint: str) -> None:
        """Send further requests to other members, and end watches at ``endpoint``, which does not work properly."""
        self._members.avoid(endpoint)
        for response, source in list(self._watching.items()):
            if source == endpoint:
                _drop(response)

    async def _post(self, endpoint: str, path: str, body: Json) -> Json:
        """Send a request to one member, and return its answer.

        Get a new token and repeat the request if etcd refuses the present token: etcd has then done nothing."""
        token = await self._token(endpoint)
        try:
            return await self._exchange(endpoint + path, json.dumps(body).encode(), token)
        except TokenRefused:
            if not self._login.user:
                raise
        self._login.refused(token)
        token = await self._token(endpoint)
        return await self._exchange(endpoint + path, json.dumps(body).encode(), token)

    async def _token(self, endpoint: str) -> str:
        """Return the user's token; empty if there is no user. Requests that need a new token wait for the same one."""
        token = self._login.token()
        if token or not self._login.user:
            return token
        async with self._logging_on:
            return self._login.token() or self._login.take(
                await self._answer(endpoint + AUTHENTICATE, self._login.request(), "")
            )

    async def _exchange(self, url: str, body: bytes, token: str) -> Json:
        answer = await self._answer(url, body, token)
        raise_error(answer)
        return answer

    async def _answer(self, url: str, body: bytes, token: str) -> Json:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=min(_CONNECT_TIMEOUT, self.timeout))
        async with self._session.post(url, data=body, headers=headers(token), timeout=limits) as response:
            return parse_answer(await response.read())

    # Batches

    def submit(self, operations: Sequence[Operation], conditions: Sequence[Condition] = ()) -> asyncio.Future[int]:
        check_batch(operations, conditions)
        future: asyncio.Future[int] = self._loop.create_future()
        if self._closed:
            future.set_exception(StoreError("store is closed"))
            return future
        self._batches.append(_Batch(tuple(operations), tuple(conditions), future))
        self._last = future
        if self._sender is None:
            self._sender = self._loop.create_task(self._send())
        return future

    async def _send(self) -> None:
        """Send batches until the queue is empty."""
        while self._batches:
            group = self._take_group()
            try:
                version = await self._transaction(group)
            except StoreError as error:
                for batch in group:
                    if not batch.future.done():
                        batch.future.set_exception(error)
            else:
                for batch in group:
                    if not batch.future.done():
                        batch.future.set_result(version)
        self._sender = None

    def _take_group(self) -> list[_Batch]:
        """Take the first batch off the queue, and those after it that can share its transaction.

        etcd refuses transactions that change a key twice."""
        first = self._batches.popleft()
        group, keys = [first], {operation[0] for operation in first.operations}
        if any(isinstance(operation, DeletePrefix) for operation in first.operations):
            return group
        room = MAX_BATCH - len(first.conditions) - len(first.operations)
        while self._batches:
            following = self._batches[0]
            changed = [operation[0] for operation in following.operations]
            if (
                following.conditions != first.conditions
                or len(changed) > room
                or not keys.isdisjoint(changed)
                or any(isinstance(operation, DeletePrefix) for operation in following.operations)
            ):
                break
            keys.update(changed)
            room -= len(changed)
            group.append(self._batches.popleft())
        return group

    async def _transaction(self, group: Sequence[_Batch]) -> int:
        """Commit the batches, and return the new version. Raises ``StoreError``."""
        operations = [_request_of(operation) for batch in group for operation in batch.operations]
        body: Json = {"success": operations}
        if group[0].conditions:
            body["compare"] = [_compare_of(condition) for condition in group[0].conditions]
        answer = await self._call("/v3/kv/txn", body)
        if not answer.get("succeeded"):
            raise ConditionFailed(", ".join(condition.key for condition in group[0].conditions))
        self.transactions += 1
        return int(answer["header"]["revision"])

    async def _submitted(self) -> None:
        """Wait until all batches submitted so far are done, successfully or not."""
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])

    # Reading

    async def get(self, key: str) -> Entry | None:
        await self._submitted()
        answer = await self._ask("/v3/kv/range", {"key": _b64(key), "serializable": self.stale})
        return _entry(answer["kvs"][0]) if answer.get("kvs") else None

    async def scan(self, prefix: str) -> list[Entry]:
        await self._submitted()
        found: list[Entry] = []
        start: str | bytes = prefix
        revision = "0"
        while True:
            body: Json = {"key": _b64(start), "range_end": _b64(prefix_end(prefix)), "limit": str(_PAGE)}
            body["serializable"] = self.stale
            answer = await self._ask("/v3/kv/range", {**body, "revision": revision}, PAGE_TIMEOUT)
            revision = answer["header"]["revision"] if revision == "0" else revision
            found += [_entry(item) for item in answer.get("kvs", ())]
            if not answer.get("more"):
                return found
            start = base64.b64decode(answer["kvs"][-1]["key"]) + b"\0"

    async def version(self, prefix: str = "\0") -> int:
        await self._submitted()
        answer = await self._ask("/v3/kv/range", {"key": _b64(prefix), "count_only": True})
        return int(answer["header"]["revision"])

    async def watch(self, prefix: str, after: int | None = None) -> AsyncIterator[Change]:
        """Yield changes, and reconnect to another member without a gap if a connection is lost.

        Only compaction can lose changes."""
        if after is None:
            after = await self.version(prefix)
        while not self._closed:
            try:
                async for change in self._watch_once(prefix, after + 1):
                    yield change
                    after = max(after, change.version)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                log.debug("watch of %s: %s", prefix, error)
                if not isinstance(error, TimeoutError):
                    await asyncio.sleep(_RETRY_DELAY)
        raise StoreError("store is closed")

    async def _watch_once(self, prefix: str, start: int) -> AsyncIterator[Change]:
        body = {
            "create_request": {"key": _b64(prefix), "range_end": _b64(prefix_end(prefix)), "start_revision": str(start)}
        }
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT, sock_read=WATCH_SILENCE)
        endpoint = self._members.first
        pending: list[Change] = []
        try:
            async with asyncio.timeout(self.timeout):
                token = await self._token(endpoint)
                response = await self._session.post(
                    endpoint + "/v3/watch", data=json.dumps(body), headers=headers(token), timeout=limits
                )
        except (aiohttp.ClientError, TimeoutError):
            self._avoid(endpoint)
            raise
        if endpoint != self._members.first:
            # Another request has given up this member meanwhile.
            _drop(response)
            return
        self._watching[response] = endpoint
        try:
            buffer = bytearray()
            async for chunk in response.content.iter_any():
                buffer += chunk
                if len(buffer) > _LINE_LIMIT:
                    raise StoreError("etcd: watch answer too long")
                *lines, rest = buffer.split(b"\n")
                for line in lines:
                    pending += _changes(json.loads(line)) if line.strip() else ()
                buffer = bytearray(rest)
                for change in pending:
                    yield change
                pending.clear()
        except TokenRefused:
            if not self._login.user:
                raise
            # The next attempt gets a new token. No change was missed.
            self._login.refused(token)
            await asyncio.sleep(_RETRY_DELAY)
        finally:
            del self._watching[response]
            _drop(response)

    # Upkeep

    async def members_state(self) -> list[MemberState]:
        """Return the state of all members, in the order of their addresses. Does not raise."""
        return list(await asyncio.gather(*[self._state(endpoint) for endpoint in self._members.sorted()]))

    async def _state(self, endpoint: str) -> MemberState:
        start = self._loop.time()
        try:
            async with asyncio.timeout(self.timeout / 2):
                answer = await self._answer(endpoint + "/v3/maintenance/status", b"{}", self._login.token())
                raise_error(answer)
                state = state_of(endpoint, answer, self._loop.time() - start)
                if not state.quota:
                    state.quota = await self._quota(endpoint)
                return state
        except (StoreError, aiohttp.ClientError, ValueError, TimeoutError) as error:
            return MemberState(endpoint, error=_reason(error))

    async def _quota(self, endpoint: str) -> int:
        """Return the quota of a member, which only its metrics have; 0 if it does not show them."""
        if endpoint not in self._quotas:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT)
            async with self._session.get(endpoint + "/metrics", timeout=limits) as response:
                self._quotas[endpoint] = quota_of((await response.read()).decode(errors="replace"))
        return self._quotas[endpoint]

    async def compact(self, revision: int) -> None:
        """Remove the history before a revision. Raises ``StoreError``."""
        try:
            await self._ask("/v3/kv/compaction", {"revision": str(revision)})
        except StoreError as error:
            if _COMPACTED not in str(error):
                raise

    # Leases

    async def grant(self, ttl: float) -> int:
        answer = await self._call("/v3/lease/grant", {"TTL": str(max(1, round(ttl)))})
        return int(answer["ID"])

    def renewer(self) -> Renewer:
        """Return a renewer. Requests and watches avoid the members that do not answer it, too.

        They do so as soon as the event loop has time."""

        def silent(endpoint: str) -> None:
            try:
                self._loop.call_soon_threadsafe(self._avoid, endpoint)
            except RuntimeError:
                log.debug("the event loop is closed")

        return EtcdRenewer(self._members, silent, self._access, self._login)

    async def revoke(self, lease: int) -> None:
        try:
            await self._ask("/v3/lease/revoke", {"ID": str(lease)})
        except LeaseLost:
            log.debug("lease %x has ended already", lease)

    async def time_left(self, lease: int) -> float:
        answer = await self._ask("/v3/lease/timetolive", {"ID": str(lease)})
        left = int(answer.get("TTL", 0))
        if left < 0:
            raise LeaseLost(f"lease {lease:x}")
        return float(left)

    async def close(self) -> None:
        if self._closed:
            return
        await self._submitted()
        self._closed = True
        await self._session.close()


def _drop(response: aiohttp.ClientResponse) -> None:
    """Abort a response's connection. TLS would wait for a closing message that a silent member never sends."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


def _why(error: BaseException | None) -> str:
    """Return why a request failed: the part of aiohttp's text that an operator can use."""
    if type(error) is aiohttp.ClientConnectorError and error.os_error.errno:
        return f"{error.host}:{error.port}: {os.strerror(error.os_error.errno)}"
    return explain(error)


def _reason(error: BaseException | None) -> str:
    """Return why a member, which the message names already, did not answer properly."""
    if type(error) is aiohttp.ClientConnectorError and error.os_error.errno:
        return os.strerror(error.os_error.errno)
    silent = error is None or isinstance(error, TimeoutError)
    return "silent" if silent else _why(error)


def _entry(item: Json) -> Entry:
    return Entry(_key(item["key"]), base64.b64decode(item.get("value", "")), int(item["mod_revision"]))


def _changes(answer: Json) -> list[Change]:
    """Return the changes of one answer of a watch. Raises ``StoreError`` if etcd has ended the watch."""
    raise_error(answer)
    result = answer.get("result", {})
    if result.get("canceled"):
        if result.get("compact_revision"):
            raise HistoryGone("watch ended: history is compacted")
        reason = result.get("cancel_reason")
        raise error_of(f"watch ended: {reason}") if reason else StoreError("watch ended: history is compacted")
    found = []
    for event in result.get("events", ()):
        item = event["kv"]
        deleted = event.get("type") == "DELETE"
        value = None if deleted else base64.b64decode(item.get("value", ""))
        found.append(Change(_key(item["key"]), value, int(item["mod_revision"])))
    return found


class ClusterStore(SealedStore):
    """The store of a cluster: records with seals, in etcd."""

    def __init__(self, etcd: EtcdStore, seal: Seal) -> None:
        super().__init__(etcd, seal)
        self.etcd = etcd
        """The store below, for its upkeep."""


def open_store(url: str, name: str, access: StoreAccess) -> ClusterStore:
    """Open the store of the cluster called ``name``, for the running event loop.

    Raises ``ValueError`` if the configuration is wrong."""
    store = EtcdStore(parse_url(url), access=etcd_access(url, access))
    return ClusterStore(store, Seal(cluster_secret(access), name))
