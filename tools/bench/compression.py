"""Measure what compressed reads cost the server, what they save on the wire, and below which speed of a link they pay.

    python -m tools.bench.compression [--size MIB] [--rounds N] [--page docs/compression.md]

Text, zeros, the image of a file system and random bytes are read from the server, by each algorithm and without, in
turns. The processor time is that of the process; the bytes are those of the connection. The speeds are computed: a link
of 100 Mbit/s, 1 or 10 Gbit/s carries what it can, and one core at each end does what its processor time allows; the
slowest of the three decides. Compression pays below the speed at which a core is slower than the link.

Samba is not in the table: 4.25 does not answer SMB2_COMPRESSION_CAPABILITIES.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.session import Client
from smb3server.client.protocol.transports import open_tcp
from smb3server.lab.bench import page, servers
from smb3server.lab.bench.accounting import server_seconds
from smb3server.lab.bench.client import PASSWORD, SHARE, USER, Target
from smb3server.lab.bench.errors import BenchError
from smb3server.process import output
from smb3server.wire.compression import NAMES, CompressionAlgorithm
from smb3server.wire.create import CreateDisposition

_ADDRESS = "127.0.0.46"
_PART = "compression"
_BLOCK = 1 << 20
_MIB = 1 << 20
_LINKS = {"100 Mbit/s": 12.5, "1 Gbit/s": 125.0, "10 Gbit/s": 1250.0}
"""Millions of bytes per second, headers left out."""
_ALGORITHMS = (
    0,
    CompressionAlgorithm.LZ4,
    CompressionAlgorithm.LZ77,
    CompressionAlgorithm.LZ77_HUFFMAN,
    CompressionAlgorithm.LZNT1,
)
_ROOT = Path(__file__).resolve().parents[2]


class Cost(NamedTuple):
    """What one MiB costs, in its cheapest round."""

    server: float
    """Milliseconds of processor time."""
    client: float
    left: float
    """Part of the bytes that travels."""

    def speed(self, link: float) -> float:
        """Return MB/s over a link of ``link`` MB/s."""
        return min(link / self.left, self.core)

    @property
    def core(self) -> float:
        """MB/s that the slower of the two ends does on one core."""
        return _MIB / 1e3 / max(self.server, self.client)


def _text(size: int) -> bytes:
    """Return the documentation, as often as needed: no algorithm looks back as far as one copy is long."""
    whole = b"".join(path.read_bytes() for path in sorted((_ROOT / "docs").glob("*.md")))
    return (whole * (size // len(whole) + 1))[:size]


def _image(folder: Path, size: int) -> bytes:
    """Return the image of a file system of ext4 that is filled to two thirds with programs and modules."""
    if shutil.which("mkfs.ext4") is None:
        raise BenchError("mkfs.ext4 is not installed (e2fsprogs)")
    tree, image = folder / "tree", folder / "image"
    tree.mkdir()
    room = size * 2 // 3
    for number, path in enumerate(sorted(Path(sys.base_prefix, "lib").glob("python3*/*.py"))):
        room -= path.stat().st_size
        if room < 0:
            break
        shutil.copyfile(path, tree / f"{number}.py")
    for path in (Path(sys.executable).resolve(), *sorted(Path("/usr/bin").iterdir())):
        if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK) and path.stat().st_size <= room:
            room -= path.stat().st_size
            shutil.copyfile(path, tree / path.name)
    command = ["mkfs.ext4", "-q", "-d", str(tree), str(image), f"{size // 1024}k"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    return image.read_bytes()


def furnish(folder: Path, work: Path, size: int) -> None:
    """Make a file of each kind in the share."""
    kinds = {"text": _text(size), "zeros": bytes(size), "image": _image(work, size), "random": os.urandom(size)}
    for name, data in kinds.items():
        (folder / name).write_bytes(data)
        shutil.chown(folder / name, folder.stat().st_uid, folder.stat().st_gid)


async def read(target: Target, name: str, algorithm: int) -> Cost:
    """Read a file once. Raises ``BenchError`` if the server does not agree on the algorithm."""
    wanted = (algorithm, int(CompressionAlgorithm.PATTERN_V1)) if algorithm else ()
    client = await Client.connect(await open_tcp(target.host, target.port), offer=Offer(compression=wanted))
    try:
        agreed = client.negotiated.compression
        if (agreed.algorithm if agreed is not None else 0) != algorithm:
            raise BenchError(f"{target.name} does not compress by {NAMES[algorithm]}")
        tree = await (await client.log_on(USER, PASSWORD)).tree_connect(SHARE)
        file = await tree.create(name, disposition=CreateDisposition.OPEN)
        await tree.read(file, 0, _BLOCK)
        counts, length = client.compressed, _BLOCK
        before = counts.received - counts.received_compressed
        server, ours = server_seconds(target.process), time.process_time()
        while data := await tree.read(file, length, _BLOCK):
            length += len(data)
        ours = time.process_time() - ours
        server = server_seconds(target.process) - server
        saved = counts.received - counts.received_compressed - before
        done = (length - _BLOCK) / _MIB
        return Cost(server * 1e3 / done, ours * 1e3 / done, 1 - saved / (length - _BLOCK))
    finally:
        await client.close()


async def measure(target: Target, rounds: int) -> dict[tuple[str, int], Cost]:
    """Return the cost of each kind of data with each algorithm. All take turns, so that a busy minute hits all."""
    found: dict[tuple[str, int], list[Cost]] = {}
    for _ in range(rounds):
        for kind in ("text", "zeros", "image", "random"):
            for algorithm in _ALGORITHMS:
                found.setdefault((kind, int(algorithm)), []).append(await read(target, kind, int(algorithm)))
    return {key: Cost(*map(min, zip(*costs, strict=True))) for key, costs in found.items()}


def verdict(plain: Cost, packed: Cost) -> str:
    """Say below which speed of the link compression pays."""
    if packed.left > 0.99:
        return "never"
    megabits = packed.core * 8
    return "always" if packed.core >= plain.core else f"{megabits:,.0f} Mbit/s"


def table(costs: dict[tuple[str, int], Cost]) -> str:
    """Return the results as Markdown."""
    lines = [
        "| data | algorithm | size left | server, ms/MiB | client, ms/MiB | "
        + " | ".join(f"MB/s at {name}" for name in _LINKS)
        + " | pays below |",
        "|" + " --- |" * (6 + len(_LINKS)),
    ]
    for (kind, algorithm), cost in costs.items():
        plain = costs[kind, 0]
        cells = [
            kind if not algorithm else "",
            NAMES[algorithm] if algorithm else "none",
            f"{cost.left:.0%}" if cost.left > 0.01 else "below 1 %",
            f"{cost.server:.2f}",
            f"{cost.client:.2f}",
            *(f"{cost.speed(link):,.0f}" for link in _LINKS.values()),
            verdict(plain, cost) if algorithm else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print the table, and write it into a page."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.compression", description=__doc__)
    parser.add_argument("--size", type=int, default=32, help="MiB of each file; default: 32")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--page", type=Path, help="a page with the markers of this table")
    options = parser.parse_args()
    try:
        if options.page is not None:
            page.check_page(options.page, _PART)
        with tempfile.TemporaryDirectory(prefix="bench-compression-") as name:
            root = Path(name)
            root.chmod(0o755)
            with servers.ours(root / "ours", sys.executable, (), 1, address=_ADDRESS) as target:
                if target.folder is None:
                    raise BenchError("the server has no folder")
                furnish(target.folder, root, options.size * _MIB)
                found = table(asyncio.run(measure(target, options.rounds)))
    except (BenchError, OSError, subprocess.SubprocessError) as error:
        print(f"compression: {error}", file=sys.stderr)
        return 2
    print(found)
    if options.page is not None:
        page.rewrite(options.page, found, _PART)
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
