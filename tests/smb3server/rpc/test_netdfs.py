"""Looking at namespaces (MS-DFSNM): levels, long lists, and who sees what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from smb3server.access.identity import Identity
from smb3server.config.model import NamespaceConfig
from smb3server.dfs.namespace import Link, Namespace
from smb3server.rpc import netdfs
from smb3server.rpc.dcerpc import Fault
from smb3server.server.server import Server
from smb3server.service.namespaces import RunningNamespaces
from smb3server.service.running_shares import RunningShares
from smb3server.service.stored_opens import StoredOpens

LINKS = tuple(Link.make(f"link{number}", ["//other/data"], comment="a comment", ttl=60) for number in range(100))


def interface(users: frozenset[str] | None = None) -> Any:
    server = Server()
    namespaces = RunningNamespaces(server, RunningShares(server, StoredOpens(server)))
    namespaces.add(NamespaceConfig(Namespace("files", LINKS), users))
    session: Any = SimpleNamespace(
        identity=Identity("u"), connection=SimpleNamespace(client_name="127.0.0.1"), token=None
    )
    return netdfs.interface(server, session)


def enum(served: Any, level: int, resume: int | None = 0) -> Any:
    request = netdfs._EnumRequest()
    request["Level"], request["PrefMaxLen"] = level, 0xFFFFFFFF
    request["DfsEnum"] = netdfs.NULL
    request["ResumeHandle"] = netdfs.NULL if resume is None else resume
    return netdfs._EnumAnswer(served.operations[5](request.getData()))


def get_info(served: Any, path: str, level: int) -> Any:
    request = netdfs._GetInfoRequest()
    request["DfsEntryPath"], request["Level"] = path + "\0", level
    request["ServerName"] = request["ShareName"] = netdfs.NULL
    return netdfs._GetInfoAnswer(served.operations[4](request.getData()))


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_a_long_list_comes_in_parts(level: int) -> None:
    served, found, resume = interface(), [], 0
    while not (answer := enum(served, level, resume))["ErrorCode"]:
        entries = answer["DfsEnum"]["DfsInfoContainer"]["Info"]["Buffer"]
        assert len(entries) <= netdfs.AT_ONCE
        found += [entry["EntryPath"].rstrip("\0").rpartition("\\")[2] for entry in entries]
        resume = answer["ResumeHandle"]
    assert answer["ErrorCode"] == netdfs.ERROR_NO_MORE_ITEMS
    assert found == ["files", *(link.name for link in LINKS)]


def test_what_is_known_of_a_link() -> None:
    answer = get_info(interface(), "\\\\any\\FILES\\LINK7", 4)
    assert answer["ErrorCode"] == 0
    info = answer["DfsInfo"]["Info"]
    assert info["Comment"] == "a comment\0"
    assert (info["State"], info["Timeout"], info["NumberOfStorages"]) == (1, 60, 1)
    assert [(one["ServerName"], one["ShareName"]) for one in info["Storage"]] == [("other\0", "data\0")]


@pytest.mark.parametrize(
    "path", ["", "\\", "\\\\any", "\\\\any\\none", "\\\\any\\files\\none", "\\\\any\\files\\link1\\x"]
)
def test_what_is_no_root_and_no_link(path: str) -> None:
    assert get_info(interface(), path, 1)["ErrorCode"] == netdfs.NERR_DFS_NO_SUCH_VOLUME


@pytest.mark.parametrize("level", [0, 5, 9, 50, 106, 300, 4711])
def test_levels_that_are_not_there(level: int) -> None:
    assert get_info(interface(), "\\\\any\\files", level)["ErrorCode"] == 87
    assert enum(interface(), level)["ErrorCode"] == 87


@pytest.mark.parametrize("users", [frozenset({"other"}), frozenset()])
def test_who_may_not_use_a_namespace_sees_none(users: frozenset[str]) -> None:
    served = interface(users)
    assert enum(served, 1, None)["ErrorCode"] == netdfs.ERROR_NO_MORE_ITEMS
    assert get_info(served, "\\\\any\\files", 1)["ErrorCode"] == netdfs.NERR_DFS_NO_SUCH_VOLUME


@pytest.mark.parametrize("number", [4, 5])
@pytest.mark.parametrize("stub", [b"", b"\1", bytes(7), b"\xff" * 40])
def test_stubs_that_are_none(number: int, stub: bytes) -> None:
    with pytest.raises(Fault):
        interface().operations[number](stub)
