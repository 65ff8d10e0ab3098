"""``python -m tools.torture [SUITE...]``: run smbtorture against this server.

The exit status is 1 if a test that passed before (tests/conformance/smbtorture.tsv) no longer passes. ``--update``
writes that file and docs/smbtorture.md.

With ``--signing required``, ``--encryption required``, ``--fabric``, ``--available``, ``--slow`` or ``--cluster`` the
run is compared with the plain run's file instead: the exit status is 1 for a difference that variants.toml does not
explain.
``--update`` then writes the variant's own file and docs/smbtorture-variants.md.

With ``--newest`` the smbtorture of Debian's newest Samba runs, out of a folder that ``tools/setup.sh samba-newest``
makes. It has its own file of expectations, and the exit status is also 1 if Samba passes a test that does not pass here
without a reason in newest/reasons.toml that names a section. ``--samba`` runs it against that Samba's own server, and
``--update`` then writes newest/baseline.tsv.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from smb3server.process import output
from tools.torture import outcome, report, samba_root
from tools.torture import variant as variants
from tools.torture.cluster import running_cluster
from tools.torture.plan import Plan, make_plan
from tools.torture.release import DISTRIBUTION, NEWEST, ROOT, Release
from tools.torture.repeat import repeat
from tools.torture.runner import Runner
from tools.torture.server import ServerError, configuration, running_server
from tools.torture.variant import Variant
from tools.torture.volumes import volume

VARIANTS_PAGE = DISTRIBUTION.page.with_name("smbtorture-variants.md")
MAIN_SHARES = ("t1", "t2")
MAIN_SERVER = "main"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.torture", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="with or without smb2.; default: all")
    parser.add_argument("--out", type=Path, help="results and smbtorture's output; default: build/torture")
    parser.add_argument("--update", action="store_true", help="make these results the expected ones")
    parser.add_argument("--timeout", type=float, default=400, help="seconds per suite")
    parser.add_argument("--test-timeout", type=float, default=90, help="seconds per test that runs on its own")
    parser.add_argument("--signing", choices=("required",), help="client and server require it")
    parser.add_argument("--encryption", choices=("required",), help="client and server require it")
    parser.add_argument(
        "--fabric",
        choices=("iwarp", "loopback", "mixed"),
        help="over SMB Direct, through a proxy; mixed: connections by turns over TCP and iWARP; default: TCP",
    )
    parser.add_argument("--available", action="store_true", help="on continuously available shares")
    parser.add_argument("--slow", action="store_true", help="on shares that are declared as slow storage")
    parser.add_argument("--cluster", action="store_true", help="on those of two nodes with etcd (takes root)")
    parser.add_argument(
        "--newest", action="store_true", help="run the smbtorture of Debian's newest Samba (takes root)"
    )
    parser.add_argument("--samba-root", type=Path, metavar="DIR", help="its folder; implies --newest")
    parser.add_argument("--samba", action="store_true", help="against its own smbd; implies --newest")
    parser.add_argument("--quick", action="store_true", help="leave out suites that mostly wait")
    parser.add_argument(
        "--retries", type=int, default=1, help="times that tests which fail against expectation run again"
    )
    return parser.parse_args()


def _start(
    stack: contextlib.ExitStack, options: argparse.Namespace, plan: Plan, variant: Variant, root: Path | None
) -> Runner:
    """Make file systems and shares, and start the servers. ``root``: the folder of the newest Samba, if it is used."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torture-")))
    folder.chmod(0o755)
    paths: dict[str, Path] = {}
    settings: dict[str, dict[str, Any]] = {}
    members: dict[str, list[str]] = {}
    for name, given in {**{name: {} for name in MAIN_SHARES}, **plan.wanted_shares()}.items():
        settings[name] = dict(given)
        kind = settings[name].pop("volume", "ext4")
        members.setdefault(settings[name].pop("server", MAIN_SERVER), []).append(name)
        paths[name], mounted = stack.enter_context(volume(folder, name, kind))
        if not mounted:
            print(f"share {name}: no {kind} of its own (needs root and loop devices): a plain folder")
        if options.samba:
            # Users are those of the host, and have to be able to make files.
            paths[name].chmod(0o777)
        elif os.geteuid() == 0:
            # As in normal use: no client acts as root, and all users act as the folder's owner.
            shutil.chown(paths[name], "nobody", "nogroup")
    for given in settings.values():
        given |= variant.share_options
    addresses: dict[str, tuple[str, int]] = {}
    prefix = [] if root is None else samba_root.prefix(root, folder)
    if variant.cluster:
        found, prefix = stack.enter_context(running_cluster(folder, list(MAIN_SHARES), paths, variant.server_options))
        stack.callback(_keep_logs, folder / "cluster", options.out)
        return _runner(options, plan, found, paths, variant, prefix)
    for number, (server, names) in enumerate(members.items()):
        if options.samba and root is not None:
            mine = {name: paths[name] for name in names}
            address = stack.enter_context(samba_root.running_samba(root, folder, server, number, mine))
            addresses |= dict.fromkeys(names, address)
            continue
        config = configuration(
            {name: paths[name] for name in names}, settings, plan.servers.get(server, {}) | variant.server_options
        )
        place = folder / f"server-{server}"
        place.mkdir()
        try:
            address = stack.enter_context(running_server(place, config, variant.fabric))
        except ServerError as error:
            if server == MAIN_SERVER:
                raise
            print(f"server {server}: {error}\nits tests run against the main one", file=sys.stderr)
            address = addresses[MAIN_SHARES[0]]
        for log in place.glob("*.log"):
            stack.callback(shutil.copy, log, options.out / f"{log.stem}-{server}.log")
        addresses |= dict.fromkeys(names, address)
    return _runner(options, plan, addresses, paths, variant, prefix)


def _keep_logs(folder: Path, out: Path) -> None:
    for log in folder.glob("*.log"):
        shutil.copy(log, out)


def _runner(
    options: argparse.Namespace,
    plan: Plan,
    addresses: dict[str, tuple[str, int]],
    paths: dict[str, Path],
    variant: Variant,
    prefix: list[str],
) -> Runner:
    raw, client_options = options.out / "raw", variant.client_options
    if options.samba:
        client_options = [*client_options, "--target=samba3"]
    return Runner(plan, addresses, paths, raw, options.timeout, options.test_timeout, client_options, prefix)


def _run(options: argparse.Namespace, variant: Variant, release: Release, root: Path | None) -> list[outcome.Outcome]:
    plan = make_plan(options.suites, release, [] if root is None else samba_root.prefix(root))
    if not options.suites:
        left_out = variants.SLOW if options.quick else frozenset()
        plan.suites = {
            suite: tests for suite, tests in plan.suites.items() if variant.wants(suite) and suite not in left_out
        }
    raw = options.out / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        runner = _start(stack, options, plan, variant, root)
        outcomes = runner.run_all(list(MAIN_SHARES))
        if options.samba:
            return outcomes
        source = " ".join(filter(None, ("smbtorture", "" if root is None else "newest", variant.name)))
        explained = variants.reasons(variant.name) if variant.name else {}
        return repeat(runner, outcomes, options.retries, release.expected, source, explained)


def _interrupt(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    options = _arguments()
    if options.fabric and (options.available or options.cluster):
        print("--fabric does not go with --available or --cluster", file=sys.stderr)
        return 2
    variant = variants.make(
        options.signing is not None,
        options.encryption is not None,
        options.fabric,
        options.available,
        options.cluster,
        options.slow,
    )
    newest = options.newest or options.samba or options.samba_root is not None
    release, root = (NEWEST, options.samba_root or samba_root.DEFAULT) if newest else (DISTRIBUTION, None)
    if newest and variant.name:
        print("--newest goes with no variant", file=sys.stderr)
        return 2
    if root is not None and (reason := samba_root.why_not(root)):
        print(reason, file=sys.stderr)
        return 2
    if root is None and shutil.which("smbtorture") is None:
        print("smbtorture is not installed (Debian: samba-testsuite)", file=sys.stderr)
        return 2
    kind = "samba" if options.samba else "newest" if newest else variant.name
    options.out = (options.out or ROOT / "build" / "-".join(filter(None, ["torture", kind]))).resolve()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        outcomes = _run(options, variant, release, root)
    except ServerError as error:
        print(error, file=sys.stderr)
        return 2
    outcome.write(options.out / "results.tsv", outcomes)
    if options.samba:
        print(f"Samba: {sum(row.passed for row in outcomes)} of {len(outcomes)} pass")
        if options.update:
            outcome.write(release.baseline, report.merged(outcomes, release.baseline))
        return 0
    return _judge_variant(options, variant, outcomes) if variant.name else _judge(options, release, outcomes)


def _judge(options: argparse.Namespace, release: Release, outcomes: list[outcome.Outcome]) -> int:
    """Compare the plain run with the expectations and with Samba."""
    worse = report.regressions(outcomes, release.expected)
    everything = report.merged(outcomes, release.expected)
    (options.out / "smbtorture.md").write_text(report.markdown(everything, release), encoding="utf-8")
    print(f"{sum(row.passed for row in outcomes)} of {len(outcomes)} pass")
    _list(report.behind(outcomes, release), "pass on Samba and not here")
    unexplained = report.without_section(outcomes, release)
    if unexplained:
        _list(unexplained, f"of these have no reason with a section in {release.reasons.relative_to(ROOT)}")
    if options.update:
        outcome.write(release.expected, everything)
        release.page.write_text(report.markdown(everything, release), encoding="utf-8")
    elif worse:
        _list(worse, "passed before and do not now")
        return 1
    return 1 if unexplained else 0


def _list(rows: list[outcome.Outcome], what: str) -> None:
    print(f"{len(rows)} {what}", *(f"  {row.test}: {row.reason[:150]}" for row in rows), sep="\n")


def _variant_file(name: str) -> Path:
    return DISTRIBUTION.expected.with_name(f"smbtorture-{name}.tsv")


def _judge_variant(options: argparse.Namespace, variant: Variant, outcomes: list[outcome.Outcome]) -> int:
    """Compare a variant with the plain run."""
    print(f"{variant.name}: {sum(row.passed for row in outcomes)} of {len(outcomes)} pass")
    why = variants.reasons(variant.name)
    different = variants.worse(outcomes, DISTRIBUTION.expected)
    for row in different:
        print(f"  passes plainly and not here: {row.test}: {why.get(row.test, f'NOT EXPLAINED: {row.reason}')}")
    if options.update:
        file = _variant_file(variant.name)
        outcome.write(file, report.merged(outcomes, file))
        names = [
            path.stem.removeprefix("smbtorture-") for path in DISTRIBUTION.expected.parent.glob("smbtorture-*.tsv")
        ]
        results = {name: report.merged([], _variant_file(name)) for name in names}
        VARIANTS_PAGE.write_text(variants.markdown(results, DISTRIBUTION.expected), encoding="utf-8")
    return 1 if any(row.test not in why for row in different) else 0


if __name__ == "__main__":
    sys.exit(output.run(main))
