"""Levels of the log: one for everything, and others for single components. They may change while the server runs."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "auth": ("smb3server.auth", "smb3server.commands.session_setup"),
    "rdma": ("smbdirect",),
    "files": ("smb3server.files", "smb3server.backends", "smb3server.commands", "smb3server.state"),
    "rpc": ("smb3server.rpc",),
    "cluster": ("smb3server.cluster", "smb3server.persistence", "witness"),
    "net": ("smb3server.net", "smb3server.server", "smb3server.dispatch"),
}
"""The loggers of each component, with all loggers below them."""
LEVELS = ("debug", "info", "warning", "error", "critical")
OWN = frozenset(("smb3server", "smbdirect", "witness", "tools", "root", "__main__"))
"""First parts of the names of our own loggers. Of foreign libraries warnings are shown, whatever the level: they dump
tokens and calls, which do not belong in log files."""
_SILENT = ("impacket",)
"""Libraries whose warnings are about input that peers have chosen."""


@dataclass(slots=True)
class Levels:
    """The level of everything, and those of the components that differ."""

    default: str = "info"
    components: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return ",".join([self.default, *(f"{name}:{level}" for name, level in sorted(self.components.items()))])


def parse(text: str, base: Levels | None = None) -> Levels:
    """Read ``info``, ``info,auth:debug`` or ``auth=debug``. What the text does not name is as in ``base``. Raises
    ``ValueError``."""
    found = Levels() if base is None else Levels(base.default, dict(base.components))
    for part in text.split(","):
        name, separator, level = part.strip().replace("=", ":").partition(":")
        if not separator:
            found.default = _known("level", name, LEVELS)
            continue
        component = _known("component", name, tuple(COMPONENTS))
        if level == "default":
            found.components.pop(component, None)
        else:
            found.components[component] = _known("level", level, LEVELS)
    return found


def _known(kind: str, text: str, names: tuple[str, ...]) -> str:
    name = text.strip().lower()
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, 1)
    meant = f", did you mean {near[0]}?" if near else ""
    raise ValueError(f"{text!r} is not a {kind} of the log{meant} (one of {', '.join(names)})")


def apply(levels: Levels) -> None:
    """Use these levels from now on."""
    global _in_force  # noqa: PLW0603
    logging.getLogger().setLevel(levels.default.upper())
    for component, names in COMPONENTS.items():
        level = levels.components.get(component)
        for name in names:
            logging.getLogger(name).setLevel(level.upper() if level is not None else logging.NOTSET)
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _in_force = Levels(levels.default, dict(levels.components))


def in_force() -> Levels:
    """Return the levels that were applied last."""
    return _in_force


_in_force = Levels()


def is_wanted(record: logging.LogRecord) -> bool:
    """Return whether a record is for operators: ours, or a foreign library's warning."""
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] in OWN


def component_of(name: str) -> str:
    """Return the component that a logger belongs to, and its own name if it belongs to none."""
    for component, loggers in COMPONENTS.items():
        if any(name == logger or name.startswith(f"{logger}.") for logger in loggers):
            return component
    return name
