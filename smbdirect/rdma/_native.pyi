from collections.abc import Sequence
from typing import Any

from smbdirect.codec import Buffer
from smbdirect.rdma.chain_calls import Kinds, OnDone, Waiting

SOURCE: str

def transfer(
    waiting: Waiting,
    kind: tuple[type[Any], type[Any], bool],
    remote: Sequence[tuple[int, int, int]],
    local: Sequence[Buffer],
    on_done: OnDone | None,
    most: int,
    pieces: int,
    /,
) -> int: ...
def chain(waiting: Waiting, count: int, unsignalled: int, most: int, kinds: Kinds, /) -> tuple[list[Any], int, int]: ...
