"""Asks the controllers of a domain by LDAP, one after the other, as the machine account. [RFC 4511]"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from smb3server.domain import kerberos
from smb3server.domain.ldap_client import LdapConnection, LdapError
from smb3server.domain.machine import Machine, MachineError
from smb3server.domain.user import Controller, Controllers, NoController
from smb3server.process import parts

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_TIMEOUT = 6.0
"""Seconds for one request to a controller."""
_SHORTEST_TICKET = 600
"""Seconds that a ticket must still be valid."""


class Asks(Protocol):
    """Has a controller answer questions about its directory."""

    def ask(self, question: Callable[[LdapConnection], _Answer]) -> _Answer:
        """Return what ``question`` returns, which is handed a connection. Blocks. Raises ``NoController``.

        If it raises ``LdapError``, ``OSError`` or ``ValueError``, the next controller is asked."""
        ...


class LdapQuestions:
    """Implements ``Asks``, sealed by Kerberos. Several threads may use it."""

    def __init__(self, controllers: Controllers, machine: Machine, realm: str) -> None:
        self._controllers = controllers
        self._machine = machine
        self._realm = realm
        self._ticket: tuple[str, Any] | None = None
        """The password that has got credentials, and these."""

    def ask(self, question: Callable[[LdapConnection], _Answer]) -> _Answer:
        try:
            import gssapi
        except ImportError as error:
            raise NoController(f"{error}; {parts.remedy('domain')}") from error
        reasons = []
        for controller in self._controllers.locate():
            try:
                found = self._ask(controller, question)
            except gssapi.raw.GSSError as error:
                self._ticket = None
                reasons.append(f"{controller.name}: Kerberos: {kerberos.words(error)}")
            except MachineError as error:
                raise NoController(str(error)) from error
            except (LdapError, OSError, ValueError) as error:
                reasons.append(f"{controller.name}: {error}")
            else:
                self._controllers.answered(controller)
                return found
            log.warning("controller %s", reasons[-1])
            self._controllers.failed(controller)
        raise NoController("; ".join(reasons) or "no controller is known: neither `controllers` nor DNS names one")

    def _ask(self, controller: Controller, question: Callable[[LdapConnection], _Answer]) -> _Answer:
        """Raises ``LdapError``, ``OSError``, ``ValueError``, ``MachineError`` and the errors of ``gssapi``."""
        ldap = LdapConnection(controller.address, _TIMEOUT)
        try:
            ldap.log_on(controller.name, self._realm, self._credentials())
            return question(ldap)
        finally:
            ldap.close()

    def _credentials(self) -> Any:
        """Return credentials of the machine account, by the latest password that the domain knows."""
        account = self._machine.account()
        known = self._ticket
        passwords = [version.password for version in account.versions]
        if known is not None and known[0] in passwords and (known[1].lifetime or 0) > _SHORTEST_TICKET:
            return known[1]
        import gssapi

        refused: Exception | None = None
        for password in passwords:
            try:
                found = kerberos.credentials(f"{account.machine.upper()}$", self._realm, password)
            except gssapi.raw.GSSError as error:
                refused = error
                continue
            self._ticket = password, found
            return found
        assert refused is not None, "an account has a password"
        raise refused
