"""A share as a folder: every operation, over TCP and SMB Direct, and over connections that are lost."""

from __future__ import annotations

import asyncio
import errno
import io
import itertools
import os
import shutil
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.client import Share, connect, fabrics
from smb3server.client.entries import filetime_of, of_listing
from smb3server.client.protocol.exposed import ExposedPool
from smb3server.client.protocol.tree import Tree
from smb3server.client.sync import connect as connect_sync
from smb3server.wire.directory_info import ListedEntry
from smb3server.wire.header import Command
from smbdirect.errors import ProviderError
from tests.lab import meddler
from tests.lab.remote import PASSWORD, Home, home, run

MIB = 1 << 20
FABRICS = ("off", "iwarp", "prefer")


def use(served: Home, work: Callable[[Share], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        given = {"password": PASSWORD, "rdma": "off", "rdma_port": served.rdma_port} | options
        async with connect(f"{served.url}/test", **given) as share:
            await work(share)

    run(main)


@pytest.mark.parametrize("rdma", FABRICS)
@pytest.mark.parametrize("channels", [1, 3])
def test_data_there_and_back(served: Home, folder: Path, rdma: str, channels: int) -> None:
    data = os.urandom(5 * MIB + 17)

    async def work(share: Share) -> None:
        assert share.uses_rdma is (rdma != "off")
        assert share.why_not_rdma == ("it was turned off (rdma=off)" if rdma == "off" else "")
        assert len(share.link.channels) == channels, share.link.notes
        assert await share.write_bytes("big.bin", data) == len(data)
        assert (folder / "big.bin").read_bytes() == data
        assert await share.read_bytes("big.bin") == data
        kind = "tcp" if rdma == "off" else "iwarp"
        # The last piece is too small for RDMA.
        assert share.moved[kind][0] >= 5 * MIB and share.moved[kind][1] >= 5 * MIB
        assert rdma != "off" or share.moved == {"tcp": (len(data), len(data))}
        for content in (b"", b"x"):
            await share.write_bytes("small", content)
            assert await share.read_bytes("small") == content
        await share.write_text("text", "grüße\n")
        assert await share.read_text("text") == "grüße\n"

    use(served, work, rdma=rdma, channels=channels)


@pytest.mark.parametrize("protection", [{"sign": False}, {"encrypt": True}], ids=["clear", "encrypted"])
@pytest.mark.parametrize("rdma", ["off", "iwarp"])
def test_protection(served: Home, folder: Path, rdma: str, protection: dict[str, bool]) -> None:
    async def work(share: Share) -> None:
        data = os.urandom(MIB)
        await share.write_bytes("a", data)
        assert await share.read_bytes("a") == data
        session = share.link.channels[0].tree.session
        assert session.sign is protection.get("sign", True)
        assert session.encrypts(0) is protection.get("encrypt", False)
        if rdma == "iwarp":
            assert share.transport == f"iwarp (RDMA{', encrypted' if protection.get('encrypt') else ''})"

    use(served, work, rdma=rdma, **protection)


def test_files(served: Home, folder: Path) -> None:
    async def work(share: Share) -> None:
        async with await share.open("f", "w+b") as file:
            assert await file.write(b"0123456789") == 10
            assert (await file.seek(-3, os.SEEK_END), await file.read()) == (7, b"789")
            assert await file.truncate(4) == 4
            assert await file.read_at(0, 100) == b"0123"
            assert await file.write_at(6, b"x") == 1
            assert (await file.size(), file.tell()) == (7, 10)
            await file.flush()
        assert (folder / "f").read_bytes() == b"0123\0\0x"
        async with await share.open("f", "ab") as file:
            await file.write(b"end")
            with pytest.raises(io.UnsupportedOperation):
                await file.read()
        assert await share.read_bytes("f") == b"0123\0\0xend"
        with pytest.raises(ValueError, match="closed"):
            await file.write(b"")
        for mode in ("r", "rwb", "", "bb"):
            with pytest.raises(ValueError, match="mode"):
                await share.open("f", mode)
        with pytest.raises(FileExistsError):
            await share.open("f", "xb")
        with pytest.raises(FileNotFoundError, match=r"'none' \(STATUS_OBJECT_NAME_NOT_FOUND\)") as caught:
            await share.open("none")
        assert caught.value.filename == "none"
        await share.mkdir("d")
        with pytest.raises(IsADirectoryError):
            await share.open("d")
        assert "'f'" in repr(file) and "smb://u@127.0.0.1" in repr(share)

    use(served, work)


def test_folders(served: Home, folder: Path) -> None:
    long = "ü" * 100 + "x" * 55
    odd = 'a:b*c?"<>|\\ .'

    async def work(share: Share) -> None:
        await share.mkdir("a/b/c", parents=True)
        await share.mkdir("a/b/c", exist_ok=True)
        with pytest.raises(FileExistsError):
            await share.mkdir("a")
        for name in (f"a/{long}", "a/b/日本.txt", "a/b/c/x.txt", f"a/{odd}"):
            await share.write_bytes(name, b"1")
        assert sorted(await share.listdir("a")) == sorted([long, odd, "b"])
        assert [path for path, _, _ in [step async for step in share.walk("a")]] == ["a", "a/b", "a/b/c"]
        assert [entry.path for entry in await share.glob("**/*.txt")] == ["a/b/c/x.txt", "a/b/日本.txt"]
        assert [entry.path for entry in await share.glob("a/?/c")] == ["a/b/c"]
        entry = await share.stat(f"a/{odd}")
        assert (entry.is_file(), entry.size, entry.name) == (True, 1, odd)
        assert await share.is_dir("") and not await share.exists("a/none") and not await share.is_file("a")
        await share.utime(f"a/{long}", 1_600_000_000_123_456_700)
        assert (folder / "a" / long).stat().st_mtime_ns == 1_600_000_000_123_456_700
        await share.rename("a/b/c/x.txt", "y.txt")
        with pytest.raises(FileExistsError):
            await share.rename("y.txt", f"a/{odd}")
        await share.replace("y.txt", f"a/{odd}")
        with pytest.raises(OSError, match="Directory not empty"):
            await share.rmdir("a")
        with pytest.raises(IsADirectoryError):
            await share.remove("a")
        with pytest.raises(OSError, match="folder that was connected to"):
            await share.rmdir("")
        assert await share.rmtree("a") == 6
        assert await share.listdir() == []
        assert await share.rmtree("a", ignore_missing=True) == 0
        usage = await share.disk_usage()
        assert usage.total >= usage.used + usage.free > 0

    use(served, work)


def test_a_folder_of_ten_thousand(served: Home, folder: Path) -> None:
    for number in range(10_000):
        (folder / f"file {number}").touch()

    async def work(share: Share) -> None:
        assert len(set(await share.listdir())) == 10_000
        assert len(await share.glob("file 99*")) == 111

    use(served, work)


def test_names_that_lead_elsewhere_are_left_out(
    served: Home, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch()
    real = Tree.entries
    lies = ("../evil", "..\\evil", "/etc/evil", "a/b", "\\evil", "", "a\0b", "a\uf02f/x", "\ud800x", ".\uf029")

    async def listed(self: Tree, *words: Any) -> Any:
        yield ListedEntry(".")
        for name in lies:
            yield ListedEntry(name)
        async for entry in real(self, *words):
            yield entry

    async def work(share: Share) -> None:
        assert await share.listdir() == ["file"]
        assert share.left_out == len(lies)
        assert [entry.name async for _, _, files in share.walk() for entry in files] == ["file"]
        assert [entry.name for entry in await share.glob("*")] == ["file"]

    monkeypatch.setattr(Tree, "entries", listed)
    use(served, work)
    assert "\0" not in caplog.text and "cannot be the name of an entry" in caplog.text


def test_folders_without_an_end_are_refused(
    served: Home, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder that contains itself, and one that is listed for ever."""
    (folder / "circle").mkdir()
    real = Share._on_share

    def round_and_round(self: Share, path: str) -> str:
        parts = path.split("/")
        return real(self, "/".join(part for at, part in enumerate(parts) if part != "circle" or at == 0))

    async def walk(share: Share) -> None:
        async for _ in share.walk():
            pass

    async def listed(self: Tree, *words: Any) -> Any:
        for number in itertools.count():
            yield ListedEntry(str(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Share, "_on_share", round_and_round)
        (folder / "circle" / "circle").mkdir()
        for work in (walk, lambda share: share.glob("**/x"), lambda share: share.rmtree("circle")):
            with pytest.raises(OSError, match="folders within each other") as caught:
                use(served, work)
            assert caught.value.errno == errno.ELOOP
    monkeypatch.setattr(Tree, "entries", listed)
    monkeypatch.setattr("smb3server.client.share.MAX_ENTRIES", 5000)
    with pytest.raises(OSError, match="more than 5000 entries"):
        use(served, Share.listdir)


def test_times_that_a_server_invents_can_be_shown() -> None:
    for filetime in (-(1 << 63), -1, 0, 1, (1 << 63) - 1):
        entry = of_listing(ListedEntry("x", filetime, filetime, filetime, filetime), "x", "x")
        assert entry.modified.tzinfo is not None and entry.created.year >= 1
    assert filetime_of(-(10**30)) == 1 and filetime_of(10**30) == (1 << 63) - 1


def test_watching(served: Home, folder: Path) -> None:
    async def work(share: Share) -> None:
        watching = share.watch(recursive=True)
        first = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0.2)
        await share.mkdir("d")
        assert await first == ("added", "d")
        await share.write_bytes("d/x:y", b"1")
        found = [await anext(watching)]
        while found[-1] != ("added", "d/x:y"):
            found.append(await anext(watching))
        waiting = asyncio.ensure_future(anext(watching))
        while (await waiting).action != "overflow":
            waiting = asyncio.ensure_future(anext(watching))
            await asyncio.sleep(0.1)
            served.cut()
        await watching.aclose()

    use(served, work)


# Connections that are lost


def test_a_lost_connection_is_made_anew(served: Home, folder: Path) -> None:
    async def work(share: Share) -> None:
        data = os.urandom(20 * MIB)
        async with await share.open("a", "w+b") as file:
            await file.write(data[: 4 * MIB])
            assert served.cut()
            await file.write(data[4 * MIB :])
            assert served.cut()
            assert await file.read_at(0, len(data)) == data
        served.cut()
        assert await share.exists("a")
        reading = asyncio.ensure_future(share.read_bytes("a"))
        await asyncio.sleep(0.005)
        served.cut()
        assert await reading == data

    for rdma in ("off", "prefer"):
        use(served, work, rdma=rdma, channels=2)


def test_a_file_that_changed_meanwhile_is_not_read_on(served: Home, folder: Path) -> None:
    (folder / "a").write_bytes(b"old")

    async def work(share: Share) -> None:
        async with await share.open("a") as file:
            assert await file.read_at(0, 1) == b"o"
            served.cut()
            (folder / "a").write_bytes(b"newer")
            with pytest.raises(OSError, match="changed while the connection was lost"):
                await file.read_at(1, 2)

    use(served, work)


def test_without_rdma_data_goes_on_over_tcp(served: Home, folder: Path) -> None:
    async def work(share: Share) -> None:
        data = os.urandom(2 * MIB)
        await share.write_bytes("a", data)
        assert share.uses_rdma
        assert served.cut(rdma_only=True)
        assert await share.read_bytes("a") == data
        assert not share.uses_rdma
        assert "iwarp connection was lost" in share.why_not_rdma
        assert share.moved["tcp"][1] >= MIB

    use(served, work, rdma="prefer")


def test_without_memory_for_rdma_data_goes_on_over_tcp(
    served: Home, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ExposedPool, *words: object, **options: object) -> None:
        raise ProviderError("no memory can be registered")

    async def work(share: Share) -> None:
        assert share.uses_rdma
        monkeypatch.setattr(ExposedPool, "take", refuse)
        data = os.urandom(2 * MIB)
        await share.write_bytes("a", data)
        assert await share.read_bytes("a") == data
        assert "no memory can be registered" in share.why_not_rdma

    use(served, work, rdma="prefer")


def test_a_server_that_stops_answering_is_left(served: Home, folder: Path) -> None:
    """The first READ gets no answer; on a new connection it is repeated."""
    (folder / "a").write_bytes(b"content")
    silent = [True]

    def swallow(message: bytearray) -> bool:
        return meddler.command_of(message) == Command.READ and bool(silent) and silent.pop()

    async def main() -> None:
        async with meddler.between(served.port, swallow) as port:
            url = served.url.replace(str(served.port), str(port))
            async with connect(f"{url}/test", password=PASSWORD, rdma="off", answer_timeout=0.4) as share:
                before = share.link.channels[0].tree.client
                assert await share.read_bytes("a") == b"content"
                assert before.closed is not None and "no answer in 0.4 seconds" in str(before.closed)
                assert share.link.channels[0].tree.client is not before

    run(main)


def test_why_not_rdma(served: Home, folder: Path) -> None:
    async def work(share: Share) -> None:
        assert "iwarp at 127.0.0.1 port 1" in share.why_not_rdma
        assert share.transport == "tcp"

    use(served, work, rdma="prefer", rdma_port=1)
    with pytest.raises(ConnectionError, match=r"iwarp at 127\.0\.0\.1 port 1"):
        use(served, work, rdma="iwarp", rdma_port=1)
    with pytest.raises(OSError, match="no RDMA device"):
        use(served, work, rdma="verbs")


def test_attempts_that_nobody_answers_do_not_hold_up(
    served: Home, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[fabrics.Way] = []

    async def swallowed(self: fabrics.Fabrics, way: fabrics.Way) -> Any:
        tried.append(way)
        await asyncio.sleep(way.timeout)
        self.reasons[way.fabric] = "no answer in time"
        raise TimeoutError

    def everywhere(*words: object) -> list[fabrics.Way]:
        return [fabrics.Way("iwarp", f"192.0.2.{number}", 5445, 0.1) for number in range(100)]

    monkeypatch.setattr(fabrics, "PATIENCE", 0.25)
    monkeypatch.setattr(fabrics.Fabrics, "open", swallowed)
    monkeypatch.setattr(fabrics, "candidates", everywhere)

    async def work(share: Share) -> None:
        assert share.why_not_rdma == "no answer in time"
        assert len(tried) == fabrics.MAX_ATTEMPTS
        await share.write_bytes("a", b"1")

    use(served, work, rdma="prefer")


def test_nobody_becomes_a_guest_unasked(tmp_path: Path) -> None:
    with home(tmp_path, "--guest") as served:
        where = served.url.replace("u@", "stranger@")

        async def ask(**options: Any) -> list[str]:
            async with connect(where, rdma="off", **options) as share:
                return await share.listdir()

        with pytest.raises(PermissionError):
            run(lambda: ask(password="x"))
        assert run(lambda: ask(guest=True)) == []

        async def by_rdma() -> None:
            async with connect(where, guest=True, rdma="prefer", rdma_port=served.rdma_port) as share:
                assert "guests and anonymous users have no key" in share.why_not_rdma
            async with connect(where, guest=True, rdma="iwarp", rdma_port=served.rdma_port) as share:
                assert share.transport == "iwarp (RDMA)"
                await share.write_bytes("a", bytes(100_000))

        run(by_rdma)


def test_refused(served: Home) -> None:
    async def work(share: Share) -> None:
        raise AssertionError

    with pytest.raises(PermissionError, match="LOGON_FAILURE"):
        use(served, work, password="wrong")
    with pytest.raises(ValueError, match="channels"):
        use(served, work, channels=9)
    with pytest.raises(ValueError, match="rdma"):
        use(served, work, rdma="infiniband")

    async def missing() -> None:
        await connect(served.url.replace("/share", "/none"), password=PASSWORD, rdma="off")

    with pytest.raises(FileNotFoundError, match="BAD_NETWORK_NAME"):
        run(missing)

    async def nobody() -> None:
        await connect("smb://u@127.0.0.1:1/share", password=PASSWORD)

    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1"):
        run(nobody)


# Without asyncio


def test_the_same_without_asyncio(served: Home, folder: Path) -> None:
    options: Any = {"password": PASSWORD, "rdma": "prefer", "rdma_port": served.rdma_port}
    with connect_sync(f"{served.url}/test", **options) as share:
        assert share.uses_rdma
        with share.open("a.txt", "w") as file:
            file.write("one\ntwo\n")
        with share.open("a.txt") as file:
            assert file.readlines() == ["one\n", "two\n"]
        with share.open("a.zip", "wb") as file, zipfile.ZipFile(file, "w") as made:
            made.writestr("inner.bin", bytes(3 * MIB))
        with share.open("a.zip", "rb") as file, zipfile.ZipFile(file) as found:
            assert found.read("inner.bin") == bytes(3 * MIB)
        with share.open("a.zip", "rb") as source, (folder / "copy.zip").open("wb") as target:
            shutil.copyfileobj(source, target)
        assert share.read_bytes("copy.zip") == (folder / "a.zip").read_bytes()
        with share.open("a.txt", "r+b") as file:
            file.seek(4)
            file.write(b"TWO")
            file.seek(0)
            assert file.read() == b"one\nTWO\n"
        with share.open("a.txt", "rb", buffering=0) as file:
            assert file.read(3) == b"one"
        with pytest.raises(ValueError, match="encoding"):
            share.open("a.txt", "rb", encoding="utf-8")
        assert [path for path, _, _ in share.walk()] == [""]
        assert sorted(entry.name for entry in share.scandir()) == ["a.txt", "a.zip", "copy.zip"]
        assert share.glob("*.txt")[0].size == 8
        share.mkdir("d")
        share.copy("a.txt", "d")
        share.rename("d/a.txt", "d/b.txt")
        assert share.is_file("d/b.txt") and share.is_dir("d") and share.exists("d")
        assert share.rmtree("d") == 2
        with pytest.raises(FileNotFoundError):
            share.stat("d")
