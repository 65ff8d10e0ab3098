"""Send and receive credits of one connection (MS-SMBD 3.1.5.1, 3.1.5.8, 3.1.5.9). Arithmetic only.

A credit is a receive that the granting side has posted and promised to the other. Two facts keep the two sides from
waiting for each other: receives are posted before they are granted, and nobody spends the last credit on a message
that grants none (the peer could then never answer).
"""

from __future__ import annotations

from smbdirect.core.constants import EXTRA_RECEIVES


class Credits:
    """The credit variables of 3.1.1.1, plus ``receives_posted``: receives that lie in the provider's queue, granted
    or not (not in spec, which posts and grants in one step)."""

    __slots__ = (
        "minimum",
        "receive_credit_max",
        "receive_credit_target",
        "receive_credits",
        "receives_posted",
        "send_credit_target",
        "send_credits",
    )

    def __init__(self, receive_credit_max: int, send_credit_target: int) -> None:
        self.send_credits = 0
        self.send_credit_target = send_credit_target
        self.receive_credits = 0
        self.receive_credit_target = 0
        self.receive_credit_max = receive_credit_max
        self.receives_posted = 0
        self.minimum = 1
        """Smallest window we give, whatever was asked for; 2 once negotiated (see ``peer_runs_low``). Not in spec."""

    @property
    def window(self) -> int:
        """How many credits the peer should hold."""
        window = self.receive_credit_target
        window = min(window, self.receive_credit_max)
        return window if window > self.minimum else self.minimum

    def receives_wanted(self, waiting: bool) -> int:
        """How many more receives to post. ``waiting``: messages are queued that need credits to go out."""
        desired = self.window
        if waiting and self.send_credits == 1 and self.receive_credits >= desired:
            # 3.1.5.9: the last send credit may only go with a grant, so there must be something to grant.
            desired = min(self.receive_credits + 1, self.receive_credit_max + EXTRA_RECEIVES)
        wanted = desired - self.receives_posted
        return wanted if wanted > 0 else 0

    @property
    def grantable(self) -> int:
        """Posted receives that the peer has not been told about."""
        return min(self.receives_posted - self.receive_credits, 0xFFFF)

    def grant(self) -> int:
        """Promise everything grantable to the peer; the number goes into CreditsGranted."""
        granted = self.grantable
        self.receive_credits += granted
        return granted

    @property
    def peer_runs_low(self) -> bool:
        """Whether to grant by an empty message rather than wait for one of ours to carry the grant.

        3.1.5.8 would answer every message with a grant, and two such peers would answer each other's empty messages
        for ever. Below half a window of at least 2, the message that carries the grant (it takes one credit of the
        other direction) never brings a peer that has just been filled below half, so the exchange ends.
        """
        return self.receives_posted > self.receive_credits and 2 * self.receive_credits < self.window

    @property
    def may_send(self) -> bool:
        """3.1.5.1: one credit per message, and the last one only together with a grant."""
        return self.send_credits > 1 or (self.send_credits == 1 and self.receives_posted > self.receive_credits)

    def spend(self) -> int | None:
        """Take the send credit of one message, and grant everything grantable with it: return how many receives, or
        None if the message has to wait (``may_send``)."""
        grantable = self.receives_posted - self.receive_credits
        if self.send_credits <= 1 and (not self.send_credits or grantable <= 0):
            return None
        self.send_credits -= 1
        grantable = min(grantable, 0xFFFF)
        self.receive_credits += grantable
        return grantable
