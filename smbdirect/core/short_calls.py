"""The short way of whole messages, which are one Data Transfer message each: many that arrive, and one that leaves.
[MS-SMBD 2.2.3, 3.1.5.4, 3.1.5.8]

``Connection`` says when it may be taken. ``_native`` does the same in C. ``short`` chooses between the two, and
everything else imports from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smbdirect.codec import Buffer
from smbdirect.core.constants import DATA_OFFSET
from smbdirect.core.messages import DATA_TRANSFER_PADDED, WHOLE_TRANSFER

JOINED = 1024
"""Bytes of a message up to which its pieces are copied behind the header: that costs less than a piece each."""
_MOST_GRANTED = 0xFFFF
_FIELDS = WHOLE_TRANSFER.fields_from

Kind = tuple[object, object, object, object]
"""``Role.ESTABLISHED``, ``Keepalive.NONE``, and what the completion of a receive begins with: operation and status."""
Accepted = tuple[list[Any], int, int]
Entry = tuple[Any, Callable[[BaseException | None], None] | None, int]
"""One Send, what is called when it is done, and the bytes of the message."""


def accepted(connection: Any, kind: Kind, items: Sequence[Any], make: type[Any], owner: object, now: float) -> Accepted:
    """Process the messages among ``items`` that are whole upper-layer messages, as nearly all are, up to the first
    receive that is none: that and the following ones are for ``Connection.receive_message``. Return the items, each of
    these messages in the place of its receive; how many there are; and the bytes of their payloads. [MS-SMBD 3.1.5.8]

    A receive has the fields of ``Completion``, begins with the last two of ``kind``, and its context has the memory as
    ``view``. A message becomes a ``make`` with ``transport`` (``owner``), ``view`` (the payload), ``buffer`` (the
    context) and ``invalidated``.

    What is asked here is what ``Connection._receive_data`` would find in order, and what it would have no more to do
    for."""
    established, none, receive, done = kind
    state = connection.credits
    target, credits, longest = state.receive_credit_target, state.receive_credits, connection.max_receive_size
    most = min(connection.max_message_size, connection.max_fragmented_receive_size)
    if connection.role is not established or connection.invalidated_token is not None or connection.reassembler.active:
        credits = 0
    found: list[Any] = []
    granted = size = count = 0
    for item in items:
        operation, status, buffer, length, invalidated = item
        if operation is not receive:
            found.append(item)
            continue
        if count >= credits or status is not done or invalidated is not None:
            break
        view = buffer.view
        if not DATA_OFFSET <= length <= longest or length > len(view):
            break
        requested, more, rest, offset, payload = _FIELDS(view)
        fits = 0 < payload <= length - DATA_OFFSET and payload <= most
        if rest or offset != DATA_OFFSET or requested != target or not fits:
            break
        found.append(make(owner, view[DATA_OFFSET : DATA_OFFSET + payload], buffer, None))
        granted += more
        size += payload
        count += 1
    found += items[len(found) :]
    if count:
        state.receives_posted -= count
        state.receive_credits -= count
        state.send_credits += granted
        connection.idle_deadline = now + connection.keepalive_interval
        connection.keepalive_requested = none
    return found, count, size


def whole(
    connection: Any,
    kind: tuple[object, type[Any]],
    segments: Sequence[Buffer],
    invalidate: int | None,
    on_done: Callable[[BaseException | None], None] | None,
) -> Entry | None:
    """Return the one Send that carries a message, with ``on_done`` and the bytes of the message, and spend its credit.
    Return None, with nothing changed, if the message is empty, needs several Sends or has to wait: then call
    ``Connection.send_message``. [MS-SMBD 3.1.5.4]

    It goes at once if nothing is queued before it, and if there are more credits than the last one, which needs a
    grant. ``kind``: ``Role.ESTABLISHED``, and the type of the Send, which has ``segments``, ``context``, ``invalidate``
    and ``signalled``."""
    state = connection.credits
    credits = state.send_credits
    if credits <= 1 or connection.send_queue or connection.send_immediate or connection.role is not kind[0]:
        return None
    length = sum(map(len, segments))
    if not 0 < length <= connection.max_send_size - DATA_OFFSET or len(segments) >= connection.max_send_segments:
        return None
    granted = min(state.receives_posted - state.receive_credits, _MOST_GRANTED)
    header = DATA_TRANSFER_PADDED.pack_fields(state.send_credit_target, granted, 0, 0, 0, DATA_OFFSET, length, 0)
    pieces: list[Buffer] = [b"".join((header, *segments))] if length <= JOINED else [header, *segments]
    # As Credits.spend: there is more than one.
    state.send_credits = credits - 1
    state.receive_credits += granted
    return kind[1](pieces, None, invalidate, False), on_done, length
