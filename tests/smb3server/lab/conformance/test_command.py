"""``smb3server conformance``: its options, its exit status, and a server that is not its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smb3server.cli.lab.conformance import EXIT_NOTHING
from smb3server.cli.main import main
from smb3server.lab.conformance.own import SHORT, USER, own_server
from smb3server.lab.conformance.registry import load
from smb3server.lab.conformance.run import EXIT_BROKEN, EXIT_CONFORMS
from smb3server.lab.conformance.target import Target
from smbdirect.core.credits import Credits
from tests.lab.broken_servers import replaces
from tests.lab.conformance import BROKEN, result
from tools.support.ports import free_ports


@contextmanager
def other_server() -> Iterator[Target]:
    """A server over iwarp in another thread, with a loop of its own."""
    ready: list[Target] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with own_server("iwarp", SHORT) as target:
            ready.append(target)
            started.set()
            await asyncio.get_running_loop().run_in_executor(None, stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(10)
        yield ready[0]
    finally:
        stop.set()
        thread.join(10)


def test_list_names_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--list"]) == EXIT_CONFORMS
    shown = capsys.readouterr().out
    assert all(name in shown and case.rule in shown for name, case in load().items())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cases", "NoSuchCase*"],
        ["--target", "127.0.0.1"],
        ["--target", "127.0.0.1", "--fabric", "iwarp,roce"],
        ["--target", "127.0.0.1", "--fabric", "loopback"],
        ["--target", "127.0.0.1", "--fabric", "iwarp", "--user", "u"],
        ["--user", "u", "--share", "s"],
        ["--port", "5445"],
        ["--fabric", "carrier-pigeon"],
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", *arguments]) == EXIT_NOTHING
    assert capsys.readouterr().err.startswith("smb3server conformance: ")


def test_own_server_conforms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit, page = tmp_path / "c.xml", tmp_path / "c.html"
    options = ["--fabric", "loopback,iwarp", "--cases", "BVT_SmbdNeg*", "--junit", str(junit), "--html", str(page)]
    assert main(["conformance", *options]) == EXIT_CONFORMS
    assert capsys.readouterr().out.count("pass           BVT_SmbdNegotiate_Basic") == 2
    assert "BVT_SmbdNegotiate_Basic" in junit.read_text() and "BVT_SmbdNegotiate_Basic" in page.read_text()


def test_broken_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    replaces(Credits, "grant", lambda self: 0)(monkeypatch)
    assert (
        main(["conformance", "--fabric", "loopback", "--cases", "BVT_SmbdNegotiate_Basic", "--json", "-"])
        == EXIT_BROKEN
    )
    ((case,),) = [run["cases"] for run in json.loads(capsys.readouterr().out)]
    assert case["verdict"] == "fail" and any("Negotiate Response" in line for line in case["evidence"])


def test_other_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    password = tmp_path / "password"
    with other_server() as target:
        password.write_text(target.password)
        password.chmod(0o600)
        there = ["--target", target.host, "--port", str(target.port), "--fabric", "iwarp"]
        there += ["--tcp-port", str(target.tcp_port)]
        account = ["--user", USER, "--share", target.share, "--password-file", str(password)]
        cases = ["--cases", "BVT_*", "--cases", "Sent_*"]
        assert main(["conformance", *there, *account, *cases]) == EXIT_CONFORMS
        assert "not applicable" not in capsys.readouterr().out
        assert main(["conformance", *there, *cases]) == EXIT_CONFORMS
        assert "needs --user and --share" in capsys.readouterr().out
        password.write_text("wrong")
        assert main(["conformance", *there, *account, "--cases", "BVT_SmbdData*"]) == EXIT_BROKEN
        shown = capsys.readouterr()
        assert "inconclusive" in shown.out and "cannot log on" in shown.err


def test_nothing_there(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    assert main(["conformance", "--target", "127.0.0.1", "--port", str(port), "--fabric", "iwarp"]) == EXIT_NOTHING
    assert "no connection to 127.0.0.1" in capsys.readouterr().err


def test_page_without_marks_is_found_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks")
    assert main(["conformance", "--fabric", "loopback", "--markdown", str(page)]) == EXIT_NOTHING
    assert str(page) in capsys.readouterr().err and page.read_text() == "no marks"


def test_machine_that_is_too_slow_is_no_fault_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep

    async def late(seconds: float) -> None:
        await sleep(seconds + BROKEN.slack if seconds else 0)

    monkeypatch.setattr("smb3server.lab.conformance.trial.asyncio.sleep", late)
    found = result("SmbdNegotiate_NegotiationTimer", timing=BROKEN)
    assert found.verdict.value == "inconclusive" and "came back" in found.reason
