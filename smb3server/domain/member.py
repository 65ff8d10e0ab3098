"""What a running member of a domain does with its machine account: it logs users on, and changes the password."""

from __future__ import annotations

import logging

from smb3server.access.descriptor import Sid
from smb3server.auth.users import nt_hash
from smb3server.domain.controllers import DomainControllers
from smb3server.domain.ldap_questions import LdapQuestions
from smb3server.domain.machine import MachineError, machine_of
from smb3server.domain.netlogon import Netlogon, SecureChannel
from smb3server.domain.stored_ids import LdapNumbers
from smb3server.settings.domain import DomainConfig

log = logging.getLogger(__name__)


def controllers_of(config: DomainConfig) -> DomainControllers:
    """Return the controllers that a configuration means."""
    return DomainControllers(config.realm, config.controllers, config.site)


class Member:
    """The membership of this server. All methods block: call them on worker threads."""

    def __init__(self, config: DomainConfig) -> None:
        """Raises ``MachineError`` if the configuration has no place for a machine account."""
        self._config = config
        self.controllers = controllers_of(config)
        self.machine = machine_of(config)
        self.netlogon = Netlogon(self.controllers, self.machine)
        self.validate = self.netlogon.validate
        self.forest = self.netlogon.forest
        self.call = self.netlogon.call
        self.directory = LdapQuestions(self.controllers, self.machine, config.realm)
        self.numbers = LdapNumbers(self.directory, config.realm).numbers

    @property
    def domain_sid(self) -> Sid | None:
        """SID of the domain, which the join has stored. None: the file with it is damaged, as each logon will say."""
        try:
            return Sid.parse(self.machine.account().domain_sid)
        except (MachineError, ValueError):
            return None

    def rotate_if_due(self) -> bool:
        """Change the machine account's password if it is old enough. Return whether this was done.

        Raises ``MachineError``, ``NoController`` and ``OSError``."""
        return self.machine.due(self._config.rotation) and self.rotate(self._config.rotation)

    def rotate(self, seconds: int = -1) -> bool:
        """Change the machine account's password, unless it is younger than ``seconds``: another node may have done it.

        Raises ``MachineError``, ``NoController`` and ``OSError``. The account stays usable then."""

        def in_use() -> str:
            return self.netlogon.ask(lambda channel, deadline: channel.secret.nt_hash.hex())

        def change(password: str) -> None:
            def ask(channel: SecureChannel, deadline: float) -> None:
                if channel.secret.nt_hash == nt_hash(password):
                    # The controller has set it, and its answer was lost.
                    return
                channel.set_password(password, deadline)

            self.netlogon.ask(ask)

        # A channel that is there already may have been made with a password of yesterday.
        self.netlogon.close()
        try:
            done = self.machine.rotate(in_use, change, seconds)
        finally:
            self.netlogon.close()
        if done:
            log.info("the password of the machine account %s$ is changed", self._config.machine)
        return done

    def close(self) -> None:
        """End the secure channel."""
        self.netlogon.close()
