"""Seals on records, and a store in which only sealed ones count."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from smb3server.cli.main import main
from smb3server.cluster.peers import pack
from smb3server.net.store_access import load_secret
from smb3server.persistence.seal import MAX_REFUSED, VERSION, Seal, SealedStore, SealError
from smb3server.persistence.sqlite import SqliteStore
from smb3server.persistence.store import ABSENT, Condition, ConditionFailed, Delete, Put, Store
from smb3server.process.secret_files import SecretFileError

SECRET = b"0123456789abcdef"
OURS = Seal(SECRET, "one")

Body = Callable[[SealedStore, Store], Awaitable[None]]


def test_what_is_sealed_is_opened() -> None:
    for content in (b"", b"{}", b"x" * 100000):
        assert OURS.open("k", OURS.close("k", content)) == content
    assert OURS.close("k", b"{}")[0] == VERSION


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b"",
        bytes([VERSION]),
        bytes([VERSION]) + bytes(32) + b"{}",
        OURS.close("other", b"{}"),
        OURS.close("k{", b"}"),
        Seal(b"another secret of 16", "one").close("k", b"{}"),
        Seal(SECRET, "two").close("k", b"{}"),
        OURS.close("k", b"{}") + b" ",
        OURS.close("k", b"{}")[:-1],
        bytes([VERSION + 1]) + OURS.close("k", b"{}")[1:],
    ],
    ids=["plain", "empty", "short", "zeros", "other key", "key's end", "other secret", "other cluster", "longer",
         "shorter", "other version"],
)  # fmt: skip
def test_what_is_not_this_keys_is_refused(value: bytes) -> None:
    with pytest.raises(SealError):
        OURS.open("k", value)


def test_without_a_secret_sealed_records_are_refused_and_no_content_looks_sealed() -> None:
    plain = Seal(None, "one")
    for content in (b"{}", b"", pack([])):
        assert plain.close("k", content) == content == plain.open("k", content)
    with pytest.raises(SealError, match="secret_file"):
        plain.open("k", OURS.close("k", b"{}"))


def test_a_secret_is_made_once_and_read_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert main(["cluster", "secret", str(path)]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = load_secret(path)
    assert len(secret) == 64
    assert main(["cluster", "secret", str(path)]) == 1
    assert load_secret(path) == secret
    for mode in (0o644, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(SecretFileError, match="chmod 600"):
            load_secret(path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(SecretFileError, match="16"):
        load_secret(path)
    with pytest.raises(SecretFileError, match="not a regular file"):
        load_secret(tmp_path)
    with pytest.raises(SecretFileError, match="No such file"):
        load_secret(tmp_path / "nothing")


def run(path: Path, body: Body) -> None:
    async def main() -> None:
        below = await SqliteStore.open(path / "store.db")
        try:
            async with asyncio.timeout(30):
                await body(SealedStore(below, OURS), below)
        finally:
            await below.close()

    asyncio.run(main())


def test_forged_records_are_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(store: SealedStore, below: Store) -> None:
        await store.commit([Put("t/good", b"1"), Put("t/moved", b"2"), Delete("t/none")])
        moved = await below.get("t/moved")
        assert moved is not None and moved.value != b"2"
        await below.commit([Put("t/copy", moved.value), Put("t/plain", b"3")])
        assert [(entry.key, entry.value) for entry in await store.scan("t/")] == [("t/good", b"1"), ("t/moved", b"2")]
        assert await store.get("t/plain") is None and await store.get("t/copy") is None
        good = await store.get("t/good")
        assert good is not None and good.value == b"1"
        assert set(store.refused) == {"t/copy", "t/plain"}
        # They stand in the way until they are removed.
        with pytest.raises(ConditionFailed):
            await store.commit([Put("t/plain", b"4")], [Condition("t/plain", ABSENT)])
        assert sorted(await store.purge("t/")) == ["t/copy", "t/plain"]
        assert store.refused == {}
        assert [entry.key for entry in await below.scan("t/")] == ["t/good", "t/moved"]

    with caplog.at_level(logging.ERROR):
        run(tmp_path, body)
    assert sum("t/plain" in record.getMessage() for record in caplog.records) == 1


def test_a_watcher_sees_a_forged_record_as_a_deletion(tmp_path: Path) -> None:
    async def body(store: SealedStore, below: Store) -> None:
        async def write() -> None:
            await store.commit([Put("t/a", b"1")])
            await below.commit([Put("t/a", b"forged")])
            await store.commit([Put("t/a", b"2")])
            await store.commit([Delete("t/a")])

        seen: list[bytes | None] = []
        changes = store.watch("t/", await store.version())
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        writing = asyncio.ensure_future(write())
        seen.append((await first).value)
        while len(seen) < 4:
            seen.append((await anext(changes)).value)
        await writing
        assert seen == [b"1", None, b"2", None]
        assert store.refused == {}

    run(tmp_path, body)


def test_many_forged_records_do_not_fill_log_or_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(store: SealedStore, below: Store) -> None:
        for start in range(0, MAX_REFUSED + 500, 100):
            below.submit([Put(f"t/{number}", b"") for number in range(start, start + 100)])
        assert await store.scan("t/") == []
        assert len(store.refused) == MAX_REFUSED

    with caplog.at_level(logging.ERROR):
        run(tmp_path, body)
    assert len(caplog.records) == MAX_REFUSED + 1
