"""What SQL Server does with its files, by smbprotocol and impacket: pages and log records written through and
unbuffered, a server that is killed meanwhile, sector sizes, and the sparse stream that DBCC CHECKDB makes of its
snapshot."""

from __future__ import annotations

import os
import random
import struct
import threading
import uuid
import warnings
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.lab.command import Served, serve, stop

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.smbconnection import SMBConnection
    from smbprotocol.connection import Connection
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

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
PAGE, PAGES, WRITERS, ENOUGH = 8192, 64, 4, 40
"""Bytes of a page, pages of a file, threads, and pages that each writes before the server is killed."""
_TRAILER = struct.Struct("<QQI")
"""Number of the page, version, checksum."""
SET_SPARSE, QUERY_ALLOCATED_RANGES = 0x000900C4, 0x000940CF
SECTOR_SIZE, FILE_SYSTEM, FILE, VALID_DATA_LENGTH = 11, 2, 1, 39


def page(number: int, version: int) -> bytes:
    """Return a page that says what it is, with a checksum: half a page is found out."""
    body = random.Random(number << 32 | version).randbytes(PAGE - _TRAILER.size)
    return body + _TRAILER.pack(number, version, zlib.crc32(body))


def version_of(number: int, data: bytes) -> int:
    """Return the version of a whole page. 0: it was never written."""
    if not any(data):
        return 0
    body, (found, version, checksum) = data[: -_TRAILER.size], _TRAILER.unpack(data[-_TRAILER.size :])
    assert (found, checksum) == (number, zlib.crc32(body)), f"page {number} is torn"
    return int(version)


class Database:
    """One file that is opened as SQL Server opens its own: FILE_FLAG_WRITE_THROUGH and FILE_FLAG_NO_BUFFERING."""

    def __init__(self, served: Served, name: str) -> None:
        self.connection = Connection(uuid.uuid4(), "127.0.0.1", served.port)
        self.connection.connect()
        session = Session(self.connection, "u", "pw")
        session.connect()
        tree = TreeConnect(session, r"\\127.0.0.1\share")
        tree.connect()
        self.file = Open(tree, name)
        self.file.create(
            ImpersonationLevel.Impersonation,
            FilePipePrinterAccessMask.GENERIC_READ | FilePipePrinterAccessMask.GENERIC_WRITE,
            0,
            ShareAccess.FILE_SHARE_READ | ShareAccess.FILE_SHARE_WRITE,
            CreateDisposition.FILE_OPEN_IF,
            CreateOptions.FILE_NON_DIRECTORY_FILE
            | CreateOptions.FILE_WRITE_THROUGH
            | CreateOptions.FILE_NO_INTERMEDIATE_BUFFERING,
        )


def _write_pages(served: Served, writer: int, acknowledged: dict[int, int], enough: threading.Event) -> None:
    """Write pages of one's own, in no order, until the server is gone. Note each version that it has acknowledged."""
    database = Database(served, "db.mdf")
    chosen = random.Random(writer)
    own = range(writer, PAGES, WRITERS)
    for count in range(1, 100_000):
        number = chosen.choice(own)
        version = acknowledged.get(number, 0) + 1
        try:
            database.file.write(page(number, version), number * PAGE)
        except Exception:
            # The server is gone, and each library has its own exceptions for that.
            return
        acknowledged[number] = version
        if count == ENOUGH:
            enough.set()


def _append_records(served: Served, records: list[bytes], enough: threading.Event) -> None:
    """Append log records of whole sectors, 512 bytes to 60 KiB, until the server is gone."""
    database, at = Database(served, "db_log.ldf"), 0
    for count in range(1, 100_000):
        record = random.Random(count).randbytes(512 * (1 + count * 7 % 120))
        try:
            database.file.write(record, at)
        except Exception:
            return
        records.append(record)
        at += len(record)
        if count == ENOUGH:
            enough.set()


def test_no_acknowledged_page_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    served = serve(tmp_path)
    acknowledged: list[dict[int, int]] = [{} for _ in range(WRITERS)]
    records: list[bytes] = []
    enough = [threading.Event() for _ in range(WRITERS + 1)]
    threads = [
        threading.Thread(target=_write_pages, args=(served, writer, acknowledged[writer], enough[writer]))
        for writer in range(WRITERS)
    ]
    threads.append(threading.Thread(target=_append_records, args=(served, records, enough[-1])))
    for thread in threads:
        thread.start()
    try:
        assert all(event.wait(120) for event in enough)
    finally:
        served.process.kill()
        served.process.wait()
        if served.process.stdout is not None:
            served.process.stdout.close()
    for thread in threads:
        thread.join(120)
    data = (served.share / "db.mdf").read_bytes().ljust(PAGES * PAGE, b"\0")
    for number in range(PAGES):
        promised = acknowledged[number % WRITERS].get(number, 0)
        # The last write of each writer may or may not have been done.
        assert version_of(number, data[number * PAGE : (number + 1) * PAGE]) in (promised, promised + 1)
    log = b"".join(records)
    assert len(records) >= ENOUGH and (served.share / "db_log.ldf").read_bytes()[: len(log)] == log
    # Another start finds and serves what is there.
    served = serve(tmp_path)
    database = Database(served, "db.mdf")
    for number in range(0, PAGES, 7):
        assert version_of(number, bytes(database.file.read(number * PAGE, PAGE))) >= acknowledged[number % WRITERS].get(
            number, 0
        )
    database.connection.disconnect(close=True)
    assert stop(served) == 0


def _file(client: Any, tree: int, name: str) -> Any:
    return client.getSMBServer().create(tree, name, 0x0012019F, 7, 0x40, 3, 0)


def test_sectors_and_the_snapshot_of_a_consistency_check(served: Served) -> None:
    """FileFsSectorSizeInformation [MS-FSCC 2.5.9]; a sparse stream, written here and there and read as zeros elsewhere
    [MS-FSCC 2.3.64, 2.3.48]."""
    client = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=served.port)
    client.login("u", "pw")
    low, tree = client.getSMBServer(), client.connectTree("share")
    database = _file(client, tree, "check.mdf")
    low.write(tree, database, page(0, 1), 0, PAGE)
    sizes = struct.unpack_from("<4I", low.queryInfo(tree, database, infoType=FILE_SYSTEM, fileInfoClass=SECTOR_SIZE))
    # SQL Server refuses more than 4096 bytes, for its log.
    assert all(size in (512, 1024, 2048, 4096) for size in sizes)
    snapshot = _file(client, tree, "check.mdf:MSSQL_DBCC7")
    low.ioctl(tree, snapshot, SET_SPARSE, flags=1, inputBlob=b"\1")
    low.write(tree, snapshot, page(20, 1), 20 * PAGE, PAGE)
    assert version_of(20, low.read(tree, snapshot, 20 * PAGE, PAGE)) == 1
    assert low.read(tree, snapshot, 3 * PAGE, PAGE) == bytes(PAGE)
    assert version_of(0, low.read(tree, database, 0, PAGE)) == 1
    for opened in (snapshot, database):
        low.close(tree, opened)
    client.deleteFile("share", "check.mdf:MSSQL_DBCC7")
    assert (served.share / "check.mdf").stat().st_size == PAGE
    client.close()
    assert os.path.getsize(served.share / "check.mdf") == PAGE
