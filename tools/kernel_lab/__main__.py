"""``python -m tools.kernel_lab [CASE...]``: run a Linux kernel client against our server and print a table of verdicts.

The exit status is 1 if any case fails. ``--server ksmbd`` runs the kernel's own server inside the guest instead, as the
reference.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from smb3server.process import output
from tools.flaky.record import record
from tools.kernel_lab import cluster, conformance, network
from tools.kernel_lab.cases import CASES, Case, select
from tools.kernel_lab.judge import differs, judge, met_client_defect
from tools.kernel_lab.persist import Failing, describe, restarting_server
from tools.kernel_lab.persist_judge import judge_failure
from tools.kernel_lab.server import Server, ServerError, fill_snapshot, log_complaints, running_server
from tools.support import own_user

HERE = Path(__file__).resolve().parent
BOOT_SECONDS = 90
REPETITIONS = 3
GUEST_ADDRESS = "10.0.2.15"
SLIRP_HOST = "10.0.2.2"
"""The host's 127.0.0.1, as a guest on QEMU's user network sees it."""
CONSOLE = "console.log"
"""File name of the console's output that run.sh writes."""
NAMESPACE = """
[[namespace]]
name = "files"

[[namespace.link]]
path = "here"
targets = ["share"]

[[namespace.link]]
path = "there"
targets = ["//{address}/share/below"]

[[namespace.link]]
path = "in/folders/deep"
targets = ["share/below"]

[[namespace.link]]
path = "moved"
targets = ["//{address}9/share; priority=first", "//{address}/share; priority=last"]
"""
"""What the cases with a namespace mount. The first target of "moved" is not there."""
PROCESSES = """
[server]
processes = 2

[[share]]
name = "second"
path = "{folder}"
{user}process = 2
"""
"""What the case with two processes has besides the share of all cases."""
_SOURCE = "kernel lab"
_SHOWN = ("=== ", "TIME ", "STALL ")


def lab_folder() -> Path:
    """Return the folder in which the guest is built; build.sh and run.sh use the same."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("LAB") or cache / "smb-kernel-lab")


def build() -> None:
    """Build the guest's modules, if this version of build.sh has not. It takes a few minutes with the downloads."""
    script, built = HERE / "build.sh", lab_folder() / "modules" / "build.sh"
    if built.exists() and built.read_bytes() == script.read_bytes():
        return
    print("kernel lab: building the guest (once)", flush=True)
    subprocess.run([str(HERE / "build.sh")], check=True, stdin=subprocess.DEVNULL)


class Host(NamedTuple):
    """Our side of the network, for the cases of one boot."""

    address: str
    """The server's address, as the guest sees it."""
    server: Server | Failing | None
    """None means that the server runs in the guest."""
    prefix: Sequence[str] = ()
    """The first words of the command that starts QEMU in the server's network namespace."""


def verdict(case: Case, out: Path, options: argparse.Namespace) -> list[str]:
    """Return everything that is wrong with a case that has run."""
    if case.conformance:
        return conformance.judge(out / case.name)
    if case.failure:
        return judge_failure(case, out / case.name, told=not options.untold)
    return judge(case, out / case.name, counted=options.server != "ksmbd")


def compile_program(name: str, out: Path) -> None:
    """Compile a program of guest/ into ``out``, statically linked, where the guest sees it."""
    source = HERE / "guest" / f"{name}.c"
    subprocess.run(
        ["cc", "-O2", "-static", "-o", str(out / f"{name}.bin"), str(source)], check=True, stdin=subprocess.DEVNULL
    )


def boot(cases: list[Case], out: Path, host: Host, options: argparse.Namespace) -> None:
    """Run ``cases``, which can share a boot, in one guest; results are in ``out``, the console in console-CASE.log."""
    limit = BOOT_SECONDS + len(cases) * (options.case_timeout + 15)
    settings = f"BULK_MIB={options.bulk} CASE_TIMEOUT={options.case_timeout} STRESS_SECONDS={options.stress}"
    settings += f" CHURN={options.churn}"
    for case in cases:
        if case.program:
            compile_program(case.program, out)
    environment = os.environ | {"OUT": str(out), "TIMEOUT": str(limit), "MEM": "2048"}
    if cases[0].verbs:
        settings += f" WORKOUT=verbs-workout.sh TREE={HERE.parent.parent} PYTHON={sys.executable}"
        environment["HOSTROOT"] = "1"
    if host.server is not None:
        settings += " ASK_STATUS=1"
    if cases[0].cluster:
        environment["NET"] = f"tap:{cluster.TAP}"
    if cases[0].failure and not cases[0].verbs:
        settings += f" WORKOUT=persist.sh HOW={cases[0].failure}"
    if cases[0].tap and options.server != "ksmbd":
        nics = zip(("NET", "NET2"), network.TAPS[: cases[0].nics], strict=False)
        environment.update((name, f"tap:{tap}") for name, tap in nics)
    if cases[0].rxe_retry:
        settings += " RXE_RETRY=1"
    command = [*host.prefix, str(HERE / "run.sh"), str(HERE / "guest" / "cases.sh"), settings, host.address]
    command += [case.argument for case in cases]
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(_SHOWN) or "FAIL(" in line or options.verbose:
                    print("  " + line.rstrip(), flush=True)
        except BaseException:
            # Interrupted: QEMU and the shell above it must not outlive this process.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if (console := out / CONSOLE).exists():
        console.rename(out / f"console-{cases[0].name}.log")


def run_all(cases: list[Case], out: Path, host: Host, options: argparse.Namespace) -> None:
    """Boot until every case has run.

    If a guest dies in a case, its console is kept in that case's folder, and a new guest runs the remaining cases.
    """
    waiting = list(cases)
    while waiting:
        boot(waiting, out, host, options)
        done = 0
        while done < len(waiting) and (out / waiting[done].name / "status").exists():
            done += 1
        if done < len(waiting):
            console, folder = out / f"console-{waiting[0].name}.log", out / waiting[done].name
            if console.exists() and folder.exists():
                shutil.copy(console, folder / CONSOLE)
        waiting = waiting[done + 1 :]
        if host.server is not None and not host.server.alive:
            return


def attempt(cases: list[Case], out: Path, log: Path, options: argparse.Namespace) -> list[str]:
    """Run ``cases``, which can share a boot, with a server of their own, which logs to ``log``.

    Return what went wrong with the server.
    """
    try:
        if cases[0].conformance:
            conformance.explore(cases[0], out / cases[0].name)
            return []
        with host_for(cases[0], options, log) as host:
            run_all(cases, out, host, options)
    except (ServerError, network.NetworkError) as error:
        return [str(error)]
    return []


def again(case: Case, out: Path, options: argparse.Namespace) -> list[str]:
    """Run a failed case again, and say so; return what went wrong with the server.

    It runs at most ``REPETITIONS`` times if the client met a known defect of its own, and ``--retries`` times
    otherwise: emulated guests time out on busy machines. No reason excuses data that differ without an error.
    """
    folder = out / case.name
    found: list[str] = []
    spoilt = failed = 0
    while complaints := verdict(case, out, options):
        record(_SOURCE, case.name, "failed", "\n".join(complaints))
        if differs(complaints):
            return found
        if met_client_defect(case, folder):
            spoilt += 1
            reason = f"the client met its known defect ({case.client_defect})"
        else:
            failed += 1
            reason = f"failed ({complaints[0]})"
        if spoilt > REPETITIONS or failed > options.retries:
            break
        number = spoilt + failed
        print(f"  {case.name}: {reason}: once more", flush=True)
        if folder.exists():
            folder.rename(out / f"{case.name}-{number}")
        found += attempt([case], out, out / f"server-{case.name}-{number}.log", options)
    if complaints and met_client_defect(case, folder):
        record(_SOURCE, case.name, "skipped")
    elif not complaints and (spoilt or failed):
        record(_SOURCE, case.name, "passed")
    return found


@contextlib.contextmanager
def failing_host(case: Case, share: Path, log: Path, told: bool) -> Iterator[tuple[Failing, Host]]:
    """Run a server, or two nodes of a cluster, that the case makes fail. Raises ``ServerError`` and
    ``NetworkError``.
    """
    if case.cluster:
        folder = log.with_suffix(".nodes")
        folder.mkdir()
        with cluster.running_cluster(share, folder, told) as nodes:
            yield nodes, Host(cluster.SERVICE_ADDRESS, nodes, nodes.wires.prefix())
    else:
        with restarting_server(share, log) as server:
            yield server, Host(SLIRP_HOST, server)


@contextlib.contextmanager
def host_for(case: Case, options: argparse.Namespace, log: Path) -> Iterator[Host]:
    """Run the server for ``case`` and the cases that share its boot. Raises ``ServerError`` and ``NetworkError``."""
    with contextlib.ExitStack() as stack:
        if case.verbs:
            yield Host(GUEST_ADDRESS, None)
            return
        if options.server == "ksmbd":
            yield Host("self", None)
            return
        share = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="smb-share-")))
        if case.failure:
            failing, host = stack.enter_context(failing_host(case, share, log, not options.untold))
            with failing.answering(log.parent):
                yield host
            # The case undoes its changes to the server. If it did not get that far, its own complaints say so.
            if not verdict(case, log.parent, options):
                failing.stop()
            return
        if case.tap:
            prefix = stack.enter_context(network.tap_namespace(case.nics))
            stack.enter_context(network.switching(prefix, log.parent))
            addresses = network.ADDRESSES[: case.nics]
            if case.snapshots:
                fill_snapshot(share)
            more = NAMESPACE.format(address=network.ADDRESS) if case.namespace else ""
            if case.processes:
                network.add_second_address(prefix)
                addresses = (network.ADDRESS, network.SECOND_ADDRESS)
                second = share.with_name(f"{share.name}-second")
                more = PROCESSES.format(folder=second, user=own_user.LINE)
                second.mkdir(exist_ok=True)
            server = stack.enter_context(running_server(share, log, addresses, case.fabric, prefix, case.keys, more))
            host = Host(network.ADDRESS, server, prefix)
        else:
            server = stack.enter_context(running_server(share, log))
            host = Host(SLIRP_HOST, server)
        with server.answering(log.parent):
            yield host
        server.stop()


def tail(path: Path, lines: int = 25) -> None:
    if path.exists():
        print(f"--- end of {path}")
        for line in path.read_text(errors="replace").splitlines()[-lines:]:
            print("    " + line)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_lab", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(case.name for case in CASES))
    parser.add_argument("--server", choices=("smb3server", "ksmbd"), default="smb3server")
    parser.add_argument("--out", type=Path, help="where captures and logs go (default: a new temporary folder)")
    parser.add_argument("--bulk", type=int, default=64, metavar="MIB", help="size of each bulk transfer (default 64)")
    parser.add_argument("--case-timeout", type=int, default=400, metavar="S", help="limit of one case in the guest")
    parser.add_argument(
        "--stress", type=int, default=20, metavar="S", help="seconds of load in case stress; 300 is long"
    )
    parser.add_argument(
        "--churn", type=int, default=1000, metavar="N", help="connections in cases verbs-churn-*; 10000 is long"
    )
    parser.add_argument("--retries", type=int, default=0, metavar="N", help="run a failed case again, N times at most")
    parser.add_argument(
        "--untold",
        action="store_true",
        help="for comparison: in clusters, do not notify clients that their connections are lost",
    )
    parser.add_argument("--verbose", action="store_true", help="show the guest's whole console")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    # The server, namespace and QEMU of the run end with it, even if it is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        cases = select(options.cases)
    except ValueError as error:
        print(f"kernel lab: {error}", file=sys.stderr)
        return 2
    out: Path = (options.out or Path(tempfile.mkdtemp(prefix="smb-kernel-lab-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.server == "ksmbd":
        # The kernel's own server shares the guest with the client: there is no network, and nothing of ours to run.
        cases = [
            case
            for case in cases
            if not (
                case.verbs
                or case.outages
                or case.failure
                or case.conformance
                or case.snapshots
                or case.protocol == "rxe"
                or case.netem
            )
        ]
    build()
    started = time.monotonic()
    general: list[str] = []
    for kind in dict.fromkeys(case.boot for case in cases):
        together = [case for case in cases if case.boot == kind]
        general += attempt(together, out, out / f"server-{together[0].name}.log", options)
        for case in together:
            general += again(case, out, options)
    logs = sorted([*out.glob("server-*.log"), *out.glob("server-*.nodes/server-*.log")])
    for log in logs:
        general += log_complaints(log)[:10]
    failed = bool(general)
    print(f"\nLinux 6.12 client against {options.server}, {time.monotonic() - started:.0f} s, results in {out}")
    for case in cases:
        complaints = verdict(case, out, options)
        # The client met its own defect in every repetition. That says nothing about the server, and is shown as such.
        spoilt = bool(complaints) and met_client_defect(case, out / case.name)
        failed |= bool(complaints) and not spoilt
        detail = f"{case.protocol} {case.mount_options} credits={case.credits} {case.netem}"
        label = "SKIP" if spoilt else "FAIL" if complaints else "ok"
        print(f"  {label:4} {case.name:16} {detail}")
        if spoilt:
            print(f"         skipped: the client's kernel logged its known defect: {case.client_defect}")
        for complaint in complaints:
            print(f"         {complaint}")
        if (failure := out / case.name / "failure.json").exists():
            print(f"         {describe(json.loads(failure.read_text()))}")
        if (noticed := out / case.name / "noticed").exists():
            print(f"         a client that only waits noticed after {noticed.read_text().strip()} s")
    for complaint in general:
        print(f"  FAIL {complaint}")
    if failed:
        for log in [*sorted(out.glob("console-*.log")), *logs]:
            tail(log)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(output.run(main))
