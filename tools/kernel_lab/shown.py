"""Verdicts on additional results of single cases' scripts (``Case.shows``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

GUEST_ADDRESS = "10.0.2.15"
"""Address of the guest on QEMU's user network, where its RDMA device is."""


def _load(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def _announced(client: dict[str, Any]) -> bool:
    """Return whether the interface list announces the device's address as RDMA capable."""
    return any(entry["address"] == GUEST_ADDRESS and entry["rdma"] for entry in client["interfaces"])


def port(folder: Path, protocol: str) -> list[str]:
    """Check a case in which the port under the server went down and came up again (guest/verbs-port.sh)."""
    found: list[str] = []
    reason = f"port 1 of r_{protocol} is down"
    for name in ("up", "down", "back"):
        status, host, client = (_load(folder, f"{name}-{kind}") for kind in ("status", "host", "client"))
        up = name != "down"
        (choice,) = [entry for entry in status["server"]["rdma_choices"] if entry["fabric"] == "verbs"]
        if choice["served"] != up or (reason == choice["reason"]) == up:
            found.append(f"{name}: status says of verbs: served {choice['served']}, {choice['reason']}")
        channels = [channel["fabric"] for channel in status["channels"] if channel["fabric"] == "verbs"]
        if bool(channels) != up and (name, protocol) != ("back", "rxe"):  # whose driver fails (guest/verbs-port.sh)
            found.append(f"{name}: {len(channels)} connections over verbs")
        if _announced(client) != up:
            found.append(f"{name}: the interface list says RDMA capable: {_announced(client)}")
        (finding,) = [entry for entry in host["findings"] if entry["subject"] == f"r_{protocol}"]
        if ("port 1 is down" in finding["text"]) == up:
            found.append(f"{name}: the doctor says: {finding['text']}")
    log = (folder / "server.log").read_text(errors="replace")
    if f"connection lost: device or network failure: {reason}" not in log:
        found.append("the server's log does not say why the connection ended")
    return found


def selfcheck(folder: Path, protocol: str) -> list[str]:
    """Check that ``smb3server selfcheck`` ran and passed."""
    (result,) = _load(folder, "selfcheck")
    verdicts: dict[str, str] = result["verdicts"]
    found = [f"{name}: {verdict}" for name, verdict in verdicts.items() if verdict.startswith("FAILED")]
    if result["device"] != f"r_{protocol}" or result["address"] != GUEST_ADDRESS:
        found.append(f"checked {result['device']} at {result['address']}")
    if not found and not result["passed"]:
        found.append(f"not passed: {result['error'] or 'nothing ran'}")
    return found


SHOWN: Mapping[str, Callable[[Path, str], list[str]]] = {"port": port, "selfcheck": selfcheck}


def judge_shown(kind: str, folder: Path, protocol: str) -> list[str]:
    """Return complaints; missing and invalid files are among them."""
    try:
        return SHOWN[kind](folder, protocol)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{kind}: {type(error).__name__} {error}"]
