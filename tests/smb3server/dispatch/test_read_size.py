"""The length of READs over SMB Direct: what is offered, what fits a message, the credits that hold Linux to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from msgspec import to_builtins

from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.backends.local.backend import LocalBackend
from smb3server.cli.status.tables import render
from smb3server.client.protocol import Client, ClientSession, ServerError, Tree, open_rdma
from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.session import BoundSession
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.error import ConfigError
from smb3server.server.server import Server
from smb3server.service.listeners import transport_settings
from smb3server.settings.server import Settings
from smb3server.settings.share import ShareRules
from smb3server.state.objects import Connection
from smb3server.state.share import Share
from smb3server.status.report import collect
from smb3server.wire import read_write
from smb3server.wire.create import CreateDisposition
from smb3server.wire.header import Command
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus
from smbdirect.core.settings import Settings as TransportSettings
from smbdirect.providers.loopback import LoopbackProvider
from smbdirect.transport.listen import listen
from smbdirect.transport.smb_direct import SmbDirectTransport
from tests.lab.harness import WITHOUT_TRANSFORMS

LINUX = 173_910
"""MaxFragmentedSize of Linux since February 2026."""
WINDOWS = 1 << 20
SEALED_CREDITS = {LINUX: 12, WINDOWS: 25, 131_072: 11}
HEADERS, TRANSFORM = 80, 52
WHOLE = 8 << 20


@dataclass
class Scene:
    """A server with one share, and the fabric to reach it by."""

    server: Server
    provider: LoopbackProvider
    port: int

    async def client(
        self, fragmented: int = LINUX, dialect: int = Dialect.SMB_3_1_1, offer: Offer = WITHOUT_TRANSFORMS
    ) -> Client:
        """One that states ``fragmented`` as its MaxFragmentedSize and asks for many credits."""
        settings = TransportSettings(max_fragmented_receive_size=fragmented)
        transport = await open_rdma(self.provider, "127.0.0.1", self.port, settings)
        return await Client.connect(transport, [dialect], offer, credits_wanted=4000)

    def end(self, client: Client) -> Connection:
        """The server's end of the connection."""
        return next(entry for entry in self.server.connection_list if entry.client_guid == client.client_guid)


@asynccontextmanager
async def scene(root: Path, settings: Settings | None = None, encrypt: bool = False) -> AsyncIterator[Scene]:
    users = UserDatabase()
    users.add(Account("u", nt_hash("pw")))
    server = Server(settings, users)
    server.add_share(Share("data", backend=LocalBackend(root)))
    server.add_share(Share("other", backend=LocalBackend(root), rules=ShareRules(encrypt=encrypt)))
    provider = LoopbackProvider()
    listener = await listen(provider, "127.0.0.1", 0, server.accept, transport_settings(server.settings))
    try:
        yield Scene(server, provider, listener.address[1])
    finally:
        await listener.close()
        await server.shutdown(2)


async def offered(here: Scene, fragmented: int, dialect: int = Dialect.SMB_3_1_1, offer: Offer | None = None) -> int:
    client = await here.client(fragmented, dialect, offer)
    try:
        assert client.negotiated.max_transact_size == (fragmented - 1024) & -4096
        assert client.negotiated.max_write_size == here.server.settings.max_io_size
        return client.negotiated.max_read_size
    finally:
        await client.close()


def fits(fragmented: int) -> int:
    return (fragmented - 1024) & -4096


@pytest.mark.parametrize("fragmented", [131_072, LINUX, WINDOWS])
def test_reads_are_offered_as_long_as_rdma_moves(tmp_path: Path, fragmented: int) -> None:
    async def main() -> None:
        async with scene(tmp_path) as here:
            assert await offered(here, fragmented) == WHOLE
            assert await offered(here, fragmented, Dialect.SMB_3_0) == WHOLE

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "encrypt", "expected"),
    [
        (Settings(require_encryption=True), False, fits(LINUX)),
        (Settings(), True, fits(LINUX)),
        (Settings(require_signing=True), False, fits(LINUX)),
        (Settings(rdma_read_size=0), False, fits(LINUX)),
        (Settings(rdma_read_size=65_536), False, fits(LINUX)),
        (Settings(rdma_read_size=1 << 20), False, 1 << 20),
        (Settings(max_io_size=1 << 20, max_message_size=(1 << 20) + 65_536), False, 1 << 20),
        (Settings(max_io_size=65_536, max_message_size=131_072), True, 65_536),
    ],
    ids=["encryption", "share", "signing", "none", "less", "some", "small", "smallest"],
)
def test_where_rdma_is_not_to_be_used_reads_fit_a_message(
    tmp_path: Path, settings: Settings, encrypt: bool, expected: int
) -> None:
    async def main() -> None:
        async with scene(tmp_path, settings, encrypt) as here:
            client = await here.client()
            assert client.negotiated.max_read_size == expected
            await client.close()

    asyncio.run(main())


def test_who_requires_signing_is_offered_what_fits_a_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as here:
            assert await offered(here, LINUX, offer=replace(WITHOUT_TRANSFORMS, require_signing=True)) == fits(LINUX)
            assert await offered(here, WINDOWS, offer=replace(WITHOUT_TRANSFORMS, require_signing=True)) == fits(
                WINDOWS
            )

    asyncio.run(main())


def test_dialects_without_a_channel_field_are_offered_what_fits_a_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, Settings(rdma_min_dialect=Dialect.SMB_2_1)) as here:
            assert await offered(here, LINUX, Dialect.SMB_2_1) == fits(LINUX)

    asyncio.run(main())


async def read_status(tree: Tree, name: str, length: int) -> int:
    """Status of one inline READ (``Tree.read`` would send several); a good one must bring everything."""
    file = await tree.create(name, READ_WRITE, CreateDisposition.OPEN)
    record = read_write.ReadRequest(
        padding=read_write.READ_DATA_OFFSET, length=length, persistent=file.file_id[0], volatile=file.file_id[1]
    )
    try:
        reply = await tree.call(Command.READ, [read_write.READ_REQUEST.pack(record), b"\0"], payload=length)
        assert len(read_write.parse_read_response(reply.message)[1]) == length
        reply.release()
    except ServerError as error:
        return error.status
    finally:
        await tree.close(file)
    return NtStatus.SUCCESS


@pytest.mark.parametrize("fragmented", [131_072, LINUX, WINDOWS])
@pytest.mark.parametrize(("sign", "encrypt"), [(False, False), (True, False), (False, True)], ids=["", "sign", "seal"])
def test_data_in_a_message_is_bounded_exactly_by_the_clients_size(
    tmp_path: Path, fragmented: int, sign: bool, encrypt: bool
) -> None:
    (tmp_path / "f").write_bytes(bytes(2 << 20))
    most = fragmented - HEADERS - (TRANSFORM if encrypt else 0)

    async def main() -> None:
        async with scene(tmp_path) as here:
            client = await here.client(fragmented)
            tree = await (await client.log_on("u", "pw", sign=sign, encrypt=encrypt)).tree_connect("data")
            # More credits than Linux would have, so that the length alone decides.
            here.end(client).credit_limit = 4000
            await tree.close(await tree.create("f", READ_WRITE, CreateDisposition.OPEN))
            assert await read_status(tree, "f", most) == NtStatus.SUCCESS
            assert await read_status(tree, "f", most + 1) == NtStatus.INVALID_PARAMETER
            # The connection lives on.
            assert await read_status(tree, "f", 65_536) == NtStatus.SUCCESS
            await client.close()

    asyncio.run(main())


def test_a_read_by_rdma_is_not_bounded_by_the_clients_messages(tmp_path: Path) -> None:
    content = bytes(range(256)) * (WHOLE // 256)
    (tmp_path / "f").write_bytes(content)

    async def main() -> None:
        async with scene(tmp_path) as here:
            client = await here.client(131_072)
            tree = await (await client.log_on("u", "pw")).tree_connect("data")
            file = await tree.create("f", READ_WRITE, CreateDisposition.OPEN)
            memory = bytearray(WHOLE)
            rdma = client.transport.rdma
            assert rdma is not None
            region = rdma.register(memoryview(memory), writable=True)
            assert await tree.read_into(file, 0, region.descriptors, WHOLE) == WHOLE
            assert memory == content
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_write_of_max_write_size_fits_a_message(tmp_path: Path, encrypt: bool) -> None:
    """Linux sends WRITEs so that signs or encrypts; it fails those that exceed the server's MaxFragmentedSize."""

    async def main() -> None:
        async with scene(tmp_path) as here:
            client = await here.client(WINDOWS)
            tree = await (await client.log_on("u", "pw", sign=True, encrypt=encrypt)).tree_connect("data")
            here.end(client).credit_limit = 4000
            file = await tree.create("f", READ_WRITE, CreateDisposition.CREATE)
            assert tree.max_write == client.negotiated.max_write_size == WHOLE
            data = bytes(range(256)) * (WHOLE // 256)
            assert await tree.write(file, 0, data) == WHOLE
            await tree.close(file)
            assert (tmp_path / "f").read_bytes() == data
            await client.close()

    asyncio.run(main())


def test_stated_size_follows_the_configured_one_and_is_never_too_small() -> None:
    assert transport_settings(Settings()).max_fragmented_receive_size == WHOLE + 65_536
    small = Settings(max_io_size=65_536, max_message_size=66_560)
    assert transport_settings(small).max_fragmented_receive_size == 131_072


def held(here: Scene, client: Client) -> tuple[int, int]:
    """(most credits, credits held)."""
    end = here.end(client)
    return end.credit_limit, end.command_sequence_window.available


@pytest.mark.parametrize("fragmented", [131_072, LINUX, WINDOWS])
def test_credits_are_few_until_a_share_is_used_in_the_clear(tmp_path: Path, fragmented: int) -> None:
    few = SEALED_CREDITS[fragmented]

    async def main() -> None:
        async with scene(tmp_path) as here:
            client = await here.client(fragmented)
            assert held(here, client) == (few, few)
            session = await client.log_on("u", "pw")
            assert held(here, client) == (few, few)
            await session.tree_connect("IPC$")
            assert held(here, client) == (few, few)
            await session.tree_connect("data")
            assert held(here, client) == (8192, 4000)
            await client.close()

    asyncio.run(main())


def linux_read_length(credits: int) -> int:
    """What ``smb2_wait_mtu_credits`` of Linux lets a READ ask for. Two are kept for echoes and oplock breaks."""
    return max(1, credits - 2 - 8) * 65_536


@pytest.mark.parametrize("fragmented", [131_072, LINUX, WINDOWS])
def test_who_encrypts_never_holds_credits_for_more_than_a_message(tmp_path: Path, fragmented: int) -> None:
    few = SEALED_CREDITS[fragmented]
    (tmp_path / "f").write_bytes(bytes(WINDOWS))

    async def main() -> None:
        async with scene(tmp_path) as here:
            client = await here.client(fragmented)
            tree = await (await client.log_on("u", "pw", encrypt=True)).tree_connect("data")
            for _ in range(3):
                assert held(here, client) == (few, few)
                length = linux_read_length(held(here, client)[1])
                assert length + HEADERS + TRANSFORM <= fragmented < length + 65_536 + HEADERS + TRANSFORM
                assert await read_status(tree, "f", length) == NtStatus.SUCCESS
            await client.close()

    asyncio.run(main())


def test_who_encrypted_once_is_held_from_then_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as here:
            client = await here.client()
            session = await client.log_on("u", "pw")
            await session.tree_connect("data")
            assert here.end(client).credit_limit == 8192
            session.encrypt = True
            await session.tree_connect("other")
            assert here.end(client).credit_limit == 12
            session.encrypt = False
            await session.tree_connect("data")
            assert here.end(client).credit_limit == 12
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize(("encrypt", "expected"), [(False, 8192), (True, 12)])
def test_a_channel_counts_with_what_its_session_did(tmp_path: Path, encrypt: bool, expected: int) -> None:
    async def main() -> None:
        async with scene(tmp_path) as here:
            first = await here.client()
            session = await first.log_on("u", "pw", encrypt=encrypt)
            await session.tree_connect("data")
            second = await open_rdma(
                here.provider, "127.0.0.1", here.port, TransportSettings(max_fragmented_receive_size=LINUX)
            )
            channel = await Client.connect(
                second, offer=WITHOUT_TRANSFORMS, client_guid=first.client_guid, credits_wanted=4000
            )
            await BoundSession.bind(session, channel, "u", "pw")
            assert [entry.credit_limit for entry in here.server.connection_list] == [expected, expected]
            await channel.close()
            await first.close()

    asyncio.run(main())


def test_channels_bound_before_a_share_is_used_are_freed_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as here:
            first = await here.client()
            session = await first.log_on("u", "pw")
            settings = TransportSettings(max_fragmented_receive_size=LINUX)
            second = await open_rdma(here.provider, "127.0.0.1", here.port, settings)
            channel = await Client.connect(
                second, offer=WITHOUT_TRANSFORMS, client_guid=first.client_guid, credits_wanted=4000
            )
            await BoundSession.bind(session, channel, "u", "pw")
            assert [entry.credit_limit for entry in here.server.connection_list] == [12, 12]
            await session.tree_connect("data")
            assert [entry.credit_limit for entry in here.server.connection_list] == [8192, 8192]
            await channel.close()
            await first.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "offer"),
    [
        (Settings(require_encryption=True), WITHOUT_TRANSFORMS),
        (Settings(rdma_read_size=0), WITHOUT_TRANSFORMS),
        (Settings(), replace(WITHOUT_TRANSFORMS, ciphers=())),
        (Settings(), replace(WITHOUT_TRANSFORMS, require_signing=True)),
    ],
    ids=["encryption", "option", "cannot encrypt", "signing"],
)
def test_credits_are_not_held_where_the_offer_fits_or_nothing_can_be_encrypted(
    tmp_path: Path, settings: Settings, offer: Offer
) -> None:
    async def main() -> None:
        async with scene(tmp_path, msgspec.structs.replace(settings)) as here:
            client = await here.client(offer=offer)
            assert held(here, client)[0] == settings.credits_before_authentication
            await client.log_on("u", "pw")
            assert held(here, client)[0] == settings.max_credits
            await client.close()

    asyncio.run(main())


def test_status_tells_the_sizes_in_force(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as here:
            client = await here.client()
            session: ClientSession = await client.log_on("u", "pw", encrypt=True)
            await session.tree_connect("data")
            report = collect(here.server)
            assert to_builtins(report.channels[0].sizes) == {
                "max_read": WHOLE,
                "max_write": WHOLE,
                "max_transact": fits(LINUX),
                "max_message_received": WHOLE + 65_536,
                "max_fragmented_received": WHOLE + 65_536,
                "max_fragmented_sent": LINUX,
                "read_depth": 16,
                "credit_limit": 12,
            }
            row = next(line.plain for line in render(report, 250, ["channels"]) if "173,910" in line.plain)
            assert row.split() == [*("1", "8,388,608", "8,388,608", "172,032", "8,454,144", "173,910", "16", "12")]
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "good"), [("0", True), ("65536", True), ("65535", False), ("-1", False), ('"x"', False)]
)
def test_option(tmp_path: Path, text: str, good: bool) -> None:
    file = tmp_path / "toml"
    file.write_text(f"[server]\nrdma_read_size = {text}\n[[share]]\nname = 'data'\npath = '{tmp_path}'\n")
    arguments = ["--config", str(file), "--user", "u:pw"]
    if good:
        assert parse_arguments(arguments).settings.rdma_read_size == int(text)
    else:
        with pytest.raises(ConfigError, match="rdma_read_size"):
            parse_arguments(arguments)


def test_a_stranger_may_not_begin_a_long_message(tmp_path: Path) -> None:
    """Whatever size the server states: nothing is stored for who has not logged on."""

    async def main() -> None:
        async with scene(tmp_path) as here:
            transport = await open_rdma(here.provider, "127.0.0.1", here.port)
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            transport.start(lambda message: message.release(), lambda error: ended.set_result(None))
            assert transport.max_outbound_message_size == WHOLE + 65_536
            (end,) = here.server.connection_list
            assert isinstance(end.transport, SmbDirectTransport)
            pool = end.transport.pool
            transport.send([bytes(1 << 20)])
            await asyncio.wait_for(ended, 10)
            assert (pool.allocations, pool.lent, here.server.connection_list) == (0, 0, set())

    asyncio.run(main())
