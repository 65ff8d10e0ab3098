"""Manual pages: one for each command, complete, and without mistakes of roff."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smb3server.cli.itself.completion import SHELLS
from smb3server.cli.itself.manual import _escape, pages, write
from smb3server.cli.tree import COMMANDS

PAGES = pages()
SHOWN = [name for name, entry in COMMANDS.items() if not entry.hidden]
FOREIGN = ("rich", "cryptography", "spnego", "impacket", "pyroute2", "crc32c", "construct", "msgspec", "aiohttp")


def test_each_command_has_a_page() -> None:
    assert set(PAGES) == {"smb3server.1"} | {f"smb3server-{name}.1" for name in SHOWN}
    assert all(_escape(f"smb3server-{name}") in PAGES["smb3server.1"] for name in SHOWN)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_has_its_parts(name: str) -> None:
    text = PAGES[name]
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "OPTIONS"):
        assert f"\n.SH {heading}\n" in text, heading
    assert "\b" not in text


def test_commands_of_groups_are_in_their_page() -> None:
    assert "\n.SS cluster move\\-client\n" in PAGES["smb3server-cluster.1"]


def test_text_that_roff_would_take_for_a_request() -> None:
    assert _escape(".5 s\n'a' \\b -v") == "\\&.5 s\n\\&'a' \\eb \\-v"


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
@pytest.mark.parametrize("name", sorted(PAGES))
def test_roff_has_no_complaint(name: str) -> None:
    shown = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-z"], input=PAGES[name], capture_output=True, text=True, check=False
    )
    assert (shown.returncode, shown.stderr) == (0, "")


def test_pages_are_made_where_click_alone_is_installed(tmp_path: Path) -> None:
    """As when the wheel is built."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({FOREIGN!r}))\n"
        f"from pathlib import Path; from smb3server.cli.itself.manual import write; write(Path({str(tmp_path)!r}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=os.environ)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {f"share/man/man1/{name}" for name in PAGES} | set(SHELLS.values())


def test_writing_again_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write(tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
