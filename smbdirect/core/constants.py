"""Constants of MS-SMBD, and the edition that they were taken from. Sizes are in bytes, times in seconds."""

from __future__ import annotations

import enum

SPECIFICATION = "[MS-SMBD] v20250811, revision 16.0"
"""The edition to which section numbers in this package refer."""

VERSION_1_0 = 0x0100
"""The only protocol version (1.7)."""

DEFAULT_PORT = 5445
"""TCP port of SMB Direct over iWARP; other fabrics use port 445 (1.9)."""

MIN_RECEIVE_SIZE = 128
"""Smallest MaxReceiveSize that may be negotiated (3.1.5.6, 3.1.5.7)."""

MIN_FRAGMENTED_SIZE = 131_072
"""Smallest MaxFragmentedSize that may be negotiated (3.1.5.6, 3.1.5.7)."""

MIN_FIRST_RECEIVE_SIZE = 512
"""Smallest receive buffer for the Negotiate message (3.1.4.1, 3.1.7.2)."""

DATA_ALIGNMENT = 8
"""DataOffset is a multiple of this (2.2.3)."""

DATA_OFFSET = 24
"""Where our payloads start: the header and four bytes of padding (3.1.5.4)."""

DEFAULT_CREDITS = 255
"""ReceiveCreditMax and SendCreditTarget (appendix B <3>, <8>)."""

DEFAULT_SEND_SIZE = 8192
"""MaxSendSize. The smaller of this and the peer's MaxReceiveSize applies, which is 8192 on Windows and 1364 on Linux.
(Windows and Linux send 1364 at most: appendix B <3>, <8>.)"""

DEFAULT_RECEIVE_SIZE = 1364
"""MaxReceiveSize. The smaller of this and the peer's MaxSendSize applies, which is 1364 on Windows and Linux, so larger
buffers would only cost memory."""

DEFAULT_FRAGMENTED_SIZE = 1_048_576 + 4096
"""MaxFragmentedRecvSize: the 1 MiB of appendix B <3> and <8>, and room for headers. An upper layer that accepts longer
messages must state a larger value: Linux fails a WRITE that does not fit its peer's."""

DEFAULT_READ_WRITE_SIZE = 8_388_608
"""MaxReadWriteSize (appendix B <7>, <8>)."""

NEGOTIATION_TIMEOUT_ACTIVE = 120.0
"""Negotiation Timer of the initiator (3.1.4.1)."""

NEGOTIATION_TIMEOUT_PASSIVE = 5.0
"""Negotiation Timer of the acceptor (3.1.7.2)."""

KEEPALIVE_INTERVAL = 120.0
"""KeepaliveInterval (appendix B <2>)."""

KEEPALIVE_RESPONSE_TIMEOUT = 5.0
"""How long a keepalive may go unanswered (appendix B <4>)."""

SEND_CREDIT_TIMEOUT = 5.0
"""How long queued messages wait for a peer that grants no credit. Not in spec: Windows ends such a connection after
five seconds."""

UNAUTHENTICATED_CREDITS = 4
"""How many receives are posted for a peer before the upper layer trusts it. Not in spec."""

UNAUTHENTICATED_MESSAGE_SIZE = 65_536
"""Longest message that an acceptor accepts before the upper layer sets its own limit. Not in spec."""

EXTRA_RECEIVES = 8
"""How many receives beyond ReceiveCreditMax the last-credit rule may post. Not in spec."""

STATUS_SUCCESS = 0x00000000
STATUS_INSUFFICIENT_RESOURCES = 0xC000009A
STATUS_NOT_SUPPORTED = 0xC00000BB


class DataFlags(enum.IntFlag):
    """Flags of a Data Transfer message. [MS-SMBD 2.2.3]"""

    RESPONSE_REQUESTED = 0x0001
