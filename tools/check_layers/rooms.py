"""The order of rooms, and the rules that an order cannot state."""

from __future__ import annotations

from typing import NamedTuple

PACKAGES = ("smbdirect", "smb3server", "witness", "tools", "tests")


def _rooms(package: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{package}.{name}" for name in names)


ROOMS = (
    *_rooms("smbdirect", "errors", "fields", "codec", "life", "native", "tcp_info", "unauthenticated"),
    *_rooms("smbdirect", "message_transport", "tapping"),
    *_rooms("smbdirect", "core", "providers", "rdma", "transport"),
    *_rooms("smb3server", "process", "wire", "compression", "backends", "crypto", "access", "auth", "net", "admin"),
    *_rooms("smb3server", "settings"),
    *_rooms(
        "smb3server",
        "dfs",
        "files",
        "virtual_disks",
        "qos",
        "state",
        "dispatch",
        "rpc",
        "domain",
        "commands",
        "server",
        "persistence",
        "status",
    ),
    *_rooms("smb3server", "observing", "discovery", "web"),
    "witness",
    *_rooms(
        "smb3server", "cluster", "client.protocol", "client", "remote", "config", "service", "testing", "lab", "doctor"
    ),
    *_rooms("smb3server", "cli", "__main__"),
    *_rooms("tools", "support", "flaky", "failover", "cluster", "fuzz", "access_differential", "attacks", "load"),
    *_rooms("tools", "soak", "mutants"),
    *_rooms(
        "tools",
        "bench",
        "configuration",
        "examples",
        "other_python",
        "torture",
        "wpts",
        "kernel_lab",
        "web_pictures",
        "pictures",
        "check_layers",
    ),
    "tools.site_hooks",
    "tests.lab",
    "tests",
)
"""Rooms from low to high. A module imports from its own room and from rooms before it; no modules import in a circle.

Each name covers everything below it; if two cover a module, the longer one determines its room. A module that no name
covers has no room yet: add one here.
"""

CORE = _rooms("smbdirect", "errors", "fields", "codec", "life", "core")
PROTOCOLS = (
    *_rooms("smbdirect.providers.iwarp", "mpa", "ddp", "rdmap", "layout"),
    *_rooms("smbdirect.providers.roce", "headers", "icrc", "retry", "requester", "responder", "queue_pair"),
    *_rooms("smbdirect.providers.roce", "cm", "cm_messages"),
)
OUTSIDE_WORLD = ("asyncio", "socket", "select", "selectors", "threading", "time", "random", "secrets", "os", "uuid")
INSTALLED = ("smbdirect", "smb3server", "witness")


class Rule(NamedTuple):
    """Modules under ``binds`` must not import anything under ``forbids``, even if it lies lower."""

    binds: tuple[str, ...]
    forbids: tuple[str, ...]
    reason: str


RULES = (
    Rule(CORE, OUTSIDE_WORLD, "the core has no I/O, clock or randomness"),
    Rule(PROTOCOLS, OUTSIDE_WORLD, "protocol layers of a provider have no I/O, clock or randomness"),
    Rule(("smbdirect.providers",), ("smbdirect.core.connection",), "providers know no SMB Direct"),
    Rule(("smb3server.wire",), OUTSIDE_WORLD, "codecs are pure functions"),
    Rule(
        ("smb3server.backends",),
        _rooms("smb3server.wire", "header", "status", "fields", "create", "query_info", "set_info"),
        "stores know no SMB messages",
    ),
    Rule(
        ("smb3server.backends", "smb3server.commands"),
        ("smbdirect.core", "smbdirect.providers"),
        "stores and commands know no transport",
    ),
    Rule(
        _rooms("smb3server", "files", "state", "dispatch", "commands", "rpc", "server", "persistence"),
        ("smb3server.backends.local",),
        "what serves files knows no store but by its contract",
    ),
    Rule(
        ("smb3server.state",),
        ("os", "pathlib", "shutil", "tempfile", "fcntl", "socket", "select", "selectors", "threading", "subprocess"),
        "the objects of the protocol touch files through the handles of their store only",
    ),
    Rule(
        ("smb3server.files.caching", "smb3server.files.locks"),
        (*OUTSIDE_WORLD, "smb3server.process.turns"),
        "caching rights and locks are state machines: who waits is called by those who own the loop",
    ),
    Rule(
        ("smb3server.settings",),
        (*OUTSIDE_WORLD, "ssl", "logging", "smb3server.process"),
        "settings are plain values: who uses a file that they name opens it",
    ),
    Rule(
        ("smb3server.config",),
        (
            *_rooms("smb3server", "state", "dispatch", "rpc", "commands", "server", "persistence", "cluster"),
            "witness",
        ),
        "what reads a configuration loads none of what it configures",
    ),
    Rule(
        ("smb3server.client",),
        _rooms("smb3server", "backends", "access", "admin", "settings", "files", "state", "dispatch", "rpc", "commands")
        + _rooms("smb3server", "server", "persistence", "status", "observing", "discovery", "web", "config", "service"),
        "a client knows no server",
    ),
    Rule(
        ("smb3server.client.protocol", "smb3server.lab"),
        ("smb3server.cluster", "witness"),
        "clusters and their witness are the service's alone, and their commands'",
    ),
    Rule(INSTALLED, ("scapy",), "scapy is GPL-2.0: tests and tools only, never the installed runtime"),
    Rule(INSTALLED, ("pytest", "hypothesis", "smbprotocol"), "development dependencies are not there at run time"),
)
