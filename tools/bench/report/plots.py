"""Draw the results as SVG files that are readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from smb3server.lab.bench import page
from smb3server.lab.bench.cases import size_name
from smb3server.lab.bench.figures import Sample
from tools.bench.report.plan import DEPTHS, IMPACKET, IWARP, LOOPBACK, ROCE, SAMBA, SIZES, TCP, Point
from tools.bench.report.store import Results

_OTHER = "#7d7d7d"
_COLOURS = {
    TCP: "#2f7ed8",
    SAMBA: "#d9822b",
    IMPACKET: "#9a7b4f",
    IWARP: "#1a9e77",
    ROCE: "#c2519c",
    LOOPBACK: "#8a6fd1",
}
_DASHES = {"": "-", "GMAC": "--", "AES-128-GCM": ":"}
STYLE = Path(__file__).with_name("plots.mplstyle")
Value = Callable[[Sample], float]


def rate(sample: Sample) -> float:
    """Return megabytes, or operations, per second."""
    return sample.rate


def cost_per_mebibyte(sample: Sample) -> float:
    """Return the server's processor time for 1 MiB, in microseconds."""
    return sample.cost / sample.size * (1 << 20) if sample.size else 0.0


def middle(sample: Sample) -> float:
    """Return the median latency, in microseconds."""
    return sample.middle


def late(sample: Sample) -> float:
    """Return the 99th percentile of the latency, in microseconds."""
    return sample.late


def _lines(axes: Axes, points: dict[Point, list[Sample]], value: Value, place: Callable[[Point], float]) -> None:
    """Draw one line per series."""
    series: dict[str, list[tuple[float, list[float]]]] = {}
    for point, samples in points.items():
        values = [value(sample) for sample in samples]
        if min(values) > 0:  # Processor time may be unknown; it cannot be 0.
            series.setdefault(point.series, []).append((place(point), values))
    for name, found in series.items():
        target, _, protection = name.partition(" ")
        line(axes, name, found, _COLOURS.get(target, _OTHER), _DASHES.get(protection, "-"))


def line(axes: Axes, name: str, points: Iterable[tuple[float, Sequence[float]]], colour: str, dash: str = "-") -> None:
    """Draw a line through the medians of points, with a band from the lowest to the highest round. A point is its place
    and its rounds."""
    found = sorted(points, key=lambda point: point[0])
    places = [where for where, _ in found]
    axes.plot(places, [median(values) for _, values in found], dash, color=colour, marker=".", label=name)
    low, high = [min(values) for _, values in found], [max(values) for _, values in found]
    axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def bars(axes: Axes, title: str, found: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> None:
    """Draw a bar for each name, the first one on top: the median, and a mark from the lowest to the highest round."""
    middles = [median(values) for values in found.values()]
    low = [middle - min(values) for middle, values in zip(middles, found.values(), strict=True)]
    high = [max(values) - middle for middle, values in zip(middles, found.values(), strict=True)]
    axes.barh(list(found), middles, xerr=(low, high), color=[colours[name] for name in found], ecolor=_OTHER)
    axes.invert_yaxis()
    axes.locator_params(axis="x", nbins=5)
    axes.set_axisbelow(True)
    axes.set_title(title, fontsize=9)


def label(axes: Axes, title: str, below: str, ticks: Sequence[float], names: Sequence[str]) -> None:
    """Give a plot with lines its title and its axes, both logarithmic."""
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(below)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 100 * low:  # It may have no power of ten.
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: page.number(value))
    axes.set_xticks(ticks, names, rotation=30 if max(map(len, names)) > 3 else 0)
    axes.minorticks_off()


def _by_x(point: Point) -> float:
    return point.x


def _connections(point: Point) -> float:
    return float(point.case.options[-1])


def figure_of(panels: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with its plots, two in each row."""
    rows = (panels + 1) // 2
    figure = Figure(figsize=(9, 3.6 * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, 2, number + 1) for number in range(panels)]


def write(figure: Figure, axes: Sequence[Axes], path: Path) -> None:
    """Write a figure with one legend for all its plots."""
    labels = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    if labels:
        columns = 6 if max(map(len, labels)) < 12 else 3
        figure.legend(labels.values(), labels, loc="outside lower center", ncols=columns)
    figure.savefig(path, format="svg", metadata={"Date": None})


def sizes(results: Results, path: Path) -> bool:
    """Draw throughput and processor time by block size."""
    names = [size_name(size) for size in SIZES]
    figure, axes = figure_of(4)
    for column, test in enumerate(("read", "write")):
        points = results.of(f"sizes, {test}")
        if not points:
            return False
        _lines(axes[column], points, rate, _by_x)
        label(axes[column], f"{test}, MB/s", "block, 4 at once", SIZES, names)
        _lines(axes[column + 2], points, cost_per_mebibyte, _by_x)
        label(axes[column + 2], f"{test}, server's processor time, µs/MiB", "block, 4 at once", SIZES, names)
    write(figure, axes, path)
    return True


def depths(results: Results, path: Path) -> bool:
    """Draw latency and rate by the number of requests in flight."""
    points = results.of("depth")
    if not points:
        return False
    figure, axes = figure_of(2)
    names = [str(depth) for depth in DEPTHS]
    _lines(axes[0], points, middle, _by_x)
    label(axes[0], "4 KiB random read, median latency, µs", "requests in flight", DEPTHS, names)
    _lines(axes[1], points, rate, _by_x)
    label(axes[1], "4 KiB random read, operations per second", "requests in flight", DEPTHS, names)
    write(figure, axes, path)
    return True


def protections(results: Results, path: Path) -> bool:
    """Draw throughput and processor time of plain, signed and encrypted reads."""
    points = results.of("protection")
    if not points:
        return False
    wanted = {point.x for point in points}
    plain = {
        point: samples
        for point, samples in results.of("sizes, read").items()
        if point.x in wanted and point.target in (TCP, SAMBA)
    }
    ticks = sorted(wanted)
    names = [size_name(size) for size in ticks]
    figure, axes = figure_of(2)
    _lines(axes[0], plain | points, rate, _by_x)
    label(axes[0], "read, MB/s", "block, 4 at once", ticks, names)
    _lines(axes[1], plain | points, cost_per_mebibyte, _by_x)
    label(axes[1], "read, server's processor time, µs/MiB", "block, 4 at once", ticks, names)
    write(figure, axes, path)
    return True


def connections(results: Results, path: Path) -> bool:
    """Draw throughput and late answers by the number of connections."""
    points = results.of("connections")
    if not points:
        return False
    figure, axes = figure_of(4)
    kinds = sorted({point.case.name.partition(",")[0] for point in points}, reverse=True)
    ticks = sorted({_connections(point) for point in points})
    names = [f"{tick:g}" for tick in ticks]
    for column, kind in enumerate(kinds):
        chosen = {point: samples for point, samples in points.items() if point.case.name.startswith(kind)}
        unit = next(iter(chosen)).case.unit
        _lines(axes[column], chosen, rate, _connections)
        label(axes[column], f"{kind}, all together, {unit}", "connections", ticks, names)
        _lines(axes[column + 2], chosen, late, _connections)
        label(axes[column + 2], f"{kind}, 99th percentile of latency, µs", "connections", ticks, names)
    write(figure, axes, path)
    return True


PICTURES: dict[str, tuple[str, Callable[[Results, Path], bool]]] = {
    "bench-sizes.svg": ("Throughput and processor time by block size", sizes),
    "bench-depth.svg": ("Latency and rate by requests in flight", depths),
    "bench-protection.svg": ("Plain, signed and encrypted reads", protections),
    "bench-connections.svg": ("1 to 64 connections", connections),
}
"""File names, titles and how each is drawn."""


def draw(results: Results, folder: Path) -> list[str]:
    """Draw all pictures for which there are results into ``folder``; return their file names."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(fname=STYLE):
        return [name for name, (_, picture) in PICTURES.items() if picture(results, folder / name)]
