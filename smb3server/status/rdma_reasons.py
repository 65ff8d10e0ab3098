"""Why a connection does not use RDMA: the first obstacle, in the order of a client's steps.

A client finds RDMA in steps (MS-SMB2 3.2.4.20.10, 3.2.5.14.11): it negotiates 3.x with multichannel, logs on, queries
the server's interface list, finds an interface flagged RDMA_CAPABLE that it can reach with an RDMA NIC of its own, and
binds a channel there. ``why_tcp`` follows the same steps on plain facts. ``why_inline`` gives the reason why data stays
in messages although the connection has RDMA (MS-SMB2 3.3.5.12, 3.3.5.13). Both are pure functions.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from smb3server.wire.negotiate import Dialect
from smb3server.wire.rdma_transform import RdmaTransformId

RDMA_WORTHWHILE = 4096
"""Bytes from which Linux clients use RDMA (rdma_readwrite_threshold). If larger data goes inline, there is another
reason.
"""


class Code(enum.Enum):
    """Stable names of the reasons, for scripts. The table in docs/rdma-used.md lists each."""

    USED = "used"
    USED_ON_ANOTHER_CHANNEL = "used-on-another-channel"
    OFF = "rdma-off"
    NO_PROVIDER = "no-provider"
    NOT_NEGOTIATED = "not-negotiated"
    SERVER_DIALECT = "server-dialect"
    DIALECT = "client-dialect"
    SERVER_MULTICHANNEL_OFF = "server-multichannel-off"
    CLIENT_NO_MULTICHANNEL = "client-no-multichannel"
    NOT_LOGGED_ON = "not-logged-on"
    GUEST = "guest"
    NOT_ASKED = "not-asked"
    NOT_FLAGGED = "not-flagged"
    CHANNEL_LOST = "channel-lost"
    NOT_OPENED = "not-opened"
    SERVER_TRANSFORMS_OFF = "server-transforms-off"
    ENCRYPTED = "encrypted"
    SIGNED = "signed"
    NO_DESCRIPTORS = "no-descriptors"
    NO_TRANSFERS = "no-transfers"


class Reason(NamedTuple):
    """An answer for an operator: what is the case, and what to do about it."""

    code: Code
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one connection that determine the reason."""

    rdma_off: bool = False
    """The server was started without SMB Direct."""
    served: bool = True
    """At least one fabric is served."""
    not_served: str = ""
    """Why no fabric is served, or why an interface has none."""
    negotiated: bool = True
    dialect: int = Dialect.SMB_3_1_1
    server_max_dialect: int = Dialect.SMB_3_1_1
    client_max_dialect: int = Dialect.SMB_3_1_1
    server_multichannel: bool = True
    client_multichannel: bool = True
    logged_on: bool = True
    guest: bool = False
    """All sessions are guest or anonymous: they have no key to bind a channel with. [MS-SMB2 3.3.5.5]"""
    asked: bool = False
    """The client queried the interface list, on any channel of its sessions."""
    flagged: int = 0
    """Number of interfaces flagged RDMA_CAPABLE in the last list that the client got."""
    rdma_channels: int = 0
    """Number of RDMA channels of the client's sessions."""
    lost: str = ""
    """How the client's last RDMA connection ended; empty if it never had one."""
    encrypted: str = ""
    """What requires encryption: "session", or "share NAME"."""
    signing_required: bool = False
    transforms: tuple[int, ...] = ()
    """RDMA transforms that were negotiated."""
    server_transforms: tuple[int, ...] = (RdmaTransformId.ENCRYPTION, RdmaTransformId.SIGNING)
    rdma_protection: str = ""
    """How data that moved by RDMA was protected: "encrypted", "signed", "clear", or several of these."""
    rdma_bytes: int = 0
    """Bytes moved by RDMA Read and Write."""
    largest_inline: int = 0
    """Bytes of the largest READ or WRITE that came without buffer descriptors."""


_GET_INTERFACES = (
    "Windows: `Set-SmbClientConfiguration -EnableMultiChannel $true`; Linux: mount with `rdma`, or `multichannel`"
)

_TEXTS: Mapping[Code, tuple[str, str]] = {
    Code.OFF: ("the server was started without SMB Direct", "start it with --rdma"),
    Code.NO_PROVIDER: ("no fabric can be served: {not_served}", "follow the remedy that it names, or try --rdma=iwarp"),
    Code.NOT_NEGOTIATED: (
        "the client has not negotiated yet",
        "wait; if this does not change, the client is not an SMB client",
    ),
    Code.SERVER_DIALECT: (
        "this server negotiates dialect 0x{server_max_dialect:04x} at most, and RDMA needs 3.0",
        "raise max_dialect in the configuration",
    ),
    Code.DIALECT: (
        "the client uses dialect 0x{dialect:04x}, and RDMA needs 3.0",
        "enable SMB 3 on the client (Linux: vers=3.1.1)",
    ),
    Code.SERVER_MULTICHANNEL_OFF: (
        "multichannel is off at this server",
        "set multichannel = true in the configuration",
    ),
    Code.CLIENT_NO_MULTICHANNEL: ("the client does not offer multichannel", _GET_INTERFACES),
    Code.NOT_LOGGED_ON: ("no user has logged on", "log on"),
    Code.GUEST: ("guests and anonymous users have no key, so they cannot open further channels", "use an account"),
    Code.NOT_ASKED: ("the client did not ask for the list of interfaces", _GET_INTERFACES),
    Code.NOT_FLAGGED: (
        "no interface in the list that the client got is RDMA capable{detail}",
        "serve SMB Direct on an address that the client reaches: `smb3server doctor` lists the addresses",
    ),
    Code.CHANNEL_LOST: (
        "the client's RDMA connection ended: {lost}",
        "read the server's log; `smb3server doctor //HOST/SHARE` tries every fabric",
    ),
    Code.NOT_OPENED: (
        "the server offered RDMA on {flagged} interface(s), and the client opened no RDMA channel",
        "the client needs an RDMA NIC or software RDMA on the same network (Windows: `Get-SmbClientNetworkInterface`;"
        " Linux: `rdma link`), and an open path to TCP port 5445 (iWARP) or UDP port 4791 (RoCEv2)",
    ),
    Code.SERVER_TRANSFORMS_OFF: (
        "data goes inline: it must be {need}, and this server is set not to do that by RDMA",
        "add it to rdma_transforms in the configuration",
    ),
    Code.ENCRYPTED: (
        "data goes inline: {encrypted} is encrypted, and the client does not offer to encrypt by RDMA (RDMA"
        " transforms)",
        "use a client with RDMA transforms (Windows 11, Windows Server 2022 or later), or turn encryption off, if the"
        " network is trusted",
    ),
    Code.SIGNED: (
        "data goes inline: messages are signed, and the client does not offer to sign by RDMA (RDMA transforms)",
        "use a client with RDMA transforms (Windows 11, Windows Server 2022 or later), or do not require signing"
        " (Windows: `Set-SmbClientConfiguration -RequireSecuritySignature $false`; Linux: no `sign`)",
    ),
    Code.NO_DESCRIPTORS: (
        "data goes inline: the client named no memory for RDMA (no buffer descriptors) in a READ or WRITE of"
        " {largest_inline} bytes",
        "use a client that offers memory to SMB Direct; none needed if this one does so for larger requests",
    ),
    Code.NO_TRANSFERS: (
        "no READ or WRITE was large enough for RDMA yet",
        "none needed: clients move small data inline (Linux: below 4096 bytes)",
    ),
    Code.USED_ON_ANOTHER_CHANNEL: (
        "the session has {rdma_channels} RDMA channel(s); their own reasons say whether data goes there",
        "",
    ),
    Code.USED: ("RDMA, {rdma_protection}", ""),
}


def _reason(code: Code, facts: Facts) -> Reason:
    text, remedy = _TEXTS[code]
    detail = f" ({facts.not_served})" if facts.not_served else ""
    values = {name: getattr(facts, name) for name in Facts.__dataclass_fields__}
    need = "encrypted" if facts.encrypted else "signed"
    return Reason(code, text.format(detail=detail, need=need, **values), remedy)


def why_tcp(facts: Facts) -> Reason:
    """Return the first reason why the client of a TCP connection does not use RDMA.

    ``USED_ON_ANOTHER_CHANNEL`` means that there is no such reason.
    """
    return _reason(_tcp_code(facts), facts)


def _tcp_code(facts: Facts) -> Code:
    steps = (
        (facts.rdma_channels > 0, Code.USED_ON_ANOTHER_CHANNEL),
        (facts.rdma_off, Code.OFF),
        (not facts.served, Code.NO_PROVIDER),
        (not facts.negotiated, Code.NOT_NEGOTIATED),
        (facts.dialect < Dialect.SMB_3_0 <= facts.client_max_dialect, Code.SERVER_DIALECT),
        (facts.dialect < Dialect.SMB_3_0, Code.DIALECT),
        (not facts.server_multichannel, Code.SERVER_MULTICHANNEL_OFF),
        (not facts.client_multichannel, Code.CLIENT_NO_MULTICHANNEL),
        (not facts.logged_on, Code.NOT_LOGGED_ON),
        (facts.guest, Code.GUEST),
        (not facts.asked, Code.NOT_ASKED),
        (not facts.flagged, Code.NOT_FLAGGED),
        (bool(facts.lost), Code.CHANNEL_LOST),
    )
    return next((code for applies, code in steps if applies), Code.NOT_OPENED)


def why_inline(facts: Facts) -> Reason:
    """Return why READ and WRITE do not use RDMA on a connection that has it; ``USED`` if they do."""
    return _reason(_inline_code(facts), facts)


def _inline_code(facts: Facts) -> Code:
    need = _needed(facts)
    steps = (
        (facts.rdma_bytes > 0, Code.USED),
        (not facts.negotiated, Code.NOT_NEGOTIATED),
        (facts.dialect < Dialect.SMB_3_0 <= facts.client_max_dialect, Code.SERVER_DIALECT),
        (facts.dialect < Dialect.SMB_3_0, Code.DIALECT),
        (not facts.logged_on, Code.NOT_LOGGED_ON),
        (need is not None and need not in facts.server_transforms, Code.SERVER_TRANSFORMS_OFF),
        (need is RdmaTransformId.ENCRYPTION and need not in facts.transforms, Code.ENCRYPTED),
        (need is RdmaTransformId.SIGNING and need not in facts.transforms, Code.SIGNED),
        (facts.largest_inline >= RDMA_WORTHWHILE, Code.NO_DESCRIPTORS),
    )
    return next((code for applies, code in steps if applies), Code.NO_TRANSFERS)


def _needed(facts: Facts) -> RdmaTransformId | None:
    """Return the transform without which the client's data may not move by RDMA."""
    if facts.encrypted:
        return RdmaTransformId.ENCRYPTION
    return RdmaTransformId.SIGNING if facts.signing_required else None
