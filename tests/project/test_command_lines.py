"""Each command line of smb3server that a page shows has commands, options and choices that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from smb3server.cli.tree import IMPLIED, TREE, find_command

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])

_START = re.compile(r"^(?:\$ |# |> )?(?:sudo )?(?:\w+=\S* )*smb3server (?=\S)(?![\w-]+: )")
"""Not an error: ``smb3server NAME: text``."""
_CONTROL = re.compile(r"(?<!\S)(?:\||\|\||&&|&|;|\d?>>?|2>&1|<)(?!\S).*|(?<=\S);(?=\s).*|\s>\S+.*")
"""What a shell takes for itself, to the end of the line."""

_HELP = ("--help", "-h", "--version", "...")


def _blocks(text: str) -> Iterator[str]:
    """Return the lines of code: in fences, and indented. A line that ends with a backslash goes on."""
    fenced = False
    for line in text.replace("\\\n", " ").split("\n"):
        if re.match(r"\s*```", line):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.strip()


def _command_lines(text: str) -> list[str]:
    """Return the command lines of a page, without ``smb3server``."""
    inline = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.M | re.S))
    found = []
    for line in [*_blocks(text), *inline]:
        if start := _START.match(line):
            found.append(line[start.end() :])
    return found


def _is_synopsis(line: str) -> bool:
    return re.search(r"\[-|\[[A-Z]|\]\.\.\.", line) is not None


def _words(line: str) -> list[str]:
    """Return the words that the command gets. A synopsis is taken apart: ``[--user NAME]`` is an option."""
    if _is_synopsis(line):
        line = re.sub(r"[\[\]|]|\.\.\.", " ", line)
        return [word for word in line.split() if not word.isupper()]
    return shlex.split(_CONTROL.sub("", line), comments=True)


def _check(line: str) -> None:
    """Raise ``click.UsageError`` if the tree has no such command, option or choice."""
    command: click.Command = TREE
    context = click.Context(TREE, info_name="smb3server")
    words = _command_first(_words(line))
    while isinstance(command, click.Group):
        if command is not TREE:
            _, words, _ = command.make_parser(context).parse_args(list(words))
        if not words or words[0] in _HELP:
            return
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        context = click.Context(command, parent=context, info_name=command.name)
    if words in (["--help"], ["..."]):
        return
    if _is_synopsis(line):
        options = {name for param in command.get_params(context) for name in (*param.opts, *param.secondary_opts)}
        for word in words:
            if word.startswith("-") and word.partition("=")[0] not in options:
                raise click.NoSuchOption(word, ctx=context)
        return
    try:
        given, _, _ = command.make_parser(context).parse_args(list(words))
    except click.BadOptionUsage as error:
        # A page may name an option without its value: `bench --fabrics`.
        if words[-1] != error.option_name:
            raise
        return
    for param in command.get_params(context):
        value = given.get(param.name or "")
        if isinstance(param.type, click.Choice) and isinstance(value, str) and isinstance(param, click.Option):
            param.type.convert(value, param, context)


def _command_first(words: list[str]) -> list[str]:
    """Return the words with the command at the beginning, which may stand behind options."""
    if words[0] in _HELP:
        return words
    index = find_command(words)
    return [IMPLIED, *words] if index is None else [words[index], *words[:index], *words[index + 1 :]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_of_pages(page: Path) -> None:
    wrong = []
    for line in _command_lines(page.read_text()):
        try:
            _check(line)
        except (click.UsageError, ValueError) as error:
            wrong.append(f"smb3server {line}: {getattr(error, 'message', error)}")
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("status --watch", False),
        ("--config smb.toml status", False),
        ("sattus", True),
        ("status --wacht", True),
        ("client get smb://alice@nas/data/a . | tail -n 1", False),
        ("client fetch smb://alice@nas/data/a", True),
        ("client get --rdma=carrier-pigeon smb://alice@nas/data/a", True),
        ("--share data=/srv/data --user alice --rdma   # asks", False),
        ("--share data=/srv/data --usr alice", True),
        ("status [SECTION]... [--user NAME] [--state DIR | --all]", False),
        ("status [--nobody NAME]", True),
    ],
)
def test_the_check_finds_what_is_wrong(line: str, wrong: bool) -> None:
    if wrong:
        with pytest.raises(click.UsageError):
            _check(line)
    else:
        _check(line)


def test_command_lines_are_found() -> None:
    found = [line for page in PAGES for line in _command_lines(page.read_text())]
    assert len(found) > 80
    text = "Say `smb3server status`.\n\n    sudo smb3server --share a=/b \\\n   --rdma\n\n```\n$ smb3server stop\n```\n"
    assert _command_lines(text) == ["--share a=/b     --rdma", "stop", "status"]


_BY_NAME = re.compile(r"\b(?:pipx?|uv)\b[^\n`]*\binstall\s+(?:-\S+\s+)*[\x27\"]?smb3server\b(?!/)|\bsmb3server\[[a-z]")
"""An installation by the project's name, which on an index may be a stranger's package."""


@pytest.mark.parametrize(
    "folder", ["smb3server", "smbdirect", "witness", "tools", "tests", "docs", "examples", "dist", "."]
)
def test_nothing_is_installed_by_the_name_of_the_project(folder: str) -> None:
    places = ROOT.glob("*") if folder == "." else (ROOT / folder).rglob("*")
    kinds = {".py", ".md", ".sh", ".toml", ".yml", "", ".service"}
    for file in places:
        if file.is_file() and file.suffix in kinds and file != Path(__file__):
            found = _BY_NAME.search(file.read_text(errors="replace"))
            assert found is None, f"{file}: {found and found[0]}"


def test_the_page_names_all_optional_parts() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "install.md").read_text().split("### Optional parts")[1].split("###")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(declared) - {"dev", "fuzz"}
