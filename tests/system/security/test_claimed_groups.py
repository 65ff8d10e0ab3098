"""Groups that a ticket claims: those of domains count, those of this server do not. The tickets and the client are
impacket's.

The tickets have the server's own key, as a controller of a trusted domain could have them made."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.wire.status import NtStatus
from tools.support import server_process
from tools.support.server_process import ServerProcess

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.smbconnection import SessionError, SMBConnection

forging = pytest.importorskip("tools.attacks.forging", reason="needs the part domain")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("gssapi", "krb5")), reason="needs the part kerberos"
    ),
]

OTHERS = "S-1-5-21-4-5-6-1234"
"""A group of a trusted domain."""
ADMINISTRATORS = "S-1-5-32-544"
CONFIG = """
[server]
name = "FILES"
listen = ["127.0.0.1"]
port = 0
[domain]
realm = "{realm}"
workgroup = "{workgroup}"
keytab = "{folder}/domain.keytab"
idmap = "none"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    folder = tmp_path_factory.mktemp("claims")
    forging.write_account(folder)
    config = CONFIG.format(realm=forging.REALM, workgroup=forging.WORKGROUP, folder=folder)
    listed = {"all": "", "others": f"@{OTHERS}", "staff": f"@{forging.DOMAIN_SID}-1200", "own": f"@{ADMINISTRATORS}"}
    for share, entry in listed.items():
        (folder / share).mkdir()
        (folder / share / "file").touch()
        config += f'[[share]]\nname = "{share}"\npath = "{folder}/{share}"\n'
        config += f'users = ["{entry}"]\n' if entry else ""
    with server_process.running(folder, config) as running:
        yield running, folder


def is_open(server: tuple[ServerProcess, Path], share: str, *claims: str) -> bool:
    """Return whether a share is open to a user with a ticket that has these claims. Raises ``SessionError``."""
    running, folder = server
    forging.make_ticket(folder, "alice", forging.PASSWORD, *claims)
    connection = SMBConnection(forging.HOST, "127.0.0.1", sess_port=running.port)
    before = os.environ.get("KRB5CCNAME")
    os.environ["KRB5CCNAME"] = str(folder / "alice.ccache")
    try:
        connection.kerberosLogin("alice", "", forging.REALM, useCache=True)
        assert not connection.isGuestSession()
        return "file" in [one.get_longname() for one in connection.listPath(share, "*")]
    except SessionError as error:
        if error.getErrorCode() == NtStatus.ACCESS_DENIED:
            return False
        raise
    finally:
        if before is None:
            del os.environ["KRB5CCNAME"]
        else:
            os.environ["KRB5CCNAME"] = before
        connection.close()


@pytest.mark.parametrize(
    ("share", "claims", "open_to"),
    [
        ("all", (), True),
        ("others", (), False),
        ("others", ("-extra-sid", OTHERS), True),
        ("staff", (), False),
        ("staff", ("-groups", "513,1200"), True),
        ("own", ("-extra-sid", ADMINISTRATORS), False),
    ],
)
def test_only_groups_of_domains_count(
    server: tuple[ServerProcess, Path], share: str, claims: tuple[str, ...], open_to: bool
) -> None:
    assert is_open(server, share, *claims) is open_to


def test_the_refused_are_no_failure(server: tuple[ServerProcess, Path]) -> None:
    assert "Traceback" not in server[0].log_text()
