"""Commands for clients that the server prints when it starts: ready to copy, and only those that work."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from urllib.parse import quote as url_quote

from smb3server.net.host import SMB_DIRECT_PORT, SMB_PORT

_SOFTWARE_DEVICES = {"iwarp": ("siw", "siw0"), "roce": ("rdma_rxe", "rxe0")}
"""Kernel module and device that give a Linux client the fabric on any interface."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The way to reach one share."""

    share: str
    user: str
    """Empty means a guest."""
    host: str
    port: int
    """TCP port."""
    addresses: Sequence[str] = ()
    """Addresses of the machine, for RDMA that is not served at ``host``."""
    rdma: Sequence[tuple[str, str, int]] = ()
    """Fabric, host or wildcard, and port of each SMB Direct listener."""


def _listens(listener: str, host: str) -> bool:
    """Return whether a socket on ``listener`` accepts connections to ``host``."""
    return listener in (host, "::" if ":" in host else "0.0.0.0")


def _rdma_host(reach: Reach) -> tuple[str, str] | None:
    """Return host and fabric for Linux mounts with ``rdma``.

    Linux 6.12 ignores ``port=`` with ``rdma``: it tries port 5445, and over RoCE and InfiniBand also port 445.
    """
    for host in dict.fromkeys((reach.host, *reach.addresses)):
        for fabric, listener, port in reach.rdma:
            if _listens(listener, host) and (port == SMB_DIRECT_PORT or (port == SMB_PORT and fabric != "iwarp")):
                return host, fabric
    return None


def _windows(reach: Reach) -> str:
    # Windows does not accept colons in server names.
    server = f"{reach.host.replace(':', '-').replace('%', 's')}.ipv6-literal.net" if ":" in reach.host else reach.host
    path = f"\\\\{server}\\{reach.share}"
    password, user = ("", reach.user) if reach.user else (' ""', "guest")
    line = f"net use Z: {_windows_quote(path)}{password} /user:{_windows_quote(user)}"
    if reach.port != SMB_PORT:
        line += f"   (Windows 11 24H2 and later: add /TCPPORT:{reach.port})"
    return line


def _windows_quote(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _mount(reach: Reach, host: str, *more: str) -> str:
    who = f"username={reach.user}" if reach.user else "guest"
    options = ",".join([who, "vers=3.1.1", *more])
    return f"mount -t cifs {quote(f'//{host}/{reach.share}')} /mnt -o {quote(options)}"


def linux_rdma(reach: Reach) -> str:
    """Return how Linux clients mount the share by RDMA, or why they cannot."""
    found = _rdma_host(reach)
    if found is None:
        ports = ", ".join(dict.fromkeys(str(port) for _, _, port in reach.rdma))
        return f"not possible: Linux asks for port {SMB_DIRECT_PORT} only, and SMB Direct is served on {ports}"
    host, fabric = found
    line = _mount(reach, host, "rdma")
    if fabric in _SOFTWARE_DEVICES:
        module, device = _SOFTWARE_DEVICES[fabric]
        kind = module.removeprefix("rdma_")
        setup = f"modprobe {module}; rdma link add {device} type {kind} netdev eth0"
        line += f"   (on a client without an RDMA NIC first: {setup})"
    return line


def commands(reach: Reach) -> list[str]:
    """Return one line per kind of client."""
    other = reach.port != SMB_PORT
    more = [f"port={reach.port}"] if other else []
    lines = [f"Windows:        {_windows(reach)}", f"Linux (TCP):    {_mount(reach, reach.host, *more)}"]
    if reach.rdma:
        lines.append(f"Linux (RDMA):   {linux_rdma(reach)}")
    place = f"{f'[{reach.host}]' if ':' in reach.host else reach.host}{f':{reach.port}' if other else ''}"
    user = quote(reach.user) if reach.user else "guest%"
    unc = quote(f"//{reach.host}/{reach.share}")
    lines += [
        f"macOS:          open 'smb://{url_quote(reach.user or 'guest', safe='')}@{place}/{url_quote(reach.share)}'",
        f"smbclient:      smbclient {unc} -U {user}{f' -p {reach.port}' if other else ''}",
    ]
    return lines


def choose_host(listen: Sequence[str], addresses: Sequence[str]) -> str:
    """Return an address that other machines can use.

    It is one of the machine's ``addresses`` that the server listens on, IPv4 first. An empty ``listen`` means all.
    """
    wanted = [
        address
        for address in addresses
        if not listen or address in listen or any(_listens(host, address) for host in listen)
    ]
    wanted.sort(key=lambda address: (":" in address, ipaddress.ip_address(address).is_link_local))
    if wanted:
        return wanted[0]
    return next((host for host in listen if host not in ("0.0.0.0", "::")), "127.0.0.1")
