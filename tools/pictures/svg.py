"""Draw screens of a terminal as SVG: one as a still, many as a film.

A film needs no script: each content of a row is drawn once, and a CSS animation shows it while the row had it. So
browsers play it in an ``<img>``, too. What draws no animations shows the last screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from tools.pictures.terminal import Frame, Row, Screen, Style

WIDTH, HEIGHT = 8.4, 19.0
"""Size of a cell. Text is stretched to it, so columns stand below each other in every font."""
MARGIN, BAR = 16.0, 34.0
FONT = "14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"
LAST_SECONDS = 4.0
"""How long a film shows its last screen."""

GROUND, TEXT = "#1b1f27", "#d7dae0"
COLOURS = {
    "default": TEXT,
    "black": "#3b4252",
    "red": "#f2777a",
    "green": "#8ccf7e",
    "brown": "#e5c76b",
    "blue": "#6ca4ee",
    "magenta": "#c792ea",
    "cyan": "#6cd0ca",
    "white": "#eceff4",
    "brightblack": "#7f8898",
    "brightred": "#ff9a9c",
    "brightgreen": "#aee8a0",
    "brightbrown": "#ffe08a",
    "brightyellow": "#ffe08a",
    "brightblue": "#93c1ff",
    "brightmagenta": "#dcb2ff",
    "brightcyan": "#92ebe5",
    "brightwhite": "#ffffff",
}


def still(screen: Screen, title: str) -> str:
    """Return a picture of the rows up to the last one that has text."""
    used = max((number for number, row in enumerate(screen) if row), default=0) + 1
    rows = [_group(number, row) for number, row in enumerate(screen[:used]) if row]
    return _picture(rows, "", _columns([screen]), used, title)


def film(frames: Sequence[Frame], title: str) -> str:
    """Return the frames as an animation without end."""
    begin = frames[0].at
    total = frames[-1].at - begin + LAST_SECONDS
    used = max(number for frame in frames for number, row in enumerate(frame.screen) if row) + 1
    groups: list[str] = []
    rules = ["g{visibility:hidden}.e{visibility:visible}"]
    for number in range(used):
        for first, after, row in _spans(frames, number):
            if not row:
                continue
            name = f"a{len(groups)}"
            shown = (frames[first].at - begin) / total * 100
            last = after == len(frames)
            hidden = 100.0 if last else (frames[after].at - begin) / total * 100
            rules.append(_keyframes(name, shown, hidden))
            rules.append(f"#{name}{{animation:{name} {total:.2f}s step-end infinite}}")
            groups.append(_group(number, row, f' id="{name}"' + (' class="e"' if last else "")))
    return _picture(groups, "".join(rules), _columns([frame.screen for frame in frames]), used, title)


def _spans(frames: Sequence[Frame], number: int) -> list[tuple[int, int, Row]]:
    """Return what a row had, from which frame on, before which frame."""
    spans: list[tuple[int, int, Row]] = []
    for index, frame in enumerate(frames):
        row = frame.screen[number]
        if spans and spans[-1][2] == row:
            spans[-1] = (spans[-1][0], index + 1, row)
        else:
            spans.append((index, index + 1, row))
    return spans


def _keyframes(name: str, shown: float, hidden: float) -> str:
    steps = ["0%{visibility:hidden}"] if shown > 0 else []
    steps.append(f"{shown:.3f}%{{visibility:visible}}")
    if hidden < 100:
        steps.append(f"{hidden:.3f}%{{visibility:hidden}}")
    return f"@keyframes {name}{{{''.join(steps)}}}"


def _columns(screens: Sequence[Screen]) -> int:
    return max((row[-1].column + len(row[-1].text) for screen in screens for row in screen if row), default=1)


def _group(number: int, row: Row, attributes: str = "") -> str:
    top = BAR + MARGIN / 2 + number * HEIGHT
    parts = []
    for run in row:
        left, width = MARGIN + run.column * WIDTH, len(run.text) * WIDTH
        colour = _colour(run.style)
        if run.style.reverse:
            area = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{HEIGHT}"'
            parts.append(f'<rect {area} fill="{colour}"/>')
            colour = GROUND
        bold = ' font-weight="bold"' if run.style.bold else ""
        place = f'x="{left:.1f}" y="{top + 14:.1f}" textLength="{width:.1f}"'
        parts.append(f'<text {place} fill="{colour}"{bold}>{escape(run.text)}</text>')
    return f"<g{attributes}>{''.join(parts)}</g>"


def _colour(style: Style) -> str:
    return COLOURS.get(style.colour, f"#{style.colour}")


def _picture(groups: Sequence[str], rules: str, columns: int, rows: int, title: str) -> str:
    width, height = 2 * MARGIN + columns * WIDTH, BAR + MARGIN * 1.5 + rows * HEIGHT
    dots = "".join(
        f'<circle cx="{18 + 18 * number}" cy="17" r="5.5" fill="{colour}"/>'
        for number, colour in enumerate(("#f2777a", "#e5c76b", "#8ccf7e"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
        f' role="img" aria-label="{escape(title)}">\n'
        f"<style>text{{font:{FONT};white-space:pre}}{rules}</style>\n"
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="9" fill="{GROUND}"/>{dots}\n'
        f'<text x="{width / 2:.0f}" y="21" text-anchor="middle" fill="#7f8898">{escape(title)}</text>\n'
        + "\n".join(groups)
        + "\n</svg>\n"
    )
