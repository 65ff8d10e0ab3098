from collections.abc import Sequence

from smbdirect.codec import Buffer
from smbdirect.providers.iwarp.frame_calls import Message

SOURCE: str

def sends(
    view: memoryview, start: int, tail: int, msn: int, receives: Sequence[tuple[memoryview, object]], /
) -> tuple[int, list[int]]: ...
def frame(messages: Sequence[Message], max_ulpdu: int, joined: int, /) -> list[Buffer]: ...
