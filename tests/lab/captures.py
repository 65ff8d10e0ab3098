"""The captures under pcaps/."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "pcaps"


CAPTURES = sorted(path.stem for path in FOLDER.glob("*.pcap"))
