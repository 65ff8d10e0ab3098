"""The simulated clients of the failover bench, against a server that is killed under them."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from tests.lab.process import PASSWORD, USER, ServerProcess
from tools.failover.client import BLOCK, block, check, percentiles
from tools.failover.crowd import Options, Outcome, work

CLIENTS = 12


def test_a_crowd_survives_its_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    server.start()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    options = Options(0, CLIENTS, ("127.0.0.1", server.port), "ca", str(server.share), USER, PASSWORD, pause=0.01)
    process = context.Process(target=work, args=(options, there), daemon=True)
    process.start()
    there.close()
    try:
        assert here.poll(60)
        assert here.recv() == "open"
        here.send(("write", None))
        while any((server.share / f"c{number}").stat().st_size < 2 * BLOCK for number in range(CLIENTS)):
            assert process.is_alive()
        server.restart()
        back = 0
        while back < CLIENTS:
            here.send(("back", None))
            assert here.poll(60)
            back = here.recv()
        here.send(("stop", None))
        assert here.poll(60)
        outcome: Outcome = here.recv()
    finally:
        process.kill()
        process.join()
        server.kill()
    assert outcome.errors == []
    assert all(outcome.resumed_at)
    assert outcome.acknowledged >= 2 * CLIENTS
    assert sum(outcome.refusals.values()) >= CLIENTS


def test_what_counts_as_lost() -> None:
    two = block(7, 0) + block(7, 1)
    assert check(two, 7, 2) == ""
    assert check(two, 7, 1) == ""
    assert "2 blocks acknowledged" in check(block(7, 0), 7, 2)
    assert "block 1" in check(block(7, 0) + block(8, 1), 7, 1)
    assert check(two[:-1], 7, 1)
    assert percentiles([3.0, 1.0, 2.0]) == [2.0, 3.0, 3.0, 3.0]
