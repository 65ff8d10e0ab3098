"""Kerberos for real: a KDC, a keytab, and clients that nobody here wrote."""

from __future__ import annotations

import gc
import importlib.util
import io
import os
import shutil
import subprocess
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spnego

from smb3server.auth.acceptor import Acceptor
from smb3server.auth.users import Account, Principals, UserDatabase
from smb3server.backends.base import User
from smb3server.server.server import Server
from smb3server.settings.server import Settings
from smb3server.wire.status import NtStatus, StatusError
from tests.lab.command import Served, serve, stop
from tests.lab.kdc import HOST, PASSWORD, REALM, USER, Kdc, missing_programs

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("gssapi", "krb5")),
        reason="Python's gssapi and krb5 are not installed: pip install '.[kerberos]'",
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket import smb3structs
    from impacket.smbconnection import SMBConnection
    from smbprotocol.connection import Ciphers, Connection, Dialects
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


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    made = Kdc(tmp_path_factory.mktemp("kdc"))
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def realm(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in kdc.environment.items():
        monkeypatch.setenv(name, value)
    yield
    gc.collect()


def start(kdc: Kdc, folder: Path, *options: str) -> Served:
    file = folder / "kerberos.toml"
    file.touch(0o600)
    file.write_text(
        f'[server]\nkeytab = "{kdc.keytab}"\nmin_dialect = "2.0.2"\n[[user]]\nname = "{USER}"\npassword = "of NTLM"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        return serve(folder, "--config", str(file), *options)


@pytest.fixture(scope="module")
def served(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = start(kdc, tmp_path_factory.mktemp("kerberos"))
    yield server
    assert stop(server) == 0


def smbclient(served: Served, commands: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["smbclient", f"//{HOST}/share", "-I", "127.0.0.1", "-p", str(served.port), *options, "-c", commands],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_smbclient
@pytest.mark.parametrize("protection", ["off", "sign", "encrypt"])
@pytest.mark.parametrize("protocol", ["SMB2_02", "SMB2_10", "SMB3_00", "SMB3_02", "SMB3_11"])
def test_smbclient(served: Served, tmp_path: Path, protocol: str, protection: str) -> None:
    """It demands mutual authentication, and verifies the server's signatures."""
    if protection == "encrypt" and protocol < "SMB3":
        pytest.skip("encryption begins with 3.0")
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(100_000))
    options = ("--use-kerberos=required", "-U", f"{USER}@{REALM}%{PASSWORD}", "-m", protocol)
    result = smbclient(
        served,
        f"put {source} {protocol}; get {protocol} {target}; del {protocol}",
        *(*options, f"--option=client min protocol={protocol}", f"--client-protection={protection}"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert target.read_bytes() == source.read_bytes()


@needs_smbclient
def test_smbclient_with_a_ticket(served: Served, kdc: Kdc) -> None:
    kdc.log_on()
    result = smbclient(served, "ls", "--use-kerberos=required", f"--use-krb5-ccache={kdc.cache}")
    assert result.returncode == 0, result.stdout + result.stderr


@needs_smbclient
def test_ntlm_still_works(served: Served) -> None:
    result = smbclient(served, "ls", "-U", "u%pw", "--use-kerberos=off")
    assert result.returncode == 0, result.stdout + result.stderr
    result = smbclient(served, "ls", "-U", "u%wrong", "--use-kerberos=off")
    assert "NT_STATUS_LOGON_FAILURE" in result.stdout + result.stderr


def test_impacket_with_ntlm_where_kerberos_is_offered(served: Served) -> None:
    connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=served.port)
    connection.login("u", "pw")
    assert connection.listPath("share", "*")
    connection.close()


@pytest.mark.parametrize(
    "dialect", [smb3structs.SMB2_DIALECT_002, smb3structs.SMB2_DIALECT_30, smb3structs.SMB2_DIALECT_311]
)
def test_impacket(served: Served, kdc: Kdc, dialect: int) -> None:
    """It brings Kerberos of its own, which sends no subkey: the ticket's session key is the session's."""
    kdc.log_on()
    connection = SMBConnection(HOST, "127.0.0.1", sess_port=served.port, preferredDialect=dialect)
    connection.kerberosLogin(USER, "", REALM, useCache=True)
    data = os.urandom(100_000)
    connection.putFile("share", "impacket", io.BytesIO(data).read)
    back = io.BytesIO()
    connection.getFile("share", "impacket", back.write)
    assert back.getvalue() == data
    connection.deleteFile("share", "impacket")
    connection.close()


def test_a_computer_account(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hyper-V host comes as HOST$@REALM, with the keys of its computer account. Here they are in a keytab."""
    computer = f"HV1$@{REALM}"
    kdc.administer(f"addprinc -randkey {computer}")
    kdc.administer(f"ktadd -k {tmp_path}/computer.keytab {computer}")
    monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "computer.cache"))
    subprocess.run(["kinit", "-k", "-t", tmp_path / "computer.keytab", computer], check=True, timeout=30)
    subprocess.run(["kvno", f"cifs/{HOST}@{REALM}"], check=True, timeout=30, stdout=subprocess.DEVNULL)
    server = start(kdc, tmp_path, "--user", "HV1$:of NTLM")
    try:
        connection = SMBConnection(HOST, "127.0.0.1", sess_port=server.port)
        connection.kerberosLogin("HV1$", "", REALM, useCache=True)
        connection.putFile("share", "disk.vhdx", io.BytesIO(b"a disk").read)
        connection.close()
        assert (server.share / "disk.vhdx").read_bytes() == b"a disk"
        assert "HV1$" in (tmp_path / "log").read_text()
    finally:
        assert stop(server) == 0


def smbprotocol(served: Served, dialect: int, encrypt: bool, **options: Any) -> None:
    connection = Connection(uuid.uuid4(), "127.0.0.1", served.port, require_signing=True)
    connection.connect(dialect, **options)
    # The name in the ticket; the address is the connection's.
    connection.server_name = HOST
    try:
        session = Session(connection, f"{USER}@{REALM}", PASSWORD, require_encryption=encrypt, auth_protocol="kerberos")
        session.connect()
        tree = TreeConnect(session, rf"\\{HOST}\share")
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
        data = os.urandom(50_000)
        file.write(data, 0)
        assert file.read(0, len(data)) == data
        file.close()
        session.disconnect()
    finally:
        connection.disconnect()


@pytest.mark.parametrize("encrypt", [False, True])
@pytest.mark.parametrize("dialect", [Dialects.SMB_2_1_0, Dialects.SMB_3_0_2, Dialects.SMB_3_1_1])
def test_smbprotocol(served: Served, dialect: int, encrypt: bool) -> None:
    if encrypt and dialect < Dialects.SMB_3_0_0:
        pytest.skip("encryption begins with 3.0")
    smbprotocol(served, dialect, encrypt)


@pytest.mark.parametrize("cipher", ["AES_256_CCM", "AES_256_GCM"])
def test_256_bit_ciphers_use_the_whole_key(served: Served, cipher: str) -> None:
    """3.3.5.5.3: their keys derive from Session.FullSessionKey, 32 bytes of an AES-256 ticket."""
    chosen = [getattr(Ciphers, cipher)]
    smbprotocol(served, Dialects.SMB_3_1_1, True, preferred_encryption_algos=chosen)


def test_a_ticket_of_128_bits(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kdc"
    folder.mkdir()
    other = Kdc(folder, "aes128-cts")
    try:
        for name, value in other.environment.items():
            monkeypatch.setenv(name, value)
        server = start(other, tmp_path)
        try:
            smbprotocol(server, Dialects.SMB_3_1_1, True)
            algorithms = [Ciphers.AES_256_GCM]
            smbprotocol(server, Dialects.SMB_3_1_1, True, preferred_encryption_algos=algorithms)
        finally:
            assert stop(server) == 0
    finally:
        other.stop()


def everybody() -> Principals:
    """Of the realm."""
    return Principals(UserDatabase(), [REALM], User(65534, 65534))


def accept(kdc: Kdc, service: str = "cifs") -> tuple[Acceptor, Any]:
    """An acceptor after one step, and the client's side."""
    made = Acceptor(UserDatabase(), "SERVER", kerberos=everybody(), keytab=str(kdc.keytab))
    client = spnego.client(f"{USER}@{REALM}", PASSWORD, hostname=HOST, service=service, protocol="kerberos")
    client.step(made.step(client.step()))
    return made, client


def test_the_session_ends_with_the_ticket(kdc: Kdc) -> None:
    """3.3.5.5.3. An hour is the realm's longest; the acceptor adds the clock skew it tolerates."""
    made, client = accept(kdc)
    assert client.complete and made.identity is not None
    assert (made.identity.name, made.identity.domain) == (USER, REALM)
    assert client.session_key == made.session_key and len(made.session_key) == 32
    assert made.expiration_time is not None and 0 < made.expiration_time - time.monotonic() <= 3600 + 300


def test_a_ticket_for_another_service(kdc: Kdc) -> None:
    with pytest.raises(StatusError) as caught:
        accept(kdc, "host")
    assert caught.value.status == NtStatus.LOGON_FAILURE


def test_each_server_has_its_own_keytab(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers in one process; the environment names a file that is not there."""
    monkeypatch.setenv("KRB5_KTNAME", str(tmp_path / "none"))
    users = UserDatabase()
    users.add(Account(USER, bytes(16)))
    with_keys = Server(Settings(keytab=str(kdc.keytab), trusted_realms=(REALM,)), users)
    without = Server(Settings(keytab=str(tmp_path / "host.keytab"), trusted_realms=(REALM,)), users)
    for server, expected in ((without, NtStatus.LOGON_FAILURE), (with_keys, None)):
        client = spnego.client(f"{USER}@{REALM}", PASSWORD, hostname=HOST, service="cifs", protocol="kerberos")
        token = client.step() or b""
        if expected is None:
            assert client.step(server.new_acceptor().step(token)) is None and client.complete
        else:
            with pytest.raises(StatusError) as caught:
                server.new_acceptor().step(token)
            assert caught.value.status == expected


def test_a_ticket_used_twice(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_KTNAME", str(kdc.keytab))
    token = spnego.client(f"{USER}@{REALM}", PASSWORD, hostname=HOST, service="cifs", protocol="kerberos").step()
    assert Acceptor(UserDatabase(), "SERVER", kerberos=everybody()).step(token)
    with pytest.raises(StatusError) as caught:
        Acceptor(UserDatabase(), "SERVER", kerberos=everybody()).step(token)
    assert caught.value.status == NtStatus.LOGON_FAILURE


@pytest.mark.parametrize("place", [20, 200, -200, -20])
def test_a_ticket_tampered_with(kdc: Kdc, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setenv("KRB5_KTNAME", str(kdc.keytab))
    client = spnego.client(f"{USER}@{REALM}", PASSWORD, hostname=HOST, service="cifs", protocol="kerberos")
    token = bytearray(client.step() or b"")
    token[place] ^= 0x40
    made = Acceptor(UserDatabase(), "SERVER", kerberos=everybody())
    with pytest.raises(StatusError) as caught:
        made.step(bytes(token))
    assert caught.value.status in (NtStatus.LOGON_FAILURE, NtStatus.INVALID_PARAMETER)
    assert made.identity is None


@pytest.mark.parametrize(("name", "complaint"), [("host.keytab", "no key for a service cifs"), ("none", "not found")])
def test_a_keytab_that_does_not_do(kdc: Kdc, tmp_path: Path, name: str, complaint: str) -> None:
    file = tmp_path / "kerberos.toml"
    file.write_text(f'[server]\nkeytab = "{kdc.folder / name}"\n')
    with pytest.raises(AssertionError):
        serve(tmp_path, "--config", str(file))
    assert complaint in (tmp_path / "log").read_text()
