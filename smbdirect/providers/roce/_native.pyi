import socket
from typing import Any

from smbdirect.codec import Buffer
from smbdirect.providers.roce.batch_calls import Awaited, Control, Taken

SOURCE: str

def similar(batch: Buffer, size: int, /) -> tuple[int, int]: ...
def intact(packets: Buffer, size: int, number: int, states: tuple[int, ...], index: int, /) -> bool: ...
def place(packets: Buffer, length: int, stride: int, number: int, memory: memoryview, position: int, /) -> None: ...
def seal(
    head: bytes,
    psn: int,
    memory: Buffer,
    mtu: int,
    number: int,
    states: tuple[int, ...],
    index: int,
    ask_at: int,
    ask_every: int,
    /,
) -> bytes: ...
def follow(batch: Buffer, size: int, awaited: Awaited, /) -> tuple[int, int]: ...
def take(
    sock: socket.socket, body: memoryview, budget: int, sender: Any, local: bytes, awaited: Awaited | None, /
) -> Taken: ...
def launch(
    sock: socket.socket,
    control: list[Control],
    address: tuple[Any, ...],
    head: bytes,
    psn: int,
    memory: Buffer,
    mtu: int,
    number: int,
    most: int,
    states: tuple[int, ...],
    ask_at: int,
    ask_every: int,
    /,
) -> int: ...
