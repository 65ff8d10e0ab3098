"""Keep results in a JSON file, so that pages and plots can be made again, also of a run that was interrupted."""

from __future__ import annotations

import json
from pathlib import Path

from smb3server.lab.bench.cases import Case
from smb3server.lab.bench.errors import BenchError
from smb3server.lab.bench.figures import Sample
from smb3server.lab.bench.idle import Idle
from tools.bench.report.plan import Point


class Results:
    """Everything that a run found; it is complete at any moment."""

    def __init__(self) -> None:
        self.circumstances: dict[str, str] = {}
        self.samples: dict[Point, list[Sample]] = {}
        self.idle: dict[str, Idle] = {}
        self.lab = ""
        """The table of the kernel lab, as it wrote it."""
        self.failures: dict[str, None] = {}
        """What did not work, each once, in order."""
        self.done = 0
        self.planned = 0
        """Measurements."""

    def of(self, section: str) -> dict[Point, list[Sample]]:
        """Return the points of a section that were measured."""
        return {point: samples for point, samples in self.samples.items() if point.section == section}


def save(results: Results, path: Path) -> None:
    """Write ``results``; a reader sees the old file or the new one."""
    content = {
        "circumstances": results.circumstances,
        "lab": results.lab,
        "done": results.done,
        "planned": results.planned,
        "failures": list(results.failures),
        "idle": {name: found._asdict() for name, found in results.idle.items()},
        "points": [
            {**point._asdict(), "case": point.case._asdict(), "samples": [sample._asdict() for sample in samples]}
            for point, samples in results.samples.items()
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1), encoding="utf-8")
    new.replace(path)


def read(path: Path) -> Results:
    """Read what ``save`` wrote. Raises ``BenchError``."""
    results = Results()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        results.circumstances = content["circumstances"]
        results.done, results.planned = content["done"], content["planned"]
        results.lab = content["lab"]
        results.failures = dict.fromkeys(content["failures"])
        for name, found in content["idle"].items():
            sides = {side: [Sample(*sample) for sample in found[side]] for side in ("without", "beside")}
            results.idle[name] = Idle(found["connections"], found["kibibytes"], **sides)
        for entry in content["points"]:
            case = Case(entry["case"]["name"], tuple(entry["case"]["options"]), entry["case"]["unit"])
            point = Point(entry["section"], entry["series"], entry["x"], entry["target"], case)
            results.samples[point] = [Sample(**sample) for sample in entry["samples"]]
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path} has no results of this bench: {error}") from None
    return results
