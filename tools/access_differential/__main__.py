"""``python -m tools.access_differential --rounds 50 --seed 1``: find accesses that this server allows and Samba denies.

The same random operations of two users run on Samba and on this server. An operation that this server allows and Samba
denies is a failure, unless explained.toml explains it; so is a different tree at the end. Then the exit status is 1.
The failing round is shortened and written as JSON; ``--replay FILE`` runs it again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from smb3server.process import output
from tools.access_differential import compare, servers
from tools.access_differential.compare import FAILING, Difference, Explanation, Kind
from tools.access_differential.generate import make_round
from tools.access_differential.player import Player
from tools.access_differential.shrink import shrink
from tools.access_differential.steps import Step, from_json, to_json


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.access_differential", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--operations", type=int, default=20, help="random steps per round")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--as-users", action="store_true", help="accounts here act as users of the host, too")
    parser.add_argument("--keep", type=int, default=10, help="end after so many unexplained differences")
    parser.add_argument("--out", type=Path, default=Path("build/access-differential"), help="failing rounds as JSON")
    parser.add_argument("--replay", type=Path, help="do this round only")
    return parser.parse_args()


class Run:
    """Rounds on both servers, and the differences found."""

    def __init__(self, ours: Player, theirs: Player, explanations: list[Explanation]) -> None:
        self._ours, self._theirs = ours, theirs
        self._explanations = explanations
        self.rounds = self.steps = 0
        self.failures: list[tuple[Difference, list[Step]]] = []
        self.listed: Counter[tuple[Kind, str]] = Counter()
        """Differences that are no failures, by kind and what they are about."""
        self.examples: dict[tuple[Kind, str], Difference] = {}

    def play(self, round_: list[Step]) -> list[Difference]:
        """Play one round. Return the differences that must be explained and are not."""
        self.rounds += 1
        self.steps += len(round_)
        failing = []
        for found in compare.play_both(round_, self._ours, self._theirs):
            if compare.explain(found, self._explanations) is not None:
                continue
            if found.kind in FAILING:
                failing.append(found)
            else:
                key = (found.kind, f"{found.step.do} at {found.at}: here {found.ours}, Samba {found.theirs}")
                self.listed[key] += 1
                self.examples.setdefault(key, found)
        return failing

    def shorten(self, round_: list[Step], found: Difference) -> list[Step]:
        """Return the shortest round that shows the same difference at its last step."""
        last = found.step
        before = round_[: round_.index(last)]

        def shows(steps: list[Step]) -> bool:
            differences = compare.play_both([*steps, last], self._ours, self._theirs)
            return any(other.kind == found.kind and other.step == last for other in differences)

        return [*shrink(before, shows), last]


def main() -> int:
    """Run and report."""
    options = _arguments()
    reason = servers.missing()
    if reason:
        print(f"cannot run: {reason}")
        return 2
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    explanations = compare.load()
    with running_pair(act_as_users=options.as_users) as (ours, theirs):
        run = Run(ours, theirs, explanations)
        if options.replay:
            _show_replay([from_json(step) for step in json.loads(options.replay.read_text())], ours, theirs)
            return 0
        print(f"seed {seed}", flush=True)
        for number in range(options.rounds):
            round_ = make_round(random.Random(f"{seed}/{number}"), options.operations)
            for found in run.play(round_):
                short = run.shorten(round_, found)
                run.failures.append((found, short))
                _write(options.out / f"{seed}-{number}.json", short)
                _show_failure(found, short)
            if len(run.failures) >= options.keep:
                break
    _report(run, explanations)
    return 1 if run.failures else 0


@contextlib.contextmanager
def running_pair(*, act_as_users: bool) -> Iterator[tuple[Player, Player]]:
    """Start both servers and log both users on to each."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="access-")))
        folder.chmod(0o755)
        players = []
        for port, path in (
            stack.enter_context(servers.running_own(folder / "own", act_as_users=act_as_users)),
            stack.enter_context(servers.running_samba(folder / "samba")),
        ):
            players.append(stack.enter_context(Player(port, servers.LOGINS, servers.SHARE, path)))
        yield players[0], players[1]


def _write(path: Path, round_: list[Step]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([to_json(step) for step in round_], indent=1))


def _show_failure(found: Difference, round_: list[Step]) -> None:
    print(f"UNEXPLAINED {found}\n  after these steps:")
    for step in round_:
        print(f"    {step}")
    sys.stdout.flush()


def _show_replay(round_: list[Step], ours: Player, theirs: Player) -> None:
    ours.begin()
    theirs.begin()
    for step in round_:
        print(f"{step}\n    here  {ours.do(step)}\n    Samba {theirs.do(step)}")
    print(f"here  {ours.tree()}\nSamba {theirs.tree()}")


def _report(run: Run, explanations: list[Explanation]) -> None:
    print(f"{run.rounds} rounds, {run.steps} steps, {len(run.failures)} unexplained differences that must be explained")
    print("explained:")
    for explanation in explanations:
        if explanation.seen:
            print(f"  {len(explanation.seen):5} {explanation.kind}: {explanation.reason} [{explanation.section}]")
    print("others, which open nothing:")
    for (kind, text), count in run.listed.most_common(40):
        print(
            f"  {count:5} {kind}: {text[:200]}\n        such as {str(run.examples[kind, text]).splitlines()[0][:200]}"
        )


if __name__ == "__main__":
    sys.exit(output.run(main))
