"""Connecting to a share: how long it takes, what it leaves behind, what it says, and when it looks for RDMA."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smb3server.client import RemoteError, Share, connect, errors, fabrics, silent
from smb3server.client.link import Channel
from smb3server.client.protocol import Client
from smb3server.client.protocol.negotiation import DIALECTS
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import StatusError
from tests.lab import meddler
from tests.lab.remote import PASSWORD, Home, run

MIB = 1 << 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "smb3server" / "silent.json"


@pytest.fixture
def nic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an RDMA NIC: iWARP in software stands for it."""
    monkeypatch.setattr(fabrics, "has_nic", lambda: True)
    monkeypatch.setattr(fabrics, "tried_by", lambda mode: ("iwarp",) if mode in ("auto", "prefer") else ())


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[fabrics.Way]:
    """The RDMA addresses that are tried."""
    found: list[fabrics.Way] = []
    original = fabrics.Fabrics.open

    async def counted(self: fabrics.Fabrics, way: fabrics.Way) -> Any:
        found.append(way)
        return await original(self, way)

    monkeypatch.setattr(fabrics.Fabrics, "open", counted)
    return found


def options(served: Home, **more: Any) -> Any:
    return {"password": PASSWORD, "rdma": "off", "rdma_port": served.rdma_port} | more


def there(served: Home) -> tuple[int, int]:
    """Sessions and connections of the server."""
    server = served.service.server
    return served.do(lambda: (len(server.sessions.by_id), len(list(server.connection_list))))


# What is left behind


@pytest.mark.parametrize("rdma", ["off", "prefer"])
def test_a_connect_that_is_cancelled_leaves_nothing(served: Home, rdma: str) -> None:
    """At whatever step."""

    async def main() -> int:
        count = 0
        while True:
            task = asyncio.ensure_future(opened(served, rdma=rdma, channels=2))
            await asyncio.sleep(0.0005 * count)
            if task.done():
                await task.result().close()
                return count
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            count += 1

    assert run(main) > 3
    deadline = time.monotonic() + 10
    while there(served) != (0, 0) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert there(served) == (0, 0)


async def opened(served: Home, **more: Any) -> Share:
    return await connect(served.url, **options(served, **more))


def test_who_fails_to_connect_anew_fails_once(served: Home) -> None:
    """The others that wait for the connection do not wait for as long again, nor does what they clean up."""

    async def main() -> None:
        async with meddler.between(served.port, lambda message: None) as port:
            share = await connect(served.url.replace(str(served.port), str(port)), **options(served, patience=1.0))
            file = await share.open("a", "wb")
            await file.write(b"1")
        began = time.monotonic()
        found = await asyncio.gather(
            *(share.stat() for _ in range(8)), file.write(bytes(4 * MIB)), return_exceptions=True
        )
        assert all(isinstance(error, ConnectionError) for error in found), found
        assert 0.5 <= time.monotonic() - began < 3.5
        await share.close()

    run(main)


def test_the_time_for_connecting_is_the_time_for_all_of_it(served: Home) -> None:
    async def main() -> None:
        async with meddler.between(served.port, lambda message: True) as port:
            began = time.monotonic()
            with pytest.raises(TimeoutError, match=r"127\.0\.0\.1"):
                await connect(served.url.replace(str(served.port), str(port)), **options(served, timeout=0.5))
            assert 0.5 <= time.monotonic() - began < 5

    run(main)


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"timeout": float("nan")}, {"answer_timeout": -1}, {"patience": -1}])
def test_times_that_are_none(served: Home, wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        connect(served.url, **options(served, **wrong))


# What is said


def test_errors_name_share_server_and_user(served: Home) -> None:
    def refusal(url: str, **more: Any) -> str:
        with pytest.raises(RemoteError) as caught:
            run(lambda: opened_at(url, served, **more))
        return str(caught.value)

    assert "127.0.0.1 has no share 'nosuch'" in refusal(served.url.replace("/share", "/nosuch"))
    told = refusal(served.url, password="wrong")
    assert "STATUS_LOGON_FAILURE: 127.0.0.1 does not let u in" in told and "smb://u@127.0.0.1" in told
    told = refusal(served.url.replace("u@", ""), anonymous=True)
    assert "does not let anonymous users in" in told


async def opened_at(url: str, served: Home, **more: Any) -> Share:
    return await connect(url, **options(served, **more))


def test_encryption_by_an_old_server(served: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tuple(number for number in DIALECTS if number <= Dialect.SMB_2_1)
    monkeypatch.setattr(Client.connect.__func__, "__defaults__", (old, None, 256, None))  # type: ignore[attr-defined]
    with pytest.raises(PermissionError, match=r"the server speaks SMB 2\.1; encryption begins with SMB 3\.0"):
        run(lambda: opened(served, encrypt=True))


@pytest.mark.parametrize(
    ("status", "name", "told"),
    [
        (0xC0000161, "STATUS_ILLEGAL_CHARACTER", "(STATUS_ILLEGAL_CHARACTER: 0xc0000161, "),
        (0xC0FFEE00, "status 0xc0ffee00", "(status 0xc0ffee00)"),
        (0xC0000022, "STATUS_ACCESS_DENIED", "(STATUS_ACCESS_DENIED)"),
    ],
)
def test_statuses_that_are_unknown_here(status: int, name: str, told: str) -> None:
    error = errors.of(StatusError(status), "a")
    assert error.status_name == name and told in str(error)


# When RDMA is looked for


def test_software_is_not_chosen_by_itself(served: Home, attempts: list[fabrics.Way]) -> None:
    async def main() -> None:
        for channels in (1, 2):
            async with connect(served.url, **options(served, rdma="auto", channels=channels)) as share:
                await share.write_bytes("a", bytes(MIB))
                assert len(share.link.channels) == channels
                assert not share.uses_rdma and share.why_not_rdma == fabrics.NO_NIC

    run(main)
    assert not attempts


def test_a_nic_is_looked_for_while_data_goes_over_tcp(served: Home, nic: None, attempts: list[fabrics.Way]) -> None:
    async def main() -> None:
        async with connect(served.url, **options(served, rdma="auto")) as share:
            await share.mkdir("d")
            await share.rename("d", "e")
            await share.rmdir("e")
            assert not attempts and share.why_not_rdma == "no data has moved yet"
            while not share.uses_rdma:
                await share.write_bytes("a", bytes(4 * MIB))
            assert share.moved["tcp"][0] and share.why_not_rdma == ""
            await share.write_bytes("a", bytes(4 * MIB))
            assert share.moved["iwarp"][0] >= 4 * MIB
            assert await share.read_bytes("a") == bytes(4 * MIB)
        async with connect(served.url, **options(served, rdma="auto")) as share:
            await share.write_bytes("a", b"x")

    run(main)
    deadline = time.monotonic() + 10
    while there(served) != (0, 0) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert there(served) == (0, 0)


@pytest.fixture
def swallowing() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_an_address_without_answer_is_remembered_for_a_while(
    served: Home, swallowing: int, cache: Path, attempts: list[fabrics.Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabrics, "UNLISTED_TIMEOUT", 0.2)
    monkeypatch.setattr(fabrics, "ATTEMPT_TIMEOUT", 0.2)

    def connected() -> str:
        async def main() -> str:
            async with connect(served.url, **options(served, rdma="prefer", rdma_port=swallowing)) as share:
                return share.why_not_rdma

        return run(main)

    assert "iwarp at 127.0.0.1" in connected()
    by_iwarp = f"iwarp 127.0.0.1 {swallowing}"
    assert [way.name for way in attempts].count(by_iwarp) == 1
    assert by_iwarp in json.loads(cache.read_text())
    assert "no answer, seen within the last 24 hours" in connected()
    assert [way.name for way in attempts].count(by_iwarp) == 1
    monkeypatch.setattr(silent, "TIME_TO_LIVE", 0.0)
    connected()
    assert [way.name for way in attempts].count(by_iwarp) == 2


def test_software_moves_only_large_data_by_rdma(served: Home) -> None:
    async def work() -> None:
        async with connect(served.url, password=PASSWORD, rdma="iwarp", rdma_port=served.rdma_port) as share:
            await share.write_bytes("a", bytes(65535))
            assert len(await share.read_bytes("a")) == 65535
            assert share.moved == {"messages": (65535, 65535)}
            await share.write_bytes("a", bytes(65536))
            assert len(await share.read_bytes("a")) == 65536
            assert share.moved["iwarp"] == (65536, 65536)
            assert (share.link._control is not None) and share.link.moves_by_rdma_from == 65536
            assert Channel(share.link._control.tree, "verbs").tree.rdma_from == 4096

    run(work)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": "b"}', '{"iwarp 127.0.0.1 5445": 1e300}', '{"a": NaN}'])
def test_a_cache_that_is_damaged_says_nothing(cache: Path, content: str) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(content)
    found = silent.SilentAddresses()
    assert "iwarp 127.0.0.1 5445" not in found and "a" not in found
    found.add("b")
    assert "b" in silent.SilentAddresses()
    found.remove("b")
    assert "b" not in silent.SilentAddresses()


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = silent.SilentAddresses()
    found.add("a")
    assert "a" in found and "a" not in silent.SilentAddresses()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    silent.SilentAddresses().add("a")


def no_home() -> Path:
    raise RuntimeError("no home")
