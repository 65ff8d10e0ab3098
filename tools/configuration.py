"""Write what two pages of docs/ say of keys, from the schema: ``python -m tools.configuration``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from smb3server.config import documents
from smb3server.config.schema import Server, Share
from smb3server.process import output
from smb3server.settings.limits import Limits

PAGES = [Path(__file__).parents[1] / "docs" / name for name in ("configuration.md", "operating.md")]
"""The pages that have generated parts."""
_GENERATED = re.compile(
    r"(<!-- ([^:\n]+): written by tools/configuration.py -->\n)[^<]*(?:<(?!!--)[^<]*)*(<!-- end -->\n)"
)


def generated(text: str) -> str:
    """Return the page with all its generated parts renewed. Raises ``KeyError`` for a part that is not known."""
    parts = {title: documents.table(section) for title, section in documents.sections().items()}
    parts["effects of the server"] = documents.effects(Server, Limits)
    parts["effects of a share"] = documents.effects(Share)
    parts["example"] = f"```toml\n{documents.everything()}```\n"
    return _GENERATED.sub(lambda found: f"{found[1]}\n{parts[found[2]]}\n{found[3]}", text)


def main() -> int:
    """Write the pages."""
    for page in PAGES:
        page.write_text(generated(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
