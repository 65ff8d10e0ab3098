"""Smb2MultiChannelOverRdma: a session over TCP with a further channel over SMB Direct. [MS-SMB2 3.3.5.5.2]"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from smb3server.client.protocol import Client, ClientSession, RemoteFile, ServerError, Tree, open_tcp
from smb3server.client.protocol.interfaces import ServerInterface, query_interfaces
from smb3server.client.protocol.session import BoundSession
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.lab.conformance.conversation import Conversation
from smb3server.lab.conformance.data_channel import (
    INLINE,
    DataFile,
    Read,
    Write,
    check_read,
    check_write,
    new_name,
    status_name,
)
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.trial import Session, Trial
from smb3server.lab.conformance.verdict import Inconclusive, NotApplicable
from smb3server.lab.content import content_of, other_content
from smb3server.wire.address import Address
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.negotiate import Capability, Dialect
from smbdirect.errors import SmbDirectError

SUITE = "Smb2MultiChannelOverRdma"
BINDING = "MS-SMB2 3.3.5.5.2, 3.3.5.2.9"
DIALECTS = (Dialect.SMB_3_0, Dialect.SMB_3_0_2, Dialect.SMB_3_1_1)
SIZE = 4 * INLINE


class Main:
    """The session's first channel, over TCP, with an open file."""

    def __init__(self, client: Client, session: ClientSession, tree: Tree, file: RemoteFile) -> None:
        self.client = client
        self.session = session
        self.tree = tree
        self.file = file

    @classmethod
    async def open(cls, trial: Trial, host: str) -> Main:
        """Log on over TCP to one of the server's addresses and create a file.

        Raises ``NotApplicable`` if the server is not there, and ``Inconclusive`` if the logon fails."""
        target = trial.target
        if not target.share:
            raise NotApplicable("needs --user and --share")
        try:
            transport = await open_tcp(host, target.tcp_port)
        except (OSError, TimeoutError) as error:
            raise NotApplicable(f"no SMB over TCP at {host} port {target.tcp_port}: {error or 'no answer'}") from error
        try:
            async with asyncio.timeout(trial.timing.patience):
                client = await Client.connect(transport, DIALECTS)
        except (ServerError, SmbDirectError, TimeoutError) as error:
            raise Inconclusive(f"no negotiation over TCP: {error or 'no answer'}") from error
        try:
            async with asyncio.timeout(trial.timing.patience):
                session = await client.log_on(target.user, target.password)
                tree = await session.tree_connect(target.share)
                options = int(CreateOptions.DELETE_ON_CLOSE)
                file = await tree.create(new_name(), READ_WRITE, CreateDisposition.CREATE, options)
        except (ServerError, SmbDirectError, TimeoutError) as error:
            client.transport.abort("the case ends")
            raise Inconclusive(f"cannot log on over TCP and create a file: {error or 'no answer'}") from error
        trial.note(f"logged on over TCP to {host} with dialect {client.dialect:#06x}")
        return cls(client, session, tree, file)

    async def interfaces(self, trial: Trial) -> list[ServerInterface]:
        """Return the server's list of interfaces, which must have the one of SMB Direct. Raises ``NotApplicable`` for a
        server without multichannel."""
        if not self.client.negotiated.capabilities & Capability.MULTI_CHANNEL:
            raise NotApplicable("the server does not offer SMB2_GLOBAL_CAP_MULTI_CHANNEL")
        try:
            found = await query_interfaces(self.tree)
        except ServerError as error:
            raise NotApplicable(f"the server has no list of interfaces: {status_name(error.status)}") from error
        for entry in found:
            kind = "RDMA_CAPABLE" if entry.rdma else "no RDMA"
            trial.note(f"<- interface {entry.number}, {entry.address}, {kind}")
        host = trial.target.host
        here = await _addresses(host)
        trial.require(
            any(entry.rdma and entry.address in here for entry in found),
            f"{host} is not listed as RDMA_CAPABLE, and SMB Direct listens there",
        )
        return found

    async def bind(self, trial: Trial) -> Session:
        """Open a further channel of the session over SMB Direct."""
        target = trial.target
        peer = await trial.negotiated(credits_requested=32)
        conversation = Conversation(peer, 32, 32)
        peer.quiet = True
        async with asyncio.timeout(trial.timing.patience):
            client = await Client.connect(conversation, [self.client.dialect], client_guid=self.client.client_guid)
            bound = await BoundSession.bind(self.session, client, target.user, target.password)
        trial.note("bound the session to a connection over SMB Direct")
        return Session(conversation, client, bound, self.tree.on(bound))


async def _addresses(host: str) -> set[Address]:
    """Return the addresses of a name, or the address itself."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return {ipaddress.ip_address(entry[4][0]) for entry in found}


async def two_channels(trial: Trial, main: Main) -> None:
    """Write over TCP, read by RDMA on a further channel, and the other way round."""
    content = content_of(SIZE)
    for at in range(0, SIZE, INLINE):
        await main.tree.write(main.file, at, content[at : at + INLINE])
    bound = await main.bind(trial)
    file = DataFile(trial, bound.tree, main.file, bound.conversation)
    exposed = file.expose(SIZE)
    check_read(trial, await file.read(Read(SIZE, exposed.info)), SIZE)
    trial.require(exposed.view == content, "the channel over SMB Direct reads other data than was written over TCP")
    content = other_content(SIZE)
    source = file.expose(SIZE, content)
    check_write(trial, await file.write(Write(SIZE, source.info)), SIZE)
    found = await main.tree.read(main.file, 0, SIZE)
    trial.require(found == content, "the channel over TCP reads other data than was written by RDMA")


@case(SUITE, "BVT_Smb2MultipleChannel_2Channels_DiffNicTypeDiffTransport", BINDING)
async def two_interfaces(trial: Trial) -> None:
    """A session over TCP on an interface without RDMA gets a channel over SMB Direct on one that the server lists with
    RDMA_CAPABLE. Both channels use the same opens."""
    first = await Main.open(trial, trial.target.host)
    try:
        listed = await first.interfaces(trial)
    finally:
        first.client.transport.abort("the case goes on elsewhere")
    versions = {address.version for address in await _addresses(trial.target.host)}
    plain = [entry for entry in listed if not entry.rdma and entry.address.version in versions]
    for entry in plain:
        try:
            main = await Main.open(trial, str(entry.address))
        except NotApplicable as error:
            trial.note(str(error))
            continue
        try:
            await two_channels(trial, main)
        finally:
            main.client.transport.abort("the case ends")
        return
    raise NotApplicable("the server lists no interface without RDMA that can be reached from here")


@case(SUITE, "Smb2Multichannel_2Channels_DiffTransport", BINDING)
async def one_interface(trial: Trial) -> None:
    """A session over TCP gets a channel over SMB Direct on the same interface, which the server lists with
    RDMA_CAPABLE. Both channels use the same opens."""
    main = await Main.open(trial, trial.target.host)
    try:
        await main.interfaces(trial)
        await two_channels(trial, main)
    finally:
        main.client.transport.abort("the case ends")
