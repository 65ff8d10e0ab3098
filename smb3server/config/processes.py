"""Several processes for one configuration: their addresses, and which of them serves which share.

Shares whose folders are the same, or lie one below the other, are served by the same process: share modes, locks and
leases of a file are known to one process only.
"""

from __future__ import annotations

import ipaddress
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from smb3server.config.error import ConfigError, Problems
from smb3server.config.model import Config, ShareConfig

FIRST = 1
"""The number of the process that has the server's name, its homes and its namespaces."""
_SERVER = "[server]"


class Owned(NamedTuple):
    """A share, and the process that alone may serve it."""

    name: str
    path: str
    """As configured."""
    place: str
    """The folder without symbolic links."""
    process: int
    lasting: bool = False
    """Whether it was added at run time, so that the configuration does not have it."""

    @property
    def key(self) -> tuple[str, str]:
        """What distinguishes it: a share that gets another folder is another one."""
        return self.name.casefold(), self.path


def addresses(config: Config) -> list[str]:
    """Return the address of each process. Raises ``ConfigError`` if there are too few, or too many by name."""
    named, key = (config.process_addresses, "process_addresses") if config.process_addresses else (config.listen, "")
    count = config.processes
    if named:
        if len(named) != count:
            raise ConfigError(
                f"{count} processes need {count} addresses, one for each; {key or 'listen'} has {len(named)}: "
                f"{', '.join(named)}"
            )
        for host in named:
            if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
                raise ConfigError(f"{host} is no address of one process: name one address for each process")
        return list(named)
    from smb3server.net.interfaces import read_interfaces

    found = [entry.address for entry in read_interfaces() if not entry.loopback]
    found.sort(key=lambda address: address.version)
    if len(found) < count:
        has = ", ".join(map(str, found)) or "none but loopback"
        raise ConfigError(
            f"{count} processes need {count} addresses, one for each; this machine has {len(found)}: {has}; remedy: "
            "give an interface more addresses (ip address add), or have fewer processes"
        )
    return [str(address) for address in found[:count]]


def find(config: Config, problems: Problems) -> None:
    """Check what several processes need, and note what is wrong in ``problems``."""
    if config.processes == 1:
        if config.process_addresses:
            config.notes.append("process_addresses counts with processes = 2 or more; one process listens at listen")
        return
    with problems.of(_SERVER, "process_addresses" if config.process_addresses else "processes"):
        addresses(config)
    if config.process_addresses and config.listen:
        problems.add(_SERVER, "listen", "excludes process_addresses, which says where each process listens")
    if config.state is None:
        problems.add(_SERVER, "processes", "needs a state directory: give state in [server]")
    if config.port == 0:
        problems.add(_SERVER, "port", "several processes need one port: clients are led to addresses, not to ports")
    combined = (("[cluster]", bool(config.cluster.url)), ("[witness]", config.witness is not None))
    for section, there in (*combined, ("[quic]", config.quic is not None)):
        if there:
            problems.add(section, "", "cannot be combined with several processes; remedy: processes = 1")
    for share in config.shares:
        if share.process > config.processes:
            problems.add(f"share {share.name}", "process", f"there are {config.processes} processes")
    if not problems.found:
        try:
            assign(config.shares, config.homes, config.processes, (), held=False)
        except ConfigError as error:
            problems.add("", "", str(error))


def assign(
    shares: Sequence[ShareConfig], homes: ShareConfig | None, count: int, before: Iterable[Owned], held: bool
) -> list[Owned]:
    """Say which process serves which share, and return ``before`` with that.

    ``before``: who has which share so far. With ``held`` the processes are running: what a process has it keeps, and
    ``process`` of a share counts when it is new. Otherwise shares may go elsewhere, and stay as far as nothing speaks
    against it. Raises ``ConfigError`` for folders that two processes would have to serve.
    """
    found = {entry.key: entry for entry in before if held or entry.lasting}
    wishes = {entry.name.casefold(): entry.process for entry in before if entry.process <= count}
    wanted = [
        Owned(share.name, str(share.path), os.path.realpath(share.path), share.process)
        for share in shares
        if (share.name.casefold(), str(share.path)) not in found
    ]
    fixed = [] if homes is None else [Owned("homes", "", _home_root(homes.path), FIRST)]
    for entry in found.values():
        if entry.process > count:
            found[entry.key] = entry._replace(process=0)
    loose = [entry for entry in found.values() if not entry.process]
    for entry in loose:
        del found[entry.key]
    for group in _groups([*wanted, *loose]):
        tied = [*fixed, *found.values()]
        near = {entry.process: entry for entry in tied if any(_overlap(entry.place, new.place) for new in group)}
        asked = {entry.process: entry for entry in group if entry.process}
        if held:
            # The process that has the share of this name with another folder keeps the name.
            asked = asked or {wishes[key]: group[0] for key in _keys(group) if key in wishes}
        if len(near) > 1 or len(asked) > 1 or (near and asked and near.keys() != asked.keys()):
            names = ", ".join(dict.fromkeys(entry.name for entry in (*group, *near.values())))
            raise ConfigError(
                f"shares {names}: their folders are the same, or lie one below the other, so one process has to serve "
                f"them; remedy: {'a restart of the server' if held else 'the same process, or none, in each'}"
            )
        kept = [wishes[key] for key in _keys(group) if key in wishes]
        chosen = next(iter(near or asked), 0) or (kept[0] if kept else _emptiest(found.values(), count))
        for entry in group:
            found[entry.key] = entry._replace(process=chosen)
    return list(found.values())


def _keys(group: Iterable[Owned]) -> list[str]:
    return [entry.name.casefold() for entry in group]


def _home_root(path: Path) -> str:
    """Return the folder that all homes lie in."""
    return os.path.realpath(os.path.dirname(str(path).partition("{user}")[0] + "x"))


def _emptiest(owned: Iterable[Owned], count: int) -> int:
    """Return the process with the fewest shares."""
    numbers = Counter(entry.process for entry in owned)
    return min(range(FIRST, count + 1), key=lambda number: numbers[number])


def _overlap(one: str, other: str) -> bool:
    """Return whether two folders are the same, or one lies in the other."""
    if Path(one).is_relative_to(other) or Path(other).is_relative_to(one):
        return True
    try:
        # Mounted twice.
        return os.path.samefile(one, other)
    except OSError:
        return False


def _groups(entries: Iterable[Owned]) -> list[list[Owned]]:
    """Return the shares whose folders overlap together, in the order of the first ones."""
    groups: list[list[Owned]] = []
    for entry in entries:
        near = [group for group in groups if any(_overlap(entry.place, other.place) for other in group)]
        if not near:
            groups.append([entry])
            continue
        first, *others = near
        first.append(entry)
        for group in others:
            first += group
            groups.remove(group)
    return groups
