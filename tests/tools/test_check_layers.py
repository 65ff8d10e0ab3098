"""The layer check finds what it should, and the project passes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_layers import RULES, check, check_source, main

ROOT = Path(__file__).resolve().parents[2]


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    return [v.imported for v in check_source(source, Path("x.py"), module, is_package, RULES)]


def test_project_has_no_violation() -> None:
    assert [str(v) for v in check(ROOT)] == []


@pytest.mark.parametrize(
    ("module", "source", "imported"),
    [
        ("smbdirect.transport.listen", "import smb3server.server.server", "smb3server.server.server"),
        ("smbdirect.transport.listen", "from witness import x", "witness.x"),
        ("smbdirect.core.connection", "import asyncio", "asyncio"),
        ("smbdirect.core.credits", "import time", "time"),
        ("smbdirect.core.messages", "from os import urandom", "os.urandom"),
        ("smbdirect.core.reassembly", "def f():\n    import socket", "socket"),
        ("smbdirect.core.connection", "from .providers import base", "smbdirect.providers.base"),
        (
            "smbdirect.providers.iwarp.provider",
            "from ...connection import Connection",
            "smbdirect.core.connection.Connection",
        ),
        ("smbdirect.providers.iwarp.mpa", "import socket", "socket"),
        ("smb3server.backends.local.backend", "from smb3server.wire import header", "smb3server.wire.header"),
        ("smb3server.commands.read", "from smbdirect.providers.base import Read", "smbdirect.providers.base.Read"),
        ("smb3server.server.server", "import scapy.all", "scapy.all"),
        ("smbdirect.core.connection", "try:\n    import random\nexcept ImportError:\n    pass", "random"),
        ("smbdirect.codec", "if TYPE_CHECKING:\n    pass\nelse:\n    import time", "time"),
    ],
)
def test_violation_is_found(module: str, source: str, imported: str) -> None:
    assert violations(module, source) == [imported]


def test_relative_import_in_a_package_is_resolved_against_the_package() -> None:
    assert violations("smb3server.backends", "from ..wire import header", is_package=True) == ["smb3server.wire.header"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("smb3server.commands.read", "from smbdirect.message_transport import RemoteBuffer"),
        ("smbdirect.transport.listen", "import asyncio, time"),
        ("smbdirect.core.connection", "import timeit_like"),
        ("smbdirect.codec", "if TYPE_CHECKING:\n    import asyncio"),
        ("smbdirect.codec", "if typing.TYPE_CHECKING:\n    import asyncio"),
        ("smb3server.backends.local.backend", "import os"),
        ("tools.pcap.reader", "import scapy"),
    ],
)
def test_allowed_import_passes(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_command_reports_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "smbdirect").mkdir()
    (tmp_path / "smbdirect" / "codec.py").write_text("import time\n")
    assert main([str(tmp_path)]) == 1
    assert "smbdirect.codec imports time" in capsys.readouterr().out
    assert main([str(ROOT)]) == 0
