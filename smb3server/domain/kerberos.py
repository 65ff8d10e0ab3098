"""Logs on to the realm as an administrator, with the realm's controllers where the system's Kerberos looks for them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from smb3server.domain.user import Controller

SYSTEM_FILE = "/etc/krb5.conf"
_VARIABLE = "KRB5_CONFIG"


@contextlib.contextmanager
def realm_known(realm: str, controllers: Sequence[Controller]) -> Iterator[None]:
    """Let the system's Kerberos find the realm's controllers, whatever its own configuration says.

    For commands only: this changes the environment of the process, in which no other thread may use Kerberos.
    """
    lines = [
        "[libdefaults]",
        f" default_realm = {realm}",
        " rdns = false",
        " dns_canonicalize_hostname = false",
        " dns_lookup_realm = false",
        # Tickets of users in many groups do not fit a datagram.
        " udp_preference_limit = 1",
        "[realms]",
        f" {realm} = {{",
        *(f"  kdc = {_in_brackets(controller.address)}" for controller in controllers),
        " }",
        "[domain_realm]",
        f" .{realm.lower()} = {realm}",
        f" {realm.lower()} = {realm}",
    ]
    before = os.environ.get(_VARIABLE)
    with tempfile.NamedTemporaryFile("w", prefix="smb3server-krb5-", suffix=".conf") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.environ[_VARIABLE] = f"{file.name}:{before or SYSTEM_FILE}"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = before


def _in_brackets(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def credentials(user: str, realm: str, password: str | None) -> Any:
    """Return credentials (``gssapi``) of a user: by its password, or those that the user has from kinit if it is None.

    Raises the errors of ``gssapi``."""
    import gssapi

    if password is None:
        return gssapi.Credentials(usage="initiate")
    name = gssapi.Name(user if "@" in user else f"{user}@{realm}", gssapi.NameType.kerberos_principal)
    found = gssapi.raw.acquire_cred_with_password(
        name, password.encode(), usage="initiate", mechs=[gssapi.MechType.kerberos]
    )
    return gssapi.Credentials(found.creds)


def words(error: Any) -> str:
    """Return the text of a GSS-API error that says most."""
    return str(error.get_all_statuses(error.min_code, False)[0] if error.min_code else error).strip()
