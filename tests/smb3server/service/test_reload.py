"""Reload: what takes effect, what ends, what stays, and what waits for a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.config import documents, schema
from smb3server.config.error import ConfigError, Problems
from smb3server.config.model import Config, ShareConfig
from smb3server.config.sections import SectionReader, keys_of
from smb3server.service import effects
from smb3server.settings.declaring import Effect, Section, about
from smb3server.settings.limits import Limits
from smb3server.settings.server import Settings
from smb3server.wire.create import Access, CreateDisposition
from smb3server.wire.status import NtStatus
from smbdirect.errors import ConnectionLost
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
    unsigned_session_of,
)
from tools.support import own_user

ALICE = '[[user]]\nname = "alice"\npassword = "pw"\n'
BOB = '[[user]]\nname = "bob"\npassword = "pw"\n'


def share(folder: Path, name: str, more: str = "") -> str:
    (folder / name).mkdir(exist_ok=True)
    return f'[[share]]\nname = "{name}"\npath = "{folder / name}"\n{own_user.LINE}{more}\n'


def write(folder: Path, text: str) -> None:
    (folder / "smb3server.toml").write_text(text)


@pytest.mark.parametrize("section", [schema.Server, Limits, schema.Share])
def test_each_key_becomes_a_setting(section: type[Section]) -> None:
    """A key whose effect is declared is a setting that a reload compares."""
    table = effects.SHARE if section is schema.Share else {**effects.SERVER, **effects.SETTINGS}
    made = {"log_format": "log", "log_file": "log", "audit_file": "log", "audit_events": "audit"}
    kinds = (ShareConfig.__struct_fields__, Config.__dataclass_fields__, Settings.__struct_fields__)
    known = kinds[0] if section is schema.Share else {*kinds[1], *kinds[2]}
    for key in keys_of(section).values():
        setting = made.get(key.name, key.field or key.name)
        assert setting in known and setting in table, key.name
        assert table[setting] is key.effect


def test_a_new_key_is_known_everywhere() -> None:
    """A key that is declared is read, has its default, and stands in the tables of both pages."""
    added = msgspec.defstruct(
        "Added",
        [("shiny", Annotated[bool, about("shines", Effect.NEW_OPENS)], False)],
        bases=(schema.Share,),
        kw_only=True,
    )
    problems = Problems()
    reader = SectionReader(Path("smb3server.toml"), None, problems)
    read = reader.section(added, {"name": "data", "path": "/", "shiny": True}, ("share", 0))
    assert read is not None and read.shiny and not problems.found
    assert "| `shiny` | `false` | shines |" in documents.table(added)
    assert "| for files opened from now on |" in documents.effects(added) and "`shiny`" in documents.effects(added)


def test_shares_and_users_come_and_go(tmp_path: Path) -> None:
    async def main() -> None:
        before = ALICE + BOB + share(tmp_path, "data") + share(tmp_path, "old")
        async with serving(tmp_path, before) as service, session_of(service, "alice") as alice:
            data, old = await alice.tree_connect("data"), await alice.tree_connect("old")
            file = await data.create("file", READ_WRITE, CreateDisposition.OPEN_IF)
            await old.create("file", READ_WRITE, CreateDisposition.OPEN_IF)
            async with unsigned_session_of(service, "bob") as bob:
                bobs = await bob.tree_connect("data")
                write(
                    tmp_path,
                    ALICE
                    + '[[user]]\nname = "carol"\npassword = "pw"\n'
                    + share(tmp_path, "data")
                    + share(tmp_path, "new"),
                )
                outcome = await service.reload()
                with pytest.raises(ServerError) as caught:
                    await bobs.create("x", READ_WRITE, CreateDisposition.OPEN_IF)
                assert caught.value.status == NtStatus.USER_SESSION_DELETED
            assert not outcome.restart
            # What stays is untouched.
            await data.write(file, 0, b"abc")
            assert await data.read(file, 0, 3) == b"abc"
            with pytest.raises(ServerError) as caught:
                await old.create("x", READ_WRITE, CreateDisposition.OPEN_IF)
            assert caught.value.status == NtStatus.NETWORK_NAME_DELETED
            assert await status_of_connect(alice, "old") == NtStatus.BAD_NETWORK_NAME
            assert await status_of_connect(alice, "new") == 0
            assert await status_of_logon(service, "bob", "pw") == NtStatus.LOGON_FAILURE
            assert await status_of_logon(service, "carol", "pw") == 0
            assert len(service.server.opens.by_id) == 1

    asyncio.run(main())


def test_a_mistake_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        before = ALICE + share(tmp_path, "data") + share(tmp_path, "old")
        async with serving(tmp_path, before) as service, session_of(service, "alice") as alice:
            old = await alice.tree_connect("old")
            reasons = []
            for wrong in (
                "nonsense",
                share(tmp_path, "data", 'nonsense = "x"'),
                share(tmp_path, "data") + '[[share]]\nname = "new"\npath = "/etc/passwd"\n',
                share(tmp_path, "data", 'users = ["nobody-like-this"]'),
            ):
                write(tmp_path, ALICE + wrong)
                with pytest.raises(ConfigError) as caught:
                    await service.reload()
                reasons.append(str(caught.value))
            assert "nonsense" in reasons[1] and "/etc/passwd" in reasons[2] and "nobody-like-this" in reasons[3]
            await make(old, "file")
            assert {entry.name for entry in service.config.shares} == {"data", "old"}

    asyncio.run(main())


def test_new_rules_of_a_share(tmp_path: Path) -> None:
    async def main() -> None:
        before = ALICE + BOB + share(tmp_path, "data")
        async with serving(tmp_path, before) as service, tree_of(service, "alice", "data") as alices:
            async with tree_of(service, "bob", "data") as bobs:
                file = await alices.create("file", READ_WRITE, CreateDisposition.OPEN_IF)
                write(
                    tmp_path,
                    ALICE + BOB + share(tmp_path, "data", 'read_only = true\nusers = ["alice"]\nremark = "new"'),
                )
                outcome = await service.reload()
                assert any("read_only" in line and "users" in line for line in outcome.changes)
                with pytest.raises(ServerError) as caught:
                    await bobs.create("x", READ)
                assert caught.value.status == NtStatus.NETWORK_NAME_DELETED
            # Who was writing goes on: it may hold data that only its cache has.
            await alices.write(file, 0, b"abc")
            assert await status_of_open(alices, "file", WRITE) == NtStatus.ACCESS_DENIED
            assert await status_of_open(alices, "file", READ) == 0
            with pytest.raises(ServerError):
                await make(alices, "another")
            assert service.server.share_list["data"].rules.comment == "new"
            write(tmp_path, before)
            await service.reload()
            assert await status_of_open(alices, "file", WRITE) == 0
            await make(alices, "another")

    asyncio.run(main())


def test_a_share_that_was_read_only_can_be_written(tmp_path: Path) -> None:
    async def main() -> None:
        before = ALICE + share(tmp_path, "data", "read_only = true")
        async with serving(tmp_path, before) as service, tree_of(service, "alice", "data") as tree:
            with pytest.raises(ServerError):
                await make(tree, "file")
            write(tmp_path, ALICE + share(tmp_path, "data"))
            await service.reload()
            await make(tree, "file")

    asyncio.run(main())


def test_another_directory_is_another_share(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "there").write_text("")
        before = ALICE + share(tmp_path, "data")
        async with serving(tmp_path, before) as service, session_of(service, "alice") as alice:
            tree = await alice.tree_connect("data")
            await tree.create("file", READ_WRITE, CreateDisposition.OPEN_IF)
            write(tmp_path, before.replace(str(tmp_path / "data"), str(tmp_path / "elsewhere")))
            outcome = await service.reload()
            assert any("share data: replaced" in line for line in outcome.changes)
            with pytest.raises(ServerError):
                await tree.create("file", READ)
            again = await alice.tree_connect("data")
            assert await status_of_open(again, "there", READ) == 0
            assert await status_of_open(again, "file", READ) == NtStatus.OBJECT_NAME_NOT_FOUND

    asyncio.run(main())


def test_what_needs_a_restart_is_told_until_it_comes(tmp_path: Path) -> None:
    async def main() -> None:
        before = ALICE + share(tmp_path, "data")
        async with serving(tmp_path, before) as service:
            write(
                tmp_path,
                '[server]\nrdma = "iwarp"\ncomment = "x"\n[limits]\nmax_io_size = 65536\nmax_opens = 7\n' + before,
            )
            for _ in range(2):
                outcome = await service.reload()
                assert set(outcome.restart) == {"[server] rdma", "max_io_size"}
                assert service.server.settings.max_opens == 7
                assert service.server.settings.comment == "x"
                assert service.server.settings.max_io_size == 8 << 20
            write(tmp_path, before)
            assert not (await service.reload()).restart
            assert service.server.settings.max_opens == 16384

    asyncio.run(main())


def test_hosts_that_are_no_longer_admitted_are_cut(tmp_path: Path) -> None:
    async def main() -> None:
        before = ALICE + share(tmp_path, "data")
        async with serving(tmp_path, before) as service, tree_of(service, "alice", "data") as tree:
            write(tmp_path, ALICE + share(tmp_path, "data", 'hosts_deny = ["127.0.0.1"]'))
            await service.reload()
            with pytest.raises(ServerError):
                await tree.create("file", READ_WRITE, CreateDisposition.OPEN_IF)
            write(tmp_path, '[server]\nhosts_deny = ["127.0.0.1"]\n' + before)
            await service.reload()
            with pytest.raises(ConnectionLost):
                await tree.create("file", READ_WRITE, CreateDisposition.OPEN_IF)
            with pytest.raises(ConnectionLost):
                await status_of_logon(service, "alice", "pw")

    asyncio.run(main())


def test_persistent_opens_of_shares_that_come_and_go(tmp_path: Path) -> None:
    """A share can become continuously available without a restart; removed, it leaves no record behind."""

    async def main() -> None:
        (tmp_path / "state").mkdir(mode=0o700)
        state = ("--state", str(tmp_path / "state"))
        before = ALICE + share(tmp_path, "data")
        available = before + share(tmp_path, "ca", "continuous_availability = true")
        async with serving(tmp_path, before, *state) as service:
            write(tmp_path, available)
            await service.reload()
            assert service.server.share_list["ca"].stores_opens
            async with tree_of(service, "alice", "ca") as tree:
                await tree.create("file", READ_WRITE, CreateDisposition.OPEN_IF)
            write(tmp_path, before)
            await service.reload()
            assert "ca" not in service.server.share_list and not service.server.opens.by_id

    asyncio.run(main())


def test_memory_does_not_grow(tmp_path: Path) -> None:
    """Shares that come and go leave nothing behind: no descriptor, no watch."""

    async def main() -> None:
        before = ALICE + share(tmp_path, "data")
        async with serving(tmp_path, before) as service, session_of(service, "alice") as alice:
            counts = []
            for _ in range(5):
                write(tmp_path, before + share(tmp_path, "other"))
                await service.reload()
                other = await alice.tree_connect("other")
                await make(other, f"file{len(counts)}")
                write(tmp_path, before)
                await service.reload()
                counts.append(len(list(Path("/proc/self/fd").iterdir())))
            assert counts[1:] == counts[:-1]
            assert len(service.server.host_changes) == 0

    asyncio.run(main())


def test_privileges_come_and_go_at_once(tmp_path: Path) -> None:
    """A session that is there already has them, or has them no longer, for files opened from then on."""

    async def main() -> None:
        before = ALICE + share(tmp_path, "data")
        async with serving(tmp_path, before) as service, tree_of(service, "alice", "data") as tree:
            await make(tree, "file")
            assert await status_of_open(tree, "file", Access.ACCESS_SYSTEM_SECURITY) == NtStatus.PRIVILEGE_NOT_HELD
            for line, status in (
                ('admins = ["alice"]', 0),
                ('admins = ["alice"]\nsecurity_operators = []', NtStatus.PRIVILEGE_NOT_HELD),
                ('security_operators = ["alice"]', 0),
                ("", NtStatus.PRIVILEGE_NOT_HELD),
            ):
                write(tmp_path, f"[server]\n{line}\n{before}")
                assert not (await service.reload()).restart
                assert await status_of_open(tree, "file", Access.ACCESS_SYSTEM_SECURITY) == status, line

    asyncio.run(main())
