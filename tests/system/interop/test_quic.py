"""SMB over QUIC with a client that nobody here wrote: smbclient of Debian's newest Samba, which uses ngtcp2."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from smb3server.service import Service, Share, User
from tests.lab.authority import Authority
from tools.support import own_user
from tools.torture import samba_root

NAME = "localhost"
HERE = "127.0.0.1"


WHY_NOT = samba_root.why_not(samba_root.DEFAULT)


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_smbclient_over_quic(tmp_path: Path) -> None:
    """Files of some bytes and of many travel both ways; a server with another certificate is refused."""
    authority = Authority(tmp_path)
    certificate = authority.make("server", names=[NAME])
    other = Authority(tmp_path, "other")
    folder = tmp_path / "data"
    folder.mkdir()
    content = os.urandom(20 << 20)
    (folder / "large").write_bytes(content)

    def smbclient(port: int, commands: str, trusted: Path) -> subprocess.CompletedProcess[str]:
        words = [
            *(*samba_root.prefix(samba_root.DEFAULT, tmp_path), "smbclient", f"//{NAME}/data"),
            *("-U", "alice%wonderland", f"--option=client smb transports=quic:{port}"),
            *(f"--option=tls cafile={trusted}", "--option=tls verify peer=ca_and_name"),
            *("-c", f"lcd {tmp_path}; {commands}"),
        ]
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)

    async def main() -> None:
        async with Service(
            shares=[Share("data", str(folder), force_user=own_user.NAME)],
            users=[User("alice", password="wonderland")],
            listen=[HERE],
            port=0,
            quic={"certificate": str(certificate), "port": 0},
        ) as service:
            assert service.quic is not None
            port = service.quic.listeners[0].address[1]
            done = await asyncio.to_thread(smbclient, port, "get large; put large again; mkdir x; ls", authority.path)
            assert done.returncode == 0 and "again" in done.stdout, done.stdout + done.stderr
            refused = await asyncio.to_thread(smbclient, port, "ls", other.path)
            assert refused.returncode != 0

    asyncio.run(main())
    assert (tmp_path / "large").read_bytes() == content
    assert (folder / "again").read_bytes() == content
