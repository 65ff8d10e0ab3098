"""Constants of MS-SMBD, of which this package follows v20250811, revision 16.0. Sizes are in bytes."""

from __future__ import annotations

import enum

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
