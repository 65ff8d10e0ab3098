"""Users come and go while the server runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from smb3server.admin.socket import ask
from smb3server.auth.users import nt_hash
from smb3server.auth.users_file import StoredUser, Users, change_users
from smb3server.client.protocol import ClientSession
from smb3server.client.protocol.messages import ServerError
from smb3server.config.error import ConfigError
from smb3server.service.service import Service
from smb3server.wire.status import NtStatus
from tests.lab.serving import READ, make, serving, session_of, status_of_connect, status_of_logon, status_of_open
from tools.support import own_user


def put(path: Path, name: str, **fields: object) -> None:
    def change(users: Users) -> None:
        users.put(replace(users.find(name) or StoredUser(name, nt_hash("pw")), **fields))  # type: ignore[arg-type]

    change_users(path, change)


def text(tmp_path: Path, more: str = "", share: str = "") -> str:
    (tmp_path / "data").mkdir(exist_ok=True)
    return (
        f'[server]\nstate = "{tmp_path / "state"}"\n[groups]\nstaff = ["dora"]\n[[share]]\nname = "data"\n'
        f'path = "{tmp_path / "data"}"\n{own_user.LINE}\n{share}\n[[user]]\nname = "carol"\npassword = "pw"\n{more}'
    )


async def is_ended(session: ClientSession) -> bool:
    return await status_of_connect(session, "data") == NtStatus.USER_SESSION_DELETED


async def reload(service: Service, file: Path) -> dict[str, object]:
    assert service.admin is not None
    return await asyncio.to_thread(ask, service.admin.path, "reload_users", file=str(file))


def test_a_change_of_the_file_takes_effect_at_once(tmp_path: Path) -> None:
    file = tmp_path / "state" / "users"

    async def body() -> None:
        async with serving(tmp_path, text(tmp_path)) as service:
            assert await status_of_logon(service, "alice", "pw") == NtStatus.LOGON_FAILURE
            put(file, "alice")
            put(file, "bob")
            answer = await reload(service, file)
            assert answer == {
                "uses_file": True, "added": ["alice", "bob"], "changed": [], "removed": [], "sessions_ended": 0,
            }  # fmt: skip
            async with (
                session_of(service, "alice") as alice,
                session_of(service, "bob") as bob,
                session_of(service, "carol") as carol,
            ):
                tree = await alice.tree_connect("data")
                await make(tree, "file")
                put(file, "alice", nt_hash=nt_hash("other"))
                put(file, "bob", disabled=True)
                answer = await reload(service, file)
                assert (answer["changed"], answer["sessions_ended"]) == (["alice", "bob"], 1)
                # Another password is for the next logon: who is there stays.
                assert await status_of_open(tree, "file", READ) == 0
                assert await is_ended(bob) and not await is_ended(carol)
                assert await status_of_logon(service, "alice", "pw") == NtStatus.LOGON_FAILURE
                assert await status_of_logon(service, "alice", "other") == 0
                assert await status_of_logon(service, "bob", "pw") == NtStatus.ACCOUNT_DISABLED
                file.write_text("")
                answer = await reload(service, file)
                assert (answer["removed"], answer["sessions_ended"]) == (["alice", "bob"], 1)
                assert await is_ended(alice) and not await is_ended(carol)
            assert await status_of_logon(service, "alice", "other") == NtStatus.LOGON_FAILURE
            assert await reload(service, tmp_path / "another") == {"uses_file": False}

    asyncio.run(body())


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nonsense\n", "line 1: write NAME:NT_HASH"),
        (f"staff:{nt_hash('pw').hex()}\n", "group staff and user staff: rename one of them"),
        (f"alice:{nt_hash('pw').hex()}:no-such-user\n", "this machine has no user no-such-user"),
        (f"alice:{nt_hash('').hex()}\n", "the password of alice is empty"),
    ],
)
def test_a_file_with_a_mistake_changes_nothing(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "state" / "users"
    put(file, "alice")

    async def body() -> None:
        async with serving(tmp_path, text(tmp_path)) as service:
            file.write_text(line)
            answer = await reload(service, file)
            assert complaint in str(answer["error"]) and "stay as they were" in str(answer["error"])
            assert await status_of_logon(service, "alice", "pw") == 0
            assert await status_of_logon(service, "carol", "pw") == 0

    asyncio.run(body())


def test_guests_and_their_names_are_not_accounts(tmp_path: Path) -> None:
    file = tmp_path / "state" / "users"

    async def body() -> None:
        async with serving(tmp_path, text(tmp_path, share="guest = true"), "--guest") as service:
            async with session_of(service, "mallory") as guest:
                put(file, "mallory", disabled=True)
                assert (await reload(service, file))["sessions_ended"] == 0
                assert not await is_ended(guest)
            # The name is that of an account now, so it is no longer a guest's.
            assert await status_of_logon(service, "mallory", "wrong") == NtStatus.LOGON_FAILURE

    asyncio.run(body())


def test_what_the_admin_socket_lists(tmp_path: Path) -> None:
    put(tmp_path / "state" / "users", "dora", full_name="Dora", expires=1 << 33)

    async def body() -> None:
        async with serving(tmp_path, text(tmp_path)) as service:
            assert service.admin is not None
            async with session_of(service, "dora"):
                answer = await asyncio.to_thread(ask, service.admin.path, "users")
            assert answer["file"] == str(tmp_path / "state" / "users") and answer["groups"] == {"staff": ["dora"]}
            assert [(user["name"], user["stored"], user["sessions"]) for user in answer["users"]] == [
                ("carol", False, 0),
                ("dora", True, 1),
            ]
            assert answer["users"][1]["groups"] == ["staff"] and answer["users"][1]["full_name"] == "Dora"
            assert nt_hash("pw").hex() not in str(answer)

    asyncio.run(body())


def test_a_list_may_name_a_user_of_yesterday_if_users_come_and_go(tmp_path: Path) -> None:
    share = 'users = ["carol", "alice"]'

    async def body() -> list[str]:
        async with serving(tmp_path, text(tmp_path, share=share)) as service:
            return service.notes

    with pytest.raises(ConfigError, match="there is no user alice"):
        asyncio.run(body())
    put(tmp_path / "state" / "users", "bob")
    assert "share data: users: there is no user alice; remedy: smb3server user add alice" in asyncio.run(body())


def test_the_file_alone_is_enough_to_start(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    config = f'[server]\nstate = "{tmp_path / "state"}"\n[[share]]\nname = "data"\npath = "{tmp_path / "data"}"\n'

    async def body() -> list[str]:
        async with serving(tmp_path, config) as service:
            return service.notes

    with pytest.raises(ConfigError, match="`smb3server user add NAME`"):
        asyncio.run(body())
    change_users(tmp_path / "state" / "users", lambda users: None)
    assert any("has no users; remedy: smb3server user add NAME" in note for note in asyncio.run(body()))


def test_an_empty_password_is_none(tmp_path: Path) -> None:
    async def body(user: str, *options: str) -> None:
        (tmp_path / "data").mkdir(exist_ok=True)
        share = f'[[share]]\nname = "data"\npath = "{tmp_path / "data"}"\n'
        async with serving(tmp_path, share + user, *options):
            raise AssertionError("it started")

    for user in ('[[user]]\nname = "u"\npassword = ""\n', f'[[user]]\nname = "u"\nnt_hash = "{nt_hash("").hex()}"\n'):
        with pytest.raises(ConfigError, match="empty"):
            asyncio.run(body(user))
    with pytest.raises(ConfigError, match=r"--user u: .*empty"):
        asyncio.run(body("", "--user", "u:"))


def test_a_client_that_is_ended_is_told(tmp_path: Path) -> None:
    file = tmp_path / "state" / "users"
    put(file, "alice")

    async def body() -> None:
        async with serving(tmp_path, text(tmp_path)) as service, session_of(service, "alice") as alice:
            tree = await alice.tree_connect("data")
            await make(tree, "file")
            file.write_text("")
            await reload(service, file)
            with pytest.raises(ServerError) as caught:
                await make(tree, "another")
            assert caught.value.status == NtStatus.USER_SESSION_DELETED

    asyncio.run(body())
