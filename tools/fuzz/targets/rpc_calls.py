"""Arguments of every RPC operation, in NDR. [C706 14, MS-SRVS, MS-WKST, MS-LSAT, MS-SAMR, MS-SWN]

The first byte of the input chooses the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from smb3server.rpc.dcerpc import Deferred, Fault
from tools.fuzz.services import Services, trusted
from tools.fuzz.target import Target, Wrong

SERVICES = Services()
MOST_OUTPUT = 1 << 20


@cache
def _operations() -> list[Callable[[bytes], bytes | Deferred]]:
    association = trusted(SERVICES.association())
    return [run for interface in SERVICES.interfaces(association) for run in interface.operations.values()]


def _run(data: bytes) -> None:
    if not data:
        return
    operations = _operations()
    operation, later = operations[data[0] % len(operations)], list[Deferred]()

    def call() -> None:
        answer = operation(data[1:])
        if isinstance(answer, Deferred):
            answer.wait(_check)
            later.append(answer)
        else:
            _check(answer)

    SERVICES.run(call)
    for deferred in later:
        deferred.abandon()


def _check(answer: bytes | Fault) -> None:
    if not isinstance(answer, Fault) and len(answer) > MOST_OUTPUT:
        raise Wrong(f"an answer of {len(answer)} bytes")


def _text(value: str) -> bytes:
    data = (value + "\0").encode("utf-16-le")
    count = len(data) // 2
    head = count.to_bytes(4, "little") + bytes(4) + count.to_bytes(4, "little")
    return b"\0\0\2\0" + head + data + bytes(-len(data) % 4)


def _seeds() -> Iterator[bytes]:
    level = (1).to_bytes(4, "little")
    union = level + level + b"\4\0\2\0" + bytes(8) + b"\xff\xff\xff\xff" + bytes(4)
    sid = b"\1\0\0\0\1\1\0\0\0\0\0\5\x12\0\0\0"
    bodies = (
        bytes(4), bytes(96), level * 24, _text("\\\\FILES") + level, _text("FILES") + _text("share") + level,
        _text("\\\\FILES") + union, bytes(20) + level + sid * 2, bytes(4) + b"\1\0\1\0" + _text("FILES") * 3,
    )  # fmt: skip
    for number in range(len(_operations())):
        for body in bodies:
            yield bytes((number,)) + body


TARGET = Target(_run, _seeds, declared=(Fault,), max_input=2048)
