"""Pictures of terminals: what a shell prints is what the picture shows, at its time."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tools.pictures.svg import LAST_SECONDS, film, still
from tools.pictures.terminal import Frame, Run, Style, Terminal

SVG = "{http://www.w3.org/2000/svg}"
PROMPT = r"\$$"


@pytest.fixture
def terminal() -> Terminal:
    environment = ["env", "-i", "PATH=/usr/bin:/bin", "TERM=xterm-256color", "PS1=$ "]
    found = Terminal([*environment, "bash", "--norc", "--noprofile", "-i"], 40, 10, PROMPT)
    found.wait(PROMPT)
    found.forget()
    return found


def _texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_a_still_shows_text_and_colours(terminal: Terminal) -> None:
    try:
        terminal.run(r"printf 'a < b \e[31mred\e[0m\n'")
    finally:
        terminal.close()
    picture = still(terminal.frames[-1].screen, "title & more")
    assert "title & more" in _texts(picture)
    assert "a < b" in _texts(picture)
    red = next(element for element in ElementTree.fromstring(picture).iter(f"{SVG}text") if element.text == "red")
    assert red.get("fill") == "#f2777a"


def test_a_film_shows_each_row_while_it_was_there(terminal: Terminal) -> None:
    try:
        terminal.run("clear; echo first; sleep 0.3; clear; echo second")
    finally:
        terminal.close()
    picture = film(terminal.frames, "film")
    assert {"first", "second"} <= set(_texts(picture))
    # What draws no animations shows the end.
    root = ElementTree.fromstring(picture)
    at_the_end = [group for group in root.iter(f"{SVG}g") if group.get("class") == "e"]
    shown = [text.text for group in at_the_end for text in group.iter(f"{SVG}text")]
    assert "second" in shown and "first" not in shown


def test_times_of_a_film() -> None:
    def frame(at: float, text: str) -> Frame:
        return Frame(at, ((Run(0, text, Style("default", False, False)),),))

    picture = film([frame(5.0, "a"), frame(7.0, "b"), frame(9.0, "c")], "film")
    total = 4.0 + LAST_SECONDS
    assert f"{2.0 / total * 100:.3f}%{{visibility:hidden}}" in picture
    assert len(re.findall(r"@keyframes", picture)) == 3
    assert f"{total:.2f}s step-end infinite" in picture


def test_what_never_comes_is_told_with_the_screen(terminal: Terminal) -> None:
    try:
        with pytest.raises(TimeoutError, match="no 'nowhere'"):
            terminal.wait("nowhere", 0.2)
    finally:
        terminal.close()
