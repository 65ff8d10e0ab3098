"""Chains that wait, because their client has many answers to take first or because others are to have their turn.

Answers take memory until the client has taken them. A chain whose connection has more than ``CHAIN_MARK`` of them
unsent is parked before its next command, and goes on when they have drained; meanwhile nothing more is read. So is one
that has worked for ``TURN`` seconds: the server's ``Turns`` let it go on after the others have had theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from smb3server.dispatch.chain import Chain
    from smb3server.process.turns import Turns
    from smb3server.state.objects import Connection

CHAIN_MARK = 4 << 20
"""Bytes of unsent answers above which a chain does not go on."""
MESSAGE_MARK = 16 << 20
"""Bytes of unsent answers above which no message is begun: where the transport does not stop reading by itself."""
TURN = 0.005
"""Seconds after which a chain does not go on in this turn of the event loop."""
_PATIENCE = 0.05
"""Seconds until a parked chain looks again whether answers have drained, should nobody report it."""


class _Server(Protocol):
    """What parking needs of the server."""

    @property
    def turns(self) -> Turns: ...

    @property
    def stopping(self) -> bool: ...


class Parking:
    """A connection's chains that wait, in their order. Invariant: reading is paused while there are any."""

    def __init__(self, server: _Server, connection: Connection, advance: Callable[[Chain], None]) -> None:
        """``advance``: goes on with a chain; it may park it again."""
        self._server = server
        self._connection = connection
        self._advance = advance
        self.chains: deque[Chain] = deque()
        self._resuming = False
        self._has_turn = False
        """A turn is coming for the chain that is parked first."""

    def park(self, chain: Chain) -> None:
        """Let a chain wait until answers have drained."""
        self.chains.append(chain)
        self._connection.transport.pause_reading()
        self._later()

    def give_way(self, chain: Chain) -> None:
        """Let others have their turn. The chain stays ahead of what is parked, since it came first."""
        self.chains.appendleft(chain)
        self._connection.transport.pause_reading()
        if not self._has_turn:
            self._has_turn = True
            self._server.turns.add(self._turn)

    def drained(self) -> None:
        """Go on soon: a message is sent. The transport is still busy with that."""
        if self.chains:
            self._connection.loop.call_soon(self._go_on)

    def clear(self) -> None:
        """Forget what is parked: the connection is gone."""
        while self.chains:
            self.chains.popleft().inbound.release()

    def _turn(self) -> None:
        self._has_turn = False
        self._go_on()

    def _later(self) -> None:
        """Look again whether answers have drained, in a moment. ``drained`` usually comes first."""
        if not self._resuming:
            self._resuming = True
            self._connection.loop.call_later(_PATIENCE, self._resume)

    def _resume(self) -> None:
        self._resuming = False
        self._go_on()

    def _go_on(self) -> None:
        """Take up parked chains in their order, as far as answers have drained and none has to let others have their
        turn."""
        connection = self._connection
        while (
            self.chains
            and not self._has_turn
            and not connection.closed
            and connection.transport.pending_send_bytes <= CHAIN_MARK // 2
        ):
            self._advance(self.chains.popleft())
        if connection.closed:
            return
        if self.chains:
            if not self._has_turn:
                self._later()
        elif not self._server.stopping:
            connection.transport.resume_reading()
