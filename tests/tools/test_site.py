"""The documentation as a site: whole in itself, also when it is opened as a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.web_pictures.browser import browser, why_not

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|embed|object)\b[^>]*?\b(?:src|data)=\"((?:https?:)?//[^\"]*)\"|"
    r"<link\b(?=[^>]*\brel=\"(?!canonical|next|prev|author|license)[^\"]*\")[^>]*?\bhref=\"((?:https?:)?//[^\"]*)\"|"
    r"(?:@import\s+|url\()[\"\']?((?:https?:)?//[^\"\')]*)"
)
"""What a browser fetches when it shows a page; links that people follow are none of it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-d", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return folder


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 40
    for page in pages:
        found = LOADED.search(page.read_text())
        assert found is None, f"{page.relative_to(site)}: {found and found[0]}"


def test_pages_with_diagrams_bring_what_draws_them(site: Path) -> None:
    drawn = [page for page in site.rglob("*.html") if '<pre class="mermaid">' in page.read_text()]
    assert len(drawn) >= 9
    for page in drawn:
        (script,) = re.findall(r'<script src="([^"]*mermaid\.js)">', page.read_text())
        assert (page.parent / script).stat().st_size > 1 << 20
    assert "mermaid.js" not in (site / "index.html").read_text()


def test_the_site_has_what_lies_beside_the_documentation(site: Path) -> None:
    menu = (site / "index.html").read_text()
    for page in ("changelog", "examples", "reporting"):
        assert f'href="{page}.html"' in menu
    for program in (ROOT / "examples").glob("*.py"):
        assert program.name in (site / "examples.html").read_text()


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_diagrams_and_search_work_in_files(site: Path) -> None:
    with browser(1280, 900) as window:
        window.open((site / "smbdirect.html").as_uri())
        window.wait("document.querySelectorAll('div.mermaid').length >= 3")
        window.open((site / "index.html").as_uri())
        field = window.driver.find_element("css selector", ".md-search__input")
        field.click()
        field.send_keys("recycle")
        window.wait("[...document.querySelectorAll('.md-search-result__link')].some(a => /local-backend/.test(a.href))")
        elsewhere = "performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('file:'))"
        assert window.run(elsewhere) == []
        assert window.complaints() == []
