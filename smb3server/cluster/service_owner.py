"""One service on one node: taking it over, serving it, releasing it, losing it.

A service consists of shares, their virtual addresses and the stored state of their opens. Its owner is the node that
has put the owner key into the store, bound to the lease of its membership. Every write of state is conditional on that
key's version, so a node that is no longer the owner cannot change any state.

The lease shows that the last owner must have stopped. It does not show that it has: a machine that was paused may
finish a write that it had begun. So a node that takes a service from one that fell silent has that one fenced first
(``fencer``), and a node that gives a service up in good order says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from smb3server.cluster import address as addresses
from smb3server.cluster.fencer import Fencer
from smb3server.cluster.lease_keeper import boottime
from smb3server.cluster.membership import Membership
from smb3server.cluster.peers import PeerRecord, peer_of
from smb3server.cluster.storage import StorageWatch
from smb3server.cluster.tickle import end_connections
from smb3server.cluster.view import decode
from smb3server.persistence.journal import Domain, Persistence
from smb3server.persistence.restore import restore
from smb3server.persistence.storage import StorageMissing, check, key_of
from smb3server.persistence.store import ABSENT, Condition, ConditionFailed, Delete, Put, Store, StoreError
from smb3server.settings.cluster import DEFAULT_STORAGE_TIMEOUT, ServiceConfig
from smb3server.wire.negotiate import Dialect
from smb3server.wire.share_redirect import share_redirect
from smb3server.wire.status import NtStatus, Reason, StatusError

if TYPE_CHECKING:
    from smb3server.state.objects import Connection, Open
    from smb3server.state.server_state import ServerState
    from smb3server.state.share import Share

log = logging.getLogger(__name__)

_DRAIN_TIMEOUT = 3.0
_WORKERS_POLL = 0.02
FENCE_PAUSE = 5.0
"""Seconds between two attempts to fence a node."""
_REDIRECT_TO_OWNER = 0x0002
"""SMB2_TREE_CONNECT_FLAG_REDIRECT_TO_OWNER. [MS-SMB2 2.2.9]"""
_ANNOUNCEMENTS = (0.0, 0.5, 2.0)
"""Seconds after the takeover at which addresses are announced to the neighbours: the first packet may get lost."""


async def _nothing(shares: Sequence[Share]) -> None:
    """Do nothing before clients are served in these shares."""


class ServiceOwner:
    """A service of the cluster, as one of its nodes handles it. It is the ``Placement`` of the service's shares."""

    def __init__(
        self,
        server: ServerState,
        persistence: Persistence,
        store: Store,
        prefix: str,
        state_prefix: str,
        membership: Membership,
        config: ServiceConfig,
        storage_timeout: float = DEFAULT_STORAGE_TIMEOUT,
        fencer: Fencer | None = None,
    ) -> None:
        """``prefix``: of the keys for coordination (``view``). ``state_prefix``: of the state of all services.
        ``storage_timeout``: seconds, as in ``StorageWatch``. ``fencer``: None if nobody can fence a silent node."""
        self.config = config
        self.name = config.name
        self.owner_key = f"{prefix}services/{config.name}/owner"
        self._serving_key = f"{prefix}services/{config.name}/serving"
        self._last_key = f"{prefix}services/{config.name}/last"
        self._fencing_key = f"{prefix}services/{config.name}/fencing"
        self._marks_prefix = f"{prefix}services/{config.name}/storage/"
        self.shares: list[Share] = []
        self.storage = StorageWatch(config.name, membership.node, self.shares, storage_timeout)
        self._fencer = fencer
        self._has_begun = False
        """Whether this node has begun to use the service's files in the present ownership: ``last`` names it."""
        self._left: list[Open] = []
        """Abandoned opens whose files a worker thread may still be using."""
        self.unsettled = False
        """Whether this node let go of the service while its file systems did not answer. What it wrote may still be on
        its way."""
        # Invariant: while ``owned``, ``_domain`` is not None.
        self.owned = False
        """Whether this node serves the service."""
        self.busy = False
        """Whether this node is taking it over or releasing it."""
        # Invariant: not None only while ``busy``.
        self.arriving: asyncio.Future[None] | None = None
        """Done when a takeover ends. Clients that connect meanwhile wait for it instead of being refused."""
        self.restored = 0
        """Number of opens that the last takeover restored."""
        self._server = server
        self._persistence = persistence
        self._store = store
        self._membership = membership
        self._state_prefix = f"{state_prefix}{config.name}/"
        self._version = 0
        self._timers: list[asyncio.TimerHandle] = []
        self._addresses_lock = threading.Lock()
        """Held by the thread that renews the addresses, and by the one that removes them."""
        self.before_serving: Callable[[Sequence[Share]], Awaitable[None]] = _nothing
        """Called before clients are served in these shares of the service. May raise ``StoreError``."""
        self._domain: Domain | None = None
        """The domain of the present ownership."""
        self._peers: PeerRecord | None = None
        """The clients' connections to the service's addresses, in the present ownership."""
        self._telling: asyncio.Task[None] | None = None
        """Notifies the clients of the last owner that their connections are lost."""

    # Taking over

    async def take(self) -> bool:
        """Become the owner if there is none. Return False if another node did, or if the takeover failed."""
        if self.busy or self.owned or not self._membership.lease:
            return False
        self.busy = True
        self.arriving = asyncio.get_running_loop().create_future()
        try:
            return await self._take()
        finally:
            self.busy = False
            self.arriving.set_result(None)
            self.arriving = None

    async def _take(self) -> bool:
        try:
            value = json.dumps({"node": self._membership.node}).encode()
            lease = self._membership.lease
            self._version = await self._store.commit(
                [Put(self.owner_key, value, lease)], [Condition(self.owner_key, ABSENT)]
            )
        except ConditionFailed:
            return False
        except StoreError as error:
            log.warning("service %s: %s", self.name, error)
            return False
        log.info("service %s is being taken over", self.name)
        try:
            await self._begin(lease)
        except (StoreError, OSError) as error:
            log.error("service %s cannot be taken over: %s", self.name, error)
            self._stop()
            await asyncio.to_thread(self._remove_addresses)
            await self._give_up_ownership(await self._workers_have_ended())
            if isinstance(error, StorageMissing):
                await self.storage.look()
            return False
        return self.owned

    async def _begin(self, lease: int) -> None:
        """Fence the last owner, restore opens, add addresses and begin to serve. Raises ``StoreError``, ``OSError``."""
        conditions = (Condition(self.owner_key, self._version),)
        self._has_begun = False
        await self._succeed(lease, conditions)
        fresh = await self._check_storage(self.shares, conditions)
        domain = Domain(self._store, self._state_prefix, conditions, self.lose)
        wanted = [share for share in self.shares if share.rules.continuous_availability]
        await self.before_serving(self.shares)
        self._domain = domain
        for share in self.shares:
            share.lost = False
        self._persistence.serve(domain, wanted)
        self._persistence.reclaim(domain)
        is_there = partial(self._is_there, fresh)
        self.restored = await restore(self._server, domain, wanted, is_there=is_there) if wanted else 0
        if self._membership.lease != lease or self._membership.fence.expired():
            raise StoreError("the membership ended meanwhile")
        if self.config.addresses:
            self._peers = PeerRecord(self._store, self._state_prefix, self._version, conditions, self.lose)
        for entry in self.config.addresses:
            # At least one second: the next renewal is near, and a service that no node takes is worse.
            await asyncio.to_thread(addresses.hold, entry, partial(self._address_lifetime, 1))
        if self.config.addresses:
            await self._server.interfaces.refresh()
        if self._membership.lease != lease or self._membership.fence.expired():
            raise StoreError("the membership ended meanwhile")
        self.owned = True
        loop = asyncio.get_running_loop()
        for delay in _ANNOUNCEMENTS:
            self._timers.append(loop.call_later(delay, self._announce))
        # Only now can clients reach the service here, so the Witness services may notify them. ``since`` is for people.
        serving = {"node": self._membership.node, "since": round(time.time())}
        await self._store.commit([Put(self._serving_key, json.dumps(serving).encode(), lease)], conditions)
        log.info("service %s is served here, %d opens restored", self.name, self.restored)
        if self._peers is not None and self.owned:
            # The neighbours know the new address by now, and clients that reconnect at once are served.
            addresses_here = [entry.address for entry in self.config.addresses]
            self._telling = asyncio.ensure_future(end_connections(self.name, self._peers, addresses_here))

    async def _succeed(self, lease: int, conditions: Sequence[Condition]) -> None:
        """Make sure that the last owner writes no more, and become it. Raises ``StoreError``."""
        entry = await self._store.get(self._last_key)
        last = decode(entry.value) if entry is not None else {}
        node = str(last.get("node") or "")
        if entry is not None and node not in ("", self._membership.node):
            await self._fence(node, str(last.get("address") or ""), entry.version, lease, conditions)
        mine = {"node": self._membership.node, "address": next(iter(self._membership.addresses()), "")}
        await self._store.commit(
            [Put(self._last_key, json.dumps(mine).encode()), Delete(self._fencing_key)], conditions
        )
        self._has_begun = True
        self.unsettled = False

    async def _fence(self, node: str, address: str, version: int, lease: int, conditions: Sequence[Condition]) -> None:
        """Have a silent node fenced. Return when it is, or when the administrator says so. Raises ``StoreError``.

        ``version``: of the record that names the node."""
        if self._fencer is None:
            log.warning(
                "service %s: node %s had it and fell silent. Without fence_command nothing prevents that it finishes "
                "a write that it had begun, if it was only paused",
                self.name,
                node,
            )
            return
        values = {"node": node, "address": address, "service": self.name}
        said, since = None, round(time.time())
        problem = ""
        while True:
            state = {"node": node, "since": since, "problem": problem}
            await self._store.commit([Put(self._fencing_key, json.dumps(state).encode(), lease)], conditions)
            if not problem:
                log.warning("service %s: node %s fell silent, and is being fenced", self.name, node)
            problem = await self._fencer.fence(values, self._membership.fence.deadline)
            self._check_membership(lease)
            if not problem:
                log.warning("service %s: node %s is fenced", self.name, node)
                return
            if problem != said:
                said = problem
                log.error(
                    "service %s is not taken over, because fence_command failed for node %s: %s; it is tried again; "
                    "remedy, if the node is certainly off: smb3server cluster fenced %s",
                    self.name,
                    node,
                    problem,
                    node,
                )
            ends = boottime() + FENCE_PAUSE
            while boottime() < ends:
                await asyncio.sleep(0.5)
                self._check_membership(lease)
                entry = await self._store.get(self._last_key)
                if entry is None or entry.version != version:
                    log.warning("service %s: the administrator says that node %s is fenced", self.name, node)
                    return

    def _check_membership(self, lease: int) -> None:
        """Raise ``StoreError`` if this node is no longer the member that it was."""
        if self._membership.lease != lease or self._membership.fence.expired():
            raise StoreError("the membership ended meanwhile")

    # The file systems

    async def _check_storage(self, shares: Sequence[Share], conditions: Sequence[Condition]) -> set[str]:
        """Check that the file systems of the shares are there and work, and let each share use the one that is there.

        Mark those that have no mark yet. Return their ``key_of``. Raises ``StorageMissing`` and ``StoreError``."""
        entries = await self._store.scan(self._marks_prefix)
        known = {entry.key.removeprefix(self._marks_prefix): str(decode(entry.value).get("mark")) for entry in entries}
        node = self._membership.node

        def look() -> dict[str, str]:
            found: dict[str, str] = {}
            for share in shares:
                key = key_of(share)
                check(share, known.get(key), node)
                storage = share.backend.storage() if share.backend is not None else None
                if key in known or share.backend is None or storage is None:
                    continue
                mark = storage.read() if share.backend.read_only else storage.make()
                if mark is not None:
                    found[key] = mark
            return found

        made = await self.storage.call(look)
        if made:
            puts = [Put(self._marks_prefix + key, json.dumps({"mark": mark}).encode()) for key, mark in made.items()]
            await self._store.commit(puts, conditions)
            log.info("service %s: the file systems of %s have a mark", self.name, ", ".join(sorted(made)))
        self.storage.marks = {**known, **made}
        for share in shares:
            mark = self.storage.marks.get(key_of(share))
            if share.backend is None or mark is None:
                continue
            share.backend.expect(mark)
            if not share.backend.is_available():
                raise StorageMissing(f"share {share.name}: {share.path} was replaced meanwhile")
        return set(made)

    async def _is_there(self, fresh: set[str], share: Share) -> bool:
        """Return whether a file that is missing in a share was certainly deleted. Raises ``StorageMissing`` if the file
        system is not there. ``fresh``: ``key_of`` shares that have their mark since a moment ago."""
        await self.storage.call(partial(check, share, self.storage.marks.get(key_of(share)), self._membership.node))
        return key_of(share) not in fresh

    def connection_changed(self, connection: Connection, there: bool) -> None:
        """Record a connection that a user has logged on to, or remove it when it has ended (``there`` is False)."""
        record = self._peers
        if record is None or not self.has_address(connection.transport.local_address[0]):
            return
        peer = peer_of(connection)
        if peer is not None:
            (record.add if there else record.discard)(peer)

    def _announce(self) -> None:
        if self.owned:
            for entry in self.config.addresses:
                addresses.announce(entry)

    def _address_lifetime(self, least: int = 0) -> int:
        """Return the seconds after which the kernel shall remove an address by itself, 0 if the lease is over.

        It does so even if this process is stopped or dead. The time never exceeds the rest of the lease, except that
        it is at least ``least``."""
        left = self._membership.fence.deadline - boottime()
        return max(least, int(left)) if left > 0 else 0

    def hold_addresses(self) -> None:
        """Renew the addresses after the lease was renewed. Runs on a separate thread, so that a busy event loop loses
        no address."""
        for entry in self.config.addresses:
            # If the service was released meanwhile, the address must not come back here.
            with self._addresses_lock:
                if not self.owned or self._address_lifetime() < 1:
                    return
                try:
                    addresses.hold(entry, self._address_lifetime)
                except OSError as error:
                    log.warning("%s", error)

    def has_address(self, text: str) -> bool:
        """Return whether a local address, as a socket names it, is one of the service's."""
        return text.removeprefix("::ffff:") in self._address_texts()

    # Shares that come and go

    async def add_share(self, share: Share) -> None:
        """Serve one more share with the service. The server does not serve it yet. Raises ``StoreError``."""
        while self.arriving is not None:
            await asyncio.wait([self.arriving])
        self.shares.append(share)
        share.placement = self
        await self.before_serving([share])
        domain = self._domain
        if domain is None:
            return
        try:
            fresh = await self._check_storage([share], domain.conditions)
            if share.rules.continuous_availability:
                self._persistence.serve(domain, [share])
                is_there = partial(self._is_there, fresh)
                self.restored += await restore(self._server, domain, [share], all_shares=False, is_there=is_there)
        except StorageMissing as error:
            raise StoreError(str(error)) from error

    def remove_share(self, share: Share) -> None:
        """Forget a share that is no longer served. Its opens are closed."""
        if share in self.shares:
            self.shares.remove(share)
        self._persistence.leave(share)

    # Letting go

    async def release(self) -> None:
        """Release the service after storing everything that was acknowledged to clients. Any node may take it then."""
        if self.busy or not self.owned:
            return
        self.busy = True
        try:
            self.owned = False
            try:
                async with asyncio.timeout(_DRAIN_TIMEOUT):
                    await self._persistence.drain()
            except TimeoutError:
                log.warning("service %s: state not stored in %.0f s", self.name, _DRAIN_TIMEOUT)
            self._stop()
            await asyncio.to_thread(self._remove_addresses)
            await self._give_up_ownership(await self._workers_have_ended())
        finally:
            self.busy = False
        log.info("service %s is released", self.name)

    async def leave_storage(self) -> None:
        """Release the service because of ``storage.problem``.

        If its file systems hang, nothing here waits for them before another node may take it, and that node has to have
        this one fenced."""
        log.error("service %s is given up: %s", self.name, self.storage.problem)
        if not self.storage.hangs:
            await self.release()
            return
        if self.busy or not self.owned:
            return
        self.busy = True
        try:
            self.owned = False
            self.unsettled = True
            self._part()
            await asyncio.to_thread(self._remove_addresses)
            await self._give_up_ownership(False)
            # Closing files may wait for the file system.
            self._abandon()
        finally:
            self.busy = False
        log.warning("service %s is released", self.name)

    async def _workers_have_ended(self) -> bool:
        """Wait until no worker thread uses a file of the service any longer. Return False if that takes too long."""
        ends = boottime() + _DRAIN_TIMEOUT
        while self._works() and boottime() < ends:
            await asyncio.sleep(_WORKERS_POLL)
        return not self._works()

    def _works(self) -> bool:
        self._left = [opened for opened in self._left if opened.in_flight]
        return bool(self._left)

    def may_sign_off(self, last: str | None) -> bool:
        """Return whether ``last``, the node that had the service last, is this one and has nothing to do with it any
        more, so that it need not be fenced."""
        done = self._domain is None and not self.owned and not self.busy and not self.unsettled
        return last == self._membership.node and done and not self._works()

    async def sign_off(self) -> None:
        """Say that this node need not be fenced before another one takes the service, which nobody owns."""
        try:
            entry = await self._store.get(self._last_key)
            if entry is not None and decode(entry.value).get("node") == self._membership.node:
                conditions = [Condition(self.owner_key, ABSENT), Condition(self._last_key, entry.version)]
                await self._store.commit([Delete(self._last_key)], conditions)
        except ConditionFailed:
            log.debug("service %s has an owner meanwhile", self.name)
        except StoreError as error:
            log.warning("service %s: %s", self.name, error)

    async def give_up(self) -> None:
        """Release the ownership of a service that is this node's in the store, although this node does not serve it.

        The service was lost here while the node lives, or the outcome of a write was never known."""
        if self.busy or self.owned:
            return
        self.busy = True
        try:
            entry = await self._store.get(self.owner_key)
            if entry is not None and decode(entry.value).get("node") == self._membership.node:
                log.warning("service %s: its ownership was left over", self.name)
                self._version = entry.version
                await self._give_up_ownership(not self.unsettled and await self._workers_have_ended())
        except StoreError as error:
            log.warning("service %s: %s", self.name, error)
        finally:
            self.busy = False

    async def _give_up_ownership(self, in_good_order: bool) -> None:
        """Let other nodes take the service. ``in_good_order``: without fencing this node, if it has begun to serve."""
        gone = [Delete(self._serving_key), Delete(self._fencing_key), Delete(self.owner_key)]
        if in_good_order and self._has_begun:
            gone.append(Delete(self._last_key))
        try:
            await self._store.commit(gone, [Condition(self.owner_key, self._version)])
        except StoreError as error:
            # The key is deleted with the lease, or ``give_up`` tries again.
            log.warning("service %s: %s", self.name, error)

    def owner_changed(self, version: int) -> None:
        """Lose the service if the owner key was changed, with the new ``version``, after this ownership began.

        No node does that. Another party has changed the key, so another node could take the service."""
        if self.owned and version > self._version:
            self._taken_away()

    async def check_owner(self) -> None:
        """Do ``owner_changed`` after changes may have been missed. Raises ``StoreError``."""
        version = self._version
        if not self.owned:
            return
        entry = await self._store.get(self.owner_key)
        if self.owned and self._version == version and (entry is None or entry.version != version):
            self._taken_away()

    def _taken_away(self) -> None:
        log.error("service %s: another party changed its owner key", self.name)
        self.lose()

    def lose(self) -> None:
        """Stop serving at once, because another node or no node owns the service. Change no shared state."""
        if not self.owned:
            return
        self.owned = False
        log.error("service %s is lost", self.name)
        self._stop()
        if self.config.addresses:
            asyncio.get_running_loop().run_in_executor(None, self._remove_addresses)

    def _stop(self) -> None:
        """Disconnect the service's clients, abandon its opens and end its domain."""
        self._part()
        self._abandon()

    def _part(self) -> None:
        """Disconnect the service's clients. Nothing is done for them any longer."""
        self.owned = False
        for share in self.shares:
            share.lost = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        if self._peers is not None:
            self._peers.close()
            self._peers = None
        server = self._server
        for connection in [entry for entry in server.connection_list if self._concerns(entry)]:
            connection.disconnect(f"service {self.name} moves")

    def _abandon(self) -> None:
        """Abandon the service's opens and end its domain."""
        server = self._server
        mine = set(map(id, self.shares))
        for opened in list(server.opens.by_id.values()):
            if id(opened.tree.share) in mine:
                if opened.in_flight:
                    self._left.append(opened)
                server.opens.abandon(opened)
        domain, self._domain = self._domain, None
        if domain is not None:
            self._persistence.end(domain)

    def _remove_addresses(self) -> None:
        """Remove the addresses. Runs on a worker thread."""
        for address in self.config.addresses:
            with self._addresses_lock:
                try:
                    addresses.remove(address)
                except OSError as error:
                    log.warning("%s", error)

    def _concerns(self, connection: Connection) -> bool:
        """Return whether a connection uses the service's addresses or shares."""
        if self.has_address(connection.transport.local_address[0]):
            return True
        return self._has_tree(connection)

    def _has_tree(self, connection: Connection) -> bool:
        return any(
            tree.share in self.shares
            for session in connection.session_table.values()
            for tree in session.tree_connect_table.values()
        )

    def report(self) -> dict[str, int]:
        """Return the numbers of clients and of opens, for reports."""
        clients = [entry for entry in self._server.connection_list if self._has_tree(entry)]
        opens = sum(opened.tree.share in self.shares for opened in self._server.opens.by_id.values())
        return {"clients": len({entry.client_guid or id(entry) for entry in clients}), "opens": opens}

    def _address_texts(self) -> Sequence[str]:
        return [str(entry.address) for entry in self.config.addresses]

    # Tree connects

    def check(self, share: Share, address: str, dialect: int, flags: int) -> None:
        """Raise BAD_NETWORK_NAME for a tree connect to a share that is not served here, at this address.

        The error names the service's addresses if the client supports that. [MS-SMB2 3.3.5.7, 2.2.2.2.2]"""
        texts = self._address_texts()
        here = address.removeprefix("::ffff:")
        # The deadline may have passed since the fence was checked for this message: it is not checked again for each
        # request of a compounded chain.
        if self.owned and not self._membership.fence.expired() and (not texts or here in texts):
            return
        if not texts or dialect < Dialect.SMB_3_1_1 or not flags & _REDIRECT_TO_OWNER:
            why = f"service {self.name} is not served by this node" if not self.owned else f"not served at {here}"
            raise StatusError(NtStatus.BAD_NETWORK_NAME, reason=Reason("elsewhere", why))
        error = share_redirect([entry.address for entry in self.config.addresses], share.name)
        error.reason = Reason("redirected", f"the client is sent to {', '.join(texts)}")
        raise error
