"""What is done for each work request of a program: a transfer is queued, and a chain is taken from the queue.

``_native`` does the same in C. ``chains`` chooses between the two, and everything else imports from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smbdirect.codec import Buffer, new_record

_ADDRESS_SPACE = 1 << 64
_MOST = 1 << 32
OnDone = Callable[[BaseException | None], None]
"""Called once, when a message or a transfer is done. The error says why the work is not known to be done; None means
that it is done."""
Waiting = list[tuple[Any, OnDone | None, int]]
"""Work requests, what is called when they are done, and the bytes of the message that ends with each."""
Kinds = tuple[type[Any], type[Any], type[Any]]
"""The types of Sends, of Writes and of groups."""


def transfer(
    waiting: Waiting,
    kind: tuple[type[Any], type[Any], bool],
    remote: Sequence[tuple[int, int, int]],
    local: Sequence[Buffer],
    on_done: OnDone | None,
    most: int,
    pieces: int,
) -> int:
    """Queue a transfer that is one work request, as nearly all are. Return its bytes. Return 0, with nothing changed,
    if it has several descriptors or more than ``pieces`` local segments, or if it is empty, longer than ``most`` or its
    descriptor, or leaves the address space.

    ``kind``: the type of the work request, that of its remote segment (``RemoteSegment``), and whether it is signalled.
    Of descriptors, ``remote`` has the fields of ``RemoteBuffer``."""
    total = sum(map(len, local))
    if len(remote) != 1 or not 0 < total <= most or total >= _MOST or len(local) > pieces:
        return 0
    address, token, length = remote[0]
    if total > length or address + length > _ADDRESS_SPACE:
        return 0
    segment = new_record(kind[1], (token, address, total))
    waiting.append((kind[0](local, segment, None, kind[2]), on_done, 0))
    return total


def chain(waiting: Waiting, count: int, unsignalled: int, most: int, kinds: Kinds) -> tuple[list[Any], int, int]:
    """Take the first ``count`` work requests from ``waiting``. Return them, how many at their end no signalled one
    follows, and the bytes of messages that end with these.

    A request is signalled, with a group of ``kinds`` as its context, if it is no Send and no Write, if it is the last
    and somebody waits for one that the group covers, or if ``most`` have not been signalled: ``unsignalled`` were
    posted before."""
    found: list[Any] = []
    endings: list[OnDone] = []
    length = 0
    for request, on_done, ended in waiting[:count]:
        found.append(request)
        unsignalled += 1
        length += ended
        if type(request) is kinds[0] or type(request) is kinds[1]:
            if on_done is not None:
                endings.append(on_done)
            if unsignalled < most and (len(found) < count or not endings):
                continue
            on_done = None
        request.context = new_record(kinds[2], (unsignalled, endings or (), length, on_done))
        request.signalled = True
        unsignalled = length = 0
        if endings:
            endings = []
    del waiting[:count]
    return found, unsignalled, length
