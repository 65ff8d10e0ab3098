"""Which user of the host stands behind a client's files: never root, unless the configuration says so."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from smb3server.config.command_line.arguments import parse_arguments, parse_share
from smb3server.config.error import ConfigError
from smb3server.service import stand_in
from smb3server.state.ports import ShareChangeError
from smb3server.wire.status import NtStatus
from tests.lab.served import open_up, served
from tests.lab.serving import (
    READ,
    WRITE,
    make,
    needs_root,
    serving,
    session_of,
    status_of_connect,
    status_of_open,
    tree_of,
)

LONGEST_TURN = 0.1

pytestmark = needs_root
NOBODY = pwd.getpwnam("nobody").pw_uid
PLAIN = 4321
"""A uid that the host has no name for."""

CONFIG = """[server]
guest = true
[[user]]
name = "carol"
password = "pw"
[[user]]
name = "gamer"
password = "pw"
unix_user = "games"
"""


def share(path: Path, *lines: str, name: str = "data") -> str:
    return "\n".join((f'[[share]]\nname = "{name}"\npath = "{path}"', *lines, ""))


def folder_of(tmp_path: Path, uid: int, mode: int = 0o755) -> Path:
    folder = tmp_path / f"of-{uid}"
    folder.mkdir()
    os.chown(folder, uid, uid)
    folder.chmod(mode)
    return folder


@pytest.mark.parametrize("user", ["carol", "stranger"])
@pytest.mark.parametrize(("owner", "actor"), [(PLAIN, PLAIN), (0, NOBODY)])
def test_users_without_one_of_their_own_act_as_the_folders_owner_or_nobody(
    tmp_path: Path, user: str, owner: int, actor: int
) -> None:
    folder = folder_of(tmp_path, owner, 0o777)
    (folder / "secret").write_text("root's alone")
    (folder / "secret").chmod(0o600)

    async def body() -> None:
        async with serving(tmp_path, CONFIG + share(folder, "guest = true")) as service:
            async with tree_of(service, user, "data") as tree:
                await make(tree, "made")
                await make(tree, "folder", folder=True)
                assert await status_of_open(tree, "secret", READ) == NtStatus.ACCESS_DENIED
                assert await status_of_open(tree, "secret", WRITE) == NtStatus.ACCESS_DENIED
            assert "made" not in "".join(service.notes)
            assert any(note.startswith("share data: guests and users") for note in service.notes)

    asyncio.run(body())
    for name in ("made", "folder"):
        found = (folder / name).stat()
        assert found.st_uid == actor
        assert found.st_gid != 0


def test_supplementary_groups_of_the_folders_owner_are_not_lent(tmp_path: Path) -> None:
    """Else every guest would be in the groups of the person who owns the folder."""
    rich = next((e for e in pwd.getpwall() if e.pw_uid and len(os.getgrouplist(e.pw_name, e.pw_gid)) > 1), None)
    if rich is not None:
        os.chown(tmp_path, rich.pw_uid, rich.pw_gid)
    else:
        os.chown(tmp_path, PLAIN, PLAIN)
    assert stand_in.look(tmp_path, False).user.groups == ()


def test_an_account_with_a_unix_user_keeps_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, PLAIN, 0o777)

    async def body() -> None:
        async with serving(tmp_path, CONFIG + share(folder)) as service, tree_of(service, "gamer", "data") as tree:
            await make(tree, "his")

    asyncio.run(body())
    assert (folder / "his").stat().st_uid == pwd.getpwnam("games").pw_uid


def test_the_start_says_who_acts_and_what_to_do_where_that_user_cannot_write(tmp_path: Path) -> None:
    closed, mine, shut = folder_of(tmp_path, 0), folder_of(tmp_path, PLAIN), tmp_path / "shut"
    shut.mkdir(mode=0o700)

    async def body() -> list[str]:
        text = share(closed, name="closed") + share(mine, name="mine") + share(shut, "read_only = true", name="shut")
        text += share(closed, "read_only = true", name="looked-at")
        text += share(closed, 'force_user = "root"', name="forced") + share(mine, 'users = ["gamer"]', name="his")
        async with serving(tmp_path, CONFIG + text) as service:
            return service.notes

    notes = {note.split(":")[0].removeprefix("share "): note for note in asyncio.run(body())}
    remedy = f"remedy: chown nobody {closed}, or set the share's force_user, or the users' unix_user"
    assert notes["closed"].endswith(f"act as nobody, who may not write there; {remedy}")
    assert notes["mine"].endswith(f"act as {PLAIN}")
    assert "may not read there" in notes["shut"]
    assert notes["looked-at"].endswith("act as nobody")
    assert "force_user is root" in notes["forced"]
    assert "his" not in notes


GAMES, NEWS = pwd.getpwnam("games").pw_uid, pwd.getpwnam("news").pw_uid


def victims_folder(place: Path) -> Path:
    """Make the folder of a user of the host, with a file that is his alone."""
    place.mkdir(mode=0o700)
    (place / "secret").write_text("his alone")
    (place / "secret").chmod(0o600)
    for path in (place, place / "secret"):
        os.chown(path, GAMES, GAMES)
    return place


def tops_folder(tmp_path: Path, mode: int = 0o755) -> Path:
    """Make a folder of another user of the host."""
    for place in (tmp_path, tmp_path.parent):
        place.chmod(0o755)
    top = tmp_path / "top"
    top.mkdir()
    os.chown(top, NEWS, NEWS)
    top.chmod(mode)
    return top


@pytest.mark.parametrize(
    ("uid", "mode"), [(NEWS, 0o755), (0, 0o777), (0, 0o775), (0, 0o1777), (0, 0o755), (GAMES, 0o755)]
)
def test_who_could_swap_the_folder_does_not_choose_as_whom_others_act(tmp_path: Path, uid: int, mode: int) -> None:
    """As sshd has it for keys: every folder above belongs to root or the owner, and nobody else may write there."""
    top = tops_folder(tmp_path)
    folder = victims_folder(top / "sub")
    os.chown(top, uid, NEWS)
    top.chmod(mode)
    safe = uid in (0, GAMES) and mode in (0o755, 0o1777)

    async def body() -> None:
        async with serving(tmp_path, CONFIG + share(folder)) as service, tree_of(service, "carol", "data") as tree:
            assert await status_of_open(tree, "secret", READ) == (0 if safe else NtStatus.ACCESS_DENIED)
            (note,) = [note for note in service.notes if note.startswith("share data: guests and users")]
            assert ("not as the owner of the folder, because" in note) is not safe

    asyncio.run(body())


def test_a_link_that_others_made_is_not_followed(tmp_path: Path) -> None:
    top, home = tops_folder(tmp_path), victims_folder(tmp_path / "home")
    (top / "sub").symlink_to(home)

    async def body() -> None:
        async with serving(tmp_path, CONFIG + share(top / "sub")) as service:
            assert (
                "a symbolic link in a folder that may be written by news; remedy: name the"
                in service.shares.down["data"]
            )
            assert service.shares.find("data") is None

    asyncio.run(body())
    # Nor if it is only on the way, or was made by root in a folder of others.
    (top / "way").symlink_to(tmp_path)
    for path in (top / "way" / "home", top / "sub"):
        with pytest.raises(OSError, match="symbolic link"):
            stand_in.look(path, False)
    os.chown(top, 0, 0)
    assert stand_in.look(top / "sub", False).user.uid == GAMES


def test_a_folder_that_is_swapped_while_the_server_runs(tmp_path: Path) -> None:
    top, home = tops_folder(tmp_path), victims_folder(tmp_path / "home")
    (top / "sub").mkdir(mode=0o777)

    async def body() -> None:
        async with serving(tmp_path, CONFIG + share(top / "sub")) as service, session_of(service, "carol") as session:
            assert await status_of_connect(session, "data") == 0
            (top / "sub").rename(top / "away")
            (top / "sub").symlink_to(home)
            assert await status_of_connect(session, "data") == NtStatus.BAD_NETWORK_NAME
            (top / "sub").unlink()
            (top / "away").rename(top / "sub")
            assert await status_of_connect(session, "data") == 0

    asyncio.run(body())


def test_a_share_of_run_time_keeps_the_folder_that_it_was_given(tmp_path: Path) -> None:
    """Without links, and not by those of others."""
    top, home = tops_folder(tmp_path), victims_folder(tmp_path / "home")
    (top / "sub").symlink_to(home)
    (tmp_path / "link").symlink_to(home)

    async def body() -> None:
        state = tmp_path / "state"
        async with serving(tmp_path, CONFIG + share(folder_of(tmp_path, PLAIN)), "--state", str(state)) as service:
            with pytest.raises(ShareChangeError, match="symbolic link"):
                await service.share_admin.add("sub", str(top / "sub"), {}, lasting=True)
            await service.share_admin.add("home", str(tmp_path / "link"), {}, lasting=True)
            assert [entry["path"] for entry in service.share_admin.report()][-1] == str(home)

    asyncio.run(body())
    assert str(home) in next((tmp_path / "state").glob("shares.toml")).read_text()


def test_an_unprivileged_server_that_may_act_does(tmp_path: Path) -> None:
    """As the packaged unit runs."""
    folder, state = folder_of(tmp_path, GAMES), tmp_path / "state"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)
    open_up(tmp_path)
    file = tmp_path / "unit.toml"
    file.touch(0o600)
    file.write_text(CONFIG.replace("guest = true", 'run_as = "nobody"') + share(folder))

    async def body() -> None:
        with served(tmp_path, "--config", str(file)) as server:
            assert "share data: guests and users without unix_user act as games" in server.log() + "\n".join(
                server.lines
            )
            async with server.tree("carol") as tree:
                await make(tree, "made")

    asyncio.run(body())
    assert (folder / "made").stat().st_uid == GAMES


def test_force_user_root_is_the_administrators_word(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, PLAIN)

    async def body() -> None:
        text = CONFIG + share(folder, 'force_user = "root"')
        async with serving(tmp_path, text) as service, tree_of(service, "carol", "data") as tree:
            await make(tree, "made")

    asyncio.run(body())
    assert (folder / "made").stat().st_uid == 0


def test_guests_do_not_pass_a_list_of_users_by_choosing_a_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, PLAIN)
    text = CONFIG + share(folder, "guest = true", 'users = ["carol", "gamer"]')

    async def body() -> None:
        async with serving(tmp_path, text + share(folder, "guest = true", name="open")) as service:
            async with session_of(service, "stranger") as session:
                assert await status_of_connect(session, "data") == NtStatus.ACCESS_DENIED
                assert await status_of_connect(session, "open") == 0
            async with session_of(service, "carol") as session:
                assert await status_of_connect(session, "data") == 0

    asyncio.run(body())


def test_a_share_of_the_command_line_may_name_its_user(tmp_path: Path) -> None:
    (found,) = parse_arguments(["--guest", "--share", f"x={tmp_path},user=games,ro"]).shares
    assert found.read_only
    assert found.force_user is not None
    assert found.force_user.uid == pwd.getpwnam("games").pw_uid
    assert parse_share(f"x={tmp_path}").force_user is None
    for wrong in (f"x={tmp_path},user=", "x=,user=games", "x=,ro"):
        with pytest.raises(ConfigError, match="write NAME=PATH"):
            parse_share(wrong)
    with pytest.raises(ConfigError, match="no user no-such-user"):
        parse_arguments(["--guest", "--share", f"x={tmp_path},user=no-such-user"])


def test_the_demo_gives_its_folder_to_who_its_users_act_as(tmp_path: Path) -> None:
    """``make serve`` as root: what clients make and what is there at the start belongs to nobody."""
    (tmp_path / "tools").mkdir()
    script = Path(__file__).parents[3] / "tools" / "serve_demo.sh"
    (tmp_path / "tools" / "serve_demo.sh").write_text(script.read_text())
    binary = tmp_path / ".venv" / "bin" / "smb3server"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\nexit 0\n")
    binary.chmod(0o755)
    for _ in range(2):
        subprocess.run(
            ["sh", str(tmp_path / "tools" / "serve_demo.sh")],
            check=True,
            env={**os.environ, "DEMO_PASSWORD": "x"},
            stdout=subprocess.DEVNULL,
        )
        for entry in (tmp_path / "demo-share", tmp_path / "demo-share" / "README.txt"):
            assert entry.stat().st_uid == NOBODY
