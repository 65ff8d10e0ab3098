"""The client's side of a logon with a Kerberos ticket, by pyspnego. [MS-SMB2 3.2.4.2.3]"""

from __future__ import annotations

import spnego
from spnego.exceptions import SpnegoError

from smb3server.client.protocol.messages import LogonError
from smbdirect.errors import ProtocolError


class TicketLogon:
    """The steps of one logon. Each may wait for Kerberos' servers."""

    def __init__(self, name: str, password: str, host: str) -> None:
        """``host`` is the server's name in Kerberos. Without ``password`` the credentials cache has the ticket. Raises
        ``LogonError``.
        """
        self._host = host
        try:
            self._context = spnego.client(
                name or None, password or None, hostname=host, service="cifs", protocol="negotiate"
            )
        except SpnegoError as error:
            raise LogonError(str(error)) from error

    @property
    def complete(self) -> bool:
        """Whether the logon has come to its end."""
        return bool(self._context.complete)

    @property
    def session_key(self) -> bytes:
        """The key that both sides know at the end."""
        return bytes(self._context.session_key)

    def step(self, token: bytes | None) -> bytes | None:
        """Return the message that follows ``token``, the server's. Raises ``LogonError``, and ``ProtocolError`` if
        there is no ticket.
        """
        try:
            made: bytes | None = self._context.step(token)
        except SpnegoError as error:
            raise LogonError(str(error)) from error
        if self._context.negotiated_protocol != "kerberos":
            raise ProtocolError(f"no Kerberos ticket for cifs/{self._host}", "MS-SMB2 3.2.4.2.3")
        return made
