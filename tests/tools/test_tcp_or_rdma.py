"""tools/bench/tcp_or_rdma.py: every system moves blocks of every size, and the page gets tables and pictures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools.bench import tcp_or_rdma
from tools.bench.tcp_or_rdma import PART, Point, Sample, document, measure

SYSTEMS = ["TCP", "iWARP, Write + Send", "iWARP, Read", "RoCEv2, Write + Send", "RoCEv2, Read"]


def test_every_system_moves_blocks() -> None:
    sizes = (64, 1 << 20)
    found = asyncio.run(measure(1, 0.01, sizes))
    assert set(found) == {Point(name, touched, size) for name in SYSTEMS for touched in (False, True) for size in sizes}
    for (sample,) in found.values():
        assert sample.latency > 0 and sample.rate > 0 and sample.processor > 0


def test_the_page_gets_medians_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [Sample(1e-6 * n, 1e6 * n, 1e-6 * n) for n in (1, 3, 9)]
    results = {
        Point(name, touched, size): rounds for name in SYSTEMS for touched in (False, True) for size in (64, 4096)
    }

    async def measured(*_: object) -> dict[Point, list[Sample]]:
        return results

    monkeypatch.setattr(tcp_or_rdma, "measure", measured)
    page = tmp_path / "page.md"
    assert tcp_or_rdma.main(["--page", str(page)]) == 2, "no markers"
    page.write_text(f"before\n<!-- {PART}: begin -->\nold\n<!-- {PART}: end -->\nafter\n")
    assert tcp_or_rdma.main(["--page", str(page)]) == 0
    text = page.read_text()
    assert "old" not in text and text.startswith("before") and text.endswith("after\n")
    assert text.count("| 64 B |" + " 3 |" * 10) == 3 and text.count("| 4 KiB |") == 3
    for fabric in ("iwarp", "roce"):
        name = next((tmp_path / "pictures").glob(f"*{fabric}*.svg"))
        assert f"pictures/{name.name}" in text
        assert "touched" in "".join(ElementTree.parse(name).getroot().itertext())
    assert "pictures" not in document(results, "", 3, 0.1)
