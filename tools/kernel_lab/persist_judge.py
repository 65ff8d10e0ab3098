"""Verdicts on a case in which the server fails: whether the client's handles are still those of before."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from smb3server.lab.pcap.capture import CaptureError
from smb3server.lab.pcap.judge import judge_capture
from tools.kernel_lab.cases import Case
from tools.kernel_lab.judge import (
    debug_data,
    for_tshark,
    guest_complaints,
    kernel_log,
    lab_secrets,
    server_complaints,
    tshark_complaints,
)
from tools.kernel_lab.server import log_complaints

RECONNECTED = frozenset(["cached", "copied", "direct", "gone", "held"])
"""Files of guest/persist.sh that programs keep open while the server fails."""
NOTICE_SECONDS = 20.0
"""Seconds in which a client that only waits must notice that another node has its service: ttl, takeover, and the
second packet if the first is lost. Without a notification it takes 120 s and more.
"""


def judge_failure(case: Case, folder: Path, told: bool = True) -> list[str]:
    """Return everything that is wrong with the case; empty if it passed.

    ``told`` means that clients are notified of takeovers.
    """
    if case.failure == "clock":
        return _clock(case, folder)
    found = guest_complaints(case, folder) + kernel_log(case, folder) + debug_data(case, folder)
    # A node that is cut off from etcd alone serves for some more seconds, and cp may finish before it stops.
    wanted = RECONNECTED - {"copied"} if case.failure == "cut" else RECONNECTED
    if told:
        found += _noticed(folder)
    return found + _server(folder, len(wanted)) + _capture(folder / "session.pcap", wanted)


def _noticed(folder: Path) -> list[str]:
    try:
        seconds = float((folder / "noticed").read_text())
    except (OSError, ValueError) as error:
        return [f"the client that waits: {error}"]
    return [f"the client that waits noticed after {seconds} s"] if seconds > NOTICE_SECONDS else []


def _clock(case: Case, folder: Path) -> list[str]:
    """Check a case with the server in the guest, killed once."""
    found = guest_complaints(case, folder) + kernel_log(case, folder) + debug_data(case, folder)
    if (log := folder / "server.log").exists():
        found += log_complaints(log)[:5]
    try:
        handles = json.loads((folder / "status.json").read_text())["server"]["handles"]
    except (OSError, ValueError, KeyError) as error:
        return [*found, f"status of the server: {error}"]
    kept = len(RECONNECTED - {"copied", "direct"})
    if min(handles["restored"], handles["reconnected"]) < kept or handles["expired"]:
        found.append(f"server: {handles}, want {kept} opens restored and reconnected")
    return found


def _server(folder: Path, wanted: int) -> list[str]:
    """Check that the last server got the opens from the store, and gave them back to their client."""
    try:
        json.loads((folder / "failure.json").read_text())
        names = set(json.loads((folder / "names.json").read_text()))
        report = json.loads((folder / "status.json").read_text())
        handles = report["server"]["handles"]
        opens = {entry["path"]: entry["durable"] for session in report["sessions"] for entry in session["opens"]}
    except (OSError, ValueError, KeyError) as error:
        return [f"the server's failure: {error}"]
    found = [
        f"server: {handles[key]} opens {key}, want {wanted}"
        for key in ("restored", "reconnected")
        if handles[key] < wanted
    ]
    # The copies have finished by then.
    kept = ("cached", "gone", "held")
    found += [f"server: no persistent open of {name}" for name in kept if opens.get(name) != "persistent"]
    if "gone" not in names:
        found.append("server: a file that is still open was deleted")
    return found


def _capture(path: Path, wanted: frozenset[str]) -> list[str]:
    if not path.exists():
        return ["no capture"]
    try:
        found = server_complaints(judge_capture(str(path), lab_secrets()))[:10]
    except CaptureError as error:
        return [f"capture: {error}"]
    missing = wanted - reconnects(path)
    found += [f"tshark: no successful DURABLE_HANDLE_RECONNECT_V2 of {name}" for name in sorted(missing)]
    return found + tshark_complaints(path)[:10]


def reconnects(capture: Path) -> set[str]:
    """Return the names of the files that tshark saw a client reconnect to.

    The client uses SMB2_CREATE_DURABLE_HANDLE_RECONNECT_V2. [MS-SMB2 2.2.13.2.12]
    """
    with for_tshark(capture) as path:
        asked = _fields(path, 'smb2.cmd == 5 && smb2.tag == "DH2C"', ("frame.number", "smb2.filename"))
        answers = _fields(path, "smb2.cmd == 5 && smb2.flags.response == 1", ("smb2.response_to", "smb2.nt_status"))
    # A frame may contain several responses.
    granted = {
        request
        for requests, statuses in answers
        for request, status in zip(requests.split(","), statuses.split(","), strict=False)
        if status and int(status, 16) == 0
    }
    return {name for request, name in asked if request in granted}


def _fields(path: Path, chosen: str, names: tuple[str, ...]) -> list[list[str]]:
    """Return the fields of the frames that match ``chosen``. Raises ``RuntimeError`` if tshark fails."""
    command = ["tshark", "--disable-protocol", "artemis", "-r", str(path), "-Y", chosen, "-T", "fields"]
    command += [word for name in names for word in ("-e", name)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if run.returncode:
        raise RuntimeError(f"tshark failed on {path}: {run.stderr.strip()}")
    return [line.split("\t") for line in run.stdout.splitlines()]
