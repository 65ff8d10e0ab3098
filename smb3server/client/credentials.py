"""Who logs on: the password from the caller, the environment, a file of the user, or the terminal."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from smb3server.client.address import Address
from smb3server.client.options import ConnectOptions
from smb3server.process.secret_files import SecretFileError, read_secret

KEYS = {"user": "user", "username": "user", "password": "password", "domain": "domain"}
"""Keys of a file with credentials; ``username`` as in those of mount.cifs(8)."""


class CredentialsError(ValueError):
    """No password was found, or a file with passwords was refused; the text has the remedy."""


@dataclass(frozen=True, slots=True)
class Login:
    """An account. Without a user it is anonymous, or whoever has the Kerberos ticket."""

    user: str = ""
    password: str = field(default="", repr=False)
    domain: str = ""
    kerberos: str = ""
    """The server's name in Kerberos; empty for NTLM."""
    guest: bool = False
    """Whether the server may make a guest of this user, whose messages nobody can sign."""


def default_file() -> Path:
    """Return the user's file with credentials."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "smb3server" / "credentials"


def read(path: Path, host: str, everywhere: bool = True) -> dict[str, str]:
    """Return user, password and domain for ``host`` from a file; empty if it has none.

    ``everywhere``: also those that the file has for all servers.

    The file has lines ``key = value``, below a line ``[HOST]`` for each server, or without one for all of them. Others
    must not be able to read it. Raises ``CredentialsError``.
    """
    # Who has no such file does not pay for the import.
    import configparser

    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), default_section="\0")
    try:
        text = read_secret(path).decode()
        parser.read_string(text if text.lstrip().startswith("[") else f"[*]\n{text}", str(path))
    except (SecretFileError, UnicodeDecodeError, configparser.Error) as error:
        raise CredentialsError(str(error).replace("\n", " ")) from error
    for section in (host, host.lower(), *("*" if everywhere else "")):
        if parser.has_section(section):
            found = dict(parser.items(section))
            if unknown := found.keys() - KEYS.keys():
                raise CredentialsError(f"{path}: unknown key {min(unknown)}; the keys are user, password and domain")
            return {KEYS[key]: value for key, value in found.items()}
    return {}


def find(address: Address, given: ConnectOptions) -> Login:
    """Return the account for a server.

    The places of a password are, in this order: ``password``, the address, ``credentials_file``, the environment's
    ``password_variable``, the user's file (``default_file``), and ``ask``, which is called with a question. Raises
    ``CredentialsError`` if there is none.
    """
    user, domain, variable = given.user or address.user, given.domain or address.domain, given.password_variable
    password = given.password if given.password is not None else address.password
    if given.anonymous:
        return Login()
    if given.kerberos:
        return Login(user, password or "", domain, given.kerberos_name or address.host)
    if given.guest:
        return Login(user or "guest", password or "", domain, guest=True)
    if password is None:
        file = Path(given.credentials_file) if given.credentials_file is not None else None
        password, user, domain = _look_up(address, file, variable, user, domain)
    if not user:
        raise CredentialsError(
            f"no user for {address.host}; write smb://USER@{address.host}/..., or ask for guest, anonymous or kerberos"
        )
    if password is None and given.ask is not None:
        password = given.ask(f"Password of {user} for {address.host}: ")
    if password is None:
        raise CredentialsError(
            f"no password for {user} at {address.host}; {f'set {variable}, or ' if variable else ''}write it to"
            f" {default_file()} (mode 600), below [{address.host}]"
        )
    return Login(user, password, domain)


def on_the_way(login: Login, host: str, other: str, given: ConnectOptions) -> Login:
    """Return the account for another server, to which a link of a namespace on ``host`` leads.

    It is that of the namespace, unless a file with credentials has a section for the other server. Raises
    ``CredentialsError``.
    """
    if host.casefold() == other.casefold() or not (login.user or login.kerberos) or login.guest:
        return login
    if login.kerberos:
        return replace(login, kerberos=other)
    for file in (Path(given.credentials_file) if given.credentials_file is not None else None, default_file()):
        if file is not None and file.exists():
            found = read(file, other, everywhere=False)
            if "user" in found and "password" in found:
                return Login(found["user"], found["password"], found.get("domain", login.domain))
    return login


def _look_up(
    address: Address, file: Path | None, variable: str | None, user: str, domain: str
) -> tuple[str | None, str, str]:
    """Return password, user and domain of files and environment. A file's password is only for the file's user."""
    places: list[dict[str, str]] = []
    if file is not None:
        places.append(read(file, address.host))
    if variable is not None and variable in os.environ:
        places.append({"password": os.environ[variable]})
    if file is None and default_file().exists():
        places.append(read(default_file(), address.host))
    for found in places:
        if not user or found.get("user", user).casefold() == user.casefold():
            named = user or found.get("user", "")
            if "password" in found:
                return found["password"], named, domain or found.get("domain", "")
    return None, user, domain
