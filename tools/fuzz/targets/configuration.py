"""The configuration file: TOML, keys, values, contradictions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from smb3server.config import reader
from smb3server.config.error import ConfigError
from tools.fuzz.memory_file import MemoryFile
from tools.fuzz.target import Target

FILE = MemoryFile()
MANUAL = Path(__file__).parents[3] / "docs" / "configuration.md"
EXAMPLES = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _run(data: bytes) -> None:
    reader.read_file(FILE.write(data))


def _seeds() -> Iterator[bytes]:
    for example in EXAMPLES.findall(MANUAL.read_text(encoding="utf-8")):
        yield example.encode()
        for section in example.split("\n[")[1:]:
            yield f"[{section}".encode()


TARGET = Target(_run, _seeds, declared=(ConfigError,))
