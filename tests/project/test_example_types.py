"""The programs of examples/ and of the documentation's pages pass ``mypy --strict``."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if "```python" in page.read_text())


def functions(page: Path) -> str:
    """Each block of a page as a function of its own, which may wait and may use a share."""
    found = ["from smb3server.client import Share"]
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)):
        block = block.replace("from __future__ import annotations\n", "")
        given = "" if "as share" in block else "share: Share"
        found.append(f"async def block_{number}({given}) -> None:\n" + textwrap.indent(block, "    "))
    return "\n\n".join(found)


@pytest.mark.long
def test_they_pass(tmp_path: Path) -> None:
    files = [ROOT / "examples"]
    for page in PAGES:
        # pandas is no dependency, and its types are not the subject.
        file = tmp_path / f"page_{page.stem.replace('-', '_')}.py"
        file.write_text(functions(page).replace("import pandas\n", "from typing import Any; pandas: Any = None\n"))
        files.append(file)
    assert len(files) >= 4
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
