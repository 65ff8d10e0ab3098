"""What Hyper-V asks of the files of its virtual machines, by impacket and smbprotocol against the command. The bytes of
the requests are written out here, after MS-FSCC: neither client knows them, and nothing of the server's is used."""

from __future__ import annotations

import os
import struct
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.command import Served, serve, stop

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.smb3 import SMB3, SessionError
    from impacket.smbconnection import SMBConnection
    from smbprotocol.connection import Connection, Dialects
    from smbprotocol.exceptions import SMBResponseException
    from smbprotocol.ioctl import IOCTLFlags, SMB2IOCTLRequest, SMB2IOCTLResponse
    from smbprotocol.open import CreateDisposition, ImpersonationLevel, Open, ShareAccess
    from smbprotocol.session import Session
    from smbprotocol.tree import TreeConnect

OFFLOAD_READ, OFFLOAD_WRITE = 0x00094264, 0x00098268
FILE_LEVEL_TRIM, SET_ZERO_DATA, QUERY_ALLOCATED_RANGES = 0x00098208, 0x000980C8, 0x000940CF
LMR_REQUEST_RESILIENCY = 0x001401D4
INVALID_TOKEN = 0xC0000465
READ_WRITE = 0x0012019F
MEGABYTE = 1 << 20
COMPUTER = "HV1$"
Control = Callable[[int, bytes, int], bytes]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = serve(tmp_path, "--user", f"{COMPUTER}:computer password")
    yield found
    stop(found)


def token_of(control: Control, offset: int, length: int) -> tuple[int, int, bytes]:
    """TransferLength, Flags and token of an FSCTL_OFFLOAD_READ."""
    output = control(OFFLOAD_READ, struct.pack("<IIIIQQ", 32, 0, 0, 0, offset, length), 528)
    size, flags, transferred = struct.unpack_from("<IIQ", output)
    assert size == len(output) == 528
    return transferred, flags, output[16:]


def write_by(control: Control, token: bytes, offset: int, length: int, transfer: int = 0) -> int:
    """LengthWritten of an FSCTL_OFFLOAD_WRITE."""
    output = control(OFFLOAD_WRITE, struct.pack("<IIQQQ", 544, 0, offset, length, transfer) + token, 16)
    size, _, written = struct.unpack("<IIQ", output)
    assert size == 16
    return int(written)


@contextmanager
def smbprotocol_tree(port: int, user: str = "u", password: str = "pw") -> Iterator[TreeConnect]:
    connection = Connection(uuid.uuid4(), "127.0.0.1", port, require_signing=True)
    connection.connect(Dialects.SMB_3_1_1)
    try:
        session = Session(connection, user, password)
        session.connect()
        tree = TreeConnect(session, r"\\127.0.0.1\share")
        tree.connect()
        yield tree
    finally:
        connection.disconnect(True)


def opened(tree: TreeConnect, name: str) -> Open:
    file = Open(tree, name)
    file.create(
        ImpersonationLevel.Impersonation,
        READ_WRITE,
        0,
        ShareAccess.FILE_SHARE_READ | ShareAccess.FILE_SHARE_WRITE,
        CreateDisposition.FILE_OPEN_IF,
        0,
    )
    return file


def smbprotocol_control(file: Open) -> Control:
    def control(code: int, data: bytes, room: int) -> bytes:
        request = SMB2IOCTLRequest()
        # It does not know all codes.
        request.fields["ctl_code"].enum_strict = False
        request["ctl_code"] = code
        request["file_id"] = file.file_id
        request["max_output_response"] = room
        request["flags"] = IOCTLFlags.SMB2_0_IOCTL_IS_FSCTL
        request["buffer"] = data
        tree = file.tree_connect
        sent = tree.session.connection.send(request, tree.session.session_id, tree.tree_connect_id)
        answer = SMB2IOCTLResponse()
        answer.fields["ctl_code"].enum_strict = False
        answer.unpack(tree.session.connection.receive(sent)["data"].get_value())
        return bytes(answer["buffer"].get_value())

    return control


def test_smbprotocol_copies_a_disk_by_tokens(served: Served) -> None:
    content = os.urandom(9 * MEGABYTE + 300)
    (served.share / "golden.vhdx").write_bytes(content)
    (served.share / "new.vhdx").write_bytes(bytes(len(content)))
    with smbprotocol_tree(served.port) as tree:
        read = smbprotocol_control(opened(tree, "golden.vhdx"))
        write = smbprotocol_control(opened(tree, "new.vhdx"))
        done = 0
        while done < len(content):
            transferred, flags, token = token_of(read, done, 4 * MEGABYTE)
            assert flags == (done + 4 * MEGABYTE >= len(content))
            assert write_by(write, token, done, transferred) == transferred
            done += transferred
        assert (served.share / "new.vhdx").read_bytes() == content
        # Zeros need no source.
        zeros = struct.pack(">IHH", 0xFFFF0001, 0, 504) + bytes(504)
        assert write_by(write, zeros, MEGABYTE, 2 * MEGABYTE) == 2 * MEGABYTE
        changed = content[:MEGABYTE] + bytes(2 * MEGABYTE) + content[3 * MEGABYTE :]
        assert (served.share / "new.vhdx").read_bytes() == changed


def test_smbprotocol_gives_space_back(served: Served) -> None:
    content = os.urandom(4 * MEGABYTE)
    path = served.share / "disk.vhdx"
    path.write_bytes(content)
    with smbprotocol_tree(served.port) as tree:
        control = smbprotocol_control(opened(tree, "disk.vhdx"))
        output = control(FILE_LEVEL_TRIM, struct.pack("<IIqq", 0, 1, MEGABYTE, 2 * MEGABYTE), 4)
        assert output == struct.pack("<I", 1)
        os.sync()
        assert os.stat(path).st_blocks * 512 < 3 * MEGABYTE
        control(SET_ZERO_DATA, struct.pack("<qq", 10, 20), 0)
        zeroed = content[:10] + bytes(10) + content[20:MEGABYTE]
        assert path.read_bytes() == zeroed + bytes(2 * MEGABYTE) + content[3 * MEGABYTE :]
        # It is no sparse file, whatever the host has of it.
        whole = control(QUERY_ALLOCATED_RANGES, struct.pack("<qq", 0, 4 * MEGABYTE), 4096)
        assert whole == struct.pack("<qq", 0, 4 * MEGABYTE)
        assert control(LMR_REQUEST_RESILIENCY, struct.pack("<II", 1000, 0), 0) == b""


def test_smbprotocol_is_refused_what_another_client_read(served: Served) -> None:
    (served.share / "theirs").write_bytes(os.urandom(4096))
    (served.share / "mine").write_bytes(bytes(4096))
    with smbprotocol_tree(served.port, COMPUTER, "computer password") as host, smbprotocol_tree(served.port) as tree:
        _, _, token = token_of(smbprotocol_control(opened(host, "theirs")), 0, 4096)
        mine = smbprotocol_control(opened(tree, "mine"))
        with pytest.raises(SMBResponseException) as refused:
            write_by(mine, token, 0, 4096)
        assert refused.value.status == INVALID_TOKEN
    assert (served.share / "mine").read_bytes() == bytes(4096)


@contextmanager
def impacket_share(port: int, user: str = "u", password: str = "pw") -> Iterator[tuple[SMB3, int]]:
    connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=port, timeout=20)
    connection.login(user, password)
    tree = connection.connectTree("share")
    yield connection.getSMBServer(), tree
    connection.close()


def impacket_control(share: tuple[SMB3, int], name: str) -> Control:
    client, tree = share
    file = client.create(tree, name, READ_WRITE, 3, 0, 3, 0)
    return lambda code, data, room: bytes(
        client.ioctl(tree, file, code, flags=1, inputBlob=data, maxOutputResponse=room)
    )


def test_a_computer_account_copies_and_forges_with_impacket(served: Served) -> None:
    content = os.urandom(MEGABYTE)
    (served.share / "source").write_bytes(content)
    (served.share / "target").write_bytes(bytes(MEGABYTE))
    with impacket_share(served.port, COMPUTER, "computer password") as share:
        read, write = impacket_control(share, "source"), impacket_control(share, "target")
        transferred, _, token = token_of(read, 0, MEGABYTE)
        for place in range(0, len(token), 7):
            forged = bytearray(token)
            forged[place] ^= 1
            with pytest.raises(SessionError) as refused:
                write_by(write, bytes(forged), 0, 4096)
            assert refused.value.get_error_code() == INVALID_TOKEN
        assert (served.share / "target").read_bytes() == bytes(MEGABYTE)
        assert write_by(write, token, 0, transferred) == MEGABYTE
        assert (served.share / "target").read_bytes() == content
        with open(served.share / "source", "r+b") as file:
            file.write(b"changed")
        with pytest.raises(SessionError) as refused:
            write_by(write, token, 0, 4096)
        assert refused.value.get_error_code() == INVALID_TOKEN
