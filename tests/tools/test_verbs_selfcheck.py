"""The self-check for owners of NICs, as far as it goes without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from smb3server.cli.main import main
from smb3server.lab.selfcheck import CHECKS, Check, check_transfers, show, verdicts
from smbdirect.providers.base import Provider
from smbdirect.providers.iwarp import IwarpProvider
from smbdirect.providers.loopback import LoopbackProvider
from smbdirect.providers.verbs.device import why_unavailable
from smbdirect.transport.rdma import Rdma

DOCUMENT = """<testsuites><testsuite>
<testcase name="test_a[verbs]"/>
<testcase name="test_b[verbs]"><skipped message="verbs: no RDMA device"/></testcase>
<testcase name="test_c[verbs]"><failure message="assert 1 == 2&#10;more">trace</failure></testcase>
</testsuite></testsuites>"""


def test_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    found = verdicts(DOCUMENT)
    assert found == {
        "test_a[verbs]": "ok",
        "test_b[verbs]": "skipped: verbs: no RDMA device",
        "test_c[verbs]": "FAILED: assert 1 == 2",
    }
    show(Check("192.0.2.1", "mlx5_0", {"max_inline": 128}, found))
    assert "1 passed, 1 skipped, 1 failed" in capsys.readouterr().out


def test_passed() -> None:
    assert not Check("a", "d").passed
    assert Check("a", "d", {}, {"t": "ok", "u": "skipped: x"}).passed
    assert not Check("a", "d", {}, {"t": "ok", "u": "FAILED: x"}).passed
    assert not Check("a", "d", {}, {"t": "ok"}, "no device").passed


@pytest.mark.parametrize("provider", [IwarpProvider, LoopbackProvider])
def test_transfers_arrive(provider: Callable[[], Provider]) -> None:
    found = asyncio.run(check_transfers(provider(), "127.0.0.1"))
    assert found == dict.fromkeys(CHECKS, "ok")


@pytest.mark.parametrize("method", ["write_to_peer", "read_from_peer"])
def test_transfers_that_bring_something_else_fail(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that says it is done, and moves nothing."""
    monkeypatch.setattr(Rdma, method, lambda self, remote, local, on_done: self._loop.call_soon(on_done, None))
    found = asyncio.run(check_transfers(IwarpProvider(), "127.0.0.1"))
    failed = "RDMA Write" if method == "write_to_peer" else "RDMA Read"
    assert [name for name, verdict in found.items() if verdict != "ok"] == [failed]
    assert found[failed].startswith("FAILED: the data")


@pytest.mark.skipif(why_unavailable() is None, reason="this machine has an RDMA device")
def test_nothing_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("selfcheck", "verbs-check"):
        assert main([name]) == 2
    assert "RDMA" in capsys.readouterr().err
