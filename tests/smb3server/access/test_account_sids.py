"""Security descriptors tell accounts apart that share one user of the host."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.access.check import granted_access
from smb3server.access.descriptor import EVERYONE, Ace, Acl, Control, SecurityDescriptor, Sid, allow, deny, unpack
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_READ
from smb3server.client.protocol import Tree
from smb3server.client.protocol.messages import ServerError
from smb3server.service.service import Service
from smb3server.state.caller import token_of
from smb3server.wire.create import CreateDisposition
from smb3server.wire.query_info import InfoType, SecurityInformation
from smb3server.wire.status import NtStatus
from tests.lab.serving import READ, WRITE, WRITE_DAC, make, serving, status_of_open, tree_of

LONGEST_TURN = 0.1

CONFIG = """[server]
guest = true
anonymous = true
{server}
[[share]]
name = "data"
path = "{folder}"
guest = true
{share}
[[user]]
name = "carol"
password = "pw"
[[user]]
name = "dave"
password = "pw"
"""
WRITE_OWNER = 0x00080000
PLAIN = 4321
OWNER_AND_DACL = int(SecurityInformation.OWNER | SecurityInformation.DACL)


async def descriptor_of(tree: Tree, name: str) -> SecurityDescriptor:
    file = await tree.create(name, READ, CreateDisposition.OPEN)
    try:
        return unpack(await tree.query_info(file, 0, InfoType.SECURITY, additional=OWNER_AND_DACL))
    finally:
        await tree.close(file)


async def set_dacl(tree: Tree, name: str, *aces: Ace) -> int:
    descriptor = SecurityDescriptor(None, None, Acl(aces), None, int(Control.DACL_PRESENT | Control.SELF_RELATIVE))
    try:
        file = await tree.create(name, WRITE_DAC, CreateDisposition.OPEN)
        try:
            await tree.set_info(file, 0, descriptor.pack(), InfoType.SECURITY, int(SecurityInformation.DACL))
        finally:
            await tree.close(file)
    except ServerError as error:
        return error.status
    return 0


Scene = Callable[[Service, Tree, Tree], Awaitable[None]]


def play(
    tmp_path: Path, scene: Scene, server: str = "", share: str = "", owner: int = PLAIN, mode: int = 0o755
) -> Path:
    """With carol's and dave's trees of a folder whose owner, a plain user, both act as."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    if os.geteuid() == 0:
        os.chown(folder, owner, owner)

    async def body() -> None:
        text = CONFIG.format(folder=folder, server=server, share=share)
        async with (
            serving(tmp_path, text) as service,
            tree_of(service, "carol", "data") as carol,
            tree_of(service, "dave", "data") as dave,
        ):
            await scene(service, carol, dave)

    asyncio.run(body())
    return folder


def sid(service: Service, name: str) -> Sid:
    return service.server.accounts.account_sid(name)


def test_a_file_belongs_to_the_account_that_made_it(tmp_path: Path) -> None:
    """Its data are for all who share the user of the host, its permissions for its owner alone."""

    async def scene(service: Service, carol: Tree, dave: Tree) -> None:
        await make(carol, "hers")
        await make(carol, "folder", folder=True)
        for name in ("hers", "folder"):
            assert (await descriptor_of(dave, name)).owner == sid(service, "carol")
            assert await status_of_open(carol, name, FILE_ALL_ACCESS) == 0
            assert await status_of_open(dave, name, READ | WRITE) == 0
            assert await status_of_open(dave, name, WRITE_DAC) == NtStatus.ACCESS_DENIED
            assert await status_of_open(dave, name, WRITE_OWNER) == NtStatus.ACCESS_DENIED
        assert await set_dacl(dave, "hers", allow(EVERYONE, FILE_ALL_ACCESS)) == NtStatus.ACCESS_DENIED
        assert await set_dacl(carol, "hers", allow(EVERYONE, FILE_GENERIC_READ)) == 0
        await make(dave, "folder\\his")
        assert (await descriptor_of(carol, "folder\\his")).owner == sid(service, "dave")

    play(tmp_path, scene)


def test_entries_that_name_accounts_count(tmp_path: Path) -> None:
    async def scene(service: Service, carol: Tree, dave: Tree) -> None:
        await make(carol, "secret")
        aces = (deny(sid(service, "dave"), FILE_ALL_ACCESS), allow(EVERYONE, FILE_ALL_ACCESS))
        assert await set_dacl(carol, "secret", *aces) == 0
        assert await status_of_open(dave, "secret", READ) == NtStatus.ACCESS_DENIED
        assert await status_of_open(carol, "secret", READ | WRITE) == 0
        await make(dave, "lent")
        aces = (allow(sid(service, "carol"), FILE_ALL_ACCESS), allow(EVERYONE, FILE_GENERIC_READ))
        assert await set_dacl(dave, "lent", *aces) == 0
        assert await status_of_open(carol, "lent", READ | WRITE) == 0
        assert await status_of_open(dave, "lent", WRITE) == NtStatus.ACCESS_DENIED

    play(tmp_path, scene)


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")
def test_entries_that_name_an_accounts_own_user_count_where_it_acts_as_another(tmp_path: Path) -> None:
    async def scene(service: Service, carol: Tree, dave: Tree) -> None:
        async with tree_of(service, "gamer", "data") as gamer:
            await make(gamer, "made")
            assert (await descriptor_of(carol, "made")).owner == sid(service, "gamer")
            await make(carol, "secret")
            theirs = service.server.users.find("gamer")
            assert theirs is not None
            found = service.server.accounts.sid_of(theirs)
            assert found.authority == 22
            assert await set_dacl(carol, "secret", deny(found, READ), allow(EVERYONE, FILE_ALL_ACCESS)) == 0
            assert await status_of_open(gamer, "secret", READ) == NtStatus.ACCESS_DENIED
            assert await status_of_open(dave, "secret", READ) == 0

    share = 'force_user = "news"\n[[user]]\nname = "gamer"\npassword = "pw"\nunix_user = "games"\n'
    play(tmp_path, scene, share=share, owner=pwd.getpwnam("news").pw_uid)


def test_what_is_inherited_belongs_to_the_account_too(tmp_path: Path) -> None:
    async def scene(service: Service, carol: Tree, dave: Tree) -> None:
        await make(carol, "folder", folder=True)
        inherit = 0x03
        assert await set_dacl(carol, "folder", allow(EVERYONE, FILE_GENERIC_READ | WRITE, inherit)) == 0
        await make(dave, "folder\\his")
        assert (await descriptor_of(dave, "folder\\his")).owner == sid(service, "dave")
        assert await status_of_open(dave, "folder\\his", WRITE_DAC) == 0
        assert await status_of_open(carol, "folder\\his", WRITE_DAC) == NtStatus.ACCESS_DENIED

    play(tmp_path, scene)


def test_a_new_file_costs_one_attribute_more_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    setxattr = os.setxattr

    def spy(path: Any, name: str, *rest: Any) -> None:
        written.append(name.rpartition(".")[2])
        setxattr(path, name, *rest)

    monkeypatch.setattr(os, "setxattr", spy)

    async def scene(service: Service, carol: Tree, dave: Tree) -> None:
        written.clear()
        await make(carol, "plain")
        assert sorted(written) == ["meta", "sd"]
        await make(carol, "folder", folder=True)
        assert await set_dacl(carol, "folder", allow(EVERYONE, FILE_ALL_ACCESS, 0x03)) == 0
        await make(carol, "folder\\inherits")

    folder = play(tmp_path, scene)
    plain, inherits = (set(os.listxattr(folder / name)) for name in ("plain", "folder/inherits"))
    assert {name.rpartition(".")[2] for name in plain} == {"meta", "sd"}
    # The kernel's own says what the DACL gives to whom.
    assert inherits - {"system.posix_acl_access"} == plain


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")
def test_who_has_a_user_of_the_host_alone_needs_no_attribute(tmp_path: Path) -> None:
    async def scene(service: Service, carol: Tree, dave: Tree) -> None:
        async with tree_of(service, "gamer", "data") as gamer:
            await make(gamer, "his")
            owner = (await descriptor_of(gamer, "his")).owner
            assert owner is not None and owner.authority == 22

    share = '[[user]]\nname = "gamer"\npassword = "pw"\nunix_user = "games"\n'
    folder = play(tmp_path, scene, share=share, mode=0o777)
    assert not any(name.endswith(".sd") for name in os.listxattr(folder / "his"))


def test_guests_are_the_guest_and_not_authenticated(tmp_path: Path) -> None:
    async def scene(service: Service, carol: Tree, dave: Tree) -> None:
        async with tree_of(service, "whoever", "data") as guest:
            await make(guest, "theirs")
            owner = (await descriptor_of(carol, "theirs")).owner
            assert owner == service.server.accounts.domain_sid._replace(
                sub_authorities=(*service.server.accounts.domain_sid.sub_authorities, 501)
            )
            known = service.server.accounts.by_sid(owner)
            assert known is not None and known.name == "Guest"
            assert await status_of_open(carol, "theirs", WRITE_DAC) == NtStatus.ACCESS_DENIED
            await make(carol, "members")
            members = Sid(5, (11,))
            assert await set_dacl(carol, "members", allow(members, FILE_ALL_ACCESS)) == 0
            assert await status_of_open(guest, "members", READ) == NtStatus.ACCESS_DENIED
            assert await status_of_open(dave, "members", READ) == 0
            await make(carol, "guests")
            assert await set_dacl(carol, "guests", allow(Sid(5, (32, 546)), FILE_GENERIC_READ)) == 0
            assert await status_of_open(guest, "guests", READ) == 0
            assert await status_of_open(dave, "guests", READ) == NtStatus.ACCESS_DENIED

    play(tmp_path, scene)


def test_files_of_the_host_belong_to_all_who_act_as_their_owner(tmp_path: Path) -> None:
    async def scene(service: Service, carol: Tree, dave: Tree) -> None:
        path = tmp_path / "shared" / "local"
        path.write_text("x")
        if os.geteuid() == 0:
            os.chown(path, PLAIN, PLAIN)
        for tree in (carol, dave):
            assert await status_of_open(tree, "local", READ | WRITE | WRITE_DAC) == 0

    play(tmp_path, scene)


def test_restricting_oneself_does_not_shut_out_others_who_share_the_user(tmp_path: Path) -> None:
    """The kernel sees one user: its class of the mode stays open, and the descriptor decides."""

    async def scene(service: Service, carol: Tree, dave: Tree) -> None:
        await make(carol, "given-away")
        aces = (allow(sid(service, "dave"), FILE_ALL_ACCESS), allow(sid(service, "carol"), WRITE_DAC))
        assert await set_dacl(carol, "given-away", *aces) == 0
        assert await status_of_open(dave, "given-away", READ | WRITE) == 0
        assert await status_of_open(carol, "given-away", READ) == NtStatus.ACCESS_DENIED
        mode = (tmp_path / "shared" / "given-away").stat().st_mode
        assert mode & 0o077 == 0

    play(tmp_path, scene)


def test_accounts_keep_their_sids_without_a_state_directory(tmp_path: Path) -> None:
    """And the nodes of a cluster agree on them. With a state directory they are of the server's GUID."""
    seen = []

    async def scene(service: Service, carol: Tree, dave: Tree) -> None:
        seen.append(sid(service, "carol"))

    for number in range(2):
        place = tmp_path / str(number)
        place.mkdir()
        play(place, scene)
    assert seen[0] == seen[1]
    for number in range(2):
        place = tmp_path / f"state{number}"
        place.mkdir()
        play(place, scene, server=f'state = "{tmp_path / "kept"}"')
    assert seen[2] == seen[3] != seen[0]


def test_tokens_hold_the_account_and_who_it_acts_as(tmp_path: Path) -> None:
    async def scene(service: Service, carol: Tree, dave: Tree) -> None:
        sessions = {str(session.identity): session for session in service.server.sessions.by_id.values()}
        session = sessions["carol"]
        (tree,) = session.tree_connect_table.values()
        token = token_of(session, tree.user, service.server.accounts)
        uid = PLAIN if os.geteuid() == 0 else os.geteuid()
        assert token.user == sid(service, "carol")
        assert {token.user, Sid(22, (1, uid)), EVERYONE} <= token.sids
        assert sid(service, "dave") not in token.sids
        assert token_of(session, tree.user, service.server.accounts) is token
        nothing = SecurityDescriptor(Sid(5, (18,)), None, Acl(()), None, int(Control.DACL_PRESENT))
        assert granted_access(nothing, token) == 0

    play(tmp_path, scene)
