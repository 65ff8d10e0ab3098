"""Namespaces: two servers of this project for Samba's clients, and Samba as the server of a namespace."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.client import RemoteError, connect
from tests.lab.remote import run
from tests.lab.served import ROOT, open_up
from tools.access_differential import servers
from tools.access_differential.servers import LOGINS, SHARE
from tools.cluster.network import Network, why_not
from tools.support import own_user

pytestmark = [pytest.mark.interop, pytest.mark.root]
USER = LOGINS[0]
NAMESPACE = """
[[namespace]]
name = "files"
comment = "one name"

[[namespace.link]]
path = "here"
targets = ["data"]

[[namespace.link]]
path = "there"
targets = ["//{two}/data"]

[[namespace.link]]
path = "in/folders/deep"
targets = ["//{two}/data/sub"]

[[namespace.link]]
path = "moved"
targets = ["//{away}/data; priority=first", "//{two}/data"]
"""


class Servers:
    """The servers "one", which has the namespace, and "two". The member "client" has the clients."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self.network = network
        self.one, self.two = network.address("one"), network.address("two")

    @contextlib.contextmanager
    def served(self, member: str) -> Iterator[None]:
        place = self.folder / member
        data = place / "data"
        (data / "sub").mkdir(parents=True)
        (data / "name").write_text(member)
        (data / "sub" / "file").write_text(f"sub of {member}")
        text = f'[server]\nlisten = ["{self.network.address(member)}"]\nport = 445\nstate = "{place / "state"}"\n'
        text += f'[[share]]\nname = "data"\npath = "{data}"\n{own_user.LINE}[[user]]\nname = "u"\npassword = "pw"\n'
        if member == "one":
            text += NAMESPACE.format(two=self.two, away="10.77.0.99")
        config = place / "server.toml"
        config.touch(0o600)
        config.write_text(text)
        with (place / "log").open("w") as log:
            process = subprocess.Popen(
                [*self.network.prefix(member), sys.executable, "-m", "smb3server", "--config", str(config)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )
        assert process.stdout is not None
        try:
            assert any(line.startswith("ready") for line in process.stdout), (place / "log").read_text()
            yield
        finally:
            process.terminate()
            with process.stdout:
                assert process.wait(20) == 0
            assert "Traceback" not in (place / "log").read_text()

    def ask(self, *command: str, succeeds: bool = True) -> str:
        """Run a client, and return what it says. ``succeeds``: whether its exit status has to be 0."""
        ended = subprocess.run(
            [*self.network.prefix("client"), *command], capture_output=True, text=True, timeout=60, check=False
        )
        assert not succeeds or ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def smbclient(self, commands: str, *options: str, succeeds: bool = True) -> str:
        address = f"//{self.one}/files"
        return self.ask("smbclient", address, "-U", "u%pw", *options, "-c", commands, succeeds=succeeds)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("dfs")
    open_up(folder)
    network = Network(["one", "two", "client"])
    found = Servers(folder, network)
    try:
        network.up()
        with found.served("one"), found.served("two"):
            yield found
    finally:
        network.down()


needs_smbclient = pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")


@needs_smbclient
@pytest.mark.parametrize("options", [(), ("--client-protection=encrypt",), ("-m", "SMB2")], ids=" ".join)
def test_smbclient_follows_links(lab: Servers, tmp_path: Path, options: tuple[str, ...]) -> None:
    shown = lab.smbclient(
        "ls; ls here\\*; ls there\\sub\\*; cd in\\folders\\deep; ls; cd \\there; showconnect", *options
    )
    for name in ("here", "there", "in", "moved", "name", "file"):
        assert f"  {name} " in shown
    assert f"//{lab.two}/data" in shown
    (tmp_path / "sent").write_bytes(b"x" * 100_000)
    lab.smbclient(
        f"put {tmp_path}/sent there\\new; get there\\new {tmp_path}/back; get here\\name {tmp_path}/name; "
        f"get in\\folders\\deep\\file {tmp_path}/deep; mkdir there\\folder; rename there\\new there\\folder\\old; "
        "del there\\folder\\old; rmdir there\\folder",
        *options,
    )
    assert (tmp_path / "back").read_bytes() == b"x" * 100_000
    assert (tmp_path / "name").read_text() == "one"
    assert (tmp_path / "deep").read_text() == "sub of two"
    assert sorted(entry.name for entry in (lab.folder / "two" / "data").iterdir()) == ["name", "sub"]


@needs_smbclient
def test_smbclient_goes_to_the_next_target(lab: Servers, tmp_path: Path) -> None:
    lab.smbclient(f"get moved\\name {tmp_path}/name")
    assert (tmp_path / "name").read_text() == "two"


@needs_smbclient
@pytest.mark.parametrize("commands", ["mkdir new", "put /etc/hostname new", "rmdir there", "rename there other"])
def test_smbclient_cannot_change_the_namespace(lab: Servers, commands: str) -> None:
    shown = lab.smbclient(commands, succeeds=False)
    assert "NT_STATUS" in shown
    assert "  there " in lab.smbclient("ls")


@pytest.mark.skipif(shutil.which("rpcclient") is None, reason="rpcclient is not installed")
def test_rpcclient_sees_a_root(lab: Servers) -> None:
    shown = lab.ask("rpcclient", lab.one, "-U", "u%pw", "-c", "netsharegetinfo files 1005; netshareenumall")
    assert "flags: 0x3" in shown
    assert "netname: files" in shown


@pytest.mark.skipif(shutil.which("rpcclient") is None, reason="rpcclient is not installed")
def test_rpcclient_lists_namespaces(lab: Servers) -> None:
    def ask(command: str) -> str:
        return lab.ask("rpcclient", lab.one, "-U", "u%pw", "-c", command, succeeds=False)

    assert "dfs is present" in ask("dfsversion")
    paths = re.findall(r"path: \\\\[^\\]+(.*)", ask("dfsenum 1"))
    assert paths == [f"\\files{link}" for link in ("", "\\here", "\\there", "\\in\\folders\\deep", "\\moved")]
    shown = ask("dfsenum 3")
    assert f"storage[0] server: {lab.two}\n\t\tstorage[0] share: data\\sub" in shown
    assert "num_stores: 2" in ask("dfsgetinfo \\\\\\\\any\\\\files\\\\moved x x 2")
    assert "storage[1] share: data" in ask("dfsgetinfo \\\\\\\\any\\\\files\\\\moved x x 3")
    assert "DFSNOSUCHVOLUME" in ask("dfsgetinfo \\\\\\\\any\\\\files\\\\none x x 1")
    assert "DFSNOSUCHVOLUME" in ask("dfsgetinfo \\\\\\\\any\\\\data x x 1")
    assert "present" not in lab.ask("rpcclient", lab.two, "-U", "u%pw", "-c", "dfsversion", succeeds=False)


def test_our_client_between_two_servers(lab: Servers) -> None:
    async def body() -> None:
        async with connect(f"smb://u@{lab.one}/files", password="pw") as share:
            assert await share.read_text("there/name") == "two"
            await share.write_text("there/copy", "content")
            await share.copy("there/copy", "here/copied")
            assert await share.read_text("here/copied") == "content"
            await share.remove("here/copied")
            await share.remove("there/copy")
            found = [path async for path, _, _ in share.walk()]
            there = "here here/sub in in/folders in/folders/deep moved moved/sub there there/sub"
            assert found == ["", *there.split()]
        async with connect(f"smb://u@{lab.one}/files/there/sub", password="pw") as share:
            assert await share.read_text("file") == "sub of two"
        async with connect(f"smb://u@{lab.one}/files", password="pw", sign=False) as share:
            # Who can change a message could send the password's proof elsewhere.
            assert await share.read_text("here/name") == "one"
            with pytest.raises(RemoteError, match="unsigned"):
                await share.read_text("there/name")
        async with connect(f"smb://u@{lab.one}/files", password="pw", follow=False) as share:
            with pytest.raises(RemoteError, match="PATH_NOT_COVERED"):
                await share.read_text("here/name")

    lab.network.inside("client", body)


def test_our_client_in_a_namespace_of_samba() -> None:
    if missing := servers.missing():
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="dfs-samba") as folder:
        place = Path(folder)
        place.chmod(0o755)
        root = place / "root"
        root.mkdir(mode=0o777)
        root.chmod(0o777)
        (root / "link").symlink_to(f"msdfs:127.0.0.1\\{SHARE}")
        (root / "to").mkdir()
        (root / "to" / "other").symlink_to(f"msdfs:127.0.0.1\\none,127.0.0.1\\{SHARE}\\folder")
        (root / "circle").symlink_to("msdfs:127.0.0.1\\root")
        options = f"\n[root]\npath = {root}\nmsdfs root = yes\nread only = no\n"
        with servers.running_samba(place / "samba", options) as (port, path):

            async def main() -> None:
                url = f"smb://{USER.name}@127.0.0.1:{port}/root"
                async with connect(url, password=USER.password) as share:
                    await share.mkdir("link/folder")
                    await share.write_text("link/folder/file", "content")
                    await share.write_text("plain", "in the root")
                    await share.rename("link/folder/file", "link/folder/renamed")
                    assert await share.read_text("to/other/renamed") == "content"
                    await share.rename("plain", "renamed")
                    assert sorted(await share.listdir()) == ["circle", "link", "renamed", "to"]
                    assert [entry.path async for entry in share.scandir("to/other")] == ["to/other/renamed"]
                    with pytest.raises(OSError, match="different shares"):
                        await share.rename("renamed", "link/x")
                    with pytest.raises(OSError, match="link of a namespace"):
                        await share.rmtree("link")
                    with pytest.raises(OSError, match="links lead to each other"):
                        await share.stat("circle/" * 12 + "renamed")
                    assert await share.read_text("circle/circle/link/folder/renamed") == "content"
                    assert await share.rmtree("link/folder") == 2
                    await share.remove("renamed")

            run(main)
            assert list(path.iterdir()) == []
            assert sorted(entry.name for entry in root.iterdir()) == ["circle", "link", "to"]
