"""The numbers that Windows gives the same events, by which tools that watch Windows servers find them.

Only events that are published and mean the same are here. Sources: the messages of the provider
Microsoft-Windows-SMBServer (its manifest, in srv2.sys), and Microsoft's pages of the audit events 5140, 5145, 4656,
4660 and 4670.
"""

from __future__ import annotations

from typing import NamedTuple

_PROVIDER = "Microsoft-Windows-SMBServer"
"""For events of which the published messages do not say the log."""
_SECURITY = "Microsoft-Windows-SMBServer/Security"
_OPERATIONAL = "Microsoft-Windows-SMBServer/Operational"
_ANALYTIC = "Microsoft-Windows-SMBServer/Analytic"
_AUDIT = "Security"


class WindowsEvent(NamedTuple):
    """An event as Windows has it."""

    number: int
    channel: str
    """The log that Windows writes it to, or its provider. One number may stand for several things, one in each log."""
    text: str
    """What it means there, in short."""

    @property
    def is_shown(self) -> bool:
        """Whether Windows writes it unless told otherwise. The lines of such events show their number."""
        return self.channel != _ANALYTIC


_BAD_LOGON = WindowsEvent(551, _SECURITY, "SMB session authentication failure")
_ANONYMOUS = WindowsEvent(1009, _SECURITY, "The server denied anonymous access")
_UNENCRYPTED = WindowsEvent(1003, _PROVIDER, "An unencrypted message was rejected where encryption is required")
_BAD_SIGNATURE = WindowsEvent(1004, _PROVIDER, "An incorrectly signed message was rejected")
_DENIED = WindowsEvent(1006, _SECURITY, "The share denied access")

_LOGON_FAILURES = (
    "wrong_password",
    "unknown_user",
    "locked_out",
    "too_many_failures",
    "disabled",
    "expired",
    "must_change",
    "guest",
    "kerberos",
    "bad_exchange",
    "malformed",
)
"""Reasons of refused logons that say something about the user. The others say that the server has no room, or that the
request came at the wrong time."""

EVENTS: dict[tuple[str, str], WindowsEvent] = {
    **{("logon_refused", reason): _BAD_LOGON for reason in _LOGON_FAILURES},
    ("logon_refused", "anonymous"): _ANONYMOUS,
    ("logon_refused", "encryption_required"): _UNENCRYPTED,
    ("tree_connect_refused", "user"): _DENIED,
    ("tree_connect_refused", "permissions"): _DENIED,
    ("tree_connect_refused", "anonymous"): WindowsEvent(1007, _SECURITY, "The share denied anonymous access"),
    ("tree_connect_refused", "encryption"): _UNENCRYPTED,
    ("request_refused", "unencrypted"): _UNENCRYPTED,
    ("request_refused", "bad_signature"): _BAD_SIGNATURE,
    ("request_refused", "not_signed"): _BAD_SIGNATURE,
    ("connection_ended", "negotiation"): WindowsEvent(1005, _PROVIDER, "Negotiation could not be validated"),
    ("connection_ended", "decryption"): WindowsEvent(1015, _PROVIDER, "Decrypt call failed"),
    ("connection_ended", "smb1"): WindowsEvent(1001, _OPERATIONAL, "A client tried SMB1, which is not supported"),
    ("reopen_failed", ""): WindowsEvent(1016, _OPERATIONAL, "Reopen failed"),
    ("open_expired", ""): WindowsEvent(1017, _OPERATIONAL, "Handle scavenged"),
    ("connection", ""): WindowsEvent(500, _ANALYTIC, "Connection accepted"),
    ("connection_ended", "client"): WindowsEvent(501, _ANALYTIC, "Connection disconnected by the peer"),
    ("connection_ended", ""): WindowsEvent(502, _ANALYTIC, "Connection terminated"),
    ("logon", ""): WindowsEvent(552, _ANALYTIC, "Session authentication success"),
    ("channel", ""): WindowsEvent(553, _ANALYTIC, "Session bound to a connection"),
    ("session_ended", ""): WindowsEvent(554, _ANALYTIC, "Session terminated"),
    ("logoff", ""): WindowsEvent(555, _ANALYTIC, "Session closed"),
    ("tree_connect", ""): WindowsEvent(600, _ANALYTIC, "Tree connect allocated"),
    ("tree_disconnect", ""): WindowsEvent(601, _ANALYTIC, "Tree connect disconnected"),
}
"""By event of the log and the reason, or other word, that tells its cases apart."""

_SHARE_ACCESS = WindowsEvent(5140, _AUDIT, "A network share object was accessed")
_FILE_ACCESS = WindowsEvent(5145, _AUDIT, "Whether a client can be granted desired access to a file of a share")
_OBJECT_DELETED = WindowsEvent(4660, _AUDIT, "An object was deleted")

AUDIT_EVENTS: dict[tuple[str, str], WindowsEvent] = {
    ("connect", ""): _SHARE_ACCESS,
    ("denied", "share"): _SHARE_ACCESS,
    ("denied", ""): _FILE_ACCESS,
    ("open", ""): _FILE_ACCESS,
    ("create", ""): _FILE_ACCESS,
    ("delete", ""): _OBJECT_DELETED,
    ("permission", ""): WindowsEvent(4670, _AUDIT, "Permissions on an object were changed"),
    ("sacl", ""): WindowsEvent(4656, _AUDIT, "A handle to an object was requested"),
    ("sacl", "delete"): _OBJECT_DELETED,
}
"""By kind of the record and, where it matters, its case. What Windows has no event of its own for is not here."""


def fields_of(event: WindowsEvent | None) -> dict[str, object]:
    """Return what a line or a record says of the event as Windows has it; nothing if it has none."""
    return {} if event is None else {"event_id": event.number, "event_channel": event.channel}
