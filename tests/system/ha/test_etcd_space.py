"""An etcd that fills up, loses its quorum, or is told to forget its history: what the cluster does and says."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smb3server.cluster import upkeep as upkeep_module
from smb3server.cluster.upkeep import Upkeep
from smb3server.doctor.config import examine_config
from smb3server.doctor.findings import Verdict
from smb3server.net.store_access import etcd_access
from smb3server.net.store_url import parse_url
from smb3server.persistence.etcd import EtcdStore
from smb3server.persistence.etcd_access import error_of
from smb3server.persistence.etcd_health import MemberState, problems
from smb3server.persistence.store import HistoryGone, Put, StoreFull
from tests.lab.etcd import PREFIX, Etcd, SecuredEtcd
from tests.lab.nodes import Node, asked
from tests.lab.served import in_process
from tools.support import own_user

QUOTA = 4 << 20
needs_etcdctl = pytest.mark.skipif(shutil.which("etcdctl") is None, reason="etcdctl is not installed (etcd-client)")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd with little room."""
    etcd = Etcd(tmp_path, more=("--quota-backend-bytes", str(QUOTA)))
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.stop()


async def fill(store: EtcdStore, megabytes: float) -> None:
    """Write history that nobody needs."""
    for _ in range(int(megabytes * 16)):
        await store.commit([Put(f"{PREFIX}state/x", b"x" * (1 << 16))])


def test_a_full_etcd_is_said_with_its_remedy(small: Etcd, tmp_path: Path) -> None:
    """By ``cluster status``, which goes on without writing, by ``move``, and by the node's log. The commands that are
    shown repair it."""
    (tmp_path / "share").mkdir()
    sections = (
        '[[service]]\nname = "one"\nnodes = ["a", "b"]\n'
        f'[[share]]\nname = "data"\npath = "{tmp_path / "share"}"\n{own_user.LINE}service = "one"\n'
    )
    node = Node(tmp_path, "a", small.url, sections)
    node.start()
    try:

        async def body() -> None:
            store = EtcdStore(parse_url(small.url))
            with pytest.raises(StoreFull, match="remedy: etcdctl compact"):
                await fill(store, 8)
            await store.close()

        asyncio.run(body())
        status, out, errors = asked(small.url, "status", "--json")
        assert status == 0, errors
        found = json.loads(out)
        assert [entry["name"] for entry in found["nodes"]] == ["a"]
        assert found["etcd"][0]["alarms"] == ["NOSPACE"] and found["etcd"][0]["quota"] == QUOTA
        assert any("what the nodes say" in text for text in found["unknown"])
        (problem,) = [entry["text"] for entry in found["problems"] if entry["is_error"]]
        node.config.write_text(
            node.config.read_text().replace("[cluster]", f'[cluster]\netcd = "{small.url}"\nnode = "a"')
        )
        (finding,) = [entry for entry in examine_config(node.config)[1] if entry.subject == "cluster"]
        assert finding.verdict is Verdict.PROBLEM and "NOSPACE" in finding.text and "compact" in finding.remedy
        assert asked(small.url, "drain", "a")[0] == 1
        assert "remedy: etcdctl compact" in asked(small.url, "drain", "a")[2]
        deadline = time.monotonic() + 2 * upkeep_module.INTERVAL
        while "alarm NOSPACE" not in node.log():
            assert time.monotonic() < deadline, node.log()
            time.sleep(0.2)
        if shutil.which("etcdctl") is not None:
            commands = problem.partition("remedy: ")[2].partition(", with")[0].split(", then ")
            assert len(commands) == 3
            for words in commands:
                subprocess.run(words.split(), env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}, check=True)
            assert asked(small.url, "drain", "a")[0] == 1  # There is no other node, and that is what it says.
            assert "no other node" in asked(small.url, "drain", "a")[2]
            assert not json.loads(asked(small.url, "status", "--json")[1])["problems"]
    finally:
        node.kill()


@pytest.mark.long
def test_history_is_compacted_before_etcd_is_full(small: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the quota is written, and all of it is taken. Only one of two nodes compacts."""
    monkeypatch.setattr(upkeep_module, "SHORT_MARGIN", 0.0)

    async def body() -> None:
        store = EtcdStore(parse_url(small.url))
        first = Upkeep(store, PREFIX, "a", lambda: ["a", "b"])
        second = Upkeep(store, PREFIX, "b", lambda: ["a", "b"])
        for _ in range(24):
            await fill(store, 0.5)
            await second.look()
            await first.look()
            # etcd frees the pages of compacted history in the background.
            await asyncio.sleep(0.2)
        assert not first.problems() or "NOSPACE" not in first.problems()[0].text
        assert second._compacted == 0 < first._compacted
        assert first.latency is not None and first.report().members[0].size < QUOTA
        assert await store.get(f"{PREFIX}state/x") is not None
        with pytest.raises(HistoryGone):
            async for _ in store.watch(PREFIX, 1):
                pytest.fail("history that was compacted")
        await store.close()

    asyncio.run(body())


def test_a_role_for_the_prefix_is_enough(tmp_path: Path) -> None:
    """A node's user may compact, and ask for sizes and alarms."""
    etcd = SecuredEtcd(tmp_path)
    try:
        etcd.start()

        async def body() -> None:
            store = EtcdStore(parse_url(etcd.url), access=etcd_access(etcd.url, etcd.access))
            for _ in range(5):
                version = await store.commit([Put(f"{PREFIX}x", b"x")])
            await store.compact(version)
            await store.compact(version)
            (state,) = await store.members_state()
            assert not state.error and state.has_leader and state.quota == 2 << 30 and state.revision == version
            await store.close()

        asyncio.run(body())
    finally:
        etcd.stop()


@pytest.mark.long
def test_status_without_a_quorum(tmp_path: Path) -> None:
    """It shows what the last member has, says that it may be old, and does not take long."""
    etcd = Etcd(tmp_path, 3)
    try:
        etcd.start()

        async def body() -> None:
            store = EtcdStore(parse_url(etcd.url))
            await store.commit([Put("smb3server/c/nodes/a", b"{}"), Put("smb3server/c/draining/b", b"{}")])
            await store.close()

        asyncio.run(body())
        etcd.kill(1)
        etcd.kill(2)
        deadline = time.monotonic() + 30
        while True:
            begun = time.monotonic()
            status, out, errors = asked(etcd.url, "status", "--json")
            if status == 1 and out:
                break
            assert time.monotonic() < deadline, errors
        assert time.monotonic() - begun < 10
        assert "quorum is lost" in errors
        found = json.loads(out)
        assert found["stale"] and [entry["name"] for entry in found["nodes"]] == ["a"]
        assert [bool(entry["error"]) for entry in found["etcd"]].count(True) == 2
        assert "no leader" in found["problems"][0]["text"]
        assert "may be old" in asked(etcd.url, "status")[1]
    finally:
        etcd.stop()


def test_what_is_a_problem() -> None:
    """Errors come first; a database that is nearly full is a warning whose remedy depends on what is in use."""
    well = MemberState("http://m1", revision=7, size=100, in_use=90, quota=1000, has_leader=True)
    assert problems([well]) == []
    spread = MemberState("http://m2", size=800, in_use=100, quota=1000, has_leader=True)
    (found,) = problems([well, spread])
    assert not found.is_error and "defrag" in found.text and "80%" in found.text
    spread.in_use = 790
    assert "larger --quota-backend-bytes" in problems([spread])[0].text
    gone = MemberState("http://m3", error="Connection refused")
    full = MemberState("http://m1", revision=12, alarms=["NOSPACE"], has_leader=True)
    assert [entry.is_error for entry in problems([gone, full])] == [True, False]
    assert "compact 12" in problems([gone, full])[0].text
    assert isinstance(error_of("etcdserver: mvcc: database space exceeded"), StoreFull)


def test_a_node_says_that_it_is_out_of_the_cluster(tmp_path: Path) -> None:
    """``status`` and the metrics of a node: while it serves, and after etcd is gone."""
    etcd = Etcd(tmp_path)
    (tmp_path / "share").mkdir()
    sections = (
        '[[service]]\nname = "one"\nnodes = ["a"]\n'
        f'[[share]]\nname = "data"\npath = "{tmp_path / "share"}"\n{own_user.LINE}service = "one"\n'
    )
    node = Node(tmp_path, "a", etcd.url, sections)

    def ask(*arguments: str) -> str:
        done = in_process(*arguments, "--state", str(tmp_path / "a"))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def report() -> dict[str, Any]:
        found = json.loads(ask("status", "--json"))["cluster"]
        assert isinstance(found, dict)
        return found

    def wait_for(member: bool) -> None:
        deadline = time.monotonic() + 40
        while report()["member"] is not member or report()["services"][0]["owned"] is not member:
            assert time.monotonic() < deadline, node.log()
            time.sleep(0.3)

    try:
        etcd.start()
        node.start()
        wait_for(True)
        while not report()["etcd"]["members"]:
            time.sleep(0.1)
        found = report()
        assert found["lease_left"] > 0 and found["nodes"] == ["a"]
        assert found["services"][0]["node"] == "a" and found["services"][0]["takeovers"] == 1
        assert found["etcd"]["members"][0]["size"] > 0 and found["etcd"]["latency"] > 0
        assert "service one: served here" in ask("status")
        assert "smb3server_cluster_member 1.0" in ask("metrics")
        status, out, errors = asked(etcd.url, "status", "--json")
        assert status == 0, errors
        assert json.loads(out)["nodes"][0]["max_opens"] > 100
        etcd.kill(0)
        wait_for(False)
        assert report()["services"][0]["node"] is None
        assert "NOT A MEMBER" in ask("status")
        assert "smb3server_cluster_member 0.0" in ask("metrics")
    finally:
        node.kill()
        etcd.stop()
