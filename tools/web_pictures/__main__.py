"""Write the pictures of the web page to docs/pictures. They need Chromium (Debian: chromium chromium-driver)."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from smb3server.process import output
from tools.web_pictures.browser import browser, why_not
from tools.web_pictures.scene import ADMIN, PASSWORD, busy, serving, url

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SECONDS_OF_CHART = 45.0


class Picture(NamedTuple):
    name: str
    section: str
    width: int = 1280
    height: int = 860
    dark: bool = False


ALL = (
    Picture("web-overview", "overview"),
    Picture("web-rdma", "channels", height=940),
    Picture("web-dark", "overview", dark=True),
    Picture("web-phone", "channels", 400, 860),
)


def take(address: str, picture: Picture, folder: Path, seconds: float) -> None:
    """Log on as the administrator and take one picture, after ``seconds`` of traffic."""
    with browser(picture.width, picture.height, picture.dark) as window:
        window.log_on(address, ADMIN, PASSWORD)
        window.wait("document.querySelectorAll('.tile').length")
        time.sleep(seconds)
        window.visit(picture.section)
        time.sleep(2)
        window.picture(str(folder / f"{picture.name}.png"))


async def run(folder: Path, seconds: float) -> None:
    """Take all pictures of a busy server."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        async with serving(Path(data)) as service, busy(service):
            for picture in ALL:
                waits = seconds if picture.section == "overview" else 3.0
                await asyncio.to_thread(take, url(service), picture, folder, waits)
                print(folder / f"{picture.name}.png", flush=True)


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=PICTURES)
    parser.add_argument("--seconds", type=float, default=SECONDS_OF_CHART, help="of traffic in the chart")
    options = parser.parse_args()
    if problem := why_not():
        print(f"web_pictures: {problem}", file=sys.stderr)
        return 1
    asyncio.run(run(options.folder, options.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
