"""smbclient, rpcclient, impacket and smbprotocol against the command."""

from __future__ import annotations

import gc
import io
import os
import shutil
import signal
import socket
import subprocess
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.command import Served, serve, stop

# impacket and smbprotocol leave sockets to the garbage collector.
pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket import smb3structs
    from impacket.dcerpc.v5 import srvs, transport, wkst
    from impacket.smbconnection import SessionError, SMBConnection
    from smbprotocol.connection import Ciphers, Connection, Dialects, SigningAlgorithms
    from smbprotocol.open import (
        CreateDisposition,
        CreateOptions,
        FilePipePrinterAccessMask,
        ImpersonationLevel,
        Open,
        ShareAccess,
    )
    from smbprotocol.session import Session
    from smbprotocol.tree import TreeConnect

needs_smbclient = pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")
needs_rpcclient = pytest.mark.skipif(shutil.which("rpcclient") is None, reason="rpcclient is not installed")


@pytest.fixture(autouse=True)
def collect_sockets() -> Iterator[None]:
    """Here, where leaked sockets are expected, and not in somebody else's test."""
    yield
    gc.collect()


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def smbclient(served: Served, commands: str, *options: str) -> subprocess.CompletedProcess[str]:
    service = "//127.0.0.1/share"
    return run("smbclient", service, "-p", str(served.port), "-U", "u%pw", *options, "-c", commands)


@needs_smbclient
def test_smbclient_lists_shares(served: Served) -> None:
    result = run("smbclient", "-L", "//127.0.0.1", "-p", str(served.port), "-U", "u%pw")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "share           Disk" in result.stdout
    assert "IPC$            IPC" in result.stdout


@needs_smbclient
@pytest.mark.parametrize("password", ["wrong", ""])
def test_smbclient_with_a_wrong_password(served: Served, password: str) -> None:
    result = run("smbclient", "-L", "//127.0.0.1", "-p", str(served.port), "-U", f"u%{password}")
    assert "NT_STATUS_LOGON_FAILURE" in result.stdout + result.stderr


@needs_smbclient
@pytest.mark.parametrize("protection", ["off", "sign", "encrypt"])
@pytest.mark.parametrize("protocol", ["SMB2_02", "SMB2_10", "SMB3_00", "SMB3_02", "SMB3_11"])
def test_smbclient_transfers(served: Served, tmp_path: Path, protocol: str, protection: str) -> None:
    if protection == "encrypt" and protocol < "SMB3":
        pytest.skip("encryption begins with 3.0")
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(300_000))
    name = f"{protocol}-{protection}"
    result = smbclient(
        served,
        f"put {source} {name}; get {name} {target}; del {name}",
        *("-m", protocol, f"--option=client min protocol={protocol}", f"--client-protection={protection}"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert target.read_bytes() == source.read_bytes()
    assert not (served.share / name).exists()


@needs_rpcclient
def test_rpcclient(served: Served) -> None:
    calls = "srvinfo; netshareenum; netshareenumall; netsharegetinfo share; netremotetod"
    result = run("rpcclient", "-p", str(served.port), "-U", "u%pw", "127.0.0.1", "-c", calls)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "netname: share" in result.stdout


def impacket(served: Served, dialect: int | None = None) -> Any:
    connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=served.port, preferredDialect=dialect)
    connection.login("u", "pw")
    return connection


@pytest.mark.parametrize(
    "dialect",
    [
        smb3structs.SMB2_DIALECT_002,
        smb3structs.SMB2_DIALECT_21,
        smb3structs.SMB2_DIALECT_30,
        smb3structs.SMB2_DIALECT_311,
        None,
    ],
)
def test_impacket(served: Served, dialect: int | None) -> None:
    """Without a preferred dialect it begins with an SMB1 multi-protocol negotiate."""
    connection = impacket(served, dialect)
    assert {"share\0", "IPC$\0"} == {share["shi1_netname"] for share in connection.listShares()}
    data = os.urandom(200_000)
    connection.putFile("share", "impacket", io.BytesIO(data).read)
    back = io.BytesIO()
    connection.getFile("share", "impacket", back.write)
    assert back.getvalue() == data
    assert any(entry.get_longname() == "impacket" for entry in connection.listPath("share", "*"))
    connection.deleteFile("share", "impacket")
    connection.close()


def test_impacket_with_a_wrong_password(served: Served) -> None:
    connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=served.port)
    with pytest.raises(SessionError, match="STATUS_LOGON_FAILURE"):
        connection.login("u", "wrong")
    connection.close()


def rpc(served: Served, pipe: str, interface: Any) -> Any:
    endpoint = transport.SMBTransport("127.0.0.1", served.port, pipe, "u", "pw").get_dce_rpc()
    endpoint.connect()
    endpoint.bind(interface)
    return endpoint


def test_impacket_server_service(served: Served) -> None:
    endpoint = rpc(served, r"\srvsvc", srvs.MSRPC_UUID_SRVS)
    for level in (0, 1, 2, 501, 502):
        assert srvs.hNetrShareEnum(endpoint, level)["TotalEntries"] == 2
    for level in (0, 1, 2, 502):
        srvs.hNetrShareGetInfo(endpoint, "share\0", level)
    for level in (100, 101, 102):
        srvs.hNetrServerGetInfo(endpoint, level)
    assert srvs.hNetrRemoteTOD(endpoint)["BufferPtr"]["tod_year"] >= 2024
    with pytest.raises(srvs.DCERPCSessionError, match="ERROR_INVALID_LEVEL"):
        srvs.hNetrServerGetInfo(endpoint, 599)
    with pytest.raises(srvs.DCERPCException, match="rpc_s_access_denied"):
        srvs.hNetrShareDelSticky(endpoint, "share\0")
    endpoint.disconnect()


def test_impacket_workstation_service(served: Served) -> None:
    endpoint = rpc(served, r"\wkssvc", wkst.MSRPC_UUID_WKST)
    for level in (100, 101, 102):
        assert wkst.hNetrWkstaGetInfo(endpoint, level)["ErrorCode"] == 0
    endpoint.disconnect()


def smbprotocol_round_trip(served: Served, dialect: int, encrypt: bool, **options: Any) -> None:
    connection = Connection(uuid.uuid4(), "127.0.0.1", served.port, require_signing=True)
    connection.connect(dialect, **options)
    try:
        session = Session(connection, "u", "pw", require_encryption=encrypt)
        session.connect()
        tree = TreeConnect(session, r"\\127.0.0.1\share")
        tree.connect(require_secure_negotiate=True)
        file = Open(tree, str(uuid.uuid4()))
        rights = FilePipePrinterAccessMask
        file.create(
            ImpersonationLevel.Impersonation,
            rights.GENERIC_READ | rights.GENERIC_WRITE | rights.DELETE,
            0,
            ShareAccess.FILE_SHARE_READ,
            CreateDisposition.FILE_OVERWRITE_IF,
            CreateOptions.FILE_DELETE_ON_CLOSE,
        )
        data = os.urandom(60_000)
        file.write(data, 0)
        assert file.read(0, len(data)) == data
        file.close()
        tree.disconnect()
        session.disconnect()
    finally:
        connection.disconnect()


@pytest.mark.parametrize("encrypt", [False, True])
@pytest.mark.parametrize(
    "dialect",
    [Dialects.SMB_2_0_2, Dialects.SMB_2_1_0, Dialects.SMB_3_0_0, Dialects.SMB_3_0_2, Dialects.SMB_3_1_1],
)
def test_smbprotocol(served: Served, dialect: int, encrypt: bool) -> None:
    """Up to 3.0.2 it validates the negotiation with the FSCTL."""
    if encrypt and dialect < Dialects.SMB_3_0_0:
        pytest.skip("encryption begins with 3.0")
    smbprotocol_round_trip(served, dialect, encrypt)


@pytest.mark.parametrize("cipher", ["AES_128_CCM", "AES_128_GCM", "AES_256_CCM", "AES_256_GCM"])
def test_smbprotocol_ciphers(served: Served, cipher: str) -> None:
    smbprotocol_round_trip(served, Dialects.SMB_3_1_1, True, preferred_encryption_algos=[getattr(Ciphers, cipher)])


@pytest.mark.parametrize("algorithm", ["HMAC_SHA256", "AES_CMAC", "AES_GMAC"])
def test_smbprotocol_signing_algorithms(served: Served, algorithm: str) -> None:
    chosen = getattr(SigningAlgorithms, algorithm)
    smbprotocol_round_trip(served, Dialects.SMB_3_1_1, False, preferred_signing_algos=[chosen])


def test_sigterm_ends_with_status_0_while_clients_are_connected(tmp_path: Path) -> None:
    served = serve(tmp_path)
    connection = impacket(served)
    tree = connection.connectTree("share")
    connection.createFile(tree, "open")
    silent = socket.create_connection(("127.0.0.1", served.port))
    assert stop(served) == 0
    silent.close()
    assert (tmp_path / "share" / "open").exists()
    assert served.process.returncode != -signal.SIGKILL
