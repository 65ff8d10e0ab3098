"""Verdicts on the cases with two NICs: the channels before a link went down, while it was down, and afterwards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tools.kernel_lab.cases import Case
from tools.kernel_lab.network import ADDRESSES

MOVED = 1 << 20
"""Bytes that each address must have moved before the link went down."""
OUTAGES = {"host": ADDRESSES[1], "guest": ADDRESSES[0]}
"""The end that goes down, and the server's address that it cuts off."""


def _fabrics(case: Case) -> set[str]:
    """Return the fabrics of the channels. A session of Linux 6.12 uses only one kind."""
    if case.name.endswith("-mixed"):
        return {"tcp", "iwarp"}
    return {"tcp" if case.protocol == "tcp" else "iwarp"}


def _bytes(channel: dict[str, Any]) -> int:
    names = ("rdma_read_bytes", "rdma_write_bytes", "inline_bytes_received", "inline_bytes_sent")
    return sum(int(channel[name]) for name in names)


def _moved(channels: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """Return the bytes moved by fabric and server address."""
    found: dict[tuple[str, str], int] = {}
    for channel in channels:
        key = channel["fabric"], channel["local"].rpartition(":")[0]
        found[key] = found.get(key, 0) + _bytes(channel)
    return found


def _server(case: Case, folder: Path, when: str, missing: str = "") -> list[str]:
    """Check for one session per fabric, with channels on all addresses except the ``missing`` one, and nothing else."""
    try:
        report = json.loads((folder / f"status-{when}.json").read_text())
        channels = [channel for channel in report["channels"] if channel["sessions"]]
        moved = _moved(channels)
        pairs = {(session, channel["fabric"]) for channel in channels for session in channel["sessions"]}
    except (OSError, ValueError, KeyError) as error:
        return [f"status of the server, {when}: {error!r}"]
    fabrics = _fabrics(case)
    wanted = {(fabric, address) for fabric in fabrics for address in ADDRESSES if address != missing}
    found = []
    if set(moved) != wanted:
        shown = [f"{fabric} {address}" for fabric, address in sorted(set(moved) ^ wanted)]
        found.append(f"server, {when}: too many or too few: channels on {', '.join(shown)}")
    if sorted(fabric for _, fabric in pairs) != sorted(fabrics):
        found.append(f"server, {when}: sessions {sorted(pairs)}, want one for each of {', '.join(sorted(fabrics))}")
    if when == "before" and moved and min(moved.values()) < MOVED:
        found.append(f"server, {when}: a channel that nothing moves on: {moved}")
    return found


def _client(folder: Path, when: str, missing: str = "") -> list[str]:
    """Check the same in the client's DebugData: connected interfaces, and whether a channel is down."""
    path = folder / f"debugdata-{when}.txt"
    if not path.exists():
        return [f"no DebugData of {when}"]
    text = path.read_text(errors="replace")
    connected = set(re.findall(r"IPv4: (\S+)\n[^\[]*?\[CONNECTED\]", text))
    down = re.search(r"RECONNECTING|DISCONNECTED|TCP status: 3", text) is not None
    found = []
    if not missing and connected != set(ADDRESSES):
        found.append(f"client, {when}: connected to {', '.join(sorted(connected)) or 'no interface'}")
    if down != bool(missing):
        found.append(f"client, {when}: {'a' if down else 'no'} channel is down")
    return found


def complaints(case: Case, folder: Path) -> list[str]:
    """Return what is wrong with a case of guest/multichannel.sh; empty if channels ended and returned as
    they should.
    """
    found = _server(case, folder, "before") + _client(folder, "before")
    for name, address in OUTAGES.items():
        found += _server(case, folder, f"{name}-down", address) + _client(folder, f"{name}-down", address)
        found += _server(case, folder, f"{name}-up") + _client(folder, f"{name}-up")
    return found
