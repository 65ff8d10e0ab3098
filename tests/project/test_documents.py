"""What documents refer to exists: tests, lab cases, pages, headings, files and functions."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from smb3server import __version__
from smb3server.cli.tree import COMMANDS
from tests.lab import source
from tools.check_layers.rooms import ROOMS
from tools.kernel_lab.cases import CASES

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
CLIENTS = (ROOT / "docs" / "clients.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PLACES = (ROOT / "docs" / "where-to-put.md").read_text()
WALKS = (ROOT / "docs" / "walks.md").read_text()
PACKAGES = ("smb3server", "smbdirect", "witness", "tools", "tests", "docs", "dist", ".ci")


@pytest.mark.parametrize("reference", sorted(set(re.findall(r"`(tests/[^`]*)`", CLIENTS))))
def test_tests_named_by_the_table_of_clients(reference: str) -> None:
    file, _, name = reference.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_tests_named_by_the_table_of_faults() -> None:
    page = (ROOT / "docs" / "high-availability.md").read_text()
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", page)
    assert len(named) == 9
    for file, name in named:
        text = (ROOT / "tests" / "system" / "ha" / file).read_text()
        assert re.search(rf"^def {name or 'test_'}", text, re.MULTILINE), file


_RULE = r"^\| ([A-Z]\d+) \|"
"""A row of docs/caching.md."""


def _sections_of_rules() -> dict[str, str]:
    """Return the sections of the caching rules that have rows, by heading."""
    sections = re.split(r"^## (.*)$", (ROOT / "docs" / "caching.md").read_text(), flags=re.MULTILINE)[1:]
    found = zip(sections[::2], sections[1::2], strict=True)
    return {heading: text for heading, text in found if re.search(_RULE, text, re.MULTILINE)}


@pytest.mark.parametrize("heading", sorted(_sections_of_rules()))
def test_each_row_of_the_caching_rules_has_a_test(heading: str) -> None:
    """A row's test has the row's name: as a case (``"P9"``), or in the name of a function (``test_b1_b2_...``)."""
    text = _sections_of_rules()[heading]
    (named,) = re.findall(r"^Tests: .*$", text, re.MULTILINE)
    files = re.findall(r"`(tests/[^`]*)`", named)
    code = "".join((ROOT / file).read_text() for file in files)
    functions = re.findall(r"^def test_(\w+)", code, re.MULTILINE)
    in_functions = {part.upper() for name in functions for part in name.split("_")}
    assert "| Ours |" in text
    rows = re.findall(_RULE, text, re.MULTILINE)
    assert [row for row in rows if row not in in_functions and f'"{row}"' not in code] == []


def test_kernel_lab_cases_named_by_the_table_of_clients() -> None:
    named = {
        name
        for row in re.findall(r"`make kernel-test`, cases (.*) \|", CLIENTS)
        for name in re.findall(r"`(.+?)`", row)
    }
    assert named and named <= {case.name for case in CASES}


def _without_code_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    anchors = set()
    for heading in re.findall(r"^#+ +(.*)$", _without_code_blocks(page.read_text()), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        number = found.get(anchor, 0)
        found[anchor] = number + 1
        anchors.add(f"{anchor}-{number}" if number else anchor)
    return frozenset(anchors)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path.resolve()), target


def _linked(page: Path) -> set[Path]:
    """Return the pages that a page links."""
    return {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)\s#]+\.md)", page.read_text())}


def test_the_readme_leads_to_every_page() -> None:
    """The library's references are linked by docs/python.md. The home page of the site says what the README does."""
    reached = _linked(ROOT / "README.md") | _linked(ROOT / "docs" / "python.md")
    assert {page.name for page in PAGES if page not in reached} == {"README.md", "index.md"}


def test_the_readme_says_which_version_it_is_about() -> None:
    assert f"Version {__version__}." in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_no_marks_of_a_merge(page: Path) -> None:
    assert not re.search(r"^(<{7}|={7}|>{7})( |$)", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_pages_use_the_words_of_the_field(page: Path) -> None:
    """Words that sound right and that no manual of a file server has: say "over the network", "again", "reported"."""
    text = re.sub(r"`[^`\n]*`", "", _without_code_blocks(page.read_text()))
    assert re.findall(r"\b(?:afar|anew|dearer|by chance|told)\b", text, re.IGNORECASE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    for named in re.findall(rf"`((?:{'|'.join(map(re.escape, PACKAGES))})/[^`\s]*)`", page.read_text()):
        path = named.partition("::")[0].rstrip("/")
        assert next(ROOT.glob(path), None), named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_that_a_page_runs_exist(page: Path) -> None:
    text = page.read_text()
    for module in re.findall(r"(?:python3?|/python) -m ([\w.]+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists() or module in ("pytest", "venv"), (
            module
        )
    for command in re.findall(r"`smb3server ([a-z][a-z-]*)[ `]", text):
        assert command in COMMANDS, command


@cache
def _names(path: Path) -> frozenset[str]:
    """Return the functions, classes, methods and constants of a module, dotted."""

    def of(body: list[ast.stmt], prefix: str) -> set[str]:
        found = set()
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    found |= of(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign):
                found |= {prefix + target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(prefix + node.target.id)
        return found

    return frozenset(of(ast.parse(path.read_text()).body, ""))


_REFERENCE = r"`([\w./]+\.py::[\w.]+)`"
"""A function, class or constant of a file."""


@pytest.mark.parametrize("reference", sorted(set(re.findall(_REFERENCE, ARCHITECTURE + PLACES + WALKS))))
def test_functions_named_by_the_pages_about_the_code(reference: str) -> None:
    file, _, name = reference.partition("::")
    assert name in _names(ROOT / file)


def _room(module: str) -> str:
    """Return the room of a module: its folder in ``smb3server``, else its package. Empty for anything else."""
    package, _, rest = module.partition(".")
    if package in ("smbdirect", "witness"):
        return package
    return rest.partition(".")[0] if package == "smb3server" else ""


def _imports() -> set[tuple[str, str]]:
    """Return which room imports which: under TYPE_CHECKING and inside functions as well."""
    found = {
        (_room(module.name), _room(entry.module)) for module in source.of(source.PRODUCT) for entry in module.imports
    }
    return {(own, other) for own, other in found if other and own not in (other, "__main__")}


def test_the_architecture_shows_every_room() -> None:
    section = ARCHITECTURE.split("\n## The rooms\n")[1].split("\n## ")[0]
    described = re.findall(r"^\| `(?:smb3server/)?(\w+)/`", section, re.MULTILINE)
    assert described == list(
        dict.fromkeys(_room(room) for room in ROOMS if _room(room) not in ("", "smbdirect", "__main__"))
    )


def _below(arrows: set[tuple[str, str]], room: str, without: str = "") -> set[str]:
    """Return the rooms that ``room`` reaches by ``arrows``, not counting its own arrow to ``without``."""
    reached: set[str] = set()
    waiting = [other for own, other in arrows if own == room and other != without]
    while waiting:
        found = waiting.pop()
        if found not in reached:
            reached.add(found)
            waiting += [other for own, other in arrows if own == found]
    return reached


def test_the_picture_of_the_rooms_is_true() -> None:
    """Each arrow is an import that does not follow from others, and no import is left out."""
    section = ARCHITECTURE.split("\n## The rooms\n")[1].split("\n## ")[0]
    order = ["smbdirect", *re.findall(r"^\| `(?:smb3server/)?(\w+)/`", section, re.MULTILINE)]
    imports = {(own, other) for own, other in _imports() if order.index(own) > order.index(other)}
    arrows = re.findall(r"^    (\w+) --> (\w+)$", section, re.MULTILINE)
    picture = set(arrows)
    assert len(arrows) == len(picture)
    assert picture == {(own, other) for own, other in imports if other not in _below(imports, own, without=other)}


def test_the_pages_about_the_code_have_ports_walks_and_places() -> None:
    """The pattern finds something: ports, places and the calls of the walks."""
    assert len(re.findall(_REFERENCE, ARCHITECTURE)) > 12
    assert len(re.findall(_REFERENCE, WALKS)) > 60
    assert len(re.findall(r"^\| ", PLACES.split("\n## ")[0], re.MULTILINE)) >= 22


@pytest.mark.parametrize("page", [*PAGES], ids=lambda page: page.name)
def test_code_behind_a_list_is_code(page: Path) -> None:
    """Four blanks behind a list item are the item's text: such code has to stand in a fence."""
    fenced, before, last = False, "", ""
    for line in page.read_text().splitlines():
        if line.strip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            lost = re.match(r" {4}\S", line) and not before.strip() and re.match(r"([-*]|\d+\.)\s", last)
            assert not lost, line
        before = line
        if re.match(r"\S", line):
            last = line
