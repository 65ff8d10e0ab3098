"""The keytab of a server, read at the start and at each reload. Every logon reads the keys themselves anew."""

from __future__ import annotations

from smb3server.auth.acceptor import kerberos_available, keytab_realms
from smb3server.config.error import ConfigError
from smb3server.settings.server import Settings


def realms_of_keytab(settings: Settings) -> frozenset[str]:
    """Return the realms for whose file service the keytab has a key; none without a keytab.

    Raises ``ConfigError`` if the keytab cannot be used: otherwise every logon would fail later.
    """
    keytab = settings.keytab
    if not keytab:
        return frozenset()
    problem = kerberos_available()
    if problem is not None:
        raise ConfigError(f"keytab {keytab}: {problem}")
    try:
        return keytab_realms(keytab)
    except ValueError as error:
        raise ConfigError(f"keytab {keytab}: {error}") from error
