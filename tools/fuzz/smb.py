"""Runs over SMB: one or two connections with a session of some kind, from logon to the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from smb3server.client.protocol import open_rdma, open_tcp
from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.session import BoundSession, ClientSession
from smb3server.client.protocol.tree import Tree
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.wire import create_contexts as contexts
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.status import StatusError
from smbdirect.errors import ConnectionLost, DecodeError, ProtocolError
from smbdirect.providers.make import make_provider
from tools.fuzz.client import FuzzClient
from tools.fuzz.sequences import Actor
from tools.fuzz.watch import LOGINS, Failed, Watch
from tools.support.server_process import ServerProcess

STEPS = 40
"""Steps per run."""
SHARES = ("data", "ca")
_RUN_SECONDS, _COME_BACK_SECONDS = 20.0, 3.0
KINDS = ("smb", "signed", "encrypted", "twochannels", "rdma")
_SMB_2_1, _SMB_3_0, _SMB_3_0_2, _SMB_3_1_1 = 0x0210, 0x0300, 0x0302, 0x0311
_CIPHERS = (Cipher.AES_128_CCM, Cipher.AES_128_GCM, Cipher.AES_256_CCM, Cipher.AES_256_GCM)
_SIGNING = (SigningAlgorithm.AES_GMAC, SigningAlgorithm.AES_CMAC, SigningAlgorithm.HMAC_SHA256)
_GONE = (OSError, ConnectionLost, ProtocolError, DecodeError, StatusError, TimeoutError)


@dataclass
class Told:
    """A record of the things that a run did."""

    steps: int = 0
    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    last: list[bytes] = field(default_factory=list)
    """The last messages, before signing and encryption."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The way in which a run's session protects itself."""

    dialect: int
    offer: Offer
    sign: bool = False
    encrypt: bool = False
    rdma: bool = False
    channels: int = 1


def profile(chance: random.Random, kind: str) -> Profile:
    """Return the negotiation options of a run of ``kind``."""
    ciphers, signing = (chance.choice(_CIPHERS),), (chance.choice(_SIGNING),)
    offer = Offer(ciphers=ciphers, signing_algorithms=signing)
    match kind:
        case "signed":
            return Profile(chance.choice((_SMB_3_1_1, _SMB_3_1_1, _SMB_3_0_2, _SMB_2_1)), offer, sign=True)
        case "encrypted":
            return Profile(chance.choice((_SMB_3_1_1, _SMB_3_1_1, _SMB_3_1_1, _SMB_3_0)), offer, encrypt=True)
        case "twochannels":
            sign = chance.random() < 0.5
            return Profile(chance.choice((_SMB_3_1_1, _SMB_3_0_2)), offer, sign=sign, encrypt=not sign, channels=2)
        case "rdma":
            guard = chance.random()
            rdma = Profile(_SMB_3_1_1, offer, sign=guard < 0.3, encrypt=guard > 0.9, rdma=True)
            return rdma if chance.random() < 0.8 else Profile(_SMB_3_1_1, offer, rdma=True, channels=2)
        case _:
            return Profile(chance.choice((_SMB_2_1, _SMB_3_0, _SMB_3_0_2, _SMB_3_1_1)), offer)


async def connect(server: ServerProcess, chosen: Profile, guid: bytes) -> FuzzClient:
    """Connect and negotiate as the profile says. Raises ``OSError``, ``ConnectionLost`` and ``ProtocolError``."""
    if chosen.rdma:
        transport = await open_rdma(make_provider("iwarp"), "127.0.0.1", server.ports["iwarp"])
    else:
        transport = await open_tcp("127.0.0.1", server.port)
    client = await FuzzClient.connect(transport, (chosen.dialect,), chosen.offer, client_guid=guid)
    assert isinstance(client, FuzzClient)
    return client


class SmbRun:
    """One run: connect, log on, do steps. All randomness comes from ``seed``."""

    def __init__(self, watch: Watch, kind: str, seed: str, rate: float = 0.6) -> None:
        self._watch = watch
        self._kind = kind
        self._chance = random.Random(seed)
        self._rate = rate
        self._clients: list[FuzzClient] = []
        self.told = Told()

    async def do(self, steps: int = STEPS) -> Told:
        """Do up to ``steps`` steps. Raises ``Failed`` for an INTERNAL_ERROR."""
        chance = self._chance
        chosen = profile(chance, self._kind)
        user, password = chance.choice(LOGINS)
        guid = chance.randbytes(16)
        actor: Actor | None = None
        try:
            async with asyncio.timeout(_RUN_SECONDS):
                session, trees = await self._log_on(chosen, guid, user, password)
                actor = Actor(chance, trees)
                self._spoil()
                for _ in range(steps):
                    self.told.steps += 1
                    await actor.step()
                if chance.random() < 0.2:
                    # A mutated CreditCharge may have left the client waiting for credits that it has spent.
                    async with asyncio.timeout(_COME_BACK_SECONDS):
                        await self._come_back(chosen, guid, session, user, password)
        except _GONE:
            pass  # A disconnect is a valid answer, too: the watch decides whether the server is well.
        finally:
            if actor is not None:
                await actor.end()
            for client in self._clients:
                client.transport.abort("the run ends")
                self.told.requests += client.count
                self.told.statuses.update(client.statuses)
                self.told.last += client.sent
            await asyncio.sleep(0)
        for client in self._clients:
            if client.internal_errors:
                raise Failed(f"INTERNAL_ERROR was answered to commands {client.internal_errors}")
        return self.told

    async def _log_on(self, chosen: Profile, guid: bytes, user: str, password: str) -> tuple[ClientSession, list[Tree]]:
        client = await connect(self._watch.server, chosen, guid)
        self._clients.append(client)
        session = await client.log_on(user, password, sign=chosen.sign, encrypt=chosen.encrypt)
        trees = [await session.tree_connect(share) for share in SHARES]
        if chosen.channels == 2:
            more = await connect(self._watch.server, chosen, guid)
            self._clients.append(more)
            bound = await BoundSession.bind(session, more, user, password)
            trees += [Tree(bound, tree.tree_id, tree.path, tree.maximal_access) for tree in trees]
        return session, trees

    def _spoil(self) -> None:
        for client in self._clients:
            client.chance = self._chance
            client.rate = self._rate

    async def _come_back(self, chosen: Profile, guid: bytes, session: ClientSession, user: str, password: str) -> None:
        """Make a durable open, lose the connection, and reconnect to the open. [MS-SMB2 3.2.4.4]"""
        first = session.client
        assert isinstance(first, FuzzClient)
        first.rate = 0.0
        create_guid = self._chance.randbytes(16)
        tree = await session.tree_connect("data")
        record = contexts.DurableRequestV2(2000, 0, 0, create_guid)
        wanted = RawContext(contexts.DURABLE_REQUEST_V2, contexts.DURABLE_REQUEST_V2_CODEC.pack(record))
        file = await tree.create("durable", 0x12019F, 3, contexts=[wanted], oplock=9)
        for client in self._clients:
            client.transport.abort("the connection is lost")
        again = await connect(self._watch.server, chosen, guid)
        self._clients.append(again)
        session = await again.log_on(
            user, password, sign=chosen.sign, encrypt=chosen.encrypt, previous_session_id=session.session_id
        )
        tree = await session.tree_connect("data")
        again.chance, again.rate = self._chance, self._rate / 2
        known = contexts.DurableReconnectV2(file.file_id[0], file.file_id[1], create_guid)
        back = RawContext(contexts.DURABLE_RECONNECT_V2, contexts.DURABLE_RECONNECT_V2_CODEC.pack(known))
        await tree.close(await tree.create("durable", 0x12019F, 3, contexts=[back], oplock=9))
