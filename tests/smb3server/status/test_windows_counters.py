"""Performance counters by Windows' names: what they are made of is there, and their values are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from smb3server.status.windows_counters import COUNTERS, Samples, parse, read

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text()
S = "windows_smb_server_shares_"


def texts(reads: int, seconds: float, sent: int) -> Samples:
    return parse(
        f'# HELP {S}read_requests_total x\n{S}read_requests_total{{share="a"}} {reads}\n'
        f'{S}read_requests_total{{share="say \\"b\\""}} 1.0\n{S}sent_bytes_total{{share="a"}} {sent}\n'
        f'{S}read_seconds_total{{share="a"}} {seconds}\n{S}current_open_file_count{{share="a"}} 4\n'
        'smb3server_share_durable_opens{kind="persistent",share="a"} 3\n'
        'smb3server_share_durable_opens{kind="durable",share="a"} 1\n'
        f'smb3server_rdma_bytes_total{{direction="sent",fabric="iwarp"}} {sent}\n'
        'smb3server_message_bytes_total{direction="sent",fabric="tcp"} 7\n'
    )


def test_values_are_those_of_the_time_between() -> None:
    found = dict(read(texts(10, 1.0, 1000), texts(30, 1.5, 5000), 2.0))
    shares = "SMB Server Shares(a)\\"
    assert found[shares + "Read Requests/sec"] == 10
    assert found[shares + "Read Bytes/sec"] == 2000
    assert found[shares + "Avg. sec/Read"] == pytest.approx(0.025)
    assert found[shares + "Avg. Bytes/Read"] == 200
    assert found[shares + "Avg. Read Queue Length"] == 0.25
    assert found[shares + "% Persistent Handles"] == 75
    assert found[shares + "Current Durable Open File Count"] == 4
    assert found['SMB Server Shares(say "b")\\Read Requests/sec'] == 0
    assert found["SMB Server Shares(_Total)\\Read Requests/sec"] == 10
    assert found["SMB Direct Connection(iwarp)\\Bytes RDMA Written/sec"] == 2000
    assert not any("(tcp)" in path for path in found)
    assert found["SMB Server\\Read Bytes/sec"] == 2000


def test_a_server_that_began_again_has_no_negative_rates() -> None:
    assert min(dict(read(texts(30, 5.0, 9000), texts(1, 0.1, 10), 1.0)).values()) >= 0


def test_no_time_has_passed() -> None:
    assert dict(read(texts(1, 1.0, 1), texts(2, 2.0, 2), 0.0))["SMB Server\\Read Bytes/sec"] == 0


def test_the_page_has_every_counter() -> None:
    rows = [f"| {one.set} | {one.name} | {one.kind.value} | `{one.metrics}` |" for one in COUNTERS]
    assert [line for line in PAGE.splitlines() if line in rows] == rows


def test_every_metric_is_on_the_page() -> None:
    """``test_metrics`` compares the page with what there is."""
    for counter in COUNTERS:
        for term in (*counter.of, *counter.by):
            assert f"| `{term.metric}`" in PAGE or f", `{term.metric}`" in PAGE, term.metric
