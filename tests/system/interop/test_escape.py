"""Nothing outside the share can be read or written, whatever names, links or races a client tries: through clients that
nobody here wrote, against the command."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.lab.command import Served, serve, stop

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket import smb3structs
    from impacket.smb3 import OPEN
    from impacket.smbconnection import SessionError, SMBConnection
    from smbprotocol.connection import Connection, Dialects
    from smbprotocol.exceptions import SMBException, SMBResponseException
    from smbprotocol.file_info import FileLinkInformation, FileRenameInformation
    from smbprotocol.ioctl import IOCTLFlags, SMB2IOCTLRequest
    from smbprotocol.open import (
        CreateDisposition,
        ImpersonationLevel,
        Open,
        ShareAccess,
        SMB2SetInfoRequest,
    )
    from smbprotocol.session import Session
    from smbprotocol.tree import TreeConnect

SECRET = b"the secret that nobody may see"
MARK = b"written by the client"
READ_WRITE, READ, DELETE = 0x0012019F, 0x00120089, 0x00010000
FSCTL_SET_REPARSE_POINT = 0x000900A4
RACE_SECONDS = 2.0

RELATIVE = [
    "..",
    "..\\secret",
    "..\\..\\secret",
    "d\\..\\..\\secret",
    ".\\..\\secret",
    "d\\.\\..\\..\\secret",
    "...\\secret",
    ".. \\secret",
    "..\\ secret",
    "../secret",
    "d/../../secret",
    "..%2fsecret",
    "..\\outside\\new",
    "\u2025\\secret",
    "\uff0e\uff0e\\secret",
    "..\\secret:stream",
    "..:stream",
    "..::$DATA",
    "d\\..",
]
ABSOLUTE = [
    "\\{outside}\\secret",
    "{outside}/secret",
    "{backslashes}\\secret",
    "\\..\\secret",
    "\\\\127.0.0.1\\share\\..\\secret",
    "C:\\secret",
    "\\??\\C:\\secret",
    "/etc/passwd",
    "\\etc\\passwd",
    "\\\\?\\{outside}\\secret",
]
LINKS = [
    "link",
    "link:stream",
    "link::$DATA",
    "LINK",
    "absolute",
    "folder\\secret",
    "folder\\new",
    "FOLDER\\NEW",
    "folder\\..\\secret",
    "chain\\secret",
    "proc\\self\\root\\etc\\passwd",
    "root\\etc\\passwd",
    "up\\secret",
    "d\\up\\secret",
    "hop",
    "loop",
    "dangling",
]
ODD = [
    "",
    "\\",
    "\\\\",
    ".",
    " ",
    "a\0b",
    "..\0",
    "\0",
    "x" * 255,
    "x" * 256,
    "x" * 16000,
    "x\\" * 8000 + "x",
    "..\\" * 8000 + "secret",
    "\U0001f4a9" * 128,
    "\u0301",
    ":",
    "::",
    ":stream",
    "::$DATA",
    "d:stream:$INDEX_ALLOCATION",
    "d::$INDEX_ALLOCATION",
    "f:s\\..\\..\\secret",
    "f:..\\..\\secret:$DATA",
    "f:../../secret",
    "f:/etc/passwd",
    "f:" + "s" * 300,
    "f:\0",
    "CON",
    "NUL",
    "AUX.txt",
    "pipe\\srvsvc",
    "*",
    "f?",
    "<>",
    '"',
    "|",
]
SPECIAL = ["fifo", "fifo:stream", "socket", "device", "FIFO"]
NAMES = [*RELATIVE, *ABSOLUTE, *LINKS, *ODD, *SPECIAL]


class World:
    """A share and what is around it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.share = served.share
        self.outside = served.share.parent
        (self.outside / "secret").write_bytes(SECRET)
        (self.outside / "outside").mkdir()
        (self.outside / "outside" / "secret").write_bytes(SECRET)
        self.furnish()
        self._before = self._picture()

    def furnish(self) -> None:
        """(Re)make what is in the share: attempts may rightly delete or change it."""
        share = self.share
        (share / "d").mkdir(exist_ok=True)
        (share / "f").write_bytes(b"harmless")
        links = {
            "link": "../secret",
            "absolute": str(self.outside / "secret"),
            "folder": "../outside",
            "chain": "folder",
            "proc": "/proc",
            "root": "/",
            "up": "..",
            "d/up": "../..",
            "hop": "d/up/secret",
            "loop": "loop",
            "dangling": "../does-not-exist",
        }
        for name, target in links.items():
            if not (share / name).is_symlink():
                os.symlink(target, share / name)
        if not (share / "fifo").exists():
            os.mkfifo(share / "fifo")
        if not (share / "socket").exists():
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(str(share / "socket"))
        if not (share / "device").exists():
            # Without root there is no way to make one.
            with suppress(PermissionError):
                os.mknod(share / "device", 0o666 | 0o020000, os.makedev(1, 5))

    def _picture(self) -> dict[str, tuple[bytes, int, tuple[str, ...]]]:
        """Names, contents, modes and extended attributes of everything outside the share."""
        found = {}
        for folder, folders, files in os.walk(self.outside):
            if folder == str(self.outside):
                folders.remove("share")
            for name in (*files, *folders):
                path = Path(folder) / name
                data = path.read_bytes() if path.is_file() and name not in ("log",) else b""
                found[str(path)] = (data, path.stat().st_mode, tuple(os.listxattr(path)))
        return found

    def check(self) -> None:
        assert self._picture() == self._before


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    served = serve(tmp_path_factory.mktemp("escape"))
    yield World(served)
    assert stop(served) == 0
    assert "Traceback" not in (served.share.parent / "log").read_text()


@pytest.fixture(scope="module")
def session(world: World) -> Iterator[Session]:
    connection = Connection(uuid.uuid4(), "127.0.0.1", world.served.port, require_signing=True)
    connection.connect(Dialects.SMB_3_1_1, timeout=20)
    made = Session(connection, "u", "pw", require_encryption=False)
    made.connect()
    yield made
    with suppress(SMBException):
        connection.disconnect()
    gc.collect()


@pytest.fixture(scope="module")
def tree(session: Session) -> TreeConnect:
    made = TreeConnect(session, r"\\127.0.0.1\share")
    made.connect()
    return made


def spelled(name: str, world: World) -> str:
    outside = str(world.outside)
    return name.replace("{outside}", outside).replace("{backslashes}", outside.replace("/", "\\"))


def opened(tree: TreeConnect, name: str, access: int, disposition: int, options: int = 0) -> Open | None:
    """By smbprotocol, which sends names as they are; None if refused."""
    file = Open(tree, name)
    try:
        file.create(ImpersonationLevel.Impersonation, access, 0, ShareAccess.FILE_SHARE_READ | 6, disposition, options)
    except SMBException:
        # Also a link, which smbprotocol may find that it cannot follow.
        return None
    return file


def try_everything(file: Open) -> None:
    """Read, write, and delete what was opened."""
    with suppress(SMBResponseException):
        assert SECRET not in file.read(0, 1000)
    with suppress(SMBResponseException):
        file.write(MARK, 0)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:24]))
def test_smbprotocol_with_raw_names(world: World, tree: TreeConnect, name: str) -> None:
    world.furnish()
    name = spelled(name, world)
    for disposition in range(6):
        for access, options in ((READ, 0), (READ_WRITE | DELETE, 0), (READ_WRITE | DELETE, 0x40), (READ | DELETE, 1)):
            # 0x00200000: the link itself, which may be opened and deleted.
            for more in (0, 0x00200000):
                file = opened(tree, name, access, disposition, options | more)
                if file is not None:
                    try_everything(file)
                    file.close()
        world.check()
    world.furnish()
    file = opened(tree, name, DELETE, CreateDisposition.FILE_OPEN, 0x1000)
    if file is not None:
        file.close()
    world.check()


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:24]))
@pytest.mark.parametrize("kind", [FileRenameInformation, FileLinkInformation])
def test_rename_and_link_targets(world: World, tree: TreeConnect, kind: Callable[[], Any], name: str) -> None:
    world.furnish()
    (world.share / "mine").write_bytes(MARK)
    file = opened(tree, "mine", READ_WRITE | DELETE, CreateDisposition.FILE_OPEN)
    assert file is not None
    for replace in (False, True):
        information = kind()
        information["replace_if_exists"] = replace
        information["file_name"] = spelled(name, world).encode("utf-16-le")
        request = SMB2SetInfoRequest()
        request["info_type"] = 1
        request["file_info_class"] = 10 if kind is FileRenameInformation else 11
        request["file_id"] = file.file_id
        request["buffer"] = information
        connection = tree.session.connection
        sent = connection.send(request, tree.session.session_id, tree.tree_connect_id)
        with suppress(SMBResponseException):
            connection.receive(sent)
        world.check()
    file.close()
    for left in world.share.glob("mine*"):
        left.unlink()


def symlink_reparse_point(target: str, relative: bool) -> bytes:
    """MS-FSCC 2.1.2.4."""
    text = target.encode("utf-16-le")
    body = struct.pack("<HHHHI", 0, len(text), len(text), len(text), int(relative)) + text + text
    return struct.pack("<IHH", 0xA000000C, len(body), 0) + body


@pytest.mark.parametrize(
    "target", ["..\\secret", "..\\outside", "d\\..\\..\\secret", "/etc/passwd", "C:\\x", "\\??\\{outside}\\secret"]
)
@pytest.mark.parametrize("relative", [True, False])
def test_links_that_a_client_makes(world: World, tree: TreeConnect, target: str, relative: bool) -> None:
    """Whatever became of the attempt, nothing is reached through it."""
    world.furnish()
    made = opened(tree, "made", READ_WRITE | DELETE, CreateDisposition.FILE_OPEN_IF, 0x00200000)
    assert made is not None
    request = SMB2IOCTLRequest()
    request["ctl_code"] = FSCTL_SET_REPARSE_POINT
    request["file_id"] = made.file_id
    request["flags"] = IOCTLFlags.SMB2_0_IOCTL_IS_FSCTL
    request["buffer"] = symlink_reparse_point(spelled(target, world), relative)
    connection = tree.session.connection
    sent = connection.send(request, tree.session.session_id, tree.tree_connect_id)
    with suppress(SMBResponseException):
        connection.receive(sent)
    made.close()
    for name in ("made", "made\\secret", "made\\new", "made:stream"):
        for disposition in (CreateDisposition.FILE_OPEN, CreateDisposition.FILE_OVERWRITE_IF):
            file = opened(tree, name, READ_WRITE | DELETE, disposition)
            if file is not None:
                try_everything(file)
                file.close()
    world.check()
    left = opened(tree, "made", DELETE, CreateDisposition.FILE_OPEN, 0x1000 | 0x00200000)
    if left is not None:
        left.close()
    world.check()


def impacket_create(connection: Any, tree_id: int, name: bytes, disposition: int, options: int = 0) -> bytes | None:
    """The CREATE itself: impacket's own methods tidy names up. FileId, or None if refused."""
    smb = connection.getSMBServer()
    packet = smb.SMB_PACKET()
    packet["Command"] = smb3structs.SMB2_CREATE
    packet["TreeID"] = tree_id
    create = smb3structs.SMB2Create()
    create["SecurityFlags"] = create["RequestedOplockLevel"] = 0
    create["ImpersonationLevel"] = smb3structs.SMB2_IL_IMPERSONATION
    create["DesiredAccess"] = READ_WRITE | DELETE
    create["FileAttributes"] = 0
    create["ShareAccess"] = 7
    create["CreateDisposition"] = disposition
    create["CreateOptions"] = options
    create["NameLength"] = len(name)
    create["Buffer"] = name or b"\0"
    create["CreateContextsOffset"] = create["CreateContextsLength"] = 0
    packet["Data"] = create
    answer = smb.recvSMB(smb.sendSMB(packet))
    if answer["Status"]:
        return None
    file_id = bytes(smb3structs.SMB2Create_Response(answer["Data"])["FileID"].getData())
    # Its other methods want to know the open.
    smb._Session["OpenTable"][file_id] = {**OPEN, "FileID": file_id, "TreeConnect": tree_id, "FileName": ""}
    smb.GlobalFileTable[""] = {}
    return file_id


def test_impacket_with_raw_names(world: World) -> None:
    """Also names that are no UTF-16."""
    world.furnish()
    connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=world.served.port)
    connection.login("u", "pw")
    tree_id = connection.connectTree("share")
    names = [spelled(name, world).encode("utf-16-le", "surrogatepass") for name in NAMES]
    names += [
        b"\0",
        b"a",
        b"\x00\xd8",
        b"\x00\xdc.\0.\0",
        b"../secret",
        b"\xff" * 31,
        b".\0.\0\\\0s\0e\0c\0r\0e\0t\0\0",
    ]
    for name in names:
        for disposition in (smb3structs.FILE_OPEN, smb3structs.FILE_OVERWRITE_IF):
            file_id = impacket_create(connection, tree_id, name, disposition)
            if file_id is None:
                continue
            with suppress(SessionError):
                assert SECRET not in connection.readFile(tree_id, file_id, 0, 1000)
            with suppress(SessionError):
                connection.writeFile(tree_id, file_id, MARK)
            connection.closeFile(tree_id, file_id)
        world.check()
    connection.close()
    gc.collect()


@pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")
def test_smbclient(world: World, tmp_path: Path) -> None:
    world.furnish()
    (tmp_path / "mark").write_bytes(MARK)
    names = [
        "../secret",
        "..\\secret",
        "link",
        "absolute",
        "folder/secret",
        "up/secret",
        "root/etc/passwd",
        "fifo",
        "device",
    ]
    commands = [f'get "{name}" {tmp_path}/got; put {tmp_path}/mark "{name}"; del "{name}"' for name in names]
    commands += [f'rename f "..\\{name}"; hardlink f "..\\{name}"; mkdir "..\\{name}"' for name in ("x", "outside\\x")]
    commands += [
        "cd ..; ls; get secret",
        "cd folder; ls; get secret",
        "cd root; ls",
        "recurse; prompt; mget *",
        "allinfo link",
    ]
    for command in commands:
        result = subprocess.run(
            ["smbclient", "//127.0.0.1/share", "-p", str(world.served.port), "-U", "u%pw", "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
        )
        assert SECRET.decode() not in result.stdout
        world.check()
        for path in tmp_path.rglob("*"):
            assert path.is_dir() or SECRET not in path.read_bytes(), path
            assert "root:x:0" not in (path.read_text(errors="replace") if path.is_file() else "")
    world.furnish()


@contextmanager
def swapping(*names: str, folder: Path, targets: tuple[str, ...]) -> Iterator[None]:
    """Names that are now this, now that: what lies beside them as NAME.0, NAME.1, ... is moved there in turn."""
    stopped = threading.Event()

    def swap() -> None:
        turn = 0
        while not stopped.is_set():
            for name in names:
                target = targets[turn % len(targets)]
                fresh = folder / f".{name}.new"
                if target:
                    os.symlink(target, fresh)
                else:
                    fresh.write_bytes(b"harmless")
                with suppress(OSError):
                    os.replace(fresh, folder / name)
            turn += 1

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def test_a_file_swapped_for_a_link_during_the_open(world: World, tree: TreeConnect) -> None:
    world.furnish()
    attempts = successes = 0
    with swapping(
        "swapped", folder=world.share, targets=("", "../secret", "../does-not-exist", str(world.outside / "secret"))
    ):
        deadline = time.monotonic() + RACE_SECONDS
        while time.monotonic() < deadline:
            for disposition in (1, 3, 5, 0):
                attempts += 1
                file = opened(tree, "swapped", READ_WRITE | DELETE, disposition)
                if file is not None:
                    successes += 1
                    try_everything(file)
                    file.close()
    assert attempts > 20 and successes
    world.check()


def test_a_folder_swapped_for_a_link_during_the_open(world: World, tree: TreeConnect) -> None:
    world.furnish()
    stopped = threading.Event()
    (world.share / "real").mkdir()
    (world.share / "real" / "secret").write_bytes(b"harmless")

    def swap() -> None:
        shifting, parked, link = (world.share / name for name in ("shifting", "real", ".link"))
        while not stopped.is_set():
            parked.rename(shifting)
            shifting.rename(parked)
            os.symlink("../outside", link)
            link.rename(shifting)
            shifting.unlink()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        deadline = time.monotonic() + RACE_SECONDS
        while time.monotonic() < deadline:
            for name in ("shifting\\secret", "shifting\\new", "SHIFTING\\Secret"):
                for disposition in (1, 3, 5):
                    file = opened(tree, name, READ_WRITE | DELETE, disposition)
                    if file is not None:
                        try_everything(file)
                        file.close()
            left = opened(tree, "shifting\\secret", DELETE, CreateDisposition.FILE_OPEN, 0x1000)
            if left is not None:
                left.close()
    finally:
        stopped.set()
        thread.join()
    world.check()


def test_special_files_do_not_hang_and_are_not_devices(world: World, tree: TreeConnect) -> None:
    """A FIFO without a writer would block whoever opens it: the answer comes at once, and others are served."""
    world.furnish()
    begun = time.monotonic()
    for name in SPECIAL:
        for access in (READ, READ_WRITE):
            file = opened(tree, name, access, CreateDisposition.FILE_OPEN)
            if file is not None:
                with suppress(SMBResponseException):
                    # /dev/zero would have this much.
                    assert len(file.read(0, 4096)) < 4096
                file.close()
    assert time.monotonic() - begun < 10
    assert opened(tree, "f", READ, CreateDisposition.FILE_OPEN) is not None
