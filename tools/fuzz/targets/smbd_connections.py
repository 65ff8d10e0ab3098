"""The MS-SMBD core of both roles: messages of the peer, Sends of ours, timers. [MS-SMBD 3.1.5, 3.1.6]

The first byte of the input has the role. The first byte of each message says what happens: it is received, or a message
is sent, or time passes.
"""

from __future__ import annotations

from collections.abc import Iterator

from smbdirect.core.connection import Connection, Keepalive, Role
from smbdirect.core.messages import MessageReceived
from smbdirect.core.settings import Settings
from smbdirect.core.short import accepted
from smbdirect.errors import ProtocolError
from smbdirect.providers.base import Completion, Operation, Status
from smbdirect.rdma.pool import BufferPool
from smbdirect.rdma.receives import ReceiveBuffer
from smbdirect.transport.smb_direct import Message
from tools.fuzz import framed, seeds
from tools.fuzz.target import Target, Wrong

SETTINGS = Settings(receive_credit_max=8, send_credit_target=8, max_fragmented_receive_size=131_072)
POOL = BufferPool()
_KIND = Role.ESTABLISHED, Keepalive.NONE, Operation.RECEIVE, Status.OK


def _pump(core: Connection, now: float) -> None:
    for _ in range(4):
        core.receives_were_posted(core.receives_wanted)
        for item in core.pending_sends(now):
            if len(b"".join(item.segments)) > core.max_send_size:
                raise Wrong("a Send longer than the peer's receives")
        if not core.receives_wanted:
            return


def _receive(core: Connection, received: memoryview, now: float) -> None:
    event = core.receive_message(received, now, None)
    if isinstance(event, MessageReceived):
        if len(event.view) > SETTINGS.max_fragmented_receive_size:
            raise Wrong("a message longer than MaxFragmentedSize")
        if event.buffer is not None:
            event.buffer.release()


def _drive(core: Connection, messages: list[bytes]) -> None:
    now = 1.0
    for message in messages:
        action = message[0] if message else 0
        if action & 3 == 1 and core.role is Role.ESTABLISHED:
            core.send_message([bytes(action * 40)], None, None)
        elif action & 3 == 2:
            now += action
            deadline = core.next_deadline()
            if deadline is not None and deadline <= now:
                core.handle_timer(now)
        else:
            received = memoryview(bytearray(message[1:]))
            item = Completion(Operation.RECEIVE, Status.OK, ReceiveBuffer(received), len(received))
            if not accepted(core, _KIND, [item], Message, None, now)[1]:
                _receive(core, received, now)
        _pump(core, now)
        if core.credits.send_credits < 0 or core.credits.receive_credits < 0:
            raise Wrong("credits below 0")


def _run(data: bytes) -> None:
    core = Connection(Role.ACTIVE if data[:1] == b"\1" else Role.PASSIVE, SETTINGS, 1.0, POOL.acquire)
    if core.role is Role.ACTIVE:
        core.start()
    try:
        _pump(core, 1.0)
        _drive(core, framed.split(data[1:]))
    finally:
        core.close()
        if POOL.lent:
            raise Wrong("a reassembly buffer was not given back")


def _seeds() -> Iterator[bytes]:
    for role, sides in ((b"\0", False), (b"\1", True)):
        for conversation in seeds.sends(of_server=sides):
            yield role + framed.join([b"\0" + message[:600] for message in conversation[:12]])


TARGET = Target(_run, _seeds, declared=(ProtocolError,), mutate=framed.mutate_behind(1))
