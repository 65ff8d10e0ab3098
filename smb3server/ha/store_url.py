"""How a cluster's store is named on the command line."""

from __future__ import annotations


def parse_url(text: str) -> list[str]:
    """``etcd://HOST:PORT,HOST:PORT,...`` as base addresses. Raises ``ValueError``."""
    scheme, separator, rest = text.partition("://")
    hosts = [host.strip() for host in rest.split(",")]
    if scheme != "etcd" or not separator or not all(hosts):
        raise ValueError(f"{text}: write etcd://HOST:PORT,HOST:PORT,...")
    for host in hosts:
        name, colon, port = host.rpartition(":")
        if not colon or not name or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{host}: write HOST:PORT")
    return [f"http://{host}" for host in hosts]
