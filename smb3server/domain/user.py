"""What is known of a user of the domain who has logged on, and who is asked for it. [MS-APDS 3.1.5, MS-PAC 2.5]"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from smb3server.access.claims import Claims
    from smb3server.access.descriptor import Sid


class NoController(Exception):
    """No controller of the domain answers."""


class DomainUser(NamedTuple):
    """A user of the domain, or of one that it trusts, as a controller describes it."""

    name: str
    domain: str
    """NetBIOS name of the domain that has the account."""
    realm: str
    """Empty: the controller does not name it."""
    sid: Sid
    primary_group: Sid
    groups: frozenset[Sid]
    """All groups of the token: nested ones and those of other domains are included, well-known ones that every user
    has are not."""
    guest: bool = False
    session_key: bytes = b""
    """SessionBaseKey of NTLM. Empty for Kerberos."""
    local_groups: frozenset[Sid] = frozenset()
    """Domain-local groups: those of ``groups`` that the server's own domain has added, as a controller says."""
    claims: Claims | None = None
    """Claims about the user and its device. NTLM has none: a controller's answer to NETLOGON has no place for them."""


class PassThrough(Protocol):
    """Has a controller verify NTLM responses. [MS-APDS 3.1.5.2]"""

    def validate(
        self, name: str, domain: str, workstation: str, challenge: bytes, lm_response: bytes, nt_response: bytes
    ) -> DomainUser:
        """Return the user whose response it is. Blocks.

        Raises ``LogonError`` with the status that the controller gave, or ``NoController``."""
        ...

    def forest(self) -> frozenset[Sid]:
        """Return the domains of the forest that the server's domain is in. Blocks. Raises ``NoController``."""
        ...


class Controller(NamedTuple):
    """A controller of the domain."""

    name: str
    """Host name, as in its service principal."""
    address: str


class Controllers(Protocol):
    """Finds controllers of the domain."""

    def locate(self) -> list[Controller]:
        """Return the controllers in the order to try. Blocks. Empty if none is known."""
        ...

    def failed(self, controller: Controller) -> None:
        """Have a controller tried later than others for a while."""
        ...

    def answered(self, controller: Controller) -> None:
        """Forget that a controller has failed."""
        ...
