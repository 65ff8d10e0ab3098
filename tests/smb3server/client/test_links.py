"""Links of a namespace, followed: two servers at two addresses of this machine, and what is kept of referrals."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smb3server.client import Share, connect
from smb3server.client.credentials import Login, on_the_way
from smb3server.client.links import MAX_LINKS, MAX_TARGETS, Links
from smb3server.client.options import ConnectOptions
from smb3server.config import schema
from smb3server.dfs.namespace import Link, Namespace
from smb3server.service.service import Service
from smb3server.wire.dfs import Referral, ReferralTarget
from tools.support import own_user

HERE, THERE = "127.0.0.1", "127.0.0.2"


class Scene:
    """The server at ``HERE`` has the namespace. Both have the share "data", with a file that names the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.one: Service
        self.two: Service

    @contextlib.asynccontextmanager
    async def served(self, name: str, address: str, port: int, rdma_port: int = 0) -> AsyncIterator[Service]:
        data = self.folder / name
        data.mkdir(exist_ok=True)
        (data / "name").write_text(name)
        shares = [schema.Share(name="data", path=str(data), force_user=own_user.NAME)]
        users = [schema.User(name="u", password="pw")]
        place: dict[str, Any] = {"listen": [address], "port": port, "rdma": "iwarp", "rdma_port": rdma_port}
        async with Service(shares=shares, users=users, **place) as service:
            yield service

    def lead(self, *targets: str, ttl: int = 300, failback: bool = False) -> None:
        """Let the link "link" lead to these targets."""
        self.one.add_namespace(Namespace("files", (Link.make("link", targets),), ttl, failback))

    def share(self, **options: object) -> contextlib.AbstractAsyncContextManager[Share]:
        return connect(f"smb://u@{HERE}:{self.one.address[1]}/files", password="pw", patience=0.2, **options)  # type: ignore[arg-type]


def drive(tmp_path: Path, test: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        scene = Scene(tmp_path)
        async with (
            asyncio.timeout(60),
            scene.served("one", HERE, 0) as scene.one,
            scene.served("two", THERE, scene.one.address[1]) as scene.two,
        ):
            await test(scene)

    asyncio.run(main())


def test_the_next_target_when_one_goes_away(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        scene.lead(f"//{THERE}/data; priority=first", "data")
        async with scene.share() as share:
            assert await share.read_text("link/name") == "two"
            await scene.two.stop()
            assert await share.read_text("link/name") == "one"
            assert await share.listdir("link") == ["name"]

    drive(tmp_path, test)


def test_a_share_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        scene.lead("none; priority=first", f"//{THERE}/data")
        async with scene.share() as share:
            assert await share.read_text("link/name") == "two"

    drive(tmp_path, test)


def test_data_of_a_target_travels_by_rdma(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        port = next(int(text.rpartition(":")[2]) for text in scene.one.addresses() if text.startswith("iwarp"))
        async with scene.served("three", "127.0.0.3", scene.one.address[1], rdma_port=port):
            scene.lead("//127.0.0.3/data")
            async with scene.share(rdma="iwarp", rdma_port=port) as share:
                assert await share.write_bytes("link/new", b"x" * 100_000) == 100_000
                assert await share.read_bytes("link/new") == b"x" * 100_000
                assert share._links is not None
                known = share._links.find("link")
                assert known is not None
                assert known.share is not None
                assert known.share.moved == {"iwarp": (100_000, 100_000)}

    drive(tmp_path, test)


def expire(share: Share) -> None:
    assert share._links is not None
    for known in share._links._known.values():
        known.expires = 0.0


def test_what_is_known_counts_until_it_is_too_old(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        scene.lead("data")
        async with scene.share() as share:
            assert await share.read_text("link/name") == "one"
            scene.lead(f"//{THERE}/data")
            assert await share.read_text("link/name") == "one"
            expire(share)
            assert await share.read_text("link/name") == "two"
            scene.one.add_namespace(Namespace("files"))
            assert await share.read_text("link/name") == "two"
            expire(share)
            with pytest.raises(FileNotFoundError):
                await share.read_text("link/name")

    drive(tmp_path, test)


@pytest.mark.parametrize("failback", [False, True])
def test_a_better_target_that_is_there_again(tmp_path: Path, failback: bool) -> None:
    async def test(scene: Scene) -> None:
        scene.lead(f"//{THERE}/data; priority=first", "data", failback=failback)
        await scene.two.stop()
        async with scene.share() as share:
            assert await share.read_text("link/name") == "one"
            async with scene.served("two", THERE, scene.one.address[1]):
                assert await share.read_text("link/name") == "one"
                expire(share)
                assert await share.read_text("link/name") == ("two" if failback else "one")

    drive(tmp_path, test)


def test_what_changes_something_is_not_repeated_elsewhere(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        scene.lead(f"//{THERE}/data; priority=first", "data")
        async with scene.share() as share:
            await share.stat("link")
            await scene.two.stop()
            with pytest.raises(ConnectionError):
                await share.mkdir("link/folder")
            await share.mkdir("link/folder")
            assert (tmp_path / "one" / "folder").is_dir()

    drive(tmp_path, test)


def test_whom_the_password_is_offered_to(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        scene.lead(f"//{THERE}/data")
        async with scene.share(sign=False) as share:
            with pytest.raises(PermissionError, match="unsigned"):
                await share.read_text("link/name")
        assert not scene.two.server.sessions.by_id
        async with scene.share(follow=False) as share:
            with pytest.raises(OSError, match="PATH_NOT_COVERED"):
                await share.read_text("link/name")
        async with scene.share(sign=False, encrypt=True) as share:
            assert await share.read_text("link/name") == "two"

    drive(tmp_path, test)


def test_names_that_no_server_has(tmp_path: Path) -> None:
    async def main() -> None:
        address = SimpleNamespace(host="h", share="s", path="", port=445)
        links: Links[Share] = Links(SimpleNamespace(address=address), Login("u", "p"), lambda *_: None, 0)  # type: ignore[arg-type, return-value]
        for target in ("", "\\", "\\a", "\\a\x1b[2J\\b", "\\a\\b\n"):
            assert links._address(target) is None
        found = links._address("\\a\\b\\c\\d")
        assert found is not None
        assert (found.host, found.share, found.path, found.port) == ("a", "b", "c/d", 445)

    asyncio.run(main())


def test_the_account_for_another_server(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[other]\nuser = bob\npassword = hers\n[*]\nuser = u\npassword = all\n")
    file.chmod(0o600)
    options = ConnectOptions(credentials_file=file)
    login = Login("u", "pw", "D")
    assert on_the_way(login, "one", "ONE", options) == login
    assert on_the_way(login, "one", "two", options) == login
    assert on_the_way(login, "one", "other", options) == Login("bob", "hers", "D")
    assert on_the_way(Login(), "one", "other", options) == Login()
    assert on_the_way(Login("u", kerberos="one"), "one", "two", options).kerberos == "two"


def test_a_circle_of_links(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        scene.lead("again")
        scene.one.add_namespace(Namespace("again", (Link.make("link", ["files"]),)))
        async with scene.share() as share:
            assert await share.listdir("link/link/link") == ["link"]
            with pytest.raises(OSError, match="lead to each other"):
                await share.stat("/".join(["link"] * (MAX_LINKS + 2)))

    drive(tmp_path, test)


def test_links_are_never_removed(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        scene.lead(f"//{THERE}/data")
        async with scene.share() as share:
            for refused in (share.rmtree("link"), share.rmdir("link"), share.rename("link", "other")):
                with pytest.raises(OSError, match=r"busy|denied|different|folder"):
                    await refused
            assert (tmp_path / "two" / "name").exists()

    drive(tmp_path, test)


@pytest.mark.parametrize(
    ("consumed", "root", "targets", "found"),
    [
        (0, False, ["\\a\\b"], None),
        (65535, False, ["\\a\\b"], ("x", "y")),
        (2 * len("\\h\\s\\x"), True, ["\\a\\b"], None),
        (2 * len("\\h\\s\\x"), False, [], None),
        (2 * len("\\h\\s\\x"), False, ["\\a\\b"] * 100, ("x",)),
    ],
)
def test_referrals_that_cannot_be_right(
    consumed: int, root: bool, targets: list[str], found: tuple[str, ...] | None
) -> None:
    async def referral(path: str) -> Referral:
        assert path == "\\h\\s\\x\\y"
        return Referral(consumed, 0, root, 0, "", [ReferralTarget(target) for target in targets])

    async def main() -> None:
        address = SimpleNamespace(host="h", share="s", path="")
        link = SimpleNamespace(address=address, options=ConnectOptions(), referral=referral)
        links: Links[Share] = Links(link, Login("u", "p"), lambda *_: None, 0)  # type: ignore[arg-type, return-value]
        known = await links.learn("x/y", "x\\y")
        assert (known.parts if known is not None else None) == found
        assert known is None or len(known.targets) <= MAX_TARGETS

    asyncio.run(main())
