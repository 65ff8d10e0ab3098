"""Manual pages of all commands, made from the tree: ``smb3server-status(1)`` and so on. [man(7)]

``setup.py`` puts them into the wheel. So this module and all modules of commands load with click alone.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from smb3server import __version__
from smb3server.cli.main import PROGRAM
from smb3server.cli.tree import COMMANDS, HEADINGS, TREE

_LITERAL = "\b\n"
"""Begins a paragraph whose lines stay as they are. [click: Preventing Rewrapping]"""
_CONTEXT_SETTINGS = TREE.context_settings


def pages() -> dict[str, str]:
    """Return the pages by their files' names."""
    root = click.Context(TREE, info_name=PROGRAM, **_CONTEXT_SETTINGS)
    found = {f"{PROGRAM}.1": _root_page(root)}
    for name in TREE.list_commands(root):
        command = TREE.get_command(root, name)
        assert command is not None  # the table has it
        found[f"{PROGRAM}-{name}.1"] = _page(click.Context(command, info_name=name, parent=root), COMMANDS[name].help)
    return found


def write(folder: Path) -> list[Path]:
    """Write the pages and the shells' completion scripts below ``folder``, and return the files."""
    from smb3server.cli.itself.completion import SHELLS, script

    texts = {Path("share/man/man1", name): text for name, text in pages().items()}
    texts |= {Path(place): script(shell) for shell, place in SHELLS.items()}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return list(texts)


def _root_page(context: click.Context) -> str:
    lines = [*_head(context.info_name or "", "SMB3 file server with SMB Direct"), ".SH SYNOPSIS"]
    lines += [rf"\fB{PROGRAM}\fR [\fICOMMAND\fR] [\fIOPTIONS\fR]", *_help(TREE.help or "")]
    for heading in HEADINGS:
        rows = [(name, entry) for name, entry in COMMANDS.items() if entry.heading == heading and not entry.hidden]
        if rows:
            lines.append(f".SH {_escape(heading.upper())}")
            for name, entry in rows:
                lines += [".TP", rf"\fB{PROGRAM}\-{_escape(name)}\fR(1)", _escape(entry.help)]
    lines += _options(context)
    return "\n".join(lines) + "\n"


def _page(context: click.Context, short: str) -> str:
    command = context.command
    lines = [*_head(f"{PROGRAM}-{context.info_name}", short), ".SH SYNOPSIS", _synopsis(context)]
    lines += [*_help(command.help or ""), *_options(context)]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                lines += _inner(click.Context(inner, info_name=name, parent=context))
    lines += [".SH SEE ALSO", rf"\fB{PROGRAM}\fR(1)"]
    return "\n".join(lines) + "\n"


def _inner(context: click.Context) -> Iterator[str]:
    """Yield what a page says of a command of a group, or of a group in it."""
    command = context.command
    yield f".SS {_escape(context.command_path.partition(' ')[2])}"
    yield _synopsis(context)
    yield from _help(command.help or "", ".PP")
    yield from _options(context, ".PP")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _inner(click.Context(inner, info_name=name, parent=context))


def _head(name: str, short: str) -> list[str]:
    return [
        # No date: the same source makes the same pages.
        f'.TH {_escape(name.upper())} 1 "" "{PROGRAM} {__version__}" "User Commands"',
        # Words stay as far apart as they are written.
        ".ad l",
        ".SH NAME",
        rf"{_escape(name)} \- {_escape(short)}",
    ]


def _synopsis(context: click.Context) -> str:
    pieces = context.command.collect_usage_pieces(context)
    return rf"\fB{_escape(context.command_path)}\fR {_escape(' '.join(pieces))}"


def _options(context: click.Context, heading: str = ".SH OPTIONS") -> Iterator[str]:
    records = [parameter.get_help_record(context) for parameter in context.command.get_params(context)]
    # Arguments are explained by the text above.
    shown = [record for record in records if record is not None and record[1]]
    if shown:
        yield heading
    for names, text in shown:
        yield ".TP"
        yield rf"\fB{_escape(names)}\fR"
        yield _escape(text)


def _help(text: str, heading: str = ".SH DESCRIPTION") -> Iterator[str]:
    """Yield a help text: its paragraphs, and sections of their own for examples and the exit status."""
    started = False
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        literal = paragraph.startswith(_LITERAL)
        body = paragraph.removeprefix(_LITERAL)
        title, _, rest = body.partition("\n")
        if literal and title.startswith("Example"):
            yield ".SH EXAMPLES" if heading.startswith(".SH") else ".PP"
            yield from (".nf", _escape(inspect.cleandoc(rest)), ".fi")
        elif body.startswith("Exit status: ") and heading.startswith(".SH"):
            yield from (".SH EXIT STATUS", _escape(" ".join(body.removeprefix("Exit status: ").split())))
        else:
            yield ".PP" if started else heading
            started = True
            if literal:
                yield from (".nf", _escape(body), ".fi")
            else:
                yield _escape(" ".join(body.split()))


def _escape(text: str) -> str:
    """Return a text that roff prints as it is. A line must not begin with what roff takes for a request."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)
