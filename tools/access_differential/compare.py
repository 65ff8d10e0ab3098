"""Compare two servers' answers, and separate the differences that are known and explained."""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from smb3server.wire.status import NtStatus
from tools.access_differential import steps
from tools.access_differential.player import SUCCESS, Outcome, Player
from tools.access_differential.steps import Do, Step

Tree = dict[str, tuple[Any, ...]]
EXPLAINED = Path(__file__).with_name("explained.toml")


class Kind(enum.StrEnum):
    """A way in which answers differ."""

    ALLOWED = "allowed"
    """This server allows an operation that Samba refuses, or grants more."""
    DENIED = "denied"
    """This server refuses an operation that Samba allows, or grants less."""
    STATUS = "status"
    """Both refuse, with different statuses."""
    DESCRIPTOR = "descriptor"
    """Both return a descriptor, but different ones."""
    CONTENT = "content"
    """Both return data or names, but different ones."""
    TREE = "tree"
    """What is on disk differs, although the answers are alike or both servers refused with different statuses."""


FAILING = frozenset({Kind.ALLOWED, Kind.TREE})
"""Kinds of differences that must be explained."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One step that the two servers answered differently."""

    kind: Kind
    step: Step
    ours: str
    theirs: str
    at: str
    """"open", "action" or "end"."""
    extra: int = 0
    """For a granted access: the bits in which the two differ."""
    path_access: int | None = None
    """For ALLOWED: the access that Samba would grant this user on the path; None if the path does not exist."""
    target_access: int | None = None
    """The same for the target of a rename or link."""
    asked_alone: bool = False
    """For ALLOWED: whether Samba grants the access that is requested by name, without MAXIMUM_ALLOWED."""
    read_only: bool = False
    """For ALLOWED: whether the file is read-only on Samba."""
    may_add: bool = False
    """For ALLOWED: whether Samba grants an open of the folder the right to add the file that the step would create
    there.
    """

    def __str__(self) -> str:
        text = f"{self.kind}: {self.step}\n    here {self.ours}; Samba {self.theirs} (at {self.at})"
        if self.kind == Kind.ALLOWED:
            text += f"; Samba grants {_shown(self.path_access)} on the path"
            text += f", {_shown(self.target_access)} on the target" if self.step.target else ""
        return text

    @property
    def ends_round(self) -> bool:
        """Whether the two trees may be different after this step."""
        return self.kind in {Kind.ALLOWED, Kind.DENIED} and not self.step.harmless()


def _shown(access: int | None) -> str:
    return "nothing, since it is not there," if access is None else f"{access:#x}"


def name_of(status: int) -> str:
    """Return the name of a status."""
    try:
        return NtStatus(status).name
    except ValueError:
        return f"{status:#010x}"


def of_step(step: Step, ours: Outcome, theirs: Outcome) -> Difference | None:
    """Return the difference between two outcomes of the step; None if they are alike."""
    if SUCCESS in {ours.open_status, theirs.open_status} and ours.open_status != theirs.open_status:
        # An open alone may change something: it may create a file, or delete it when it is closed.
        kind = Kind.ALLOWED if ours.open_status == SUCCESS else Kind.DENIED
        return Difference(kind, step, name_of(ours.open_status), name_of(theirs.open_status), "open")
    if ours.allowed and theirs.allowed:
        return _of_answers(step, ours.found, theirs.found)
    at = "open" if ours.open_status != SUCCESS or theirs.open_status != SUCCESS else "action"
    kind = Kind.ALLOWED if ours.allowed else Kind.DENIED if theirs.allowed else Kind.STATUS
    if kind == Kind.STATUS and ours.refusal == theirs.refusal:
        return None
    return Difference(kind, step, name_of(ours.refusal), name_of(theirs.refusal), at)


def _of_answers(step: Step, ours: Any, theirs: Any) -> Difference | None:
    if ours == theirs:
        return None
    if step.do == Do.QUERY_ACCESS:
        more, less = ours & ~theirs, theirs & ~ours
        kind = Kind.ALLOWED if more else Kind.DENIED
        return Difference(kind, step, f"{ours:#x}", f"{theirs:#x}", "action", more or less)
    kind = Kind.DESCRIPTOR if step.do == Do.QUERY_SECURITY else Kind.CONTENT
    return Difference(kind, step, str(ours), str(theirs), "action")


@dataclass(frozen=True, slots=True)
class Explanation:
    """A known difference. Every key that is given must match."""

    reason: str
    section: str
    kind: Kind
    ours: str = ""
    theirs: str = ""
    at: str = ""
    do: tuple[Do, ...] = ()
    disposition: tuple[int, ...] = ()
    options: int = 0
    """Bits of which at least one is set."""
    access: int = 0
    """Bits of which at least one is requested."""
    only_access: int = 0
    """Bits that include all requested ones."""
    extra: int = 0
    """For a granted access: bits that include all differing ones."""
    stream: bool | None = None
    attributes: int = 0
    number: int = 0
    """Bits of which at least one is set in the step's number."""
    replace: bool | None = None
    path_access: int = 0
    """Bits that Samba would grant this user on the path, all of them."""
    path_absent: bool = False
    """Whether the path did not exist."""
    asked_alone: bool = False
    """Whether Samba grants the access that is requested by name, without MAXIMUM_ALLOWED."""
    read_only: bool = False
    """Whether the file is read-only on Samba."""
    may_add: bool = False
    """Whether Samba grants an open of the folder the right to add the file that the step would create there."""
    itself: bool = False
    """Whether path and target are the same."""
    target_access: int = 0
    """Bits that Samba would grant this user on the target, all of them."""
    who: tuple[str, ...] = ()
    seen: list[Difference] = field(default_factory=list, compare=False)

    def holds(self, found: Difference) -> bool:
        """Return whether this explains ``found``."""
        step = found.step
        return (
            self.kind == found.kind
            and self.ours in {"", found.ours}
            and self.theirs in {"", found.theirs}
            and self.at in {"", found.at}
            and (not self.do or step.do in self.do)
            and (not self.disposition or step.disposition in self.disposition)
            and (not self.options or bool(step.options & self.options))
            and (not self.access or bool(step.access & self.access))
            and (not self.only_access or not step.access & ~self.only_access)
            and (not self.extra or (found.extra != 0 and not found.extra & ~self.extra))
            and (self.stream is None or self.stream == (":" in step.path))
            and (not self.attributes or bool(step.attributes & self.attributes))
            and (not self.number or bool(step.number & self.number))
            and (self.replace is None or self.replace == step.replace)
            and (not self.path_access or not self.path_access & ~(found.path_access or 0))
            and (not self.path_absent or found.path_access is None)
            and (not self.asked_alone or found.asked_alone)
            and (not self.read_only or found.read_only)
            and (not self.may_add or found.may_add)
            and (not self.itself or step.path == step.target)
            and (not self.who or step.who in self.who)
            and (not self.target_access or not self.target_access & ~(found.target_access or 0))
        )


_NARROWING = 3
"""Number of keys besides kind, reason and section that an explanation of more access must have."""


def load(path: Path = EXPLAINED) -> list[Explanation]:
    """Read the table of explanations. Raises ``ValueError`` for one that is not narrow, or has no section."""
    found = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["explained"]:
        given = dict(entry)
        given["kind"] = Kind(given["kind"])
        if "who" in given:
            given["who"] = tuple(given["who"])
        if "do" in given:
            given["do"] = tuple(Do(value) for value in given["do"])
        if "disposition" in given:
            given["disposition"] = tuple(getattr(steps, value) for value in given["disposition"])
        explanation = Explanation(**given)
        if not explanation.reason or not explanation.section:
            raise ValueError(f"an explanation needs a reason and a section: {entry}")
        if explanation.kind in FAILING and len(entry) < 3 + _NARROWING:
            raise ValueError(f"an explanation of more access needs {_NARROWING} conditions: {entry}")
        found.append(explanation)
    return found


def explain(found: Difference, explanations: Sequence[Explanation]) -> Explanation | None:
    """Return the first explanation that matches, and record the difference in it."""
    for explanation in explanations:
        if explanation.holds(found):
            explanation.seen.append(found)
            return explanation
    return None


def play_both(round_: list[Step], ours: Player, theirs: Player) -> list[Difference]:
    """Run a round on both servers and return the differences, up to the step after which the trees may be different."""
    found = []
    ours.begin()
    theirs.begin()
    for step in round_:
        difference = of_step(step, ours.do(step), theirs.do(step))
        if difference is not None:
            if difference.kind == Kind.ALLOWED:
                target = theirs.probe(step.user, step.target) if step.target else None
                difference = replace(
                    difference,
                    path_access=theirs.probe(step.user, step.path),
                    target_access=target,
                    asked_alone=theirs.allows(step),
                    read_only=theirs.read_only(step.path),
                    may_add=_may_add(step, theirs),
                )
            found.append(difference)
            if difference.ends_round:
                return found
        if not step.harmless():
            difference = _of_trees(step, ours.tree(), theirs.tree())
            if difference is not None:
                return [*found, difference]
    return found


def _may_add(step: Step, theirs: Player) -> bool:
    folder = step.path.rpartition("\\")[0]
    needed = steps.APPEND_DATA if step.options & steps.DIRECTORY_FILE else steps.WRITE_DATA
    return bool((theirs.probe(step.user, folder) or 0) & needed)


def _of_trees(step: Step, ours: Tree, theirs: Tree) -> Difference | None:
    if ours == theirs:
        return None
    more, less = (
        str({name: value for name, value in left.items() if right.get(name) != value})
        for left, right in ((ours, theirs), (theirs, ours))
    )
    return Difference(Kind.TREE, step, more, less, "end")
