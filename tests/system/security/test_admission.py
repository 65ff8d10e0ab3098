"""Who may come in, from where, by what, and what for."""

from __future__ import annotations

import asyncio
import errno
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smb3server.client.protocol import Client, open_rdma, open_tcp
from smb3server.client.protocol.messages import ServerError
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.error import ConfigError
from smb3server.net.host_lists import HostLists, parse
from smb3server.service.service import Service
from smb3server.wire.create import Access, CreateDisposition, CreateOptions
from smb3server.wire.file_info import FileInfoClass, RenameInformation, encode_rename
from smb3server.wire.status import NtStatus
from smbdirect.errors import SmbDirectError
from smbdirect.providers.iwarp.provider import IwarpProvider
from tests.lab.serving import (
    READ,
    WRITE,
    make,
    serving,
    session_of,
    status_of_connect,
    status_of_logon,
    status_of_open,
    tree_of,
)
from tools.support import own_user

USERS = '[[user]]\nname = "carol"\npassword = "pw"\n[[user]]\nname = "dave"\npassword = "pw"\n'


def share(path: Path, *lines: str, name: str = "data") -> str:
    path.mkdir(exist_ok=True)
    return "\n".join((f'[[share]]\nname = "{name}"\npath = "{path}"', *lines, own_user.LINE))


@pytest.mark.parametrize(
    ("allow", "deny", "host", "expected"),
    [
        (None, [], "192.0.2.1", True),
        (None, [], "nonsense", True),
        (None, ["192.0.2.1"], "192.0.2.1", False),
        (None, ["192.0.2.1"], "192.0.2.2", True),
        (None, ["192.0.2.1"], "nonsense", False),
        (["192.0.2.0/24"], [], "192.0.2.255", True),
        (["192.0.2.0/24"], [], "192.0.3.0", False),
        (["192.0.2.0/24"], [], "::ffff:192.0.2.9", True),
        (None, ["192.0.2.0/24"], "::ffff:192.0.2.9", False),
        (["192.0.2.0/24"], ["192.0.2.128/25"], "192.0.2.128", False),
        (["192.0.2.0/24"], ["192.0.2.128/25"], "192.0.2.127", True),
        ([], [], "192.0.2.1", False),
        (["fe80::/10"], [], "fe80::1%eth0", True),
        (["2001:db8::/32"], [], "192.0.2.1", False),
    ],
)
def test_host_lists(allow: list[str] | None, deny: list[str], host: str, expected: bool) -> None:
    assert HostLists(None if allow is None else parse(allow), parse(deny)).admits(host) == expected


def play(tmp_path: Path, text: str, *options: str) -> Service:
    """The service, after its start and end."""

    async def body() -> Service:
        async with serving(tmp_path, text, *options) as service:
            return service

    return asyncio.run(body())


@asynccontextmanager
async def silent_connection(service: Service) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.listeners[0].address[1])
    try:
        yield reader
    finally:
        writer.close()


@pytest.mark.parametrize("lists", ['hosts_deny = ["127.0.0.0/8"]', 'hosts_allow = ["192.0.2.0/24"]'])
def test_hosts_that_may_not_connect_are_not_even_listened_to(tmp_path: Path, lists: str) -> None:
    text = f'[server]\nrdma = "iwarp,roce"\nrdma_port = 0\n{lists}\n{USERS}{share(tmp_path / "d")}'
    text += '[witness]\nlisten = ["127.0.0.1"]\nendpoint_mapper = false\n'

    async def body() -> None:
        async with serving(tmp_path, text) as service:
            async with silent_connection(service) as reader:
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await asyncio.wait_for(reader.readexactly(1), 5)
            for kind, listener in service.fabrics.listeners:
                assert kind in ("iwarp", "roce")
                if kind == "iwarp":
                    with pytest.raises((SmbDirectError, OSError)):
                        await open_rdma(IwarpProvider(), *listener.address)
                assert not listener.transports
            assert service.witness is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", service.witness.service.port)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asyncio.wait_for(reader.readexactly(1), 5)
            writer.close()
            assert not service.server.connection_list

    asyncio.run(body())


def test_hosts_that_may_connect_do(tmp_path: Path) -> None:
    text = f'[server]\nhosts_allow = ["127.0.0.1"]\nhosts_deny = ["192.0.2.0/24"]\n{USERS}'
    text += share(tmp_path / "d") + share(tmp_path / "d", 'hosts_deny = ["127.0.0.0/8"]', name="far")
    text += share(tmp_path / "d", 'hosts_allow = ["127.0.0.0/8", "::1"]', name="near")

    async def body() -> None:
        async with serving(tmp_path, text) as service, session_of(service, "carol") as session:
            assert await status_of_connect(session, "data") == 0
            assert await status_of_connect(session, "near") == 0
            assert await status_of_connect(session, "far") == NtStatus.ACCESS_DENIED
            assert await status_of_connect(session, "IPC$") == 0

    asyncio.run(body())


def test_who_only_reads(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    text = USERS + share(folder, 'read_list = ["Carol"]')
    (folder / "there").write_text("x")

    async def body() -> None:
        async with serving(tmp_path, text) as service:
            async with tree_of(service, "carol", "data") as tree:
                assert await status_of_open(tree, "there", READ) == 0
                assert await status_of_open(tree, "there", WRITE) == NtStatus.ACCESS_DENIED
                for disposition in (CreateDisposition.CREATE, CreateDisposition.OPEN_IF, CreateDisposition.SUPERSEDE):
                    for name in ("new", "new:stream", "there:stream"):
                        with pytest.raises(ServerError) as caught:
                            await tree.create(name, READ, disposition)
                        assert caught.value.status == NtStatus.ACCESS_DENIED
                for disposition in (CreateDisposition.OVERWRITE, CreateDisposition.SUPERSEDE):
                    with pytest.raises(ServerError) as caught:
                        await tree.create("there", READ, disposition)
                    assert caught.value.status == NtStatus.ACCESS_DENIED
                with pytest.raises(ServerError):
                    await tree.create("folder", READ, CreateDisposition.CREATE, CreateOptions.DIRECTORY_FILE)
                await tree.close(await tree.create("there", READ, CreateDisposition.OPEN_IF))
                with pytest.raises(ServerError) as caught:
                    await tree.create(
                        "there", Access.MAXIMUM_ALLOWED, CreateDisposition.OPEN, CreateOptions.DELETE_ON_CLOSE
                    )
                assert caught.value.status == NtStatus.ACCESS_DENIED
                file = await tree.create("there", Access.MAXIMUM_ALLOWED, CreateDisposition.OPEN)
                linked = encode_rename(RenameInformation(0, 0, "linked"))
                with pytest.raises(ServerError) as caught:
                    await tree.set_info(file, FileInfoClass.LINK, linked)
                assert caught.value.status == NtStatus.ACCESS_DENIED
                await tree.close(file)
            async with tree_of(service, "dave", "data") as tree:
                await make(tree, "new")

    asyncio.run(body())
    assert (folder / "there").read_text() == "x"
    assert sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(".")) == ["new", "there"]


def test_who_writes_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    text = (
        "[server]\nguest = true\n" + USERS + share(folder, "read_only = true", 'write_list = ["dave"]', "guest = true")
    )
    (folder / "there").write_text("x")

    async def body() -> None:
        async with serving(tmp_path, text) as service:
            for user in ("carol", "dave-as-a-guest"):
                async with tree_of(service, user, "data") as tree:
                    assert await status_of_open(tree, "there", READ) == 0
                    assert await status_of_open(tree, "there", WRITE) == NtStatus.ACCESS_DENIED
                    with pytest.raises(ServerError) as caught:
                        await tree.create("new", READ, CreateDisposition.CREATE)
                    assert caught.value.status == NtStatus.ACCESS_DENIED
            async with tree_of(service, "dave", "data") as tree:
                await make(tree, "his")
                assert await status_of_open(tree, "there", WRITE) == 0

    asyncio.run(body())


async def dialects_refused(service: Service, rdma: bool, *dialects: int) -> bool:
    if rdma:
        _, listener = service.fabrics.listeners[0]
        transport = await open_rdma(IwarpProvider(), *listener.address)
    else:
        transport = await open_tcp("127.0.0.1", service.listeners[0].address[1])
    try:
        client = await Client.connect(transport, dialects)
    except ServerError as error:
        assert error.status == NtStatus.NOT_SUPPORTED
        return True
    await client.close()
    return False


@pytest.mark.parametrize(
    ("keys", "tcp", "rdma"),
    [
        ("", 0x0210, 0x0300),
        ('min_dialect = "2.0.2"\nrdma_min_dialect = "2.0.2"', 0x0202, 0x0202),
        ('min_dialect = "3.0"', 0x0300, 0x0300),
        ('rdma_min_dialect = "3.1.1"', 0x0210, 0x0311),
    ],
)
def test_the_lowest_dialect_of_each_transport(tmp_path: Path, keys: str, tcp: int, rdma: int) -> None:
    text = f'[server]\nrdma = "iwarp"\nrdma_port = 0\n{keys}\n{USERS}{share(tmp_path / "d")}'

    async def body() -> None:
        async with serving(tmp_path, text) as service:
            for dialect in (0x0202, 0x0210, 0x0300, 0x0302, 0x0311):
                assert await dialects_refused(service, False, dialect) == (dialect < tcp)
                assert await dialects_refused(service, True, dialect) == (dialect < rdma)

    asyncio.run(body())


def test_smb1_clients_that_know_no_more_than_2_0_2_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    names = b"\x02SMB 2.002\0"
    message = b"\xffSMB\x72" + bytes(27) + struct.pack("<BH", 0, len(names)) + names

    async def body() -> bytes:
        async with serving(tmp_path, USERS + share(tmp_path / "d")) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.listeners[0].address[1])
            writer.write(struct.pack(">I", len(message)) + message)
            try:
                return await asyncio.wait_for(reader.read(4), 5)
            except ConnectionError as error:
                assert error.errno == errno.ECONNRESET
                return b""
            finally:
                writer.close()

    assert asyncio.run(body()) == b""
    assert 'client that knows SMB 2.0.2 only; remedy: min_dialect = "2.0.2" lets it in' in caplog.text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[server]\nhosts_allow = ["192.0.2.1/24"]\n', r"\[server\] hosts_allow: 192.0.2.1/24 has host bits set"),
        ('[server]\nhosts_deny = ["here"]\n', r"\[server\] hosts_deny: 'here' does not appear to be"),
        ("[server]\nntlm = false\n", "no user could log on: ntlm = false needs a keytab"),
        ('[server]\nntlm = false\nkeytab = "/k"\nguest = true\n', "guests and anonymous users log on by NTLM"),
        ('[server]\ntrusted_realms = ["X"]\n', "needs a keytab"),
        ('[server]\nkeytab = "/k"\nunknown_principals = "allow"\n', 'must be "refuse" or "user:NAME"'),
        ('[server]\nkeytab = "/k"\nunknown_principals = "user:"\n', 'must be "refuse" or "user:NAME"'),
        ('[server]\nkeytab = "/k"\nunknown_principals = "user:no-such-user"\n', "no user no-such-user"),
        ('[server]\nkeytab = "/k"\nunknown_principals = "user:root"\n', "root"),
        ('[server]\nrdma = "iwarp"\nmax_dialect = "2.1"\n', "rdma_min_dialect: is above max_dialect"),
        ('[[user]]\nname = "x"\npassword = "y"\nprincipal = "x"\n', "'x' is not a principal: write NAME@REALM"),
        ('[[user]]\nname = "x"\npassword = "y"\nprincipal = "x@R"\n', "needs a keytab"),
    ],
)
def test_what_contradicts_itself_is_said_at_the_start(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text + USERS + share(tmp_path / "d"))
    with pytest.raises(ConfigError, match=complaint):
        parse_arguments(["--config", str(file)])


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (['read_list = ["nobody-knows"]'], "share data: read_list: there is no user nobody-knows"),
        (['users = ["@nobody-knows"]'], "share data: users: there is no group nobody-knows"),
        (['write_list = ["carol"]'], "share data: write_list: is for shares with read_only = true"),
        (["read_only = true", 'read_list = ["carol"]', 'write_list = ["Carol"]'], "carol is both in read_list and in"),
        (['hosts_deny = ["1.2.3"]'], "share data: hosts_deny: '1.2.3' does not appear"),
    ],
)
def test_what_contradicts_itself_in_a_share(tmp_path: Path, lines: list[str], complaint: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(USERS + share(tmp_path / "d", *lines))
    with pytest.raises(ConfigError, match=complaint):
        parse_arguments(["--config", str(file)])


def test_two_accounts_never_share_a_sid(tmp_path: Path) -> None:
    """The number of an account comes from its name; these two have the same."""
    file = tmp_path / "twins.toml"
    twins = ("plumless", "buckeroo")  # CRC-32 of both is 0x4DDB0C25.
    file.write_text("".join(f'[[user]]\nname = "{name}"\npassword = "x"\n' for name in twins) + share(tmp_path / "d"))
    with pytest.raises(ConfigError, match="user buckeroo: would have the same SID as the user plumless"):
        parse_arguments(["--config", str(file)])


def test_a_password_is_no_use_where_ntlm_is_off(tmp_path: Path) -> None:
    """However the token comes: bare NTLM, or in SPNEGO."""

    async def body() -> None:
        async with serving(tmp_path, USERS + share(tmp_path / "d")) as service:
            assert await status_of_logon(service, "carol", "pw") == 0
            service.server.settings.ntlm = False
            refused = (NtStatus.LOGON_FAILURE, NtStatus.INVALID_PARAMETER)
            assert await status_of_logon(service, "carol", "pw") in refused

    asyncio.run(body())


def test_lists_may_name_groups(tmp_path: Path) -> None:
    text = '[groups]\nstaff = ["Carol"]\nall = ["@staff", "dave"]\n' + USERS
    text += share(tmp_path / "d", 'users = ["@all"]', 'read_list = ["@staff"]')
    text += share(tmp_path / "d", 'users = ["@staff"]', name="staff")
    (tmp_path / "d" / "there").touch()

    async def body() -> None:
        async with serving(tmp_path, text) as service:
            async with session_of(service, "carol") as session:
                assert await status_of_connect(session, "staff") == 0
                tree = await session.tree_connect("data")
                assert await status_of_open(tree, "there", WRITE) == NtStatus.ACCESS_DENIED
            async with session_of(service, "dave") as session:
                assert await status_of_connect(session, "staff") == NtStatus.ACCESS_DENIED
                tree = await session.tree_connect("data")
                assert await status_of_open(tree, "there", WRITE) == 0

    asyncio.run(body())
