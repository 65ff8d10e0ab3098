"""What administrators change by SMB on a cluster of two nodes: it is the cluster's, or refused with the reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from impacket.dcerpc.v5 import samr, srvs
from impacket.dcerpc.v5.dtypes import NULL
from impacket.dcerpc.v5.transport import SMBTransport
from impacket.smbconnection import SessionError, SMBConnection

from smb3server.access.descriptor import Acl, SecurityDescriptor
from smb3server.rpc.srvsvc_shares import NetrShareSetInfo
from smb3server.status.admin_socket import SOCKET_NAME, ask
from tests.lab.etcd import Etcd
from tests.lab.nodes import PASSWORD, USER, Node, asked
from tools.support import own_user

NOBODY = SecurityDescriptor(dacl=Acl()).pack()
OTHER = "bob"


class Pair:
    def __init__(self, folder: Path) -> None:
        share = folder / "share"
        share.mkdir()
        self.etcd = Etcd(folder, 1)
        self.etcd.start()
        services = (
            f'[[user]]\nname = "{OTHER}"\npassword = "{PASSWORD}"\n'
            '[[service]]\nname = "one"\nnodes = ["a", "b"]\n'
            f'[[share]]\nname = "data"\npath = "{share}"\n{own_user.LINE}service = "one"\n'
        )
        self.nodes = {
            name: Node(folder, name, self.etcd.url, services, options=f'admins = ["{USER}"]') for name in "ab"
        }
        self.nodes["a"].start()
        self.served_by("a")
        self.nodes["b"].start()

    def served_by(self, name: str) -> None:
        deadline = time.monotonic() + 40
        while f'"node": "{name}"' not in asked(self.etcd.url, "status", "--json", "--quick")[1].replace("\n", " "):
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def move(self, name: str) -> None:
        status, _, errors = asked(self.etcd.url, "move", "one", name)
        assert status == 0, errors

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.etcd.stop()

    def permit(self, name: str, descriptor: bytes) -> int:
        """Set the permissions of the service's share at a node, as Computer Management does; return the status."""
        transport = SMBTransport("127.0.0.1", self.nodes[name].port, r"\srvsvc", USER, PASSWORD)
        rpc = transport.get_dce_rpc()
        rpc.connect()
        rpc.bind(srvs.MSRPC_UUID_SRVS)
        request = NetrShareSetInfo()
        request["ServerName"], request["NetName"], request["ParmErr"] = NULL, "data\0", NULL
        request["Level"] = request["ShareInfo"]["tag"] = 1501
        request["ShareInfo"]["ShareInfo1501"]["shi1501_reserved"] = len(descriptor)
        request["ShareInfo"]["ShareInfo1501"]["shi1501_security_descriptor"] = descriptor
        rpc.call(request.opnum, request)
        status = int.from_bytes(rpc.recv()[-4:], "little")
        rpc.disconnect()
        return status

    def may_connect(self, name: str) -> bool:
        connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=self.nodes[name].port)
        connection.login(OTHER, PASSWORD)
        try:
            connection.connectTree("data")
        except SessionError as error:
            assert "ACCESS_DENIED" in str(error)
            return False
        finally:
            connection.close()
        return True


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path)
    try:
        yield found
    finally:
        found.stop()


def test_permissions_of_a_services_share_are_the_clusters(pair: Pair) -> None:
    assert pair.may_connect("a")
    assert pair.permit("a", NOBODY) == 0
    assert not pair.may_connect("a")
    pair.move("b")
    assert not pair.may_connect("b")
    pair.nodes["b"].kill()
    pair.served_by("a")
    assert not pair.may_connect("a")


def test_where_the_service_is_not_served_nothing_is_changed(pair: Pair) -> None:
    assert pair.permit("b", NOBODY) != 0
    pair.move("b")
    assert pair.may_connect("b")


def test_shares_and_users_of_one_node_are_refused(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    answer = ask(tmp_path / "a" / SOCKET_NAME, "share-add", name="more", path=str(tmp_path / "more"))
    assert "the other nodes would not have the share" in str(answer)
    transport = SMBTransport("127.0.0.1", pair.nodes["a"].port, r"\samr", OTHER, PASSWORD)
    rpc = transport.get_dce_rpc()
    rpc.connect()
    rpc.bind(samr.MSRPC_UUID_SAMR)
    with pytest.raises(samr.DCERPCSessionError):
        samr.hSamrUnicodeChangePasswordUser2(rpc, "\0", OTHER, PASSWORD, "Correct-Horse-7")
    rpc.disconnect()
    assert "the other nodes would not know of it" in pair.nodes["a"].log()
    assert pair.may_connect("a")
