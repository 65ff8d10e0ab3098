"""Damage good captures, one field at a time: does the judge find it? ``python -m tools.mutants.captures``.

``captures.toml`` declares the damages: the capture, the message, the field, what is written there, and which rules must
find it. Exit status 1: one is found by other rules, or not at all and without a reason; 2: one cannot be applied.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from smb3server.lab.pcap.capture import Frame, Frames, opened
from smb3server.lab.pcap.judge import Judge
from smb3server.lab.pcap.rules import RULES
from smb3server.lab.pcap.smb2 import COMMANDS
from smb3server.process import output

ROOT = Path(__file__).resolve().parents[2]
DECLARED = Path(__file__).with_name("captures.toml")
TABLE = ROOT / "tests/conformance/mutants-captures.tsv"
_HEADER = b"\xfeSMB\x40\x00"
LAYERS = {"smb2": 0, "smbd": -24, "mpa": -44}
"""Where the header of each layer begins, from that of the SMB2 message behind it: MPA 2, DDP and RDMAP 18, SMBD 24."""


class DamageError(Exception):
    """A damage cannot be applied: the declaration is wrong, or the capture has no such message."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One field of one message of a good capture, changed."""

    about: str
    """What is damaged: damages are counted by it."""
    name: str
    capture: str
    command: str
    """Name of the SMB2 command of the message."""
    sent: str
    """request, response (with status SUCCESS), or error (a response with another)."""
    at: int
    """Place of the field, from the beginning of the header of its layer."""
    write: tuple[str, int]
    """Layout and value."""
    breaks: str
    """What the section says."""
    rules: tuple[str, ...] = ()
    """All rules that must find it. Behind the first stand those that a judge finds broken in consequence."""
    reason: str = ""
    """Why no rule can find it."""
    layer: str = "smb2"
    nth: int = 0
    """Which of these messages."""


class Tried(NamedTuple):
    """A damage and the rules that found it."""

    damage: Damage
    found: frozenset[str]

    @property
    def right(self) -> bool:
        """Whether those rules found it that the declaration names."""
        return self.found == frozenset(self.damage.rules)

    @property
    def verdict(self) -> str:
        """The verdict as the table has it."""
        return "found" if self.found else "survived"


def read(path: Path = DECLARED) -> list[Damage]:
    """Return the declared damages. Raises ``DamageError`` for a declaration that says nothing that can be tried."""
    try:
        groups = tomllib.loads(path.read_text(encoding="utf-8"))
        damages = [
            Damage(about, **{**row, "write": tuple(row["write"]), "rules": tuple(row.get("rules", ()))})
            for about, rows in groups.items()
            for row in rows
        ]
    except (tomllib.TOMLDecodeError, TypeError, KeyError) as error:
        raise DamageError(f"{path.name}: {error}") from error
    names = [damage.name for damage in damages]
    for damage in damages:
        if names.count(damage.name) > 1:
            raise DamageError(f"{damage.name} is declared twice")
        if bool(damage.rules) == bool(damage.reason):
            raise DamageError(f"{damage.name} has either rules that find it or a reason why none does")
        if unknown := set(damage.rules) - set(RULES):
            raise DamageError(f"{damage.name}: there is no rule {', '.join(sorted(unknown))}")
    return damages


@cache
def frames_of(capture: str) -> tuple[Frame, ...]:
    """Return the frames of a good capture. Raises ``DamageError`` if it is not there, or not good."""
    path = ROOT / "pcaps" / f"{capture}.pcap"
    if not path.exists():
        raise DamageError(f"there is no {path.name}")
    with opened(str(path)) as stream:
        frames = tuple(Frames(stream))
    if found := judged(frames):
        raise DamageError(f"{path.name} is no good capture: {', '.join(sorted(found))}")
    return frames


def judged(frames: Sequence[Frame]) -> frozenset[str]:
    """Return the ids of the rules that are broken in a capture."""
    judge = Judge()
    for frame in frames:
        judge.add(frame)
    judge.finish()
    return frozenset(judge.broken)


def _messages(frames: Sequence[Frame], damage: Damage) -> Iterator[tuple[int, int]]:
    """Yield frame and place of the headers of the messages that a damage may be about."""
    if damage.command not in COMMANDS or damage.sent not in ("request", "response", "error"):
        raise DamageError(f"{damage.name}: no message is a {damage.command} {damage.sent}")
    for index, frame in enumerate(frames):
        at = frame.data.find(_HEADER)
        while 0 <= at <= len(frame.data) - 64:
            status, command, _, flags = struct.unpack_from("<IHHI", frame.data, at + 8)
            sent = "request" if not flags & 1 else "error" if status else "response"
            if (COMMANDS[command], sent) == (damage.command, damage.sent):
                yield index, at
            at = frame.data.find(_HEADER, at + 64)


def damaged(damage: Damage) -> list[Frame]:
    """Return the frames of a capture with the damage in it. Raises ``DamageError`` if it cannot be applied."""
    frames = list(frames_of(damage.capture))
    places = list(_messages(frames, damage))
    if damage.nth >= len(places):
        raise DamageError(f"{damage.name}: {damage.capture} has {len(places)} such messages")
    index, header = places[damage.nth]
    data, at = bytearray(frames[index].data), header + LAYERS[damage.layer] + damage.at
    before = bytes(data)
    try:
        struct.pack_into(damage.write[0], data, at, damage.write[1])
    except struct.error as error:
        raise DamageError(f"{damage.name}: {error}") from error
    if bytes(data) == before:
        raise DamageError(f"{damage.name}: the field has this value already")
    frames[index] = frames[index]._replace(data=bytes(data))
    return frames


def try_one(damage: Damage) -> Tried:
    """Judge a capture with the damage in it. Raises ``DamageError``."""
    return Tried(damage, judged(damaged(damage)))


def table(tried: Sequence[Tried]) -> str:
    """Return the table of all verdicts."""
    rows = ["damage\tverdict\trules that find it, or why none does"]
    for one in tried:
        found = ", ".join(rule for rule in RULES if rule in one.found)
        rows.append(f"{one.damage.name}\t{one.verdict}\t{found or one.damage.reason}")
    return "\n".join(rows) + "\n"


def main(arguments: Sequence[str] | None = None, declared: Path = DECLARED) -> int:
    """Run the tool and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants.captures", description=__doc__)
    parser.add_argument("damages", nargs="*", help="names of damages; all, if none is given")
    parser.add_argument("--update", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    try:
        damages = read(declared)
        if unknown := set(options.damages) - {damage.name for damage in damages}:
            raise DamageError(f"there is no damage {', '.join(sorted(unknown))}")
        if options.update and options.damages:
            raise DamageError("the table is written of all damages only")
        tried = [try_one(damage) for damage in damages if not options.damages or damage.name in options.damages]
    except DamageError as error:
        print(f"captures: {error}", file=sys.stderr)
        return 2
    for one in tried:
        wanted = "" if one.right else f"; declared: {', '.join(one.damage.rules) or 'none'}"
        found = ", ".join(sorted(one.found)) or one.damage.reason
        print(f"{'' if one.right else 'WRONG '}{one.damage.name}: {one.verdict}: {found}{wanted}")
    count = sum(bool(one.found) for one in tried)
    print(f"{len(tried)} damages: {count} found, {len(tried) - count} survived")
    if not all(one.right for one in tried):
        return 1
    if options.update:
        TABLE.write_text(table(tried), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
