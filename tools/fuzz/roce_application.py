"""The application above RoCEv2's connection manager: it accepts, rejects and disconnects as the fuzzer wants."""

from __future__ import annotations

from smbdirect.providers.roce.cm import ConnectionManager, Outcome, Parameters
from smbdirect.providers.roce.cm_messages import MAD_LENGTH, Reason
from tools.fuzz.target import Wrong

OURS = Parameters(0x1234, 0xABCDEF, 3, 16, 8, 6)


def serve(manager: ConnectionManager, action: int, now: float) -> list[bytes]:
    """Do what the application does, and return what is sent."""
    for event in manager.events:
        if event.outcome is Outcome.REQUESTED and action & 1:
            manager.accept(event.connection, OURS, b"welcome", now)
        elif event.outcome is Outcome.REQUESTED:
            manager.reject(event.connection, Reason.CONSUMER, b"no")
        elif event.outcome is Outcome.ESTABLISHED:
            manager.established(event.connection)
        elif event.outcome is Outcome.CLOSED_BY_PEER:
            manager.disconnect(event.connection, now)
    manager.events.clear()
    manager.ended.clear()
    sent = [datagram for _, datagram in manager.outbox]
    manager.outbox.clear()
    if any(len(datagram) != MAD_LENGTH for datagram in sent):
        raise Wrong("a datagram of a wrong length")
    return sent
