"""Limits and measured rates, by a clock of the test's own."""

from __future__ import annotations

import pytest

from smb3server.qos import flows
from smb3server.qos.flows import FlowTable
from smb3server.qos.rates import Limit, Measured
from smb3server.settings.storage_policies import StoragePolicy
from smb3server.wire.sqos import FlowStatus

POLICY = StoragePolicy(b"p" * 16, "gold", 10, 100, 800)


def test_operations_are_spread_to_the_limit() -> None:
    limit = Limit(100)
    waits = [limit.admit(50.0, 1) for _ in range(111)]
    assert waits[:10] == [0.0] * 10
    assert waits[-1] == pytest.approx(1.0)
    # Whoever was idle has no more than a short burst.
    assert [limit.admit(500.0, 1) > 0 for _ in range(12)] == [False] * 11 + [True]


def test_no_limit_is_no_wait() -> None:
    assert Limit().admit(1.0, 1 << 40) == 0


def test_a_rate_is_measured_over_seconds() -> None:
    measured = Measured(0.0)
    for tick in range(100):
        measured.add(tick / 10, 10)
    assert measured.rate(10.0) == pytest.approx(100, rel=0.05)
    assert measured.rate(30.0) == 0


def test_a_flow_has_the_limits_of_its_policy() -> None:
    table = FlowTable({POLICY.policy_id: POLICY}.get)
    flow = table.join(b"f" * 16, 0.0)
    assert flow is not None
    flow.limit, flow.bandwidth_limit = 7, 8
    assert (flow.maximum_iops, flow.maximum_bandwidth) == (7, 8)
    flow.policy_id = POLICY.policy_id
    assert (flow.minimum_iops, flow.maximum_iops, flow.maximum_bandwidth) == (10, 100, 800)
    # 800 KiB/s: a megabyte takes more than a second, though 128 operations of 8 KiB take 1.28.
    assert flow.admit(1.0, 1 << 20) == 0
    assert flow.admit(1.0, 512) == pytest.approx(1.28, abs=0.11)
    flow.policy_id = b"?" * 16
    assert flow.status is FlowStatus.UNKNOWN_POLICY_ID


def test_a_flow_ends_with_its_last_open(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FlowTable(lambda _: None)
    monkeypatch.setattr(flows, "MAX_FLOWS", 1)
    flow = table.join(b"f" * 16, 0.0)
    assert flow is not None
    assert table.join(b"f" * 16, 0.0) is flow
    assert table.join(b"g" * 16, 0.0) is None
    flow.admit(0.0, 512)
    table.leave(flow)
    assert table.by_id
    table.leave(flow)
    assert not table.by_id
    assert table.totals == (1, 0)
