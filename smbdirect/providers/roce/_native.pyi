from smbdirect.codec import Buffer

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
