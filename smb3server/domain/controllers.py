"""Finds the controllers of a domain, and remembers those that do not answer. [MS-ADTS 6.3.6, RFC 2782]

Controllers that the configuration names come in its order. Else DNS names them: those of the member's site first,
which is that of the configuration, or the one that a controller says this machine is in.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from smb3server.domain.ldap_client import LdapError
from smb3server.domain.sites import client_site
from smb3server.domain.user import Controller
from smb3server.process import parts

log = logging.getLogger(__name__)

LIFETIME = 300.0
"""Seconds for which an answer of DNS is used. An older one is used as long as DNS does not answer."""
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 300.0
"""Seconds for which a controller that has failed is tried last. They double with each failure."""
DNS_TIMEOUT = 5.0
_ASKED = 3
"""Controllers that are asked for the site of this machine."""
_MAX_CONTROLLERS = 16
"""Controllers that are used; a domain may have hundreds."""


class Record(NamedTuple):
    """An SRV record. [RFC 2782]"""

    priority: int
    weight: int
    host: str


Lookup = Callable[[str], "list[Record]"]


def records(name: str) -> list[Record]:
    """Return the SRV records of a name; none if there is no such name. Raises ``OSError`` if DNS does not answer."""
    try:
        import dns.exception
        import dns.resolver
    except ImportError as error:
        raise OSError(f"{error}; {parts.remedy('domain')}") from error
    try:
        found = dns.resolver.resolve(name, "SRV", lifetime=DNS_TIMEOUT, search=False)
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
        return []
    except dns.exception.DNSException as error:
        raise OSError(f"DNS does not say who is {name}: {error}") from error
    return [Record(int(one.priority), int(one.weight), one.target.to_text(omit_final_dot=True)) for one in found]


def in_order(found: Iterable[Record]) -> list[str]:
    """Return hosts by priority, and by weight and chance among equals. [RFC 2782]"""
    # Each host's place among equals is by chance, in proportion to its weight.
    keyed = [(one.priority, -(random.random() ** (1 / max(one.weight, 0.1))), one.host) for one in found]
    return list(dict.fromkeys(host for _, _, host in sorted(keyed)))


def address_of(host: str) -> str:
    """Return an address of a host. Raises ``OSError``."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


class DomainControllers:
    """Implements ``user.Controllers``. Several threads may use it."""

    def __init__(
        self,
        realm: str,
        hosts: Sequence[str] = (),
        site: str = "",
        lookup: Lookup = records,
        resolve: Callable[[str], str] = address_of,
        ask_site: Callable[[str, str], str] = client_site,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``hosts``: the controllers of the configuration; empty means those that DNS names."""
        self._realm = realm
        self._hosts = tuple(hosts)
        self._site = site
        self._lookup = lookup
        self._resolve = resolve
        self._ask_site = ask_site
        self._clock = clock
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        """Held by who looks for controllers. The others go on with those that were found before."""
        self._found: list[Controller] = []
        self._until = 0.0
        self._failures: dict[Controller, tuple[int, float]] = {}
        """How often a controller has failed in a row, and until when it is tried last."""
        self.site = site
        """Site of this machine, as far as it is known."""
        self.problem = ""
        """Why the latest look-up did not find all. Empty if it did."""

    def locate(self) -> list[Controller]:
        """Return the controllers in the order to try. Blocks. Empty if none is known."""
        now = self._clock()
        if (now >= self._until or not self._found) and self._looking.acquire(blocking=not self._found):
            try:
                if now >= self._until or not self._found:
                    self._look_up(now)
            finally:
                self._looking.release()
        with self._lock:
            paused = {one for one, (_, until) in self._failures.items() if until > now}
            return [one for one in self._found if one not in paused] + [one for one in self._found if one in paused]

    def failed(self, controller: Controller) -> None:
        """Have a controller tried last for a while."""
        with self._lock:
            count = self._failures.get(controller, (0, 0.0))[0]
            pause = min(FIRST_PAUSE * 2**count, LONGEST_PAUSE)
            self._failures[controller] = (min(count + 1, 16), self._clock() + pause)

    def answered(self, controller: Controller) -> None:
        """Forget the failures of a controller."""
        with self._lock:
            self._failures.pop(controller, None)

    def _look_up(self, now: float) -> None:
        self.problem = ""
        try:
            hosts = list(self._hosts) or self._named_by_dns()
        except OSError as error:
            self.problem = str(error)
            # Rather an old answer than none. DNS is asked again soon.
            self._until = now + FIRST_PAUSE
            return
        if not hosts:
            self.problem = f"DNS has no controllers of {self._realm} (_ldap._tcp.dc._msdcs.{self._realm.lower()})"
        found = []
        for host in hosts[:_MAX_CONTROLLERS]:
            try:
                found.append(Controller(host, self._resolve(host)))
            except OSError as error:
                self.problem = f"{host}: {error}"
        with self._lock:
            self._found = found or self._found
            self._failures = {one: state for one, state in self._failures.items() if one in self._found}
            self._until = now + (LIFETIME if found else FIRST_PAUSE)

    def _named_by_dns(self) -> list[str]:
        """Return hosts as DNS names them: those of the site, then the others. Raises ``OSError``."""
        domain = self._realm.lower()
        everywhere = in_order(self._lookup(f"_ldap._tcp.dc._msdcs.{domain}"))
        self.site = self._site or self._site_of_this_machine(everywhere)
        near: list[str] = []
        if self.site:
            try:
                near = in_order(self._lookup(f"_ldap._tcp.{self.site}._sites.dc._msdcs.{domain}"))
            except OSError as error:
                self.problem = str(error)
        return list(dict.fromkeys([*near, *everywhere]))

    def _site_of_this_machine(self, hosts: Sequence[str]) -> str:
        """Return the site that the first controller says which answers, or that of the last time.

        Where there is one controller, nobody is asked."""
        if len(hosts) < 2:
            return self.site
        for host in hosts[:_ASKED]:
            try:
                return self._ask_site(self._resolve(host), self._realm)
            except (OSError, LdapError) as error:
                log.info("controller %s does not say which site this machine is in: %s", host, error)
        return self.site
