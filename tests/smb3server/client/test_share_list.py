"""The shares of a server, and servers that lie about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smb3server.cli import exits
from smb3server.cli.main import main
from smb3server.client import ListedShare, RemoteError, list_shares, share_list
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.tree import Tree
from smb3server.client.share_list import _listed
from smb3server.wire.status import NtStatus
from tests.lab.remote import PASSWORD, Home, home, run

MANY = 500


def at(served: Home) -> str:
    return served.url.removesuffix("/share")


def listed(served: Home, **options: Any) -> list[ListedShare]:
    return run(lambda: list_shares(at(served), **({"password": PASSWORD, "rdma": "off"} | options)))


def test_the_shares_of_our_server(
    served: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [(share.name, share.kind, share.hidden) for share in listed(served)] == [
        ("IPC$", "pipe", True),
        ("share", "disk", False),
    ]
    assert listed(served, encrypt=True) == listed(served)
    monkeypatch.setenv("SMB3SERVER_PASSWORD", PASSWORD)
    assert main(["client", "ls", at(served)]) == 0
    assert capsys.readouterr().out == "share/\n"
    assert main(["client", "ls", "-l", at(served), "--rdma=iwarp", "--rdma-port", str(served.rdma_port)]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["pipe", "IPC$"], ["disk", "share"]]
    assert main(["client", "ls", "--json", f"{at(served)}/"]) == 0
    assert [json.loads(line)["share"] for line in capsys.readouterr().out.splitlines()] == ["IPC$", "share"]
    assert main(["client", "mkdir", at(served)]) == exits.EXIT_USAGE
    assert "lists the shares" in capsys.readouterr().err


def test_many_shares_come_in_many_fragments(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    text = "".join(f"[[share]]\nname = 'share-{number:04}'\npath = '{tmp_path}/folder'\n" for number in range(MANY))
    with home(tmp_path, text=text) as many:
        found = listed(many)
    assert len([share for share in found if share.name.startswith("share-")]) == MANY


def test_who_may_not_ask(served: Home) -> None:
    with pytest.raises(PermissionError, match="does not let u in"):
        listed(served, password="wrong")


def test_a_server_that_does_not_tell(served: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: Tree, name: str, *words: Any, **options: Any) -> Any:
        raise ServerError(NtStatus.ACCESS_DENIED)

    monkeypatch.setattr(Tree, "create", refuse)
    with pytest.raises(PermissionError, match="STATUS_ACCESS_DENIED: the server does not tell its shares"):
        listed(served)


@pytest.mark.parametrize(
    "stub", [b"", bytes(24), b"\xff" * 400, b"\1\0\0\0" * 50], ids=["none", "zeros", "ones", "few"]
)
def test_lists_that_cannot_be_read(stub: bytes) -> None:
    with pytest.raises(RemoteError):
        _listed(stub, "smb://nas")


@pytest.mark.parametrize(
    "answer", [b"\5\0\3\3" + bytes(40), b"\5\0\2\0\x10\0\0\0\x18\0" + bytes(14), b"x"], ids=["fault", "endless", "cut"]
)
def test_answers_that_are_none(served: Home, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ioctl(self: Tree, code: int, data: bytes, *words: Any, **options: Any) -> bytes:
        return answer if data[2] == 0 else b"\5\0\x0c\3\x10\0\0\0\x18\0" + bytes(14)

    async def read(self: Tree, *words: Any) -> bytes:
        return answer

    monkeypatch.setattr(Tree, "ioctl", ioctl)
    monkeypatch.setattr(Tree, "read", read)
    monkeypatch.setattr(share_list, "MAX_ANSWER", 10_000)
    with pytest.raises(RemoteError, match=r"shares|no end"):
        listed(served)
