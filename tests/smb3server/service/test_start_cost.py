"""What the start of a server loads. Each module costs its processor time at every start, of users and of tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.lab.served import served
from tools.support import own_user

OURS, OTHERS = 474, 475
"""Modules that may be loaded: some more than are. Beyond it, look for what only a feature needs that is off."""
PACKAGES = ("smb3server", "smbdirect", "witness")
NOT_WITHOUT_THEIR_FEATURE = {
    "aiohttp": "[cluster], [web]",
    "aioquic": "[quic]",
    "construct": "dumps",
    "crc32c": "iWARP, shared virtual disks",
    "cryptography.x509": "certificates",
    "email": "nothing",
    "gssapi": "keytab",
    "impacket": "[witness], [domain]",
    "importlib.metadata": "versions",
    "krb5": "keytab",
    "rich": "tables on a terminal",
    "smb3server.client": "the client",
    "smb3server.cluster": "[cluster]",
    "smb3server.discovery": "[discovery]",
    "smb3server.domain": "[domain]",
    "smb3server.lab": "tools",
    "smb3server.web": "[web]",
    "smbdirect.providers.iwarp": "--rdma",
    "smbdirect.providers.roce": "--rdma",
    "spnego": "keytab",
    "witness": "[witness]",
    "zeroconf": "[discovery]",
}


STARTED = """
import sys
from smb3server.process import garbage
from smb3server.cli.main import main
freeze = garbage.freeze
def told() -> None:
    freeze()
    print("loaded:", *sys.modules, file=sys.stderr, flush=True)
garbage.freeze = told
sys.exit(main(sys.argv[4:]))
"""
"""Tells what was loaded at the end of the start. Its arguments begin with those of a usual start."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder: Path = tmp_path_factory.mktemp("start")
    share = folder / "share"
    share.mkdir()
    # The server never acts as root.
    (folder / "smb.toml").write_text(f'[[share]]\nname = "data"\npath = "{share}"\n{own_user.LINE}')
    (folder / "password").write_text("pw\n")
    (folder / "password").chmod(0o600)
    options = ["--config", str(folder / "smb.toml"), "--user", "u", "--password-file", str(folder / "password")]
    with served(folder, *options, prefix=[sys.executable, "-c", STARTED]) as server:
        (line,) = re.findall(r"^loaded: (.*)$", server.log(), re.MULTILINE)
        return set(line.split())


def test_a_start_loads_no_more_modules_than_it_did(loaded: set[str]) -> None:
    ours = {name for name in loaded if name.partition(".")[0] in PACKAGES}
    assert "smb3server.service.service" in ours and "smb3server.commands.read" in ours
    assert len(ours) < OURS, sorted(ours)
    others = loaded - ours
    assert len(others) < OTHERS, sorted(others)


@pytest.mark.parametrize("name", NOT_WITHOUT_THEIR_FEATURE)
def test_what_a_feature_needs_is_loaded_for_it_alone(name: str, loaded: set[str]) -> None:
    found = sorted(module for module in loaded if module == name or module.startswith(f"{name}."))
    assert found == [], NOT_WITHOUT_THEIR_FEATURE[name]


def test_no_request_of_a_start_waits_for_a_module_later(loaded: set[str]) -> None:
    """Commands are registered before the first client comes."""
    root = Path(__file__).parents[3]
    commands = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in (root / "smb3server" / "commands").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert commands <= loaded
