"""Namespaces of a running server: what a reload, the command and a program change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.client import connect
from smb3server.config.error import ConfigError
from smb3server.config.schema import Share, User
from smb3server.dfs.namespace import Link, Namespace
from smb3server.service.service import Service
from tests.lab.served import Served, done, in_process, open_up, refused, run_command, served
from tools.support import own_user

FILES = """
[[namespace]]
name = "files"
ttl = 120

[[namespace.link]]
path = "here"
targets = ["data"]
"""


def write(folder: Path, more: str) -> None:
    share = f'[[share]]\nname = "data"\npath = "{folder / "data"}"\n{own_user.LINE}'
    (folder / "c.toml").write_text(f'[[user]]\nname = "alice"\npassword = "pw"\n{share}{more}')


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """It has the namespace "files" with a link to its share "data"."""
    open_up(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("content")
    (tmp_path / "c.toml").touch(0o600)
    write(tmp_path, FILES)
    with served(tmp_path, "--config", str(tmp_path / "c.toml")) as found:
        yield found


def listed(server: Served, share: str = "files") -> list[str]:
    async def look() -> list[str]:
        async with connect(f"smb://alice@127.0.0.1:{server.port}/{share}", password="pw") as found:
            return sorted(await found.listdir())

    return asyncio.run(look())


def read(server: Served, path: str) -> str:
    async def look() -> str:
        async with connect(f"smb://alice@127.0.0.1:{server.port}/files", password="pw") as found:
            return await found.read_text(path)

    return asyncio.run(look())


def links(server: Served) -> dict[str, tuple[str, list[str]]]:
    (files,) = json.loads(done(server, "dfs", "list", "--json"))
    return {link["path"]: (link["origin"], link["targets"]) for link in files["links"]}


def test_links_of_run_time(server: Served) -> None:
    assert listed(server) == ["here"]
    assert read(server, "here/file") == "content"
    assert "projects" in done(server, "dfs", "add", "files/in/projects", "data", "//x/y; priority=last")
    assert listed(server) == ["here", "in"]
    assert read(server, "in/projects/file") == "content"
    assert links(server) == {
        "here": ("configuration", ["data"]),
        "in/projects": ("run time", ["data", "//x/y; priority=last"]),
    }
    done(server, "dfs", "set", "files/in/projects", "--set", "targets=data", "--set", "ttl=60")
    assert links(server)["in/projects"] == ("run time", ["data"])
    done(server, "dfs", "set", "files/in/projects", "--unset", "ttl")
    table = done(server, "dfs", "list")
    assert "files/in/projects" in table
    done(server, "reload")
    assert set(links(server)) == {"here", "in/projects"}
    done(server, "dfs", "remove", "files/in/projects")
    assert listed(server) == ["here"]


def test_what_is_refused(server: Served) -> None:
    assert "there is none of this name" in refused(server, "dfs", "add", "none/x", "data")
    assert "there is one of this name" in refused(server, "dfs", "add", "files/HERE", "data")
    assert "below link here" in refused(server, "dfs", "add", "files/here/below", "data")
    assert "a port cannot be given" in refused(server, "dfs", "add", "files/x", "//a:445/b")
    assert "unknown key" in refused(server, "dfs", "add", "files/x", "data", "--set", "colour=1")
    assert "the configuration file has it" in refused(server, "dfs", "remove", "files/here")
    assert "the configuration file has it" in refused(server, "dfs", "set", "files/here", "--set", "ttl=1")
    assert "there is none" in refused(server, "dfs", "remove", "files/x")
    assert run_command(server, "dfs", "add", "files", "data").returncode == 2
    assert "one of this name" in refused(server, "share", "add", "files", str(server.state.parent / "data"))
    assert links(server) == {"here": ("configuration", ["data"])}


def test_a_reload_changes_namespaces(server: Served, tmp_path: Path) -> None:
    done(server, "dfs", "add", "files/more", "data")
    write(tmp_path, FILES.replace('"here"', '"there"') + '\n[[namespace]]\nname = "second"\n')
    assert "namespace files: changed" in done(server, "reload")
    assert listed(server) == ["more", "there"]
    assert listed(server, "second") == []
    write(tmp_path, "")
    assert "namespace files: removed" in done(server, "reload")
    assert run_command(server, "dfs", "add", "files/x", "data").returncode == 1
    write(tmp_path, FILES + FILES.replace('"files"', '"data"'))
    assert "there is a share of this name" in refused(server, "reload")
    write(tmp_path, FILES)
    done(server, "reload")
    assert listed(server) == ["here", "more"]


def test_a_link_that_the_file_has_by_now(server: Served, tmp_path: Path) -> None:
    done(server, "dfs", "add", "files/more", "//other/data")
    write(tmp_path, FILES + '[[namespace.link]]\npath = "more"\ntargets = ["data"]\n')
    assert "given twice" in done(server, "reload")
    assert read(server, "more/file") == "content"
    done(server, "dfs", "remove", "files/more")
    assert links(server)["more"] == ("configuration", ["data"])
    assert "given twice" not in done(server, "reload")


def test_links_outlive_a_restart(tmp_path: Path) -> None:
    open_up(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "c.toml").touch(0o600)
    write(tmp_path, FILES)
    with served(tmp_path, "--config", str(tmp_path / "c.toml")) as first:
        done(first, "dfs", "add", "files/kept", "data", "//other/data; rank=3", "--set", "comment=a link")
        done(first, "dfs", "add", "files/gone", "data")
        done(first, "dfs", "remove", "files/gone")
    with served(tmp_path, "--config", str(tmp_path / "c.toml")) as second:
        assert links(second)["kept"] == ("run time", ["data", "//other/data; rank=3"])
        assert listed(second) == ["here", "kept"]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('[[namespace.link]]\npath = "a"\ntargets = []', "at least one target"),
        ('[[namespace.link]]\npath = "a"\ntargets = ["//x"]', "names no share"),
        ('[[namespace.link]]\npath = "a"\ntargets = ["//x/y; site=rome"]', "no site rome"),
        ('[[namespace.link]]\npath = "here/a"\ntargets = ["data"]', "below link here"),
        ('[[namespace.link]]\npath = "a"\ntargets = ["files"]', "its own namespace"),
        ('[[namespace.link]]\ntargets = ["data"]', "path is needed"),
        ('[[site]]\nname = "x"\nnetworks = ["1.2.3.4/8"]', "host bits"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, section: str, said: str) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path, f"{FILES}\n{section}\n")
    (tmp_path / "c.toml").chmod(0o600)
    ended = in_process("check", "--config", str(tmp_path / "c.toml"))
    assert ended.returncode == 2
    assert said in ended.stdout + ended.stderr


def test_a_namespace_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("content")

    async def main() -> None:
        shares = [Share(name="data", path=str(tmp_path / "data"), force_user=own_user.NAME)]
        service = Service(shares=shares, users=[User(name="u", password="pw")], listen=["127.0.0.1"], port=0)
        service.add_namespace(Namespace("files", (Link.make("one", ["data"]),)))
        async with service:
            with pytest.raises(ConfigError, match="of this name"):
                service.add_namespace(Namespace("data"))
            async with connect(f"smb://u@127.0.0.1:{service.address[1]}/files", password="pw") as share:
                assert await share.read_text("one/file") == "content"
                service.add_namespace(Namespace("files", (Link.make("two", ["data"]),)))
                assert await share.listdir() == ["two"]
                await service.reload()
                assert await share.read_text("two/file") == "content"

    asyncio.run(main())
