"""Request and reply frames of MPA. [RFC 5044 7.1, RFC 6581]"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from smbdirect.errors import ProtocolError
from smbdirect.providers.iwarp import mpa, rdmap
from smbdirect.providers.iwarp.mpa import REPLY_KEY, REQUEST_KEY, Rtr
from tools.fuzz.target import Target, choice, each_choice


def _request(data: memoryview) -> None:
    request = mpa.decode_frame(data, REQUEST_KEY)
    mpa.encode_frame(REPLY_KEY, mpa.reject_frame(request))
    mpa.check_request(request)
    reply, _ = mpa.accept_frame(request, b"", crc=True)
    mpa.encode_frame(REPLY_KEY, reply)


def _reply(revision: int, rtr: Rtr | None) -> Callable[[memoryview], None]:
    request = mpa.request_frame(b"", True, revision, rtr)

    def run(data: memoryview) -> None:
        mpa.complete_request(request, mpa.decode_frame(data, REPLY_KEY))

    return run


SUBJECTS: tuple[Callable[[memoryview], object], ...] = (
    _request,
    _reply(1, None),
    _reply(2, None),
    *(_reply(2, rtr) for rtr in Rtr),
    rdmap.describe_terminate,
)


def _seeds() -> Iterator[bytes]:
    for request in (
        mpa.request_frame(b"x", True),
        mpa.request_frame(b"", False, 1),
        mpa.request_frame(b"", True, 2, Rtr.READ),
    ):
        reply, _ = mpa.accept_frame(request, b"private", crc=False)
        yield from each_choice(SUBJECTS, [mpa.encode_frame(REQUEST_KEY, request), mpa.encode_frame(REPLY_KEY, reply)])


TARGET = Target(choice(SUBJECTS), _seeds, declared=(ProtocolError,), max_input=1024)
