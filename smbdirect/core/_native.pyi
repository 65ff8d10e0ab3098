from collections.abc import Callable, Sequence
from typing import Any

from smbdirect.codec import Buffer
from smbdirect.core.short_calls import Accepted, Entry, Kind

SOURCE: str

def accepted(
    connection: Any, kind: Kind, items: Sequence[Any], make: type[Any], owner: object, now: float, /
) -> Accepted: ...
def whole(
    connection: Any,
    kind: tuple[object, type[Any]],
    segments: Sequence[Buffer],
    invalidate: int | None,
    on_done: Callable[[BaseException | None], None] | None,
    /,
) -> Entry | None: ...
