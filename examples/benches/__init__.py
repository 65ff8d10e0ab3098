"""What the comparisons of the examples have in common: how processor time is read, the page that they write, and its
picture. Only who asks for a page needs matplotlib.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from smb3server.lab.bench import page
from smb3server.lab.bench.errors import BenchError

COLOURS = ("#1a9e77", "#d9822b", "#2f7ed8", "#c2519c", "#8a6fd1", "#9a7b4f")
Rounds = Sequence[float]
"""The values of the rounds."""


class Lines(NamedTuple):
    """A plot of lines, both axes logarithmic: medians, with bands from the lowest to the highest round."""

    title: str
    below: str
    """What the horizontal axis has."""
    ticks: Mapping[int, str]
    """Places on it, and their names."""
    lines: Mapping[str, Sequence[tuple[float, Rounds]]]
    """By name: places and what was found there."""


class Bars(NamedTuple):
    """A plot of bars: medians, with a mark from the lowest to the highest round."""

    title: str
    bars: Mapping[str, Rounds]


class Result(NamedTuple):
    """What a comparison shows."""

    title: str
    """Of the picture, for those who do not see it."""
    measured: str
    """When, on what, and what the columns mean."""
    tables: str
    plots: Sequence[Lines | Bars]


def processor_time(*processes: int) -> float:
    """Return the seconds that all threads of these processes have run."""
    tasks = (task for pid in processes for task in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def _page(part: str, text: str) -> Path:
    try:
        page.check_page(Path(text), part)
    except BenchError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("a page has a picture, which needs matplotlib: pip install matplotlib")
    return Path(text)


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a number from 1 up")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser, part: str) -> None:
    """Add the options of all comparisons. ``part``: what stands between the page's markers. A page that cannot be
    written is refused before anything is measured."""
    parser.set_defaults(part=part)
    parser.add_argument("--rounds", type=_rounds, default=5, help="that take turns; default: %(default)s")
    parser.add_argument(
        "--markdown",
        type=functools.partial(_page, part),
        metavar="PAGE",
        help=f"write tables and picture between the markers {page.BEGIN.format(part)} and {page.END.format(part)}",
    )


def publish(options: argparse.Namespace, result: Result) -> None:
    """Print the tables. With ``--markdown``, draw the picture beside the page, and write both between its markers."""
    print(f"{result.measured}\n\n{result.tables}")
    path: Path | None = options.markdown
    if path is not None:
        picture = path.parent / "pictures" / f"bench-{options.part}.svg"
        picture.parent.mkdir(exist_ok=True)
        _draw(result.plots, picture)
        embedded = f"![{result.title}](pictures/{picture.name})"
        page.rewrite(path, f"{result.measured}\n\n{embedded}\n\n{result.tables}", options.part)
        print(f"{path} and {picture} are written", file=sys.stderr)


def _draw(plots: Sequence[Lines | Bars], path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for tools, which are not installed
    import matplotlib

    from tools.bench.report import plots as drawing

    with matplotlib.rc_context(fname=drawing.STYLE):
        figure, every = drawing.figure_of(len(plots))
        names: dict[str, str] = {}
        for axes, plot in zip(every, plots, strict=True):
            for name in plot.lines if isinstance(plot, Lines) else plot.bars:
                names.setdefault(name, COLOURS[len(names) % len(COLOURS)])
            if isinstance(plot, Lines):
                for name, points in plot.lines.items():
                    drawing.line(axes, name, points, names[name])
                drawing.label(axes, plot.title, plot.below, list(plot.ticks), list(plot.ticks.values()))
            else:
                drawing.bars(axes, plot.title, plot.bars, names)
        drawing.write(figure, every, path)
