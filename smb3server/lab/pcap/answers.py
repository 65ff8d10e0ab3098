"""What a response has in common with its request, and what it may grant."""

from __future__ import annotations

from smb3server.lab.pcap import rules
from smb3server.lab.pcap.effects import Pending
from smb3server.lab.pcap.smb2 import FLAG_ASYNC, NEGOTIATE, SESSION_SETUP, STATUS_PENDING, WITHOUT_TREE, Smb2Message
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Verdicts

_UNASKED = 512
"""Credits that Windows grants whatever the request asks for. [MS-SMB2 3.3.1.2, its note on product behavior]"""


class Grants:
    """The credits in one message, against what its requests ask for. Servers put those of a compound in one part."""

    def __init__(self) -> None:
        self.granted = self.limit = 0

    def add(self, part: Smb2Message, pending: Pending) -> None:
        """Note a response. The final one of an asynchronous request grants nothing. [MS-SMB2 3.3.4.3]"""
        self.granted += part.credits
        final = pending.async_id and part.status != STATUS_PENDING
        self.limit += 0 if final else max(pending.part.charge, 1) + max(pending.part.credits, _UNASKED)

    def judge(self, number: int, verdicts: Verdicts) -> None:
        """Judge the message."""
        text = "{} credits granted, {} are plausible"
        kept = self.granted <= self.limit
        verdicts.check(rules.SMB2_GRANTED, kept, number, Direction.TO_CLIENT, text, self.granted, self.limit)


def judge_header(part: Smb2Message, pending: Pending, number: int, verdicts: Verdicts) -> None:
    """Judge that the header of a response is that of its request. [MS-SMB2 3.3.4.2 to 3.3.4.4]"""
    check, way, asked = verdicts.check, Direction.TO_CLIENT, pending.part
    if asked.command != SESSION_SETUP or asked.session_id:
        kept = part.session_id in (asked.session_id, pending.session.session_id)
        text = "{} response with SessionId {:#x} to a request with {:#x}"
        check(rules.SMB2_RESPONSE_IDS, kept, number, way, text, part.name, part.session_id, asked.session_id)
    if asked.command not in WITHOUT_TREE and not part.flags & FLAG_ASYNC:
        kept = part.tree_id in (asked.tree_id, pending.tree_id)
        text = "{} response with TreeId {:#x} to a request with {:#x}"
        check(rules.SMB2_RESPONSE_IDS, kept, number, way, text, part.name, part.tree_id, asked.tree_id)
    if asked.command != NEGOTIATE:
        text = "{} response with CreditCharge {} to a request with {}"
        kept = not part.charge or part.charge == max(asked.charge, 1)
        check(rules.SMB2_RESPONSE_CHARGE, kept, number, way, text, part.name, part.charge, asked.charge)
