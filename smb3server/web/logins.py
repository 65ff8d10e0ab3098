"""Who is logged on to the page: passwords, the sessions of browsers, and their tokens.

A password is compared with the NT hash of its account, and wrong ones count together with those of SMB clients
(``smb3server/auth/guessing.py``). Sessions live in memory: when the server ends, everybody is logged off.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from smb3server.access.identity import Identity
from smb3server.auth.directory import Logons
from smb3server.auth.guessing import Guesses, LogonRefused
from smb3server.auth.users import Account

log = logging.getLogger(__name__)

IDLE = 30 * 60.0
"""Seconds without a request after which a browser is logged off. An open page asks all the time."""
LIFE = 12 * 3600.0
"""Seconds after which it is logged off in any case."""
MAX_SESSIONS = 64
MAX_NAME, MAX_PASSWORD = 256, 1024
"""Characters."""


class LoginError(Exception):
    """The user may not log on. The text is for the user."""


@dataclass(slots=True)
class Login:
    """A browser that has logged on."""

    user: str
    nt_hash: bytes = field(repr=False)
    """The hash that was proved. Another password ends the login."""
    csrf: str = field(repr=False)
    """Comes with every change, in a header that pages of other origins cannot send."""
    since: float
    """Seconds of the clock, as ``seen``."""
    seen: float


class Logins:
    """The browsers that are logged on to one server."""

    def __init__(
        self, users: Logons, administers: Callable[[Identity], bool], guesses: Guesses, clock: Callable[[], float]
    ) -> None:
        """``administers`` returns whether a user may log on now. ``clock`` returns seconds."""
        self._users = users
        self._administers = administers
        self._guesses = guesses
        self._clock = clock
        # Invariant: at most MAX_SESSIONS entries, the one that was used least recently first.
        self._logins: OrderedDict[str, Login] = OrderedDict()

    async def log_on(self, name: str, password: str, address: str) -> tuple[str, Login]:
        """Return the secret of the browser's cookie, and its login. Raises ``LoginError``."""
        if not name or len(name) > MAX_NAME or len(password) > MAX_PASSWORD:
            raise LoginError("Wrong user or password.")
        account = await self._prove(name, password, address)
        # Only somebody who knows the password learns more about the account.
        refusal = account.refusal()
        if refusal is not None:
            log.warning("%s: web page: %s may not log on: %s", address, account.name, refusal.name)
            raise LoginError(f"This account cannot be used: {refusal.name.lower().replace('_', ' ')}.")
        if not self._may(account):
            log.warning("%s: web page: %s is not an administrator", address, account.name)
            raise LoginError(f"{account.name} is not an administrator of this server (admins in its configuration).")
        now = self._clock()
        secret = secrets.token_urlsafe(32)
        login = Login(account.name, account.nt_hash, secrets.token_urlsafe(32), now, now)
        self._logins[secret] = login
        if len(self._logins) > MAX_SESSIONS:
            self._logins.popitem(last=False)
        log.info("%s: web page: %s logged on", address, account.name)
        return secret, login

    async def _prove(self, name: str, password: str, address: str) -> Account:
        """Return the account whose password it is, after the delay that guessing has caused. Raises ``LoginError``."""
        try:
            delay = self._guesses.begin(name, address)
        except LogonRefused as error:
            log.warning("%s: web page: logon of %s refused: %s", address, name, error)
            raise LoginError("Too many failed logons. Wait a minute.") from error
        await asyncio.sleep(delay)
        account = self._users.check_password(name, password)
        if account is None:
            log.warning("%s: web page: logon of %s failed: wrong password, or no such user", address, name)
            raise LoginError("Wrong user or password.")
        self._guesses.proved(name, address)
        return account

    def _may(self, account: Account) -> bool:
        return self._administers(account.identity)

    def find(self, secret: str) -> Login | None:
        """Return the login that a cookie belongs to; None if it has ended. Using it keeps it alive."""
        login = self._logins.get(secret)
        if login is None:
            return None
        now = self._clock()
        account = self._users.find(login.user)
        valid = (
            now - login.seen < IDLE
            and now - login.since < LIFE
            and account is not None
            and hmac.compare_digest(account.nt_hash, login.nt_hash)
            and account.refusal() is None
            and self._may(account)
        )
        if not valid:
            del self._logins[secret]
            return None
        login.seen = now
        self._logins.move_to_end(secret)
        return login

    def log_off(self, secret: str) -> None:
        """End a login."""
        self._logins.pop(secret, None)
