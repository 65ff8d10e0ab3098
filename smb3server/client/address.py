"""Where a share is: ``smb://[DOMAIN;]USER@HOST[:PORT]/SHARE/PATH``, ``//HOST/SHARE/PATH`` or a UNC path."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from smb3server.client.names import clean, key
from smb3server.net.host import SMB_PORT

SCHEMES = ("smb", "smbd", "cifs")
_URL = re.compile(r"(?:(?P<scheme>[a-z]+):)?//(?P<authority>[^/]*)(?P<path>/.*)?", re.IGNORECASE | re.DOTALL)
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^:\[\]]*))(?::(?P<port>\d*))?")


@dataclass(frozen=True, slots=True)
class Address:
    """A share, and a path in it."""

    host: str
    share: str = ""
    path: str = ""
    """With slashes, relative to the share."""
    port: int = SMB_PORT
    user: str = ""
    domain: str = ""
    password: str | None = dataclasses.field(default=None, repr=False)

    def __str__(self) -> str:
        """Return the URL, without the password."""
        user = f"{quote(self.user)}@" if self.user else ""
        domain = f"{quote(self.domain)};" if self.domain and user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port != SMB_PORT else ""
        path = f"/{quote(self.path)}" if self.path else ""
        return f"smb://{domain}{user}{host}{port}/{quote(self.share)}{path}"

    @property
    def place(self) -> tuple[str, int, str, str, str]:
        """What two addresses of one connection have in common."""
        return self.host.lower(), self.port, key(self.share), self.user, self.domain


def is_remote(text: str) -> bool:
    """Return whether a word of a command line names a share, and not a local file."""
    scheme = text.partition("://")[0].lower()
    return scheme in SCHEMES or text.startswith(("//", "\\\\"))


def parse(text: str) -> Address:
    """Parse an address. Raises ``ValueError`` that says what is wrong.

    In a URL, %XX is the character with that code. In ``//HOST/SHARE`` and UNC paths nothing has a special meaning.
    """
    plain = text.startswith(("//", "\\\\"))
    if text.startswith("\\\\"):
        text = text.replace("\\", "/")
    found = _URL.fullmatch(text)
    scheme = (found["scheme"] or "").lower() if found else ""
    if found is None or (not plain and scheme not in SCHEMES):
        raise ValueError(f"{text}: not an address; write smb://USER@HOST/SHARE/PATH or //HOST/SHARE/PATH")
    decode = str if plain else unquote
    login, at, place = found["authority"].rpartition("@")
    where = _HOST.fullmatch(place)
    host = (where["v6"] or where["host"] or "") if where else ""
    if where is None or not host:
        # The text may contain a password, so it is not repeated.
        raise ValueError("the address has no host; write smb://USER@HOST/SHARE/PATH")
    port = int(where["port"]) if where["port"] else SMB_PORT
    if not 0 < port < 65536:
        raise ValueError(f"{host}: {port} is not a port")
    name, colon, password = login.partition(":")
    domain, _, user = decode(name).replace("\\", ";").rpartition(";")
    share, _, path = (found["path"] or "").lstrip("/").partition("/")
    try:
        path = clean(decode(path))
    except OSError as error:
        raise ValueError(str(error)) from None
    return Address(
        decode(host), decode(share), path, port, user if at else "", domain, decode(password) if at and colon else None
    )
