"""Chains that wait until their client has taken replies, until other chains have had their turn, or until their message
is decompressed.

Replies take memory until the client has taken them. If more than ``CHAIN_MARK`` bytes of a connection are unsent, its
chain is parked before the next command and continues when they have drained. Meanwhile the connection is not read. A
chain that has worked for ``TURN`` seconds is parked, too. ``Turns`` of the server continue it after the others.
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
"""Bytes of unsent replies above which a chain is parked."""
MESSAGE_MARK = 16 << 20
"""Bytes of unsent replies above which a message is parked before its first command, for transports that do not stop
reading by themselves."""
TURN = 0.005
"""Seconds after which a chain does not continue in this turn of the event loop."""
_PATIENCE = 0.05
"""Seconds between checks whether replies have drained, in case this is not reported."""


class _Server(Protocol):
    """The part of the server that parking needs."""

    @property
    def turns(self) -> Turns: ...

    @property
    def stopping(self) -> bool: ...


class Parking:
    """The parked chains of a connection, in their order. Invariant: reading is paused while there are any."""

    def __init__(self, server: _Server, connection: Connection, advance: Callable[[Chain], None]) -> None:
        """``advance`` continues a chain. It may park the chain again."""
        self._server = server
        self._connection = connection
        self._advance = advance
        self.chains: deque[Chain] = deque()
        self._resuming = False
        """A timer for ``_resume`` runs."""
        self._has_turn = False
        """The server's ``Turns`` will call ``_turn``. Until then no chain continues."""

    def park(self, chain: Chain) -> None:
        """Let a chain wait until replies have drained. End it if the connection has ended."""
        if self._connection.closed:
            chain.end()
            return
        self.chains.append(chain)
        self._connection.transport.pause_reading()
        self._later()

    def give_way(self, chain: Chain) -> None:
        """Let others have their turn. The chain is put before the parked ones, since it came first.
        End it if the connection has ended."""
        if self._connection.closed:
            chain.end()
            return
        self.chains.appendleft(chain)
        self._connection.transport.pause_reading()
        if not self._has_turn:
            self._has_turn = True
            self._server.turns.add(self._turn)

    def drained(self) -> None:
        """Continue in a later turn, as a message was sent. The transport is still busy with it."""
        if self.chains:
            self._connection.loop.call_soon(self._go_on)

    def expand(self, chain: Chain) -> None:
        """Let a chain wait, before the parked ones, until its message is decompressed."""
        self.chains.appendleft(chain)
        self._connection.transport.pause_reading()

    def expanded(self) -> None:
        """Continue, as the message of a chain was decompressed."""
        self._go_on()

    def clear(self) -> None:
        """End all parked chains, as the connection has ended."""
        while self.chains:
            self.chains.popleft().end()

    def _turn(self) -> None:
        self._has_turn = False
        self._go_on()

    def _later(self) -> None:
        """Check after ``_PATIENCE`` seconds whether replies have drained. ``drained`` usually comes earlier."""
        if not self._resuming:
            self._resuming = True
            self._connection.loop.call_later(_PATIENCE, self._resume)

    def _resume(self) -> None:
        self._resuming = False
        self._go_on()

    def _go_on(self) -> None:
        """Continue parked chains in their order until one has to wait again. Resume reading when none is left."""
        connection = self._connection
        while (
            self.chains
            and not self.chains[0].expanding
            and not self._has_turn
            and not connection.closed
            and connection.transport.pending_send_bytes <= CHAIN_MARK // 2
        ):
            self._advance(self.chains.popleft())
        if connection.closed:
            return
        if self.chains:
            if not self._has_turn and not self.chains[0].expanding:
                self._later()
        elif not self._server.stopping:
            connection.transport.resume_reading()
