"""Verdicts on one case from the guest's results, its kernel's log, and the capture as tshark and our own
reader see it.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from smb3server.lab.pcap.capture import CaptureError
from smb3server.lab.pcap.given_secrets import Secrets
from smb3server.lab.pcap.judge import Judge, judge_capture
from smb3server.lab.pcap.replay import replay
from smb3server.lab.pcap.rewrite import TcpStream, rewrite
from smb3server.lab.pcap.smb2 import READ, WRITE, transfer_length
from tools.kernel_lab import multichannel
from tools.kernel_lab.cases import Case
from tools.kernel_lab.server import log_complaints
from tools.kernel_lab.shown import judge_shown

FABRICS = {"siw": "iwarp", "rxe": "roce", "tcp": "tcp"}
"""Fabric in the capture, by the protocol of a case."""
SESSION_FILE_BYTES = 300_000
"""Size of the file that guest/workout.sh writes and reads back in the captured session."""

DEPTHS = {"siw": 1 << 20, "rxe": 2 << 20}
"""Bytes of a memory region of the client's device, by protocol: the maximum of one READ or WRITE by RDMA."""

_DIFFERS = "FAIL(100): "
"""A comparison that failed (``same`` of guest/lib.sh), or a function that has some."""

COMPRESSED_BYTES = 12 << 20
"""Bytes of text that the second session of guest/compress.sh writes, at least."""
LARGEST_REQUEST = 4 << 20
"""Bytes that guest/workout.sh reads and writes with one call in the captured session."""

PASSWORD = "pw"
"""Password of all users of the lab."""

SMALL_BYTES, SMALL_REQUESTS = 65536, 300
"""Bytes and number of the workout's requests that are too small for RDMA, at most."""

# A healthy client kernel never logs these. Lines like "smbd_post_recv ... rc=-107" are not among them: 6.12 logs them
# whenever it unmounts, since it keeps posting receives to a queue pair that it has just closed.
_KERNEL_TROUBLE = re.compile(
    r"WARNING:|\bBUG\b|Call Trace|Oops|general protection|refcount_t|soft lockup|blocked for more than"
    r"|has not responded|re-established|Signature verification|sign fail|No task to wake|smb2_check_message|invalid",
    re.IGNORECASE,
)
_DEATH = re.compile(r"Oops|\bBUG\b|panic|RIP:")
_RECONNECTED = re.compile(r"has not responded|re-established", re.IGNORECASE)
_OUR_PROTOCOLS = ("IWARP", "SMB_DIRECT", "SMB2", "SMB", "NBSS")

# Group, protocol and summary of false reports of tshark 4.0.
TSHARK_EXCLUSIONS = (
    # tshark knows only RFC 5044. Linux requests MPA revision 2 with the enhanced set-up bit (RFC 6581) and refuses a
    # revision 1 reply.
    ("IWARP_MPA", "Rev field is NOT set to one"),
    ("IWARP_MPA", "Res field is NOT set to zero"),
)
RDMA_EXCLUSIONS = (
    # tshark recognizes the acceptor's NegTokenInit2 (MS-SPNG 2.2.1) by the TCP port of its dissectors, which is missing
    # below RDMA. It reads the same bytes over TCP without complaint.
    ("SPNEGO", "BER Error: OctetString expected but class:UNIVERSAL(0) Constructed tag:16"),
)


class Expert(NamedTuple):
    """An expert item of tshark."""

    severity: str
    times: int
    group: str
    protocol: str
    summary: str

    def __str__(self) -> str:
        return f"tshark: {self.severity} {self.protocol}: {self.summary} ({self.times} times)"


def _sent_by_server(capture: Path) -> str:
    """Return a filter for tshark that selects the server's packets.

    tshark cannot judge what the client sends: it takes only the first packet of a RoCEv2 message for a fragment, and
    loses its place in compounds that the client's kernel splits over fragments.
    """
    servers = {found.server[0] for found in judge_capture(str(capture)).connections if found.fabric == "roce"}
    return " || ".join(
        ["tcp.srcport == 445", "tcp.srcport == 5445", *(f"ip.src == {host}" for host in sorted(servers))]
    )


def tshark_experts(capture: Path) -> list[Expert]:
    """Return tshark's expert items for what the server sent, from severity warning up.

    Raises ``RuntimeError`` if tshark fails.
    """
    # The artemis dissector claims TCP 5445 and would hide everything: tshark goes by ports, not content.
    command = [
        "tshark",
        "--disable-protocol",
        "artemis",
        "-r",
        str(capture),
        "-q",
        "-z",
        f"expert,warn,{_sent_by_server(capture)}",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if run.returncode:
        raise RuntimeError(f"tshark failed on {capture}: {run.stderr.strip()}")
    experts: list[Expert] = []
    severity = ""
    for line in run.stdout.splitlines():
        if heading := re.match(r"(Errors|Warns) \(\d+\)$", line):
            severity = heading[1]
        elif item := re.match(r"\s*(\d+)\s+(\S.*?)\s{2,}(\S+)\s+(.*)$", line):
            experts.append(Expert(severity, int(item[1]), item[2], item[3], item[4]))
    return experts


@contextlib.contextmanager
def for_tshark(capture: Path) -> Iterator[Path]:
    """Yield the capture with its iWARP connections in a form that tshark can judge (``rewrite``)."""
    found = judge_capture(str(capture), record=True).connections
    wires = [one.wire for one in found if one.wire is not None and one.fabric == "iwarp"]
    streams = [TcpStream(wire.client, wire.server, wire.frames) for wire in wires]
    if not streams:
        yield capture
        return
    with tempfile.TemporaryDirectory(prefix="smb-tshark-") as folder:
        path = Path(folder) / capture.name
        rewrite(streams, path)
        yield path


def tshark_complaints(capture: Path) -> list[str]:
    """Return malformed frames of any protocol, and errors or warnings of our protocols, without the exclusions."""
    over_rdma = any(found.fabric != "tcp" for found in judge_capture(str(capture)).connections)
    exclusions = TSHARK_EXCLUSIONS + (RDMA_EXCLUSIONS if over_rdma else ())
    with for_tshark(capture) as path:
        experts = tshark_experts(path)
    return [
        str(expert)
        for expert in experts
        if (expert.group == "Malformed" or expert.protocol.upper().startswith(_OUR_PROTOCOLS))
        and not any(expert.protocol == name and expert.summary.startswith(text) for name, text in exclusions)
    ]


def guest_complaints(case: Case, folder: Path) -> list[str]:
    """Return what the guest reported as wrong."""
    status = folder / "status"
    if not status.exists():
        console = folder / "console.log"
        text = console.read_text(errors="replace") if console.exists() else ""
        died = next((line for line in text.splitlines() if _DEATH.search(line)), "")
        return [f"the guest died in it: {died}" if died else "did not run, or the guest died in it"]
    log = (folder / "log.txt").read_text(errors="replace")
    found = [line.split("] ", 1)[-1] for line in log.splitlines() if line.startswith("== ") and "FAIL(" in line]
    if (code := status.read_text().strip()) != "0" and not found:
        found = [f"the workout was cut off: exit status {code}"]
    return found


def kernel_log(case: Case, folder: Path) -> list[str]:
    """Return the lines that the client's kernel should not have logged."""
    path = folder / "dmesg.txt"
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines()
    if case.reconnects:
        lines = [line for line in lines if not _RECONNECTED.search(line)]
    return [f"client kernel: {line}" for line in lines if _KERNEL_TROUBLE.search(line)][:5]


def debug_data(case: Case, folder: Path) -> list[str]:
    """Check the client's DebugData against the case."""
    path = folder / "debugdata.txt"
    if not path.exists():
        return ["no DebugData: the workout did not get that far"]
    text = path.read_text(errors="replace")
    in_use = "SMBDirect (in hex) protocol version: 100" in text
    if in_use != (case.protocol != "tcp"):
        return [f"DebugData: SMB Direct {'is' if in_use else 'is not'} in use"]
    granted = re.search(r"receive_credit_max: ([0-9a-f]+)", text)
    if in_use and (granted is None or int(granted[1], 16) != case.credits):
        return [f"DebugData: receive_credit_max is not {case.credits}"]
    return []


def capture_complaints(judged: Judge) -> list[str]:
    """Return the rules that the capture shows broken, and what of the capture could not be read."""
    found = [str(breach) for breach in judged.breaches]
    return found + [str(gap) for gap in judged.gaps if not gap.secret]


def server_complaints(judged: Judge) -> list[str]:
    """Return the same without the rules that the client broke, which is Linux's: these are printed. Linux 6.12 may use
    its last credit without granting any (MS-SMBD 3.1.5.1), for example."""
    clients = [breach for breach in judged.breaches if breach.by == "client"]
    for breach in clients[:10]:
        print(f"  noted: {breach}")
    return [complaint for complaint in capture_complaints(judged) if complaint not in map(str, clients)]


def lab_secrets() -> Secrets:
    """Return the password of the lab's users."""
    secrets = Secrets()
    secrets.add_password(PASSWORD)
    return secrets


def _capture(case: Case, path: Path) -> tuple[list[str], Judge | None]:
    if not path.exists():
        return ["no capture"], None
    try:
        capture = judge_capture(str(path), lab_secrets(), record=True)
    except CaptureError as error:
        return [f"capture: {error}"], None
    found = server_complaints(capture)
    # What the client breaks is noted already. The replay's state machines cannot do it.
    noted = tuple(f"frame {breach.number}:" for breach in capture.breaches if breach.by == "client")
    replayed = [text for connection in capture.connections for text in replay(connection)]
    found += [f"replay: {text}" for text in replayed if not text.startswith(noted)]
    fabric = FABRICS[case.protocol]
    connections = [one for one in capture.connections if one.fabric == fabric and one.upper]
    if not connections:
        return [*found, f"capture: no session over {fabric}"], capture
    if fabric == "tcp":
        return found, capture
    counters = [connection.counters for connection in connections]
    read, written = sum(c.rdma_read_bytes for c in counters), sum(c.rdma_write_bytes for c in counters)
    if case.rdma_transfers and min(read, written) < SESSION_FILE_BYTES:
        found.append(f"capture: RDMA Read {read} and Write {written} bytes, want {SESSION_FILE_BYTES}")
    if not case.rdma_transfers and read + written:
        found.append(f"capture: RDMA Read {read} and Write {written} bytes though the client signs or encrypts")
    invalidated = sum(c.invalidations for c in counters)
    if case.invalidation != bool(invalidated):
        found.append(f"capture: {invalidated} Sends with Invalidate")
    return found, capture


def _counters(case: Case, folder: Path) -> list[str]:
    """Compare the server's counters of the bulk transfers' connection with those of the client's kernel."""
    try:
        (channel,) = json.loads((folder / "status.json").read_text())["channels"]
        stats = (folder / "stats.txt").read_text()
    except (OSError, ValueError, KeyError) as error:
        return [f"status of the server: {error}"]
    read, written = (sum(map(int, re.findall(rf"Bytes {what}: (\d+)", stats))) for what in ("read", "written"))
    requests = sum(int(count) for count in re.findall(r"^(?:Reads|Writes): (\d+) total", stats, re.MULTILINE))
    if not (read and written and requests):
        return ["the client's statistics say that it read or wrote nothing"]
    found = []

    def compare(what: str, ours: int, theirs: int, below: int, above: int) -> None:
        if not theirs - below <= ours <= theirs + above:
            found.append(f"counters: {what}: {ours} at the server, {theirs} at the client")

    if not case.rdma_transfers:
        # Apart from the data there are headers, fragments and messages without data.
        compare("RDMA bytes", channel["rdma_read_bytes"] + channel["rdma_write_bytes"], 0, 0, 0)
        for side, key, moved in (("server", "received", written), ("client", "sent", read)):
            compare(
                f"bytes in messages to the {side}", channel[f"inline_bytes_{key}"], moved, 0, moved // 8 + (2 << 20)
            )
        return found
    compare("bytes by RDMA Read, written", channel["rdma_read_bytes"], written, SMALL_BYTES, 0)
    compare("bytes by RDMA Write, read", channel["rdma_write_bytes"], read, SMALL_BYTES, 0)
    counted = channel["smb_direct"]["remote_invalidations_sent"]
    compare("invalidations", counted, requests if case.invalidation else 0, SMALL_REQUESTS * case.invalidation, 0)
    if channel["rdma"]["code"] != "used":
        found.append(f"the server says: {channel['rdma']['text']}")
    return found


def _compressed(folder: Path) -> list[str]:
    """Check that both ends say that messages were compressed, of the text that guest/compress.sh writes twice."""
    text = (folder / "debugdata.txt").read_text(errors="replace") if (folder / "debugdata.txt").exists() else ""
    found = [] if "Compression: enabled (LZ77)" in text else ["DebugData: compression is not in use"]
    try:
        (channel,) = json.loads((folder / "status.json").read_text())["channels"]
        counts = channel["compression"]
    except (OSError, ValueError, KeyError) as error:
        return [*found, f"status of the server: {error}"]
    received, took = counts["received"], counts["received_compressed"]
    if received < COMPRESSED_BYTES or took * 3 > received * 2:
        found.append(f"the server says: {received} bytes came as {took}; {COMPRESSED_BYTES} should have shrunk to 2/3")
    return found


def _sizes(case: Case, folder: Path, capture: Judge) -> list[str]:
    """Check that READs and WRITEs in the capture were as long as the mount allows, and that the mount uses the whole
    device.
    """
    path = folder / "mount.txt"
    stated = dict(re.findall(r"\b([rw]size)=(\d+)", path.read_text() if path.exists() else ""))
    if len(stated) != 2:
        return ["the mount does not say its rsize and wsize"]
    rsize, wsize = int(stated["rsize"]), int(stated["wsize"])
    if case.rdma_transfers and rsize < DEPTHS[case.protocol]:
        return [f"the client reads {rsize} bytes at once: not what its device can do, {DEPTHS[case.protocol]}"]
    if case.encrypted:
        # The length of an encrypted request is not visible. Another check has shown that all data arrived and fitted.
        return []
    longest = dict.fromkeys((READ, WRITE), 0)
    for connection in capture.connections:
        for _, part in connection.smb2():
            if part.command in longest and not part.is_response:
                longest[part.command] = max(longest[part.command], transfer_length(part))
    found = []
    for name, limit, length in (("READ", rsize, longest[READ]), ("WRITE", wsize, longest[WRITE])):
        if length != min(limit, LARGEST_REQUEST):
            found.append(f"capture: the longest {name} is of {length} bytes; {min(limit, LARGEST_REQUEST)} are mounted")
    return found


def _steady(folder: Path) -> list[str]:
    """Check that the warm data path registers and allocates nothing, and moves data by RDMA."""
    try:
        warm, steady = (json.loads((folder / f"{name}.json").read_text()) for name in ("warm", "steady"))
        (before,), (after,) = warm["channels"], steady["channels"]
    except (OSError, ValueError, KeyError) as error:
        return [f"status of the server: {error}"]
    found = [
        f"{key} grew from {before[key]} to {after[key]} in steady state"
        for key in ("registrations", "allocations")
        if after[key] != before[key]
    ]
    if after["fabric"] != "verbs" or after["rdma"]["code"] != "used":
        found.append(f"the server says: {after['fabric']}, {after['rdma']['text']}")
    found += [
        f"{key} did not grow" for key in ("rdma_read_bytes", "rdma_write_bytes") if after[key] < before[key] + (4 << 20)
    ]
    return found


def differs(complaints: list[str]) -> bool:
    """Return whether data differ though nothing before had failed: the first complaint is of a comparison."""
    return bool(complaints) and complaints[0].startswith(_DIFFERS)


def met_client_defect(case: Case, folder: Path) -> bool:
    """Return whether the client's kernel logged ``case.client_defect``, in its log or, if it died, on its console."""
    if not case.client_defect:
        return False
    logs = [path for path in (folder / "dmesg.txt", folder / "console.log") if path.exists()]
    return any(re.search(case.client_defect, path.read_text(errors="replace")) for path in logs)


def judge(case: Case, folder: Path, counted: bool = False) -> list[str]:
    """Return everything that is wrong with a case whose results lie in ``folder``; empty if it passed.

    ``counted`` means that the server was asked for its counters, too.
    """
    found = guest_complaints(case, folder) + kernel_log(case, folder)
    if case.mounted:
        found += debug_data(case, folder)
    log = folder / "server.log"
    if log.exists():
        found += log_complaints(log)[:5]
    elif case.verbs and case.mounted:
        found.append("no log of the server")
    own = case.program or case.snapshots or case.namespace or case.processes or case.compressed
    if not case.verbs and counted and not own:  # Only workout.sh asks for them.
        found += _counters(case, folder)
    if case.compressed and counted:
        found += _compressed(folder)
    if case.shows:
        found += judge_shown(case.shows, folder, case.protocol)
    if case.outages and counted:
        found += multichannel.complaints(case, folder)
    if not case.captured:
        return found
    if case.verbs:
        found += _steady(folder)
        if case.protocol == "rxe":
            # rxe loops packets to the machine's own address back above any interface, so there is nothing to capture.
            return found
    path = folder / "session.pcap"
    problems, capture = _capture(case, path)
    found += problems[:10]
    if capture is not None:
        if case.protocol != "tcp" and not case.verbs and counted and not (case.program or case.namespace):
            # As workout.sh leaves it.
            found += _sizes(case, folder, capture)
        if shutil.which("tshark"):
            found += tshark_complaints(path)[:10]
        else:
            found.append("tshark is not installed: apt-get install -y tshark")
    return found
