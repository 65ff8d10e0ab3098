"""Shares, sessions and files changed over RPC: rpcclient and impacket against the command."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from smb3server.access.descriptor import EVERYONE, Acl, SecurityDescriptor, allow
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_READ
from smb3server.rpc import srvsvc_shares
from smb3server.rpc.ndr import (
    ERROR_ACCESS_DENIED,
    ERROR_FILE_NOT_FOUND,
    ERROR_INVALID_LEVEL,
    ERROR_INVALID_NAME,
    ERROR_INVALID_PARAMETER,
    NERR_CLIENT_NAME_NOT_FOUND,
    NERR_DUPLICATE_SHARE,
    NERR_NET_NAME_NOT_FOUND,
    NERR_UNKNOWN_DEVICE,
)
from smb3server.rpc.srvsvc_shares import NetrShareSetInfo, ShareInfo
from tests.lab.command import Served, serve, stop

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.dcerpc.v5 import srvs, transport
    from impacket.dcerpc.v5.dtypes import NULL
    from impacket.nmb import NetBIOSError
    from impacket.smbconnection import SessionError, SMBConnection
    from smbprotocol.connection import Connection
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

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
needs_rpcclient = pytest.mark.skipif(shutil.which("rpcclient") is None, reason="rpcclient is not installed")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """``u`` is an administrator, ``bob`` is not."""
    folder = tmp_path_factory.mktemp("service")
    file = folder / "lab.toml"
    file.touch(0o600)
    file.write_text(
        f'[server]\nmin_dialect = "2.0.2"\nstate = "{folder / "state"}"\nadmins = ["u"]\n'
        '[[user]]\nname = "bob"\npassword = "pw"\n'
    )
    server = serve(folder, "--config", str(file))
    (server.share / "sub").mkdir()
    (server.share / "sub").chmod(0o777)
    yield server
    assert stop(server) == 0


@contextmanager
def bound(served: Served, user: str = "u") -> Iterator[Any]:
    endpoint = transport.SMBTransport("127.0.0.1", served.port, r"\srvsvc", user, "pw").get_dce_rpc()
    endpoint.connect()
    endpoint.bind(srvs.MSRPC_UUID_SRVS)
    yield endpoint
    endpoint.disconnect()


def answer(endpoint: Any, request: Any) -> Any:
    """Return the answer, whatever error it has: impacket's own calls raise many kinds of exceptions instead."""
    endpoint.call(request.opnum, request)
    kind = f"{type(request).__name__}Response"
    return getattr(srvsvc_shares, kind, getattr(srvs, kind))(endpoint.recv())


def error(endpoint: Any, request: Any) -> int:
    return int(answer(endpoint, request)["ErrorCode"])


def rpcclient(served: Served, command: str, user: str = "u") -> str:
    arguments = ["rpcclient", "-p", str(served.port), "-U", f"{user}%pw", "127.0.0.1", "-c", command]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False).stdout


def addition(name: str, path: str, level: int = 2, remark: str = "", kind: int = 0, security: bytes = b"") -> Any:
    request = srvs.NetrShareAdd()
    request["ServerName"] = NULL
    request["Level"] = request["InfoStruct"]["tag"] = level
    info, prefix = request["InfoStruct"][f"ShareInfo{level}"], f"shi{level}_"
    info[prefix + "netname"], info[prefix + "path"] = name + "\0", path + "\0"
    info[prefix + "remark"], info[prefix + "passwd"] = remark + "\0", NULL
    info[prefix + "type"] = kind
    for member in ("permissions", "max_uses", "current_uses"):
        info[prefix + member] = 0
    if level == 502:
        info["shi502_reserved"] = len(security)
        info["shi502_security_descriptor"] = security or NULL
    request["ParmErr"] = 0
    return request


def deletion(name: str, kind: Any = srvs.NetrShareDel) -> Any:
    request = kind()
    request["ServerName"], request["NetName"], request["Reserved"] = NULL, name + "\0", 0
    return request


def names(endpoint: Any) -> set[str]:
    found = srvs.hNetrShareEnum(endpoint, 1)["InfoStruct"]["ShareInfo"]["Level1"]["Buffer"]
    return {entry["shi1_netname"].rstrip("\0") for entry in found}


def connects(served: Served, share: str, user: str = "bob") -> bool:
    client = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=served.port)
    client.login(user, "pw")
    try:
        client.connectTree(share)
    except SessionError:
        return False
    finally:
        client.close()
    return True


@needs_rpcclient
def test_rpcclient_changes_shares(lab: Served) -> None:
    assert rpcclient(lab, f"netshareadd {lab.share}/sub added 5 remark") == ""
    assert "added" in rpcclient(lab, "netshareenumall")
    assert f"C:{lab.share}/sub".replace("/", "\\") in rpcclient(lab, "netsharegetinfo added 502")
    rpcclient(lab, "netsharesetinfo added other")
    assert "other" in rpcclient(lab, "netsharegetinfo added 1")
    assert "netname: added" not in rpcclient(lab, "netsharedel added; netshareenumall")
    assert "ACCESS_DENIED" in rpcclient(lab, "netsharedel share")
    assert "ACCESS_DENIED" in rpcclient(lab, f"netshareadd {lab.share}/sub added 5 remark", "bob")


def test_errors_of_additions(lab: Served) -> None:
    """[MS-SRVS 3.1.4.7, 2.2.2.11]"""
    sub = f"C:{lab.share}/sub".replace("/", "\\")
    with bound(lab) as endpoint:
        for request, status, member in (
            (addition("", sub), ERROR_INVALID_PARAMETER, 1),
            (addition("x" * 81, sub), ERROR_INVALID_PARAMETER, 1),
            (addition("a/b", sub), ERROR_INVALID_NAME, 1),
            (addition("pipe", sub), ERROR_ACCESS_DENIED, 0),
            (addition("SHARE", sub), NERR_DUPLICATE_SHARE, 0),
            (addition("IPC$", sub), NERR_DUPLICATE_SHARE, 0),
            (addition("x", sub, kind=1), ERROR_INVALID_PARAMETER, 3),
            (addition("x", sub, remark="r" * 49), ERROR_INVALID_PARAMETER, 4),
            (addition("x", "relative"), ERROR_INVALID_PARAMETER, 8),
            (addition("x", sub + "\\..\\.."), ERROR_INVALID_PARAMETER, 8),
            (addition("x", "C:\\etc"), ERROR_ACCESS_DENIED, 0),
            (addition("x", sub + "\\missing"), NERR_UNKNOWN_DEVICE, 0),
            (addition("x", sub, 502, security=b"nonsense"), ERROR_INVALID_PARAMETER, 501),
        ):
            found = answer(endpoint, request)
            assert (found["ErrorCode"], found["ParmErr"]) == (status, member)
        request = addition("x", sub)
        request["Level"] = 1
        assert error(endpoint, deletion("nothing")) == NERR_NET_NAME_NOT_FOUND
        assert names(endpoint) == {"IPC$", "share"}
    with bound(lab, "bob") as endpoint:
        assert error(endpoint, addition("x", sub)) == ERROR_ACCESS_DENIED
        assert error(endpoint, deletion("share")) == ERROR_ACCESS_DENIED


def test_permissions_of_a_share_are_enforced_and_kept(lab: Served) -> None:
    """[MS-SMB2 3.3.5.7] TreeConnect.MaximalAccess; [MS-SRVS 3.1.4.11]"""
    sub = f"{lab.share}/sub"
    nobody = SecurityDescriptor(dacl=Acl()).pack()
    readers = SecurityDescriptor(dacl=Acl((allow(EVERYONE, FILE_GENERIC_READ),))).pack()
    with bound(lab) as endpoint:
        assert error(endpoint, addition("secret", sub, 502, security=nobody)) == 0
        assert not connects(lab, "secret")
        request = NetrShareSetInfo()
        request["ServerName"], request["NetName"], request["ParmErr"] = NULL, "secret\0", NULL
        request["Level"] = request["ShareInfo"]["tag"] = 1501
        assert isinstance(request["ShareInfo"], ShareInfo)
        request["ShareInfo"]["ShareInfo1501"]["shi1501_reserved"] = len(readers)
        request["ShareInfo"]["ShareInfo1501"]["shi1501_security_descriptor"] = readers
        assert error(endpoint, request) == 0
        assert connects(lab, "secret")
        client = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=lab.port)
        client.login("bob", "pw")
        with pytest.raises(SessionError, match="ACCESS_DENIED"):
            client.createFile(client.connectTree("secret"), "new")
        # A share of the command line can be given permissions, too, and nothing else.
        request["NetName"] = "share\0"
        assert error(endpoint, request) == 0
        info = srvs.hNetrShareGetInfo(endpoint, "share\0", 502)["InfoStruct"]["ShareInfo502"]
        assert b"".join(info["shi502_security_descriptor"])[-24:] == readers[-24:]
        everybody = SecurityDescriptor(dacl=Acl((allow(EVERYONE, FILE_ALL_ACCESS),))).pack()
        request["ShareInfo"]["ShareInfo1501"]["shi1501_reserved"] = len(everybody)
        request["ShareInfo"]["ShareInfo1501"]["shi1501_security_descriptor"] = everybody
        assert error(endpoint, request) == 0
        assert error(endpoint, deletion("secret")) == 0
    stored = (lab.share.parent / "state" / "shares.toml").read_text()
    assert "secret" not in stored and 'share" = "D:(A;;FA;;;WD)"' in stored


def test_an_administrator_keeps_clients_from_caching_writes(lab: Served) -> None:
    """SHI1005_FLAGS_FORCE_LEVELII_OPLOCK [MS-SRVS 2.2.4.29; MS-SMB2 3.3.5.9]: smbprotocol asks for a batch oplock."""
    forced = 0x1000
    with bound(lab) as endpoint:
        assert error(endpoint, addition("shared", f"{lab.share}/sub")) == 0
        assert _oplock(lab, "shared") == RequestedOplockLevel.SMB2_OPLOCK_LEVEL_BATCH
        request = NetrShareSetInfo()
        request["ServerName"], request["NetName"], request["ParmErr"] = NULL, "shared\0", NULL
        request["Level"] = request["ShareInfo"]["tag"] = 1005
        request["ShareInfo"]["ShareInfo1005"]["shi1005_flags"] = forced
        assert error(endpoint, request) == 0
        info = srvs.hNetrShareGetInfo(endpoint, "shared\0", 1005)["InfoStruct"]["ShareInfo1005"]
        assert info["shi1005_flags"] & forced
        assert _oplock(lab, "shared") == RequestedOplockLevel.SMB2_OPLOCK_LEVEL_II
        assert error(endpoint, deletion("shared")) == 0


def test_an_administrator_says_what_clients_keep_and_compress(lab: Served) -> None:
    """SHI1005_FLAGS_COMPRESS_DATA and the caching mode [MS-SRVS 2.2.4.29, 2.2.2.5]: the next client is told so."""
    compress, nothing = 0x100000, 0x30
    with bound(lab) as endpoint:
        assert error(endpoint, addition("kept", f"{lab.share}/sub")) == 0
        request = NetrShareSetInfo()
        request["ServerName"], request["NetName"], request["ParmErr"] = NULL, "kept\0", NULL
        request["Level"] = request["ShareInfo"]["tag"] = 1005
        for flags in (compress | nothing, 0x10, 0):
            request["ShareInfo"]["ShareInfo1005"]["shi1005_flags"] = flags
            assert error(endpoint, request) == 0
            info = srvs.hNetrShareGetInfo(endpoint, "kept\0", 1005)["InfoStruct"]["ShareInfo1005"]
            assert info["shi1005_flags"] == flags
            assert _share_flags(lab, "kept") == flags
        assert error(endpoint, deletion("kept")) == 0


def _share_flags(served: Served, share: str) -> int:
    """Return the flags that smbprotocol gets with a tree connect. [MS-SMB2 2.2.10]"""
    connection = Connection(uuid.uuid4(), "127.0.0.1", served.port)
    connection.connect()
    try:
        session = Session(connection, "u", "pw")
        session.connect()
        tree = TreeConnect(session, rf"\\127.0.0.1\{share}")
        seen: list[int] = []
        receive = connection.receive

        def noting(request: Any, *rest: Any, **more: Any) -> Any:
            answer = receive(request, *rest, **more)
            if int(answer["command"].get_value()) == 3:
                seen.append(int.from_bytes(answer["data"].get_value()[4:8], "little"))
            return answer

        connection.receive = noting
        tree.connect()
        return seen[0]
    finally:
        connection.disconnect(close=True)


def _oplock(served: Served, share: str) -> int:
    """Return the oplock that a client gets who asks for a batch oplock of a file of its own."""
    connection = Connection(uuid.uuid4(), "127.0.0.1", served.port)
    connection.connect()
    try:
        session = Session(connection, "u", "pw")
        session.connect()
        tree = TreeConnect(session, rf"\\127.0.0.1\{share}")
        tree.connect()
        opened = Open(tree, "cached")
        opened.create(
            ImpersonationLevel.Impersonation,
            FilePipePrinterAccessMask.GENERIC_READ,
            0,
            ShareAccess.FILE_SHARE_READ,
            CreateDisposition.FILE_OPEN_IF,
            CreateOptions.FILE_NON_DIRECTORY_FILE,
            oplock_level=RequestedOplockLevel.SMB2_OPLOCK_LEVEL_BATCH,
        )
        return int(opened.oplock_level)
    finally:
        connection.disconnect(close=True)


def test_removal_in_two_phases(lab: Served) -> None:
    """[MS-SRVS 3.1.4.13 to 3.1.4.15]"""
    with bound(lab) as endpoint:
        assert error(endpoint, addition("two", f"{lab.share}/sub")) == 0
        stored = lab.share.parent / "state" / "shares.toml"
        assert '"two"' in stored.read_text()
        assert error(endpoint, deletion("two", srvs.NetrShareDelSticky)) == 0
        assert '"two"' not in stored.read_text()
        begun = answer(endpoint, deletion("two", srvs.NetrShareDelStart))
        assert begun["ErrorCode"] == 0 and "two" in names(endpoint)
        request = srvs.NetrShareDelCommit()
        request["ContextHandle"] = begun["ContextHandle"]
        assert error(endpoint, request) == 0
        assert "two" not in names(endpoint)


def test_files_and_sessions_are_ended(lab: Served) -> None:
    """[MS-SRVS 3.1.4.3, 3.1.4.4, 3.1.4.6]"""
    client = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=lab.port)
    client.login("bob", "pw")
    tree = client.connectTree("share")
    client.createDirectory("share", "made-by-bob")
    handle = client.openFile(tree, "made-by-bob", desiredAccess=0x80, creationOption=0x21)
    with bound(lab) as endpoint:
        files = srvs.hNetrFileEnum(endpoint, NULL, "bob\0", 3)["InfoStruct"]["FileInfo"]["Level3"]["Buffer"]
        (number,) = [entry["fi3_id"] for entry in files if entry["fi3_path_name"].endswith("made-by-bob\0")]
        assert srvs.hNetrFileGetInfo(endpoint, number, 3)["InfoStruct"]["FileInfo3"]["fi3_id"] == number
        srvs.hNetrFileClose(endpoint, number)
        request = srvs.NetrFileClose()
        request["ServerName"], request["FileId"] = NULL, number
        assert error(endpoint, request) == ERROR_FILE_NOT_FOUND
        with pytest.raises(SessionError, match="FILE_CLOSED"):
            client.closeFile(tree, handle)
        found = srvs.hNetrConnectionEnum(endpoint, "share\0", 1)["InfoStruct"]["ConnectInfo"]["Level1"]["Buffer"]
        assert [entry["coni1_username"] for entry in found] == ["bob\0"]
        srvs.hNetrSessionDel(endpoint, "\\\\127.0.0.1\0", "bob\0")
        # The client encrypts: a message of a session that is gone ends the connection [MS-SMB2 3.3.5.2.1.1].
        with pytest.raises((SessionError, NetBIOSError)):
            client.createDirectory("share", "more")
        for computer, user, status in (
            ("\\\\127.0.0.1\0", "bob\0", NERR_CLIENT_NAME_NOT_FOUND),
            ("127.0.0.1\0", NULL, NERR_CLIENT_NAME_NOT_FOUND),
            (NULL, NULL, ERROR_INVALID_PARAMETER),
        ):
            request = srvs.NetrSessionDel()
            request["ServerName"], request["ClientName"], request["UserName"] = NULL, computer, user
            assert error(endpoint, request) == status
    with bound(lab, "bob") as endpoint:
        request = srvs.NetrSessionDel()
        request["ServerName"], request["ClientName"], request["UserName"] = NULL, NULL, "u\0"
        assert error(endpoint, request) == ERROR_ACCESS_DENIED
        request = srvs.NetrFileClose()
        request["ServerName"], request["FileId"] = NULL, 1
        assert error(endpoint, request) == ERROR_ACCESS_DENIED


def test_what_is_told_about_the_server(lab: Served) -> None:
    """[MS-SRVS 3.1.4.17 to 3.1.4.21]"""
    with bound(lab) as endpoint:
        disks = srvs.hNetrServerDiskEnum(endpoint, 0)
        assert disks["TotalEntries"] == 1
        statistics = srvs.hNetrServerStatisticsGet(endpoint, NULL, 0, 0)["InfoStruct"]
        assert statistics["sts0_sopens"] >= 1 and statistics["sts0_bytessent_low"] > 0
        assert abs(statistics["sts0_start"] - time.time()) < 600
        for level in (0, 1, 2, 501, 502, 503, 1005):
            assert srvs.hNetrShareGetInfo(endpoint, "share\0", level)["ErrorCode"] == 0
        request = srvs.NetrShareGetInfo()
        request["ServerName"], request["NetName"], request["Level"] = NULL, "share\0", 77
        assert error(endpoint, request) == ERROR_INVALID_LEVEL
    with bound(lab, "bob") as endpoint:
        request = srvs.NetrServerStatisticsGet()
        request["ServerName"], request["Service"], request["Level"], request["Options"] = NULL, NULL, 0, 0
        assert error(endpoint, request) == ERROR_ACCESS_DENIED


@needs_rpcclient
def test_an_administrator_may_end_the_own_session(lab: Served) -> None:
    """The answer comes first."""
    output = rpcclient(lab, r"netsessdel \\\\127.0.0.1 u")
    assert not re.search("WERR|NT_STATUS", output)
