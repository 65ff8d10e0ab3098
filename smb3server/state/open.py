"""Whose an open is."""

from __future__ import annotations

from smb3server.state.objects import Open


def client_guid_of(entry: Open) -> bytes:
    """Open.ClientGuid: of the connection it was made on."""
    return entry.durable.client_guid if entry.durable is not None else entry.session.connection.client_guid
