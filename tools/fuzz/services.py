"""The RPC interfaces as a logged-on user sees them, without a network."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable
from ipaddress import ip_address

from smb3server.access.identity import Identity
from smb3server.auth.acceptor import Acceptor
from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.rpc import eventlog, fsrvp, lsarpc, samr, srvsvc, svcctl, winreg, wkssvc
from smb3server.rpc.association import Association, AssociationGroups
from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.endpoint_mapper import EndpointMapper
from smb3server.rpc.security import NTLM, AuthTrailer, Level, SecurityContext
from smb3server.service.shadow_copies import ServedShadowCopies
from smb3server.state.shadow_copies import ShadowCopyAgent
from smb3server.wire.negotiate import Dialect
from tools.fuzz.in_memory import USER, World
from tools.fuzz.virtual_loop import VirtualLoop
from witness.cluster import ManualCluster, Node
from witness.interface import WitnessInterface
from witness.registrations import Registrations

PASSWORD = "pw"
_TURNS = 4
"""Turns of the event loop for one input. Nothing here waits for longer, as no work is done on other threads."""


def users() -> UserDatabase:
    """Return the accounts of associations that log on by themselves."""
    found = UserDatabase()
    found.add(Account(USER, nt_hash(PASSWORD)))
    return found


def cluster() -> ManualCluster:
    """Return two nodes, of which this is the first."""
    nodes = [Node("NODE-A", [ip_address("10.9.0.1")], local=True), Node("NODE-B", [ip_address("fd00::2")])]
    return ManualCluster(["FILES"], nodes, lambda: ["data", "IPC$"])


class Services:
    """All interfaces, for a client of a server in memory. Each call of ``association`` is a connection of its own."""

    def __init__(self) -> None:
        self._loop = loop = VirtualLoop()
        atexit.register(loop.close)
        self._world = loop.run_until_complete(self._make(loop))
        self.server = self._world.server
        loop.run_until_complete(self._world.client(USER, (Dialect.SMB_3_1_1,)))
        (self._session,) = self.server.sessions.by_id.values()
        self._witnessing = WitnessInterface(cluster(), Registrations(cluster()), clock=lambda: 1.0)
        self._shadow_copies = ShadowCopyAgent(ServedShadowCopies(self.server))
        self._mapper = EndpointMapper()
        self._groups = AssociationGroups()

    @staticmethod
    async def _make(loop: VirtualLoop) -> World:
        return World(loop)

    def run(self, call: Callable[[], None]) -> None:
        """Make a call on the event loop, and let operations that take their time go on for some turns."""
        self._loop.run_until_complete(self._run(call))

    @staticmethod
    async def _run(call: Callable[[], None]) -> None:
        call()
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def association(self) -> Association:
        """Return a new association with all interfaces."""
        accounts = self.server.users
        return Association("4711", self.interfaces, lambda: Acceptor(accounts, "FILES"), self._groups)

    def interfaces(self, association: Association) -> list[Interface]:
        """Return all interfaces for the calls of an association."""
        server, session = self.server, self._session
        return [
            srvsvc.interface(server, session),
            wkssvc.interface(server, session),
            svcctl.interface(server, session),
            winreg.interface(server, session),
            eventlog.interface(server, session),
            lsarpc.interface(server.accounts, session),
            samr.interface(server, session),
            fsrvp.interface(server, session, self._shadow_copies),
            self._mapper.interface(association),
            self._witnessing.interface(association),
        ]


def trusted(association: Association) -> Association:
    """Return the association, whose calls count as sealed by a logged-on user."""
    acceptor = Acceptor(users(), "FILES")
    acceptor.identity = Identity(USER)
    association.caller = SecurityContext(acceptor, AuthTrailer(NTLM, Level.PRIVACY), False)
    association.group = AssociationGroups().join(0)
    return association
