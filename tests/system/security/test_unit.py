"""The systemd unit: systemd understands it and finds it hardened, and a server lives with what it leaves."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smb3server.client.protocol.tree import READ_WRITE
from smb3server.config.model import Config
from smb3server.config.schema import Document
from smb3server.config.sections import keys_of
from smb3server.process.capabilities import UNIT as UNIT_CAPABILITIES
from smb3server.process.capabilities import names
from smb3server.service.privileges import needed
from smb3server.settings.cluster import ServiceConfig, VirtualAddress
from smb3server.wire.create import CreateDisposition
from tests.lab.served import ROOT, open_up, served
from tests.lab.unit import NUMBERS, UNIT, confined, words

SOCKET = ROOT / "dist" / "smb3server.socket"
MOST_EXPOSED = 40
"""By systemd's measure, 0 to 100; 50 is what it calls medium."""
with_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


@with_systemd
def test_systemd_understands_it(tmp_path: Path) -> None:
    """All but the program's place, which is not there."""
    copies = [tmp_path / UNIT.name, tmp_path / SOCKET.name]
    for unit, copy in zip((UNIT, SOCKET), copies, strict=True):
        copy.write_text(unit.read_text().replace("/usr/local/bin/smb3server", sys.executable))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *copies], capture_output=True, text=True, check=False
    )
    said = [line for line in verified.stderr.splitlines() if "smb3server" in line]
    assert verified.returncode == 0 and said == []


@with_systemd
def test_it_is_hardened() -> None:
    judged = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", "--offline=true", f"--threshold={MOST_EXPOSED}", UNIT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "Overall exposure level" in judged.stdout


def test_it_has_the_capabilities_that_any_configuration_takes() -> None:
    config = Config(rdma="auto")
    config.cluster.services.append(ServiceConfig("files", [VirtualAddress.parse("192.0.2.1/24@eth0")], []))
    ambient = words("AmbientCapabilities")
    assert set(ambient) == {*names(needed(config)), "CAP_NET_BIND_SERVICE"}
    assert words("CapabilityBoundingSet") == ambient


READ, WRITTEN = "read", "written"
PLACES = {
    "server.state": WRITTEN,
    "server.log_file": WRITTEN,
    "server.audit_file": WRITTEN,
    "server.share_folders": WRITTEN,
    "server.users_file": WRITTEN,
    "server.keytab": READ,
    "domain.secret": WRITTEN,
    "domain.keytab": WRITTEN,
    "share.path": WRITTEN,
    "homes.path": WRITTEN,
    "user.password_file": READ,
    "cluster.ca": READ,
    "cluster.cert": READ,
    "cluster.key": READ,
    "cluster.password_file": READ,
    "cluster.secret_file": READ,
    "quic.certificate": READ,
    "quic.key": READ,
    "quic.client_authority": READ,
    "web.certificate": READ,
    "web.key": READ,
}
"""What the server does with what its configuration names."""


def test_what_the_configuration_names_is_within_its_reach() -> None:
    """Every file and folder of the examples in docs/configuration.md, and every port."""
    found: dict[str, list[str]] = {}
    for part in keys_of(Document).values():
        for key in keys_of(part.section).values() if part.section is not None else ():
            if key.is_path:
                example = key.example if isinstance(key.example, list) else [key.example]
                found[f"{part.name}.{key.name}"] = [str(path) for path in example]
    assert found.keys() == PLACES.keys()
    # Root's own files are read with these capabilities.
    assert {"CAP_DAC_READ_SEARCH", "CAP_NET_BIND_SERVICE"} <= set(words("AmbientCapabilities"))
    assert words("ProtectSystem") == ["full"] and words("PrivateTmp") == ["yes"]
    made = {f"/var/lib/{words('StateDirectory')[0]}", f"/var/log/{words('LogsDirectory')[0]}"}
    for name, paths in found.items():
        for path in paths:
            assert not path.startswith(("/tmp/", "/var/tmp/")), name
            if PLACES[name] == WRITTEN:
                assert not path.startswith(("/usr/", "/boot/", "/etc/")), name
                if path.startswith("/var/"):
                    assert path in made or str(Path(path).parent) in made, name


def test_the_check_judges_by_its_capabilities() -> None:
    assert set(names(UNIT_CAPABILITIES)) == set(words("AmbientCapabilities"))


@with_systemd
@pytest.mark.skipif(platform.machine() != "x86_64" or not NUMBERS.exists(), reason="needs linux-libc-dev of x86-64")
@pytest.mark.skipif(os.geteuid() != 0, reason="acting as users needs root")
def test_a_server_lives_with_its_filter(tmp_path: Path) -> None:
    """All that it does to serve, its own sandbox as well, with the calls that the unit lets pass."""
    open_up(tmp_path)
    share = tmp_path / "share"
    share.mkdir()
    share.chmod(0o777)
    file = tmp_path / "server.toml"
    file.touch(0o600)
    file.write_text(
        '[server]\nsandbox = true\nrdma = "iwarp"\nrdma_port = 0\n[[share]]\nname = "data"\n'
        f'path = "{share}"\ncontinuous_availability = true\n'
        '[[user]]\nname = "u"\npassword = "pw"\nunix_user = "news"\n'
    )
    with served(tmp_path, "--config", str(file), prefix=confined()) as server:
        assert {status["Seccomp_filters"] for status in server.threads()} == {"2"}

        async def use() -> None:
            async with server.tree("u") as tree:
                for name in ("f", "f:stream"):
                    opened = await tree.create(name, READ_WRITE, CreateDisposition.CREATE)
                    await tree.write(opened, 0, b"x" * 1000)
                    await tree.flush(opened)
                    assert bytes(await tree.read(opened, 0, 1000)) == b"x" * 1000
                    await tree.close(opened)

        asyncio.run(use())
        assert server.report()["acts_as_users"] is True
