"""Send and receive credits of one connection. Arithmetic only. [MS-SMBD 3.1.5.1, 3.1.5.8, 3.1.5.9]

A credit stands for a receive that the granting side has posted and promised to the other side. Two rules keep the two
sides from waiting for each other: a receive is posted before it is granted, and neither side spends its last credit on
a message that grants none (the peer could then never answer).
"""

from __future__ import annotations

from dataclasses import dataclass

from smbdirect.core.constants import EXTRA_RECEIVES

_SHARES = 16
"""Receives are posted again when one of this many parts of the window has been used up. Posting and granting many at
once costs no more than one, and the peer always holds nearly all of its credits, or gets them with the next message."""


@dataclass(slots=True, eq=False)
class Credits:
    """The credit variables of one connection, and the number of receives in the provider's queue. [MS-SMBD 3.1.1.1]"""

    receive_credit_max: int
    send_credit_target: int
    send_credits: int = 0
    # Invariant between calls: receive_credits <= receives_posted (a credit is granted only for a posted receive).
    receive_credits: int = 0
    receive_credit_target: int = 0
    receives_posted: int = 0
    """Receives in the provider's queue, granted or not. Not in spec, which posts and grants in one step."""
    minimum: int = 1
    """Smallest window we give, even if the peer requested less; 2 once negotiated (see ``peer_runs_low``). Not in
    spec."""
    window: int = 0
    """How many credits the peer should hold. Not in spec."""
    low: int = 0
    """How few posted receives are a reason to post more. Not in spec."""

    def __post_init__(self) -> None:
        self.resize()

    def resize(self, *, target: int | None = None, maximum: int | None = None, minimum: int | None = None) -> None:
        """Change the values that determine the window; None leaves a value as it is."""
        if target is not None:
            self.receive_credit_target = target
        if maximum is not None:
            self.receive_credit_max = maximum
        if minimum is not None:
            self.minimum = minimum
        self.window = max(min(self.receive_credit_target, self.receive_credit_max), self.minimum)
        self.low = self.window - max(self.window // _SHARES, 1)

    def receives_wanted(self, waiting: bool) -> int:
        """Return how many more receives to post. ``waiting`` means that queued messages need credits to go out."""
        desired = self.window
        if waiting and self.send_credits == 1:
            # 3.1.5.9: the last send credit may only be spent together with a grant, so there must be a receive to
            # grant.
            if self.receive_credits >= desired:
                desired = min(self.receive_credits + 1, self.receive_credit_max + EXTRA_RECEIVES)
        elif self.receives_posted > self.low:
            return 0
        wanted = desired - self.receives_posted
        return wanted if wanted > 0 else 0

    def grant(self) -> int:
        """Promise all posted receives to the peer, and return the number for CreditsGranted."""
        granted = min(self.receives_posted - self.receive_credits, 0xFFFF)
        self.receive_credits += granted
        return granted

    @property
    def peer_runs_low(self) -> bool:
        """Whether to grant by an empty message rather than wait for one of ours to carry the grant. [MS-SMBD 3.1.5.8]

        Section 3.1.5.8 would answer every message with a grant, and two such peers would answer each other's empty
        messages forever. We grant only when the peer holds less than half of a window of at least 2. A message that
        carries a grant costs one credit of the other direction, so it never brings a peer that was just filled below
        half, and the exchange ends.
        """
        return self.receives_posted > self.receive_credits and 2 * self.receive_credits < self.window

    @property
    def may_send(self) -> bool:
        """Whether one message may go out: it costs one credit, and the last credit needs a grant with it.
        [MS-SMBD 3.1.5.1]"""
        return self.send_credits > 1 or (self.send_credits == 1 and self.receives_posted > self.receive_credits)

    def spend(self) -> int | None:
        """Take the send credit of one message, grant all posted receives with it and return how many those are. Return
        None if the message has to wait (``may_send``)."""
        grantable = self.receives_posted - self.receive_credits
        if self.send_credits <= 1 and (not self.send_credits or grantable <= 0):
            return None
        self.send_credits -= 1
        grantable = min(grantable, 0xFFFF)
        self.receive_credits += grantable
        return grantable
