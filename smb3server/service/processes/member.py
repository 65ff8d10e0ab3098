"""One of the processes: the part of the configuration that it serves, and where it leads clients for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from smb3server.admin.socket import SOCKET_NAME
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, NamespaceConfig, Part, ShareConfig
from smb3server.config.processes import FIRST, Owned, assign
from smb3server.config.sections import keys_of
from smb3server.dfs.namespace import moved
from smb3server.process import state_lock
from smb3server.service.processes import ownership
from smb3server.settings.observing import MetricsSettings
from smb3server.settings.share import ConnectionRules


def state_of(main: Path, number: int) -> Path:
    """Return the state directory of a process. ``main``: that of the whole server."""
    return main if number == FIRST else main / f"process-{number}"


def check_gone(main: Path) -> None:
    """Raise ``ConfigError`` if a process of an earlier run has not ended: it may serve what others would get."""
    for folder in sorted(main.glob("process-*")):
        if user := state_lock.user_of(folder):
            raise ConfigError(f"{folder}: {user} of an earlier run still uses it; remedy: end it")


class Member:
    """One process. ``config`` says what it serves; process 1 then commits that before anybody acts by it."""

    def __init__(self, number: int, addresses: Sequence[str], state: Path, fresh: bool) -> None:
        """``fresh``: no process of this server runs yet, so that shares may go to other processes than before."""
        self.number = number
        self.addresses = tuple(addresses)
        self.state = state
        self._fresh = fresh
        self._planned: list[Owned] | None = None
        """What ``commit`` writes. None except in process 1."""
        self._homes: ShareConfig | None = None
        self._present: set[tuple[str, str]] = set()
        """The keys of the shares that the configuration had when it was read last."""

    @property
    def others(self) -> dict[int, Path]:
        """The admin sockets of the other processes, by number, for process 1."""
        numbers = range(FIRST + 1, len(self.addresses) + 1) if self.number == FIRST else ()
        return {number: state_of(self.state, number) / SOCKET_NAME for number in numbers}

    def owned(self) -> list[Owned]:
        """Return who serves what, as far as this process knows. Raises ``ConfigError``."""
        return ownership.read(self.state) if self._planned is None else self._planned

    def config(self, whole: Config) -> Config:
        """Return the part of a configuration that this process serves. Raises ``ConfigError``."""
        owned = ownership.read(self.state)
        before = {entry.key: entry.process for entry in owned}
        if self.number == FIRST:
            self._homes = whole.homes
            self._present = {(share.name.casefold(), str(share.path)) for share in whole.shares}
            owned = assign(whole.shares, whole.homes, len(self.addresses), owned, held=not self._fresh)
            self._planned = owned
        owners = {entry.key: entry.process for entry in owned}
        own, away = [], []
        notes = list(whole.notes)
        for share in whole.shares:
            owner = owners.get((share.name.casefold(), str(share.path)))
            if owner == self.number:
                own.append(share)
            elif owner is not None:
                away.append(self._led(share, owner))
            # Before there were several processes, the first one had all shares.
            last = before.get((share.name.casefold(), str(share.path)), FIRST)
            if self.number == FIRST and self._fresh and share.continuous_availability and owner not in (None, last):
                notes.append(
                    f"share {share.name}: process {owner} serves it in place of process {last}: persistent handles "
                    "that waited for their clients are lost"
                )
            if owner is not None and share.process not in (0, owner):
                notes.append(f"share {share.name}: process {owner} serves it until the server is started anew")
        away += [self.lead(entry) for entry in owned if entry.lasting and entry.process != self.number]
        part = replace(
            whole,
            shares=own,
            namespaces=[*whole.namespaces, *away],
            listen=[self.addresses[self.number - 1]],
            part=Part(self.number, self.state),
            state=state_of(self.state, self.number),
            notes=notes,
        )
        return part if self.number == FIRST else self._without_the_first(part, whole, away)

    def _without_the_first(self, part: Config, whole: Config, away: list[NamespaceConfig]) -> Config:
        """Return a part without what process 1 does for all: homes, namespaces, announcements, ports for people."""
        address = self.addresses[FIRST - 1]
        led = [structs.replace(entry, namespace=moved(entry.name, address)) for entry in whole.namespaces]
        metrics = None if whole.metrics is None else MetricsSettings(whole.metrics.listen, 0)
        return replace(part, namespaces=[*led, *away], homes=None, discovery=None, web=None, metrics=metrics, traces=[])

    def _led(self, share: ShareConfig, owner: int) -> NamespaceConfig:
        """Return what stands here for a share of another process. Those see it who may use the share."""
        rules = {key: getattr(share, key) for key in keys_of(ConnectionRules)}
        # Tree connects are counted where the share is.
        rules["max_connections"] = 0
        return NamespaceConfig(moved(share.name, self.addresses[owner - 1]), share.users, share.hosts, **rules)

    def lead(self, entry: Owned) -> NamespaceConfig:
        """Return what stands here for a share of run time of another process."""
        return NamespaceConfig(moved(entry.name, self.addresses[entry.process - 1]))

    def commit(self) -> None:
        """Write down who serves what, in process 1: from now on the others act by it. Raises ``ConfigError``."""
        if self._planned is not None:
            ownership.write(self.state, self._planned)
        self._fresh = False

    def forget_others(self) -> None:
        """Forget the shares that the configuration has no longer. Every process has heard of that."""
        if self._planned is not None:
            self._planned = [entry for entry in self._planned if entry.lasting or entry.key in self._present]
            ownership.write(self.state, self._planned)

    def take(self, name: str, path: str, wish: int) -> Owned:
        """Say which process serves a share that is added at run time, and write that down. Raises ``ConfigError``."""
        owned = self.owned()
        wanted = ShareConfig(name, Path(path), process=wish)
        self._planned = assign([wanted], self._homes, len(self.addresses), owned, held=True)
        found = next(entry for entry in self._planned if entry.key == (name.casefold(), path))
        self._planned[self._planned.index(found)] = found._replace(lasting=True)
        self.commit()
        return found

    def check_own(self, name: str) -> None:
        """Raise ``ConfigError`` unless a share that is to be added at run time was given to this process (``take``)."""
        for entry in self.owned():
            if entry.lasting and entry.name.casefold() == name.casefold() and entry.process == self.number:
                return
        raise ConfigError(
            f"share {name}: the server has several processes, one of which has to own the share; remedy: add it on "
            "the server, with `smb3server share add`"
        )

    def give_up(self, name: str) -> None:
        """Forget a share of run time that no process serves any longer. Raises ``ConfigError``."""
        self._planned = [
            entry for entry in self.owned() if not entry.lasting or entry.name.casefold() != name.casefold()
        ]
        self.commit()
