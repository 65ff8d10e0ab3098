"""Permissions, shares and users that administrators change at one node of a cluster, seen at the next."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smb3server.access.descriptor import EVERYONE, Acl, Control, SecurityDescriptor, allow
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.rpc.ndr import ERROR_ACCESS_DENIED
from smb3server.rpc.srvsvc_shares import NetrShareSetInfo
from tests.lab.etcd import Etcd
from tests.lab.nodes import Node, asked
from tests.lab.served import in_process
from tools.support import own_user

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.dcerpc.v5 import srvs, transport
    from impacket.dcerpc.v5.dtypes import NULL
    from impacket.smbconnection import SessionError, SMBConnection

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NOBODY = SecurityDescriptor(dacl=Acl()).pack()
EVERYBODY = SecurityDescriptor(dacl=Acl((allow(EVERYONE, FILE_ALL_ACCESS),)), control=Control.DACL_PRESENT).pack()
needs_etcdctl = pytest.mark.skipif(shutil.which("etcdctl") is None, reason="etcdctl is not installed (etcd-client)")
needs_rpcclient = pytest.mark.skipif(shutil.which("rpcclient") is None, reason="rpcclient is not installed")


def wait_until(condition: Callable[[], bool], complaint: Callable[[], str], timeout: float = 40.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.1)


class Pair:
    """``u`` is an administrator, ``bob`` is not. Users are in the users files, each node has its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        share = folder / "share"
        share.mkdir()
        share.chmod(0o777)
        self.etcd = Etcd(folder)
        self.etcd.start()
        sections = (
            f'[[service]]\nname = "files"\nnodes = ["a", "b"]\n[[share]]\nname = "data"\npath = "{share}"\n'
            f'{own_user.LINE}service = "files"\n[[user]]\nname = "bob"\npassword = "pw"\n'
        )
        self.nodes = {
            name: Node(folder, name, self.etcd.url, sections, options='admins = ["u"]') for name in ("a", "b")
        }

    def start(self) -> Pair:
        for node in self.nodes.values():
            node.start()
        self.wait_for("a")
        return self

    def wait_for(self, node: str) -> None:
        def served() -> bool:
            status, out, _ = asked(self.etcd.url, "status", "--json", "--quick")
            return status == 0 and any(
                entry["node"] == node and entry["serving"] for entry in json.loads(out)["services"]
            )

        wait_until(served, lambda: "".join(entry.log()[-2000:] for entry in self.nodes.values()))

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.etcd.stop()

    def connects(self, node: str) -> bool:
        """Whether bob may connect to the share at a node that serves it."""
        connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=self.nodes[node].port)
        connection.login("bob", "pw")
        try:
            connection.connectTree("data")
        except SessionError as error:
            assert error.getErrorString()[0] == "STATUS_ACCESS_DENIED", error
            return False
        finally:
            connection.close()
        return True

    def srvsvc(self, node: str) -> Any:
        channel = transport.SMBTransport("127.0.0.1", self.nodes[node].port, r"\srvsvc", "u", "pw").get_dce_rpc()
        channel.connect()
        channel.bind(srvs.MSRPC_UUID_SRVS)
        return channel

    def permit(self, node: str, descriptor: bytes) -> int:
        """As Computer Management does. Return the error, 0 for none."""
        channel = self.srvsvc(node)
        request = NetrShareSetInfo()
        request["ServerName"], request["NetName"], request["ParmErr"] = NULL, "data\0", NULL
        request["Level"] = request["ShareInfo"]["tag"] = 1501
        info = request["ShareInfo"]["ShareInfo1501"]
        info["shi1501_reserved"], info["shi1501_security_descriptor"] = len(descriptor), descriptor
        channel.call(request.opnum, request)
        return int.from_bytes(channel.recv()[-4:], "little")

    def run(self, node: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One ``smb3server`` command about a node."""
        return in_process(*arguments, "--state", str(self.folder / node))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path)
    try:
        yield found.start()
    finally:
        found.stop()


@pytest.mark.long
@needs_etcdctl
def test_permissions_follow_the_service(pair: Pair) -> None:
    """Over a move, over a failure, when they are removed at the other node, and when etcd has lost them."""
    assert pair.connects("a")
    assert pair.permit("a", NOBODY) == 0
    assert not pair.connects("a")
    assert asked(pair.etcd.url, "move", "files", "b")[0] == 0
    assert not pair.connects("b")
    assert "permissions changed" in pair.nodes["b"].log()

    # They may be set at a node that does not serve the share, too, and the one that serves it is told.
    assert pair.permit("a", EVERYBODY) == 0
    wait_until(lambda: pair.connects("b"), pair.nodes["b"].log)
    assert pair.permit("b", NOBODY) == 0
    wait_until(lambda: "FA" not in (pair.folder / "a" / "shares.toml").read_text(), pair.nodes["a"].log)

    pair.nodes["b"].kill()
    pair.wait_for("a")
    assert not pair.connects("a")

    # An etcd that was made again has no permissions: those that the node knows become the cluster's again.
    pair.nodes["a"].kill()
    subprocess.run(
        ["etcdctl", "--endpoints", pair.etcd.members[0].client, "del", "--prefix", "smb3server/"],
        env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
    )
    pair.nodes["a"].start()
    pair.wait_for("a")
    assert not pair.connects("a")
    assert "etcd has no permissions for it" in pair.nodes["a"].log()
    pair.nodes["b"].start()
    # Once it has joined.
    wait_until(lambda: asked(pair.etcd.url, "move", "files", "b")[0] == 0, pair.nodes["b"].log)
    assert not pair.connects("b")


@needs_rpcclient
def test_shares_and_users_are_not_added_at_one_node(pair: Pair) -> None:
    """The other nodes would not have them: the error says what to do instead."""
    channel = pair.srvsvc("a")
    request = srvs.NetrShareAdd()
    request["ServerName"], request["Level"] = NULL, 2
    request["InfoStruct"]["tag"] = 2
    info = request["InfoStruct"]["ShareInfo2"]
    info["shi2_netname"], info["shi2_path"] = "more\0", f"{pair.folder / 'share'}\0"
    info["shi2_type"], info["shi2_max_uses"] = 0, 0xFFFFFFFF
    info["shi2_remark"], info["shi2_passwd"] = "\0", NULL
    channel.call(request.opnum, request)
    assert int.from_bytes(channel.recv()[-4:], "little") == ERROR_ACCESS_DENIED
    ended = pair.run("a", "share", "add", "more", str(pair.folder / "share"))
    assert ended.returncode == 1
    assert "to the configuration file of every node" in ended.stderr

    ended = subprocess.run(
        ["rpcclient", "-p", str(pair.nodes["a"].port), "-U", "u%pw", "127.0.0.1", "-c", "createdomuser carol"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "NT_STATUS_ACCESS_DENIED" in ended.stdout + ended.stderr
    assert "carol" not in "".join(path.read_text() for path in pair.folder.glob("*/users"))
    assert "each node has a users file of its own" in pair.nodes["a"].log()
