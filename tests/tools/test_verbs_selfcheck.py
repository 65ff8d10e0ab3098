"""The self-check for owners of NICs, as far as it goes without one."""

from __future__ import annotations

import pytest

from smb3server.tools.verbs_check import Check, main, show, verdicts
from smbdirect.providers.verbs.device import why_unavailable

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


@pytest.mark.skipif(why_unavailable() is None, reason="this machine has an RDMA device")
def test_nothing_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "RDMA" in capsys.readouterr().err
