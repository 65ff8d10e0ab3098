"""The log and the audit name the events as Windows numbers them: each declared number by a situation of a client."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.state.windows_events import AUDIT_EVENTS, EVENTS, WindowsEvent
from tests.lab.command import Served, serve, stop
from tests.lab.impacket_channels import Channel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket import smb3structs
    from impacket.dcerpc.v5 import srvs, transport
    from impacket.ldap import ldaptypes
    from impacket.smbconnection import SMBConnection
    from smbprotocol.connection import Connection, Dialects
    from smbprotocol.create_contexts import (
        CreateContextName,
        SMB2CreateContextRequest,
        SMB2CreateDurableHandleReconnect,
        SMB2CreateDurableHandleRequestV2,
    )
    from smbprotocol.exceptions import SMBException
    from smbprotocol.open import (
        CreateDisposition,
        CreateOptions,
        FilePipePrinterAccessMask,
        ImpersonationLevel,
        Open,
        RequestedOplockLevel,
        ShareAccess,
    )
    from smbprotocol.session import Session
    from smbprotocol.tree import TreeConnect

LOST = (SMBException, OSError, ValueError)
"""What smbprotocol raises when the server ends the connection."""
pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CONFIG = """
[server]
state = "{folder}/state"
log_format = "json"
log_file = "{folder}/log.json"
audit_file = "{folder}/audit.log"
admins = ["u"]
security_operators = ["u"]
{more}
[limits]
failed_logon_delay = 0.0

[log]
auth = "debug"
net = "debug"
files = "debug"

[[user]]
name = "bob"
password = "pw"

[[share]]
name = "audited"
path = "{folder}/share"
audit = true
read_list = ["bob"]

[[share]]
name = "bobs"
path = "{folder}/share"
users = ["bob"]
audit = true

[[share]]
name = "secret"
path = "{folder}/share"
encrypt = true
"""


def configured(folder: Path, more: str = "") -> Served:
    file = folder / "events.toml"
    file.touch(0o600)
    file.write_text(CONFIG.format(folder=folder, more=more))
    served = serve(folder, "--config", str(file))
    served.share.chmod(0o777)
    return served


def smbclient(served: Served, share: str, command: str, *options: str) -> str:
    """Return what it prints. That it fails is the purpose here."""
    found = subprocess.run(
        ["smbclient", f"//127.0.0.1/{share}", "-p", str(served.port), "-c", command, *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return found.stdout + found.stderr


def _watched() -> Any:
    """Return a security descriptor whose SACL asks for a record of whatever is done to the file."""
    descriptor, ace, mask = ldaptypes.SR_SECURITY_DESCRIPTOR(), ldaptypes.ACE(), ldaptypes.ACCESS_MASK()
    mask["Mask"] = 0x001F01FF
    kind = ldaptypes.SYSTEM_AUDIT_ACE()
    everyone = ldaptypes.LDAP_SID()
    everyone.fromCanonical("S-1-1-0")
    kind["Mask"], kind["Sid"] = mask, everyone
    ace["AceType"], ace["AceFlags"], ace["Ace"] = 2, 0xC0, kind
    sacl = ldaptypes.ACL()
    sacl["AclRevision"], sacl["Sbz1"], sacl["Sbz2"] = 2, 0, 0
    sacl.aces = [ace]
    descriptor["Revision"], descriptor["Sbz1"], descriptor["Control"] = b"\1", b"\0", 0x8010
    descriptor["OwnerSid"] = descriptor["GroupSid"] = descriptor["Dacl"] = b""
    descriptor["Sacl"] = sacl
    return descriptor.getData()


class Tree:
    """A tree connect of smbprotocol, whose keys and promises a test may break."""

    def __init__(self, served: Served, dialect: Dialects, share: str = "share", user: str = "u") -> None:
        self.connection = Connection(uuid.uuid4(), "127.0.0.1", served.port, require_signing=True)
        self.connection.connect(dialect)
        self.session = Session(self.connection, user, "pw", require_encryption=False)
        self.session.connect()
        self.tree = TreeConnect(self.session, rf"\\127.0.0.1\{share}")

    def opened(self, name: str, contexts: list[Any] | None = None, oplock: int = 0) -> Any:
        opened = Open(self.tree, name)
        opened.create(
            ImpersonationLevel.Impersonation,
            FilePipePrinterAccessMask.GENERIC_READ | FilePipePrinterAccessMask.GENERIC_WRITE,
            0,
            ShareAccess.FILE_SHARE_READ,
            CreateDisposition.FILE_OPEN_IF,
            CreateOptions.FILE_NON_DIRECTORY_FILE,
            contexts,
            oplock,
        )
        return opened

    def close(self) -> None:
        self.connection.disconnect(close=False)

    def cut(self) -> None:
        """Lose the connection without a goodbye."""
        self.connection.transport._sock.shutdown(socket.SHUT_RDWR)


def context(name: bytes, value: Any) -> Any:
    made = SMB2CreateContextRequest()
    made["buffer_name"], made["buffer_data"] = name, value
    return made


def refused_logons(served: Served) -> None:
    assert "LOGON_FAILURE" in smbclient(served, "share", "ls", "-U", "u%wrong")
    assert "LOGON_FAILURE" in smbclient(served, "share", "ls", "-U", "%", "-N")


def refused_shares(served: Served) -> None:
    assert "ACCESS_DENIED" in smbclient(served, "bobs", "ls", "-U", "u%pw")
    assert "ACCESS_DENIED" in smbclient(served, "secret", "ls", "-U", "u%pw", "-m", "SMB2_10")


def smb1_only(served: Served) -> None:
    options = ("-U", "u%pw", "-m", "NT1", "--option=client min protocol=NT1")
    assert "failed" in smbclient(served, "share", "ls", *options)


def everyday(served: Served) -> None:
    (served.share / "there").write_text("x")
    assert "NT_STATUS" not in smbclient(served, "audited", "get there -; put /etc/hostname new; del new", "-U", "u%pw")
    assert "ACCESS_DENIED" in smbclient(served, "audited", "put /etc/hostname other", "-U", "bob%pw")


def a_file_that_is_watched(served: Served) -> None:
    """Its SACL asks for a record of everything."""
    client = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=served.port)
    client.login("u", "pw")
    (served.share / "watched").write_text("x")
    smb = client.getSMBServer()
    tree = client.connectTree("audited")
    opened = smb.create(tree, "watched", 0x01000000, 7, 0x40, 1, 0)
    smb.setInfo(
        tree,
        opened,
        inputBlob=_watched(),
        infoType=smb3structs.SMB2_0_INFO_SECURITY,
        fileInfoClass=0,
        additionalInformation=8,
    )
    smb.close(tree, opened)
    client.deleteFile("audited", "watched")
    client.close()


def a_second_channel(served: Served) -> None:
    first = Channel("127.0.0.1", served.port)
    second = Channel("127.0.0.1", served.port, primary=first)
    for client in (second, first):
        client.close_session()


def a_session_that_is_ended(served: Served) -> None:
    client = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=served.port)
    client.login("bob", "pw")
    endpoint = transport.SMBTransport("127.0.0.1", served.port, r"\srvsvc", "u", "pw").get_dce_rpc()
    endpoint.connect()
    endpoint.bind(srvs.MSRPC_UUID_SRVS)
    srvs.hNetrSessionDel(endpoint, "\\\\127.0.0.1\0", "bob\0")
    endpoint.disconnect()


def bad_signature(served: Served) -> None:
    client = Tree(served, Dialects.SMB_3_0_2)
    client.tree.connect()
    client.session.signing_key = bytes(16)
    with pytest.raises(SMBException):
        client.opened("f")
    client.close()


def unencrypted(served: Served) -> None:
    client = Tree(served, Dialects.SMB_3_0_2, "secret")
    client.tree.connect()
    client.tree.encrypt_data = False
    with pytest.raises(SMBException):
        client.opened("f")
    client.close()


def other_negotiation(served: Served) -> None:
    client = Tree(served, Dialects.SMB_3_0_2)
    client.connection.client_guid = uuid.uuid4()
    with pytest.raises(LOST):
        client.tree.connect()


def wrong_key(served: Served) -> None:
    client = Tree(served, Dialects.SMB_3_0_2, "secret")
    client.tree.connect()
    client.session.encryption_key = bytes(16)
    with pytest.raises(LOST):
        client.opened("f")


def lost_handle(served: Served) -> None:
    client = Tree(served, Dialects.SMB_2_1_0)
    client.tree.connect()
    wanted = SMB2CreateDurableHandleReconnect()
    wanted["data"] = b"\x01" * 16
    name = CreateContextName.SMB2_CREATE_DURABLE_HANDLE_RECONNECT
    with pytest.raises(SMBException):
        client.opened("f", [context(name, wanted)], RequestedOplockLevel.SMB2_OPLOCK_LEVEL_BATCH)
    client.close()


def handle_left_alone(served: Served) -> None:
    client = Tree(served, Dialects.SMB_3_0_2)
    client.tree.connect()
    wanted = SMB2CreateDurableHandleRequestV2()
    wanted["timeout"], wanted["create_guid"] = 1000, uuid.uuid4()
    name = CreateContextName.SMB2_CREATE_DURABLE_HANDLE_REQUEST_V2
    client.opened("kept", [context(name, wanted)], RequestedOplockLevel.SMB2_OPLOCK_LEVEL_BATCH)
    client.cut()


SITUATIONS: tuple[Callable[[Served], None], ...] = (
    handle_left_alone,
    refused_logons,
    refused_shares,
    smb1_only,
    everyday,
    a_file_that_is_watched,
    a_second_channel,
    a_session_that_is_ended,
    bad_signature,
    unencrypted,
    other_negotiation,
    wrong_key,
    lost_handle,
)


def by_situation(folder: Path) -> Any:
    """Run all situations. Return what the log and the audit say, each an object."""
    served = configured(folder)
    for situation in SITUATIONS:
        situation(served)
    # The handle that nobody came back to.
    ends = time.monotonic() + 60
    while '"open_expired"' not in (folder / "log.json").read_text() and time.monotonic() < ends:
        time.sleep(0.1)
    staying = Tree(served, Dialects.SMB_3_0_2)
    assert stop(served) == 0
    staying.close()
    lines = (folder / "log.json").read_text().splitlines()
    for name, more, options in (
        # Who has no name is let in, and refused by a share.
        ("open", "anonymous = true\nrequire_signing = false", ("-U", "%", "-N")),
        ("sealed", "require_encryption = true", ("-U", "u%pw", "-m", "SMB2_10")),
    ):
        other = folder / name
        other.mkdir()
        served = configured(other, more)
        assert "ACCESS_DENIED" in smbclient(served, "bobs", "ls", *options)
        assert stop(served) == 0
        lines += (other / "log.json").read_text().splitlines()
    return [json.loads(line) for line in lines], [
        json.loads(line) for line in (folder / "audit.log").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = by_situation(tmp_path_factory.mktemp("events"))
    return found


@pytest.mark.parametrize("event", sorted({(*key, event) for key, event in EVENTS.items()}, key=lambda one: one[2]))
def test_every_number_of_the_log_is_seen(
    told: tuple[list[dict[str, Any]], list[dict[str, Any]]], event: tuple[str, str, WindowsEvent]
) -> None:
    name, case, number = event
    seen = [line for line in told[0] if line.get("event") == name and line.get("event_id") == number.number]
    assert seen, (name, case, number)
    assert all(line["event_channel"] == number.channel for line in seen)
    # Several reasons may share a number: one of them is enough.
    if name.endswith("refused"):
        cases = {case for (event, case), value in EVENTS.items() if (event, value) == (name, number)}
        # A share says in "user" that whoever has no name may not use it.
        assert {line["reason"] for line in seen} <= cases | {"user"}


@pytest.mark.parametrize("event", sorted((*key, event) for key, event in AUDIT_EVENTS.items()))
def test_every_number_of_the_audit_is_seen(
    told: tuple[list[dict[str, Any]], list[dict[str, Any]]], event: tuple[str, str, WindowsEvent]
) -> None:
    kind, case, number = event
    assert any(line["event"] == kind and line.get("event_id") == number.number for line in told[1]), (kind, case)
