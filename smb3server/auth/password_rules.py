"""What a new password must be like, and passwords made by chance."""

from __future__ import annotations

import secrets

from smb3server.auth.users import nt_hash

MIN_LENGTH = 8
"""Characters of a new password, unless the configuration says otherwise."""
MAX_LENGTH = 256
"""Characters of a password that clients can send. [MS-SAMR 2.2.6.21]"""
_ALPHABET = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""Letters and digits that nobody takes for each other."""
_GENERATED_LENGTH = 20
EMPTY_HASH = nt_hash("")
"""The NT hash of the empty password."""


class PasswordRefused(ValueError):
    """A new password breaks a rule. The text says which."""


def check_new_password(password: str, name: str, old_hash: bytes | None, minimum: int = MIN_LENGTH) -> bytes:
    """Return the NT hash of a new password for the account ``name``.

    ``old_hash`` is that of its present password, None if it has none. ``minimum`` is the least length in characters.
    Raises ``PasswordRefused``. [MS-SAMR 3.1.1.7.2]
    """
    if not password:
        raise PasswordRefused("a password must not be empty")
    if len(password) < minimum:
        raise PasswordRefused(f"a password needs at least {minimum} characters")
    if len(password.encode("utf-16-le", "surrogatepass")) > 2 * MAX_LENGTH:
        raise PasswordRefused(f"a password has at most {MAX_LENGTH} characters")
    if minimum and password.casefold() == name.casefold():
        raise PasswordRefused("a password must not be the user's name")
    made = nt_hash(password)
    if made == old_hash:
        raise PasswordRefused("the new password is the old one")
    return made


def generate() -> str:
    """Return a password made by chance, with more than 110 bits of it."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(_GENERATED_LENGTH))
