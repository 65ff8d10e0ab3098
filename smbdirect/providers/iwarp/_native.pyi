from collections.abc import Sequence
from typing import Any

from smbdirect.providers.base import Completion
from smbdirect.providers.iwarp.frame_calls import Awaited, Cut, Kind, Kinds

SOURCE: str

def arrived(
    view: memoryview,
    start: int,
    tail: int,
    msn: int,
    receives: Sequence[tuple[memoryview, object]],
    reads: Sequence[Awaited],
    kind: Kind,
    crc: bool,
    /,
) -> tuple[int, list[Completion], int, int, int, int]: ...
def run(
    view: memoryview,
    start: int,
    tail: int,
    memory: memoryview,
    position: int,
    limit: int,
    whole: bool,
    operation: int,
    token: int,
    expected: int,
    crc: bool,
    /,
) -> tuple[int, int, int]: ...
def follow(
    descriptor: int,
    memory: memoryview,
    start: int,
    payload: int,
    between: memoryview,
    most: int,
    kind: int,
    offset: int,
    filled: int,
    /,
) -> tuple[int, int, bool]: ...
def cut(
    kinds: Kinds,
    requests: Sequence[Any],
    reads: Sequence[Awaited],
    max_ulpdu: int,
    segment: int,
    msn: int,
    read_msn: int,
    joined: int,
    crc: bool,
    /,
) -> Cut | None: ...
