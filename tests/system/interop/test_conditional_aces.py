"""Files whose entries have conditions, with smbcacls and smbclient of Debian's newest Samba.

They are the only clients outside Windows that write such entries."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from smb3server.access import sddl
from smb3server.access.descriptor import Ace
from smb3server.service import Service, Share, User
from smb3server.wire.query_info import InfoType, SecurityInformation
from tests.lab.rights import MAXIMUM, Actor
from tests.lab.wire_client import Client
from tools.support import own_user
from tools.torture import samba_root

WHY_NOT = samba_root.why_not(samba_root.DEFAULT)
pytestmark = [
    pytest.mark.interop,
    pytest.mark.root,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]
HERE = "127.0.0.1"
DENIED = "NT_STATUS_ACCESS_DENIED"


class Programs:
    """Samba's programs, as clients of the server at a port."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port

    async def run(self, program: str, user: str, *arguments: str) -> str:
        command = [
            *samba_root.prefix(samba_root.DEFAULT, self._folder),
            *(program, f"//{HERE}/data", *arguments),
            *("-U", f"{user}%pw", f"--option=client smb transports=tcp:{self._port}"),
        ]
        ended = await asyncio.to_thread(
            subprocess.run, command, check=False, capture_output=True, text=True, timeout=60
        )
        return (ended.stdout + ended.stderr).strip()

    async def acl(self, name: str, *verb: str) -> str:
        """Run smbcacls as the owner. It crashes without a --domain-sid beside --sddl."""
        return await self.run("smbcacls", "alice", name, "--sddl", "--domain-sid", "S-1-5-21-1-2-3", *verb)

    async def reads(self, name: str) -> bool:
        """Return whether another user may read a file."""
        answer = await self.run("smbclient", "bob", "-c", f"get {name} /dev/null")
        assert "getting file" in answer or DENIED in answer, answer
        return DENIED not in answer


def _aces(text: str) -> set[Ace]:
    """Return the entries of a DACL. smbcacls sorts them before it sends them."""
    dacl = sddl.parse(text).dacl
    assert dacl is not None
    return set(dacl.aces)


async def _set_attributes(port: int, name: str, text: str) -> None:
    """Set the resource attributes of a file. No program of Samba does."""
    client = Client(*await asyncio.open_connection(HERE, port))
    assert (await client.negotiate(0x0302)).status == 0
    assert (await client.session_setup("alice", "pw")).status == 0
    assert (await client.tree_connect("data")).status == 0
    actor = Actor(client, "")
    file = await actor.open(name, MAXIMUM)
    parts = int(SecurityInformation.ATTRIBUTE)
    await actor.set_info(file, 0, sddl.parse(text).pack(), InfoType.SECURITY, parts)
    await actor.close(file)
    client.writer.close()


def test_conditions_and_attributes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    by_group = "(XA;;FR;;;WD;((Member_of {SID(BU)}) && (!(Member_of {SID(BA)}))))"
    by_attribute = '(XA;;FR;;;WD;(@RESOURCE.Project == "sql"))'

    async def main() -> None:
        async with Service(
            shares=[Share("data", str(tmp_path / "data"), force_user=own_user.NAME)],
            users=[User("alice", password="pw"), User("bob", password="pw")],
            listen=[HERE],
            port=0,
        ) as service:
            port = service.listeners[0].address[1]
            programs = Programs(tmp_path, port)
            assert "putting file" in await programs.run("smbclient", "alice", "-c", "put /etc/hostname file; mkdir d")
            for dacl, reads in (
                (by_group, True),
                (by_group.replace("!", ""), False),
                ("(XD;;0x1;;;WD;(Member_of_Any {SID(BU)}))(A;;FR;;;WD)", False),
                ("(XD;;0x1;;;WD;(Member_of_Any {SID(BA)}))(A;;FR;;;WD)", True),
                ("(XD;;0x1;;;WD;(@USER.Level < 5))(A;;FR;;;WD)", False),
                (by_attribute, False),
            ):
                sent = f"D:P(A;;FA;;;OW){dacl}"
                assert await programs.acl("file", "-S", sent) == ""
                assert await programs.reads("file") == reads, dacl
                assert _aces(await programs.acl("file", "--query-security-info", "0x4")) == _aces(sent)

            await _set_attributes(port, "file", 'S:(RA;;;;;WD;("Project",TS,0,"SQL"))')
            assert await programs.reads("file")
            assert '(RA;;;;;WD;("Project",TS,0x0,"SQL"))' in await programs.acl("file", "--query-security-info", "0x24")
            assert "(RA" not in await programs.acl("file", "--query-security-info", "0x4")

            # A new file has the entries and the attributes that its folder passes on.
            assert await programs.acl("d", "-S", f"D:P(A;OICI;FA;;;OW){by_attribute.replace(';;', ';OICI;', 1)}") == ""
            await _set_attributes(port, "d", 'S:(RA;OICI;;;;WD;("Project",TS,0,"SQL"))')
            assert "putting file" in await programs.run("smbclient", "alice", "-c", "put /etc/hostname d\\new")
            assert await programs.reads("d\\new")
            await _set_attributes(port, "d\\new", 'S:(RA;;;;;WD;("Project",TS,0,"Azure"))')
            assert not await programs.reads("d\\new")

    asyncio.run(main())
